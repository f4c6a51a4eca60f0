//! Which statement waited, in which phase, and how long.

mod statements;

pub use statements::{GroupStats, PhaseStats, StatementStats, Telemetry, error_name};
