//! Result codes of SQLite to exceptions of Python.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
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

/// Make the exception that the standard module raises for what SQLite said.
pub fn from_sqlite(py: Python<'_>, error: &SqliteError) -> PyErr {
    if error.primary() == ffi::SQLITE_NOMEM {
        return pyo3::exceptions::PyMemoryError::new_err(());
    }
    let raised = (|| {
        let exception = class(py, class_name(error.code))?.call1((&*error.message,))?;
        exception.setattr("sqlite_errorcode", error.code)?;
        exception.setattr("sqlite_errorname", code_name(error.code))?;
        Ok(PyErr::from_value(exception))
    })();
    raised.unwrap_or_else(|error| error)
}
