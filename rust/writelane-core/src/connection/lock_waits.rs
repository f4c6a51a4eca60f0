//! The waits of this process's connections, by statement.

use super::{Connection, Error};
use crate::error::Error as Counted;
use crate::job::{Account, Waited};
use crate::telemetry::{StatementStats, Telemetry};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

/// The counts of this process and of no other: a child makes its own.
static COUNTS: Mutex<Option<(u64, Arc<Telemetry>)>> = Mutex::new(None);

/// Return the counts of this process.
///
/// Never blocks: where the lock is held, perhaps for ever by a thread that a fork left behind, the caller counts for
/// itself.
pub(super) fn counts() -> Arc<Telemetry> {
    let generation = crate::process::generation();
    let mut counts = match COUNTS.try_lock() {
        Ok(counts) => counts,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Arc::new(Telemetry::default()),
    };
    match &*counts {
        Some((of, counts)) if *of == generation => Arc::clone(counts),
        _ => {
            let fresh = Arc::new(Telemetry::default());
            *counts = Some((generation, Arc::clone(&fresh)));
            fresh
        }
    }
}

/// Return what is known of the statements of this process's connections that waited for a lock, the one that waited
/// longest first.
pub fn statements() -> Vec<StatementStats> {
    counts().statements()
}

impl Connection {
    /// Count a statement that waited for a lock. One that did not costs nothing.
    pub(super) fn measure(&self, sql: &str, run: Duration, error: Option<&Error>) {
        let lock = self.waits.waited();
        if lock.is_zero() {
            return;
        }
        let account = Account {
            waited: Waited { lock, run: run.saturating_sub(lock), ..Waited::default() },
            retries: self.waits.attempts(),
            group: 0,
            holder: self.waits.holder(),
            held: self.waits.held(),
        };
        let error = error.and_then(|error| match error {
            Error::Sqlite(error) | Error::StaleSnapshot(error) | Error::TimedOut { error, .. } => {
                Some(Counted::Sqlite(error.clone()))
            }
            Error::Interrupted | Error::Signalled => Some(Counted::Interrupted),
            _ => None,
        });
        self.counts.record_one(sql, &account, error.as_ref());
    }
}
