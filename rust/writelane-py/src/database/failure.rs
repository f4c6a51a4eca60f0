//! Errors of the core to exceptions of Python.

use crate::errors::{self, class, class_name, waited};
use crate::interpreter;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use writelane_core::constraint::{self, Constraint};
use writelane_core::error::{Error, OpenError};
use writelane_core::job::Failure;
use writelane_core::lane::Holder;
use writelane_core::sqlite::{code_name, ffi};

/// Return the name of the exception class for an error, and the result code it carries.
fn classify(error: &Error) -> (&'static str, i32) {
    match error {
        Error::Sqlite(error) => (class_name(error.code), error.code),
        Error::Timeout { .. } => ("WriteTimeout", ffi::SQLITE_BUSY),
        Error::QueueFull { .. } => ("QueueFull", ffi::SQLITE_BUSY),
        Error::CommitUncertain(error) => ("CommitUncertain", error.code),
        Error::Closed => ("Closed", ffi::SQLITE_MISUSE),
        Error::Forked => ("ForkError", ffi::SQLITE_MISUSE),
        Error::Poisoned(_) => ("Poisoned", ffi::SQLITE_INTERNAL),
        Error::Cancelled | Error::Interrupted => ("OperationalError", ffi::SQLITE_INTERRUPT),
        Error::Usage(_) | Error::Parameters(_) => ("ProgrammingError", ffi::SQLITE_MISUSE),
        Error::Moved => ("OperationalError", ffi::SQLITE_READONLY_DBMOVED),
        Error::UnsafeFilesystem(_) => ("UnsafeFilesystem", ffi::SQLITE_CANTOPEN),
        Error::OwnedElsewhere(_) => ("OwnedElsewhere", ffi::SQLITE_BUSY),
    }
}

fn make(py: Python<'_>, error: &Error, message: String) -> PyResult<PyErr> {
    if matches!(error, Error::Sqlite(error) if error.primary() == ffi::SQLITE_NOMEM) {
        return Ok(pyo3::exceptions::PyMemoryError::new_err(message));
    }
    let (name, code) = classify(error);
    let exception = class(py, name)?.call1((message,))?;
    exception.setattr("sqlite_errorcode", code)?;
    exception.setattr("sqlite_errorname", code_name(code))?;
    Ok(PyErr::from_value(exception))
}

/// Make the exception for a failed job.
///
/// An interrupted wait raises what the signal handler raised, or `KeyboardInterrupt`.
pub fn raise(py: Python<'_>, failure: &Failure) -> PyErr {
    let signalled = interpreter::raised();
    if failure.error == Error::Interrupted {
        let raised = signalled.or_else(|| py.check_signals().err());
        let raised = raised.unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()));
        if failure.statement.is_some() {
            // What a signal handler raised may be anything, also what takes no attributes: it is raised all the same.
            let _ = tell(py, raised.value(py), failure);
        }
        return raised;
    }
    if failure.error == Error::Closed {
        interpreter::rest_if_exiting(py);
    }
    let mut message = failure.error.to_string();
    if let Some(position) = failure.position {
        message.push_str(&format!(" (in call {position} of the batch)"));
    }
    let constraint = match &failure.error {
        Error::Sqlite(error) => constraint::describe(error, failure.statement.as_deref()),
        _ => None,
    };
    if let Some(Constraint { table: Some(table), unsaid: true, .. }) = &constraint {
        message.push_str(&format!(" (table {table})"));
    }
    let made = make(py, &failure.error, message).and_then(|raised| {
        let value = raised.value(py);
        tell(py, value, failure)?;
        if let Some(Constraint { table, columns, .. }) = constraint {
            value.setattr("table", table)?;
            value.setattr("columns", PyTuple::new(py, columns)?)?;
        }
        Ok(raised)
    });
    made.unwrap_or_else(|error| error)
}

/// Have an exception say how the job fared.
fn tell(py: Python<'_>, raised: &Bound<'_, PyBaseException>, failure: &Failure) -> PyResult<()> {
    raised.setattr("waited", waited(py, &failure.account.waited)?)?;
    raised.setattr("retries", failure.account.retries)?;
    raised.setattr("holder", holder(py, failure.account.holder.as_ref())?)?;
    raised.setattr("statement", failure.statement.as_deref())?;
    raised.setattr("position", failure.position)
}

/// Make the exception for a database that could not be opened.
pub fn raise_open(py: Python<'_>, error: &OpenError) -> PyErr {
    if error.error == Error::Interrupted {
        return raise(py, &Error::Interrupted.into());
    }
    make(py, &error.error, error.to_string()).unwrap_or_else(|error| error)
}

/// Describe who holds a lock; `None` where that is not known.
pub fn holder<'py>(py: Python<'py>, holder: Option<&Holder>) -> PyResult<Option<Bound<'py, PyDict>>> {
    holder.map_or(Ok(None), |holder| errors::holder(py, holder))
}
