//! Decisions, without a clock, a lock or a file: data in, decision out.

pub mod backoff;
pub mod checkpoint;
pub mod courtesy;
pub mod deadline;
pub mod flush;
pub mod gate;
pub mod group;
pub mod retry;
