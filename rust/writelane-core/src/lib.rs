//! One shared SQLite file, many writers, and no write that dies of contention.
//!
//! The way of one write: [`database`] (the caller's face) makes a [`job`], [`queue`] holds it, `writer/thread` takes
//! it, [`lane`] says whose turn it is, `writer/group` runs it in a transaction with others, `writer/engine` is the
//! connection it runs on, [`ticket`] carries the answer back. [`policy`] decides, without a clock or a lock.
//!
//! This crate has no Python in it. [`sqlite`] is the only module that calls SQLite's C API; everything else is built
//! from its safe types.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod checkpoint;
pub mod connection;
pub mod constraint;
pub mod database;
pub mod error;
pub mod filesystem;
pub mod holder;
pub mod job;
pub mod kind;
pub mod lane;
pub mod ownership;
pub mod policy;
pub mod process;
pub mod queue;
mod readers;
pub mod recovery;
mod registry;
pub mod sqlite;
mod sync;
pub mod telemetry;
mod threads;
pub mod ticket;
pub mod uuid;
pub mod vfs;
pub mod wait;
pub mod writer;
