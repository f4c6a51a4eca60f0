//! Decisions that are pure: data in, decision out.

pub mod courtesy;
