//! What can go wrong on a connection, by what its user can do about it.

use crate::lane::Holder;
use crate::sqlite::SqliteError;
use std::fmt;
use std::time::Duration;

/// Why a call on a connection failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// SQLite said no.
    Sqlite(SqliteError),
    /// The lock did not come free before the time-out.
    TimedOut {
        /// What SQLite said last.
        error: SqliteError,
        /// How long this call waited.
        waited: Duration,
        /// Who held the lock at the end.
        holder: Box<Holder>,
    },
    /// The caller's signal ended the wait.
    Signalled,
    /// [`super::Connection::interrupt`] ended the wait.
    Interrupted,
    /// The transaction began with a read, and what it read has been overtaken: only a new transaction can write.
    StaleSnapshot(SqliteError),
    /// The transaction was rolled back earlier, by an error or for the sake of others; the text says why.
    TransactionLost(Box<str>),
    /// The text holds more than one statement.
    SeveralStatements,
    /// The text is longer than the connection allows.
    TooLong,
    /// The number of parameters is not the number of placeholders.
    ParameterCount {
        /// How many the statement has.
        expected: usize,
        /// How many were given.
        given: usize,
    },
    /// The statement cannot be run with many rows of parameters, since it changes nothing or returns rows.
    NotForMany(NotForMany),
    /// The filesystem cannot be trusted with a database; the text says why, and the ways out.
    UnsafeFilesystem(Box<str>),
    /// The connection is closed.
    Closed,
    /// The connection was inherited through a fork.
    Inherited,
}

/// Why a statement cannot be run with many rows of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotForMany {
    /// It changes nothing.
    Reads,
    /// It returns rows.
    ReturnsRows,
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
            Error::TimedOut { error, waited, holder } => {
                write!(f, "{} (waited {:.3} s", error.message, waited.as_secs_f64())?;
                if let Holder::Process { pid, command, statement, held, stopped } = &**holder {
                    write!(f, "; process {pid} ({command}) holds the lock")?;
                    if let Some(held) = held {
                        write!(f, " since {:.3} s", held.as_secs_f64())?;
                    }
                    if let Some(statement) = statement {
                        write!(f, " with {statement:?}")?;
                    }
                    if *stopped {
                        f.write_str(" and is stopped")?;
                    }
                }
                f.write_str(")")
            }
            Error::Signalled | Error::Interrupted => f.write_str("interrupted"),
            Error::StaleSnapshot(error) => write!(
                f,
                "{}: this transaction began with a read and another writer has committed since; roll back and run it \
                 again, or begin it with BEGIN IMMEDIATE",
                error.message
            ),
            Error::TransactionLost(why) => write!(
                f,
                "the transaction was rolled back ({why}) and nothing of it is stored; call rollback() before the next write"
            ),
            Error::SeveralStatements => f.write_str("You can only execute one statement at a time."),
            Error::TooLong => f.write_str("query string is too large"),
            Error::ParameterCount { expected, given } => write!(
                f,
                "Incorrect number of bindings supplied. The current statement uses {expected}, and there are {given} \
                 supplied."
            ),
            Error::NotForMany(NotForMany::Reads) => f.write_str("executemany() can only execute DML statements."),
            Error::NotForMany(NotForMany::ReturnsRows) => {
                f.write_str("executemany() cannot run a statement that returns rows")
            }
            Error::UnsafeFilesystem(text) => f.write_str(text),
            Error::Closed => f.write_str("Cannot operate on a closed database."),
            Error::Inherited => {
                f.write_str("the connection was opened before the fork; a child process must open its own")
            }
        }
    }
}

impl std::error::Error for Error {}
