//! Whose turn it is to write: first come, first served, in this process and between processes.
//!
//! The lane is an optimisation of turn-taking, never of correctness: SQLite's own locks are taken inside it.

use crate::wait::{GaveUp, Patience};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The lane of one database file. One per process and file.
pub struct Lane {}

/// A turn in the lane: while it lives, no other writer of ours competes for SQLite's write lock.
pub struct Turn {}

/// Who holds the write lock, as far as it can be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process, and what it is known to be doing.
    Process {
        /// The process.
        pid: u32,
        /// Its command line, shortened.
        command: String,
        /// The statement it published; `None` for a foreign process.
        statement: Option<String>,
        /// How long it has held the lock, where that is known.
        held: Option<Duration>,
        /// Whether it is stopped (SIGSTOP, Ctrl-Z, a debugger).
        stopped: bool,
    },
    /// Somebody, but neither the lane file nor the kernel says who.
    Unknown,
}

impl Lane {
    /// Return the lane of the database at `path` (an existing file): the same for every name of the same file.
    pub fn of(_path: &Path) -> Arc<Self> {
        Arc::new(Self {})
    }

    /// Wait for a turn. `statement` is what others are told the caller waits for, and then holds the lane with.
    ///
    /// # Errors
    /// Why the wait ended without a turn.
    pub fn enter(self: &Arc<Self>, _statement: &str, patience: &Patience<'_>) -> Result<Turn, GaveUp> {
        patience.next_slice().map(|_| Turn {})
    }

    /// Take a turn if nobody waits for one or has one.
    pub fn try_enter(self: &Arc<Self>, _statement: &str) -> Option<Turn> {
        Some(Turn {})
    }

    /// Say who holds the database's write lock right now.
    pub fn holder(&self) -> Holder {
        Holder::Unknown
    }
}

impl Turn {
    /// After SQLite said BUSY: wait until its write lock may be free, in the kernel and not by polling.
    ///
    /// # Errors
    /// Why the wait ended.
    pub fn wait_for_write_lock(&mut self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        let slice = patience.next_slice()?;
        std::thread::sleep(slice.min(Duration::from_millis(1)));
        Ok(())
    }

    /// Publish that the write lock is held, and with which statement.
    pub fn holding(&mut self, _statement: &str) {}

    /// Say whether somebody waits and the time of this turn is used up, so that its owner should end it.
    pub fn should_yield(&self) -> bool {
        false
    }
}
