//! Which statement waited, in which phase, how long and for whom.
//!
//! One [`Telemetry`] for each file and process counts what the writer and an application's own connections do to the
//! file. It costs one lock for a group of jobs and no memory for a job. What is longer than somebody asked to hear of
//! goes to [`events`] as well.

mod account;
mod blame;
mod durations;
pub mod events;
mod registry;
pub mod snapshots;
mod statements;

pub use account::{GroupStats, LongTransaction, Recorder, Rerun, Telemetry};
pub use blame::{Blame, Held};
pub use durations::{Distribution, PhaseStats};
pub use statements::{OTHER, StatementStats, TEXTS_MAX, error_name};
