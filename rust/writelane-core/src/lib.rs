//! One shared SQLite file, many writers, and no write that dies of contention.
//!
//! This crate has no Python in it. [`sqlite`] is the only module that calls SQLite's C API; everything
//! else is built from its safe types.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod connection;
pub mod filesystem;
pub mod holder;
pub mod lane;
pub mod ownership;
pub mod policy;
pub mod process;
pub mod sqlite;
pub mod vfs;
pub mod wait;
