//! Which results may be retried, and at which grain.
//!
//! Sources: <https://www.sqlite.org/rescode.html>, <https://www.sqlite.org/lang_transaction.html>, and experiments
//! with every code in write-ahead-log mode.

use crate::sqlite::ffi;

/// At which point of a transaction SQLite gave a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// BEGIN IMMEDIATE, or a statement in autocommit mode: nothing has begun.
    Begin,
    /// A statement inside the transaction.
    Inside,
    /// COMMIT.
    Commit,
    /// A read outside any transaction.
    Read,
}

/// What to do about a result that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Wait for the lock and run the same statement again: nothing has changed.
    RetryStatement,
    /// Roll back and run the whole transaction again, from its start.
    RetryTransaction,
    /// Tell the caller. Whether the transaction lives is asked of SQLite, not guessed.
    Report,
}

/// Say what to do about result `code` (extended) at `point`.
pub fn remedy(code: i32, point: Point) -> Remedy {
    match (code, point) {
        // A stale snapshot is never cured by waiting; only a new transaction has a new one.
        (ffi::SQLITE_BUSY_SNAPSHOT, _) => Remedy::RetryTransaction,
        // Shared cache is never opened by us, and a lock inside it is no matter of time.
        (ffi::SQLITE_BUSY | ffi::SQLITE_BUSY_RECOVERY | ffi::SQLITE_BUSY_TIMEOUT, Point::Inside) => {
            Remedy::RetryTransaction
        }
        (ffi::SQLITE_BUSY | ffi::SQLITE_BUSY_RECOVERY | ffi::SQLITE_BUSY_TIMEOUT, _) => Remedy::RetryStatement,
        // A hundred failed tries to read the log's header: another copy recovers it, or its locks are broken.
        (ffi::SQLITE_PROTOCOL, Point::Begin | Point::Read) => Remedy::RetryStatement,
        _ => Remedy::Report,
    }
}

/// Say whether a failed COMMIT leaves open what is on the disk.
///
/// The frames, the last one marked as a commit, may have been written before the sync or a later write failed:
/// they are invisible now and are overwritten by the next transaction, but a crash before that revives them. Memory
/// can run out there too, when the frames are entered into the log's index.
pub fn commit_is_uncertain(code: i32) -> bool {
    matches!(code & 0xff, ffi::SQLITE_IOERR | ffi::SQLITE_NOMEM)
}

/// Say whether a statement that failed so leaves a transaction that SQLite lets neither write nor commit any more, though
/// it is still open.
///
/// Damage that a statement meets inside a transaction forbids the connection every write until a whole ROLLBACK, and makes
/// COMMIT fail; ROLLBACK TO does not lift it. A read that the system refuses with EIO counts as damage too
/// (`SQLITE_IOERR_CORRUPTFS` becomes `SQLITE_CORRUPT`).
pub fn dooms_transaction(code: i32) -> bool {
    code & 0xff == ffi::SQLITE_CORRUPT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_is_retried_where_nothing_has_begun() {
        for code in [ffi::SQLITE_BUSY, ffi::SQLITE_BUSY_RECOVERY, ffi::SQLITE_BUSY_TIMEOUT, ffi::SQLITE_PROTOCOL] {
            assert_eq!(remedy(code, Point::Begin), Remedy::RetryStatement, "{code}");
            assert_eq!(remedy(code, Point::Read), Remedy::RetryStatement, "{code}");
        }
    }

    #[test]
    fn busy_at_commit_keeps_the_transaction() {
        assert_eq!(remedy(ffi::SQLITE_BUSY, Point::Commit), Remedy::RetryStatement);
    }

    #[test]
    fn a_stale_snapshot_needs_a_new_transaction_everywhere() {
        for point in [Point::Begin, Point::Inside, Point::Commit, Point::Read] {
            assert_eq!(remedy(ffi::SQLITE_BUSY_SNAPSHOT, point), Remedy::RetryTransaction);
        }
    }

    #[test]
    fn what_is_not_contention_is_never_retried() {
        for code in [
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_NOTADB,
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_CONSTRAINT_UNIQUE,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_INTERRUPT,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_LOCKED_SHAREDCACHE,
            ffi::SQLITE_READONLY,
        ] {
            for point in [Point::Begin, Point::Inside, Point::Commit, Point::Read] {
                assert_eq!(remedy(code, point), Remedy::Report, "{code} {point:?}");
            }
        }
    }

    #[test]
    fn only_damage_dooms_an_open_transaction() {
        assert!(dooms_transaction(ffi::SQLITE_CORRUPT) && dooms_transaction(ffi::SQLITE_CORRUPT_VTAB));
        assert!(!dooms_transaction(ffi::SQLITE_CONSTRAINT_UNIQUE) && !dooms_transaction(ffi::SQLITE_NOTADB));
    }
}
