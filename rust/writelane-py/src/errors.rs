//! Result codes of SQLite to exceptions of Python.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use writelane_core::connection::Error;
use writelane_core::job::Waited;
use writelane_core::lane::Holder;
use writelane_core::sqlite::{SqliteError, code_name, ffi};

/// Return the exception class of `writelane.errors` with this name.
pub fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("writelane.errors").map(Bound::unbind))?;
    Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?)
}

/// Return the name of the class that the standard module raises for a result code.
pub fn class_name(code: i32) -> &'static str {
    match code & 0xff {
        ffi::SQLITE_INTERNAL | ffi::SQLITE_NOTFOUND => "InternalError",
        ffi::SQLITE_ERROR
        | ffi::SQLITE_PERM
        | ffi::SQLITE_ABORT
        | ffi::SQLITE_BUSY
        | ffi::SQLITE_LOCKED
        | ffi::SQLITE_READONLY
        | ffi::SQLITE_INTERRUPT
        | ffi::SQLITE_IOERR
        | ffi::SQLITE_FULL
        | ffi::SQLITE_CANTOPEN
        | ffi::SQLITE_PROTOCOL
        | ffi::SQLITE_EMPTY
        | ffi::SQLITE_SCHEMA => "OperationalError",
        ffi::SQLITE_TOOBIG => "DataError",
        ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH => "IntegrityError",
        ffi::SQLITE_MISUSE | ffi::SQLITE_RANGE => "InterfaceError",
        _ => "DatabaseError",
    }
}

/// Make an exception of the class of `writelane.errors` with this name.
pub fn new(py: Python<'_>, name: &str, message: &str) -> PyErr {
    match class(py, name) {
        Ok(class) => PyErr::from_type(class, (message.to_owned(),)),
        Err(error) => error,
    }
}

/// Make the exception for what went wrong on a connection.
pub fn from_core(py: Python<'_>, error: &Error) -> PyErr {
    let coded = |name: &str, code: i32| {
        let raised = (|| {
            let exception = class(py, name)?.call1((error.to_string(),))?;
            exception.setattr("sqlite_errorcode", code)?;
            exception.setattr("sqlite_errorname", code_name(code))?;
            Ok(exception)
        })();
        raised.map_or_else(|error| error, PyErr::from_value)
    };
    match error {
        Error::Sqlite(error) => from_sqlite(py, error),
        Error::TimedOut { error: said, waited, holder } => {
            let raised = coded("WriteTimeout", said.code);
            let set = (|| {
                let phases = Waited { lock: *waited, ..Waited::default() };
                raised.value(py).setattr("waited", self::waited(py, &phases)?)?;
                raised.value(py).setattr("holder", self::holder(py, holder)?)
            })();
            set.err().unwrap_or(raised)
        }
        Error::Signalled => {
            crate::interpreter::raised().unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()))
        }
        Error::Interrupted => coded("OperationalError", ffi::SQLITE_INTERRUPT),
        Error::StaleSnapshot(said) => coded("OperationalError", said.code),
        Error::TransactionLost(_) => coded("OperationalError", ffi::SQLITE_ABORT_ROLLBACK),
        Error::TooLong => new(py, "DataError", &error.to_string()),
        Error::SeveralStatements if crate::dbapi::minor(py) < 11 => new(py, "Warning", &error.to_string()),
        Error::SeveralStatements | Error::ParameterCount { .. } | Error::NotForMany(_) | Error::Closed => {
            new(py, "ProgrammingError", &error.to_string())
        }
        Error::UnsafeFilesystem(_) => coded("UnsafeFilesystem", ffi::SQLITE_CANTOPEN),
        Error::Inherited => new(py, "ForkError", &error.to_string()),
    }
}

/// Make the mapping of phases to seconds.
pub fn waited<'py>(py: Python<'py>, waited: &Waited) -> PyResult<Bound<'py, PyDict>> {
    let mapping = PyDict::new(py);
    mapping.set_item("queue", waited.queue.as_secs_f64())?;
    mapping.set_item("lock", waited.lock.as_secs_f64())?;
    mapping.set_item("run", waited.run.as_secs_f64())?;
    mapping.set_item("commit", waited.commit.as_secs_f64())?;
    Ok(mapping)
}

/// Describe who holds a lock as a mapping, or `None`.
pub fn holder<'py>(py: Python<'py>, holder: &Holder) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Holder::Process { pid, command, statement, held, stopped } = holder else { return Ok(None) };
    let described = PyDict::new(py);
    described.set_item("pid", pid)?;
    described.set_item("command", command)?;
    described.set_item("statement", statement)?;
    described.set_item("seconds", held.map(|held| held.as_secs_f64()))?;
    described.set_item("stopped", stopped)?;
    Ok(Some(described))
}

/// Make the exception that the standard module raises for what SQLite said.
pub fn from_sqlite(py: Python<'_>, error: &SqliteError) -> PyErr {
    if error.primary() == ffi::SQLITE_NOMEM {
        return pyo3::exceptions::PyMemoryError::new_err(());
    }
    let name = match class_name(error.code) {
        // Before 3.11 misuse was the caller's error by another name.
        "InterfaceError" if error.primary() == ffi::SQLITE_MISUSE && crate::dbapi::minor(py) < 11 => "ProgrammingError",
        name => name,
    };
    let raised = (|| {
        let exception = class(py, name)?.call1((&*error.message,))?;
        exception.setattr("sqlite_errorcode", error.code)?;
        exception.setattr("sqlite_errorname", code_name(error.code))?;
        Ok(PyErr::from_value(exception))
    })();
    raised.unwrap_or_else(|error| error)
}
