//! What to do when SQLite says BUSY. Data in, decision out.

use super::kind::Kind;
use crate::sqlite::{ffi, primary};

/// What is known when a statement's first step met a lock.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    /// The extended result code.
    pub code: i32,
    /// The sort of statement.
    pub kind: Kind,
    /// Whether the connection was outside a transaction.
    pub autocommit: bool,
    /// Whether the database has a write-ahead log.
    pub wal: bool,
    /// Whether the wait is over (time-out, signal, interrupt).
    pub given_up: bool,
    /// Whether the half-read cursors have been read to their end for this statement already.
    pub drained: bool,
}

/// What to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait, then run the statement again.
    Wait,
    /// Read the half-read cursors of this connection to their end, then run the statement again.
    Drain,
    /// Report that the snapshot is stale.
    Stale,
    /// Report what SQLite said.
    Fail,
}

/// Decide what to do about a lock.
///
/// Where SQLite itself waits (it asks the busy handler) the wait has taken place when this is asked.
pub fn decide(busy: Busy) -> Decision {
    if primary(busy.code) != ffi::SQLITE_BUSY || busy.given_up {
        return Decision::Fail;
    }
    match busy.kind {
        // BUSY without a wait: a statement of this connection that writes has rows left to give.
        Kind::Commit | Kind::Savepoint | Kind::Rollback => {
            if busy.drained {
                Decision::Fail
            } else {
                Decision::Drain
            }
        }
        // SQLite does not ask the busy handler here when another connection is about to write.
        Kind::JournalMode => Decision::Wait,
        _ if busy.code == ffi::SQLITE_BUSY_SNAPSHOT => {
            if !busy.autocommit {
                Decision::Stale
            } else if busy.drained {
                Decision::Wait
            } else {
                Decision::Drain
            }
        }
        // The write lock is taken while this transaction reads. With a log the reader stands in nobody's way, so it
        // may wait; without one the writer waits for the reader, and SQLite is right to refuse at once.
        _ if busy.autocommit || busy.wal => Decision::Wait,
        _ => Decision::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Busy =
        Busy { code: ffi::SQLITE_BUSY, kind: Kind::Dml, autocommit: true, wal: true, given_up: false, drained: false };

    #[test]
    fn a_lock_is_waited_for_until_the_wait_is_over() {
        assert_eq!(decide(BUSY), Decision::Wait);
        assert_eq!(decide(Busy { code: ffi::SQLITE_BUSY_RECOVERY, ..BUSY }), Decision::Wait);
        assert_eq!(decide(Busy { given_up: true, ..BUSY }), Decision::Fail);
        assert_eq!(decide(Busy { kind: Kind::JournalMode, wal: false, ..BUSY }), Decision::Wait);
    }

    #[test]
    fn a_stale_snapshot_is_reported_in_a_transaction_and_drained_outside() {
        let stale = Busy { code: ffi::SQLITE_BUSY_SNAPSHOT, ..BUSY };
        assert_eq!(decide(Busy { autocommit: false, ..stale }), Decision::Stale);
        assert_eq!(decide(stale), Decision::Drain);
        assert_eq!(decide(Busy { drained: true, ..stale }), Decision::Wait);
    }

    #[test]
    fn an_upgrade_waits_only_where_nobody_waits_for_it() {
        assert_eq!(decide(Busy { autocommit: false, ..BUSY }), Decision::Wait);
        assert_eq!(decide(Busy { autocommit: false, wal: false, ..BUSY }), Decision::Fail);
    }

    #[test]
    fn a_commit_in_the_way_of_its_own_rows_drains_once() {
        let commit = Busy { kind: Kind::Commit, autocommit: false, ..BUSY };
        assert_eq!(decide(commit), Decision::Drain);
        assert_eq!(decide(Busy { drained: true, ..commit }), Decision::Fail);
        assert_eq!(decide(Busy { given_up: true, ..commit }), Decision::Fail);
    }

    #[test]
    fn other_errors_are_never_retried() {
        for code in [ffi::SQLITE_LOCKED, ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_CORRUPT] {
            assert_eq!(decide(Busy { code, ..BUSY }), Decision::Fail);
        }
    }
}
