//! What can go wrong, cut by what the caller can do about it.

use crate::lane::Holder;
use crate::sqlite::SqliteError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The phase in which a deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue of this process, behind other jobs.
    Queue,
    /// Waiting for the turn between processes or for SQLite's lock.
    Lock,
    /// Waiting to commit: readers of a rollback-journal database hold it up.
    Commit,
    /// Waiting for a reader of this process to become free, or for a lock that keeps readers out.
    Read,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Queue => "in the queue of this process",
            Phase::Lock => "for the write lock",
            Phase::Commit => "to commit",
            Phase::Read => "to read",
        })
    }
}

/// Every error of this crate.
///
/// The enum is exhaustive on purpose: a new variant breaks the map to Python's exceptions at compile time.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// SQLite refused the statement; nothing of the job is in the database.
    Sqlite(SqliteError),
    /// The deadline passed before the job ran; nothing of it is in the database.
    Timeout {
        /// What it was waiting for.
        phase: Phase,
        /// How long, since the call.
        after: Duration,
        /// Who held the lock when the wait ended, as far as it can be told.
        holder: Option<Holder>,
    },
    /// The queue stayed full until the deadline; the job was not queued.
    QueueFull {
        /// How long the caller waited.
        after: Duration,
        /// The most jobs the queue takes.
        jobs_max: usize,
        /// The most bytes the queue takes.
        bytes_max: usize,
    },
    /// COMMIT failed in a way that leaves open whether the job is there after a crash.
    CommitUncertain(SqliteError),
    /// The database object was closed.
    Closed,
    /// The caller is a forked child and the object belongs to its parent.
    Forked,
    /// The writer thread died of a bug; what it was doing may or may not be committed.
    Poisoned(Arc<str>),
    /// The caller cancelled the job before it started.
    Cancelled,
    /// The wait was interrupted (Ctrl-C) before the job started.
    Interrupted,
    /// The statement cannot be a job, or the call is wrong; the text says what to do instead.
    Usage(Arc<str>),
    /// A parameter list that does not fit the statement.
    Parameters(Arc<str>),
    /// The database file was deleted, replaced or renamed while it was open.
    Moved,
    /// The file lies on a filesystem where SQLite's locks or shared memory are not to be trusted.
    UnsafeFilesystem(Arc<str>),
    /// Another process owns the file exclusively.
    OwnedElsewhere(Arc<str>),
}

impl From<SqliteError> for Error {
    fn from(error: SqliteError) -> Self {
        Error::Sqlite(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sqlite(error) => f.write_str(&error.message),
            Error::Timeout { phase: Phase::Read, after, .. } => {
                write!(f, "database is locked: waited {:.1} s to read", after.as_secs_f64())
            }
            Error::Timeout { phase, after, holder } => {
                write!(f, "database is locked: waited {:.1} s {phase}", after.as_secs_f64())?;
                if let Some(holder) = holder.as_ref().filter(|holder| **holder != Holder::Nobody) {
                    write!(f, "; held by {holder}")?;
                }
                f.write_str("; nothing was written: retry, or raise deadline=")
            }
            Error::QueueFull { after, jobs_max, bytes_max } => write!(
                f,
                "the write queue stayed full ({jobs_max} jobs or {bytes_max} bytes) for {:.1} s; nothing was queued: \
                 slow down, raise queue_size=, or use offer() for work that may be dropped",
                after.as_secs_f64()
            ),
            Error::CommitUncertain(error) => write!(
                f,
                "COMMIT failed ({error}): the write is not visible now, but may reappear after a crash; \
                 look before you repeat it"
            ),
            Error::Closed => f.write_str("Cannot operate on a closed database."),
            Error::Forked => f.write_str(
                "this database was opened by the parent of this process; call writelane.open() again after a fork",
            ),
            Error::Poisoned(why) => write!(
                f,
                "the writer thread died ({why}); a write under way may or may not be committed: reopen the database"
            ),
            Error::Cancelled => f.write_str("the write was cancelled before it started"),
            Error::Interrupted => f.write_str("the wait was interrupted before the write started"),
            Error::Usage(text) | Error::Parameters(text) => f.write_str(text),
            Error::Moved => f.write_str(
                "the database file was deleted, replaced or renamed while it was open; nothing was written: \
                 close this database and open it again",
            ),
            Error::UnsafeFilesystem(text) | Error::OwnedElsewhere(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// An error of opening, with the path in its message.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenError {
    /// The file that was to be opened.
    pub path: PathBuf,
    /// What went wrong.
    pub error: Error,
    /// What the caller can do, where we know more than SQLite says.
    pub advice: Option<Arc<str>>,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, path) = (self.error.to_string(), self.path.display().to_string());
        f.write_str(&text)?;
        // A refusal is a whole sentence about the file and has named it.
        if !text.contains(&path) {
            write!(f, ": {path}")?;
        }
        match &self.advice {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OpenError {}
