//! The methods of a connection by which an application extends SQL, watches it, and handles whole databases.

use super::arguments;
use super::blob::Blob;
use super::callback::{self, Callable};
use super::connection::Connection;
use super::tuple;
use crate::errors;
use crate::interpreter::detach;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use writelane_core::connection::{Connection as Core, Error};
use writelane_core::sqlite::ffi;

fn name_of(name: &Bound<'_, PyString>) -> PyResult<CString> {
    CString::new(name.to_str()?).map_err(|_| PyValueError::new_err("embedded null character"))
}

fn cstring(name: &str) -> PyResult<CString> {
    CString::new(name).map_err(|_| PyValueError::new_err("embedded null character"))
}

/// Return an argument that `arguments::take` was told to require.
fn needed<'a, 'py>(value: &'a Option<Bound<'py, PyAny>>) -> PyResult<&'a Bound<'py, PyAny>> {
    value.as_ref().ok_or_else(|| PyTypeError::new_err("missing argument"))
}

/// Keep a callback that may be None.
fn optional(callback: &Bound<'_, PyAny>) -> Option<Callable> {
    (!callback.is_none()).then(|| Callable::new(callback))
}

#[pymethods]
impl Connection {
    /// Make a function callable from SQL.
    ///
    /// `narg` is the number of arguments, -1 for any; `deterministic` promises the same result for the same
    /// arguments. Raises `OperationalError` where it cannot be made.
    #[pyo3(
        signature = (*args, **kwargs),
        text_signature = "($self, name, narg, func, *, deterministic=False)"
    )]
    fn create_function(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        const NAMES: [&str; 4] = ["name", "narg", "func", "deterministic"];
        let py = args.py();
        let taken = arguments::take("create_function", NAMES, 3, 3, args, kwargs)?;
        arguments::warn_keywords(py, taken.by_keyword, "create_function", &NAMES[..3])?;
        let core = self.check(py)?.core;
        let [name, narg, func, deterministic] = taken.values;
        let (name, func) = (name_of(needed(&name)?.cast()?)?, Callable::new(needed(&func)?));
        let narg: i32 = needed(&narg)?.extract()?;
        check_argument_count(py, &core, "narg", narg)?;
        let deterministic = deterministic.map_or(Ok(false), |value| value.is_truthy())?;
        detach(py, || {
            core.with(|handle| {
                Ok(handle.create_function(&name, narg, deterministic, move |context, arguments| {
                    callback::call_function(&func, context, arguments);
                })?)
            })
        })
        .map_err(|error| creation_error(py, error, "Error creating function"))
    }

    /// Make an aggregate callable from SQL: a class with `step` and `finalize`.
    #[pyo3(signature = (*args, **kwargs), text_signature = "($self, name, n_arg, aggregate_class)")]
    fn create_aggregate(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        const NAMES: [&str; 3] = ["name", "n_arg", "aggregate_class"];
        let py = args.py();
        let taken = arguments::take("create_aggregate", NAMES, 3, 3, args, kwargs)?;
        arguments::warn_keywords(py, taken.by_keyword, "create_aggregate", &NAMES)?;
        let core = self.check(py)?.core;
        let [name, n_arg, class] = taken.values;
        let (name, class) = (name_of(needed(&name)?.cast()?)?, Callable::new(needed(&class)?));
        let n_arg: i32 = needed(&n_arg)?.extract()?;
        check_argument_count(py, &core, "n_arg", n_arg)?;
        detach(py, || {
            core.with(|handle| {
                Ok(handle
                    .create_aggregate(&name, n_arg, false, move |context| callback::make_aggregate(&class, context))?)
            })
        })
        .map_err(|error| creation_error(py, error, "Error creating aggregate"))
    }

    /// Make an aggregate window function callable from SQL: a class with `step`, `inverse`, `value` and
    /// `finalize`; None takes it away.
    #[pyo3(signature = (name, num_params, aggregate_class, /))]
    fn create_window_function(
        &self,
        name: &Bound<'_, PyString>,
        num_params: i32,
        aggregate_class: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = name.py();
        let core = self.check(py)?.core;
        check_argument_count(py, &core, "num_params", num_params)?;
        let (name, class) = (name_of(name)?, optional(aggregate_class));
        detach(py, || {
            core.with(|handle| {
                Ok(match class {
                    None => handle.remove_function(&name, num_params),
                    Some(class) => handle.create_aggregate(&name, num_params, true, move |context| {
                        callback::make_aggregate(&class, context)
                    }),
                }?)
            })
        })
        .map_err(|error| match error {
            Error::Sqlite(error) => errors::new(py, "ProgrammingError", &error.message),
            other => errors::from_core(py, &other),
        })
    }

    /// Make a collation usable from SQL: a function of two strings whose result's sign is their order; None takes it
    /// away.
    #[pyo3(signature = (name, callback, /))]
    fn create_collation(&self, name: &Bound<'_, PyString>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = name.py();
        let core = self.check(py)?.core;
        if super::minor(py) < 11 && !name.to_str().is_ok_and(str::is_ascii) {
            return Err(errors::new(py, "ProgrammingError", "invalid character in collation name"));
        }
        let name = name_of(name)?;
        if !callback.is_none() && !callback.is_callable() {
            return Err(PyTypeError::new_err("parameter must be callable"));
        }
        let collation = optional(callback);
        Connection::run(py, &core, |core| {
            core.with(|handle| {
                Ok(match collation {
                    None => handle.remove_collation(&name),
                    Some(collation) => {
                        handle.create_collation(&name, move |a, b| callback::call_collation(&collation, a, b))
                    }
                }?)
            })
        })
    }

    /// Have a function asked about every action of the statements prepared from now on; None: nobody.
    #[pyo3(signature = (*args, **kwargs), text_signature = "($self, authorizer_callback)")]
    fn set_authorizer(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        const NAMES: [&str; 1] = ["authorizer_callback"];
        let py = args.py();
        let taken = arguments::take("set_authorizer", NAMES, 1, 1, args, kwargs)?;
        arguments::warn_keywords(py, taken.by_keyword, "set_authorizer", &NAMES)?;
        let [authorizer_callback] = taken.values;
        let core = self.check(py)?.core;
        let authorizer = optional(needed(&authorizer_callback)?);
        Connection::run(py, &core, |core| {
            core.set_authorizer(authorizer.map(|authorizer| {
                move |action: &writelane_core::sqlite::Action<'_>| callback::call_authorizer(&authorizer, action)
            }))
        })
    }

    /// Have a function asked every `n` steps of a statement whether to end it; None: nobody.
    #[pyo3(signature = (*args, **kwargs), text_signature = "($self, progress_handler, n)")]
    fn set_progress_handler(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        const NAMES: [&str; 2] = ["progress_handler", "n"];
        let py = args.py();
        let by_keyword = kwargs.is_some_and(|kwargs| kwargs.contains(NAMES[0]).unwrap_or(false));
        let taken = arguments::take("set_progress_handler", NAMES, 2, 2, args, kwargs)?;
        arguments::warn_keywords(py, by_keyword, "set_progress_handler", &NAMES[..1])?;
        let [progress_handler, n] = taken.values;
        let n: i32 = needed(&n)?.extract()?;
        let core = self.check(py)?.core;
        let handler = optional(needed(&progress_handler)?);
        Connection::run(py, &core, |core| {
            core.set_progress(n, handler.map(|handler| move || callback::call_progress(&handler)))
        })
    }

    /// Have a function told of every statement that begins to run, its values filled in; None: nobody.
    #[pyo3(signature = (*args, **kwargs), text_signature = "($self, trace_callback)")]
    fn set_trace_callback(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        const NAMES: [&str; 1] = ["trace_callback"];
        let py = args.py();
        let taken = arguments::take("set_trace_callback", NAMES, 1, 1, args, kwargs)?;
        arguments::warn_keywords(py, taken.by_keyword, "set_trace_callback", &NAMES)?;
        let [trace_callback] = taken.values;
        let core = self.check(py)?.core;
        let trace = optional(needed(&trace_callback)?);
        Connection::run(py, &core, |core| {
            core.set_trace(
                trace.map(|trace| {
                    move |traced: &writelane_core::sqlite::Traced<'_>| callback::call_trace(&trace, traced)
                }),
            )
        })
    }

    /// Open a value of a table in pieces.
    #[pyo3(signature = (table, column, row, /, *, readonly=false, name="main"))]
    fn blobopen(
        slf: &Bound<'_, Self>,
        table: &str,
        column: &str,
        row: i64,
        readonly: bool,
        name: &str,
    ) -> PyResult<Blob> {
        let py = slf.py();
        let core = slf.get().check(py)?.core;
        let (schema, table, column) = (cstring(name)?, cstring(table)?, cstring(column)?);
        let (number, length) =
            Connection::run(py, &core, |core| core.blob_open(&schema, &table, &column, row, !readonly))?;
        Ok(Blob::new(slf, core, number, length))
    }

    /// Return an iterator over the statements that make the database again; `filter` is a LIKE pattern for names.
    #[pyo3(signature = (*, filter=None))]
    fn iterdump<'py>(slf: &Bound<'py, Self>, filter: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().check(py)?;
        let options = PyDict::new(py);
        if let Some(filter) = filter {
            options.set_item("filter", filter)?;
        }
        py.import("writelane.dbapi.dump")?.getattr("iterdump")?.call((slf,), Some(&options))
    }

    /// Copy a database of this connection over that of another, `pages` at a time.
    ///
    /// `progress` is told, after each step, its result code, the pages left and the pages in all; `sleep` is the
    /// pause in seconds after a step that met a lock. Both connections can be used between the steps.
    #[pyo3(signature = (target, *, pages=-1, progress=None, name="main", sleep=0.25))]
    fn backup(
        slf: &Bound<'_, Self>,
        target: &Bound<'_, Connection>,
        pages: i32,
        progress: Option<&Bound<'_, PyAny>>,
        name: &str,
        sleep: f64,
    ) -> PyResult<()> {
        let py = slf.py();
        let core = slf.get().check(py)?.core;
        let destination = target.get().check(py)?.core;
        if slf.is(target) {
            return Err(PyValueError::new_err("target cannot be the same connection instance"));
        }
        if let Some(progress) = progress
            && !progress.is_callable()
        {
            return Err(PyTypeError::new_err("progress argument must be a callable"));
        }
        if sleep < 0.0 {
            return Err(PyValueError::new_err("sleep must be greater-than or equal to zero"));
        }
        let pause = Duration::try_from_secs_f64(sleep).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let schema = cstring(name)?;
        let pages = if pages == 0 { -1 } else { pages };
        let progress = progress.map(Callable::new);
        let mut raised = None;
        let result = detach(py, || {
            core.copy_to(&destination, &schema, pages, pause, |step| {
                let asked = Python::attach(|py| {
                    if let Some(progress) = &progress {
                        progress.get(py).call1((step.code & 0xff, step.remaining, step.total))?;
                    }
                    py.check_signals()
                });
                match asked {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        raised = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })
        });
        match raised {
            Some(error) => Err(error),
            None => result.map_err(|error| errors::from_core(py, &error)),
        }
    }

    /// Return the bytes of a database, as a file of it would hold them.
    #[pyo3(signature = (*, name="main"))]
    fn serialize<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let core = self.check(py)?.core;
        let schema = cstring(name)?;
        let bytes = Connection::run(py, &core, |core| core.with(|handle| Ok(handle.serialize(&schema)?)))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Replace a database of this connection by one in memory with these bytes.
    #[pyo3(signature = (data, /, *, name="main"))]
    fn deserialize(&self, data: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
        let py = data.py();
        let core = self.check(py)?.core;
        let bytes = if let Ok(text) = data.cast::<PyString>() {
            text.to_str()?.as_bytes().to_vec()
        } else {
            tuple::contiguous(data)?.ok_or_else(|| {
                let kind = data.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
                PyTypeError::new_err(format!("a bytes-like object is required, not '{kind}'"))
            })?
        };
        let schema = cstring(name)?;
        Connection::run(py, &core, |core| core.with(|handle| Ok(handle.deserialize(&schema, &bytes)?)))
    }

    /// Return a run-time limit.
    #[pyo3(signature = (category, /))]
    fn getlimit(&self, py: Python<'_>, category: i32) -> PyResult<i32> {
        self.limit(py, category, -1)
    }

    /// Set a run-time limit and return its former value.
    #[pyo3(signature = (category, limit, /))]
    fn setlimit(&self, py: Python<'_>, category: i32, limit: i32) -> PyResult<i32> {
        self.limit(py, category, limit)
    }

    /// Return a boolean setting of the connection.
    #[pyo3(signature = (op, /))]
    fn getconfig(&self, py: Python<'_>, op: i32) -> PyResult<bool> {
        let core = self.check(py)?.core;
        check_switch(op)?;
        Connection::run(py, &core, |core| core.with(|handle| Ok(handle.config(op)?)))
    }

    /// Set a boolean setting of the connection.
    #[pyo3(signature = (op, enable=true, /))]
    fn setconfig(&self, py: Python<'_>, op: i32, enable: bool) -> PyResult<()> {
        let core = self.check(py)?.core;
        check_switch(op)?;
        let now = Connection::run(py, &core, |core| core.with(|handle| Ok(handle.set_config(op, enable)?)))?;
        if now != enable {
            return Err(errors::new(py, "OperationalError", "Unable to set config"));
        }
        Ok(())
    }

    /// Allow extensions to be loaded, or forbid it.
    #[pyo3(signature = (enable, /))]
    fn enable_load_extension(slf: &Bound<'_, Self>, enable: bool) -> PyResult<()> {
        let py = slf.py();
        py.import("sys")?.call_method1("audit", ("sqlite3.enable_load_extension", slf, enable))?;
        let core = slf.get().check(py)?.core;
        Connection::run(py, &core, |core| core.with(|handle| Ok(handle.enable_load_extension(enable)?)))
    }

    /// Load an extension of SQLite from a shared library.
    #[pyo3(signature = (name, /, *, entrypoint=None))]
    fn load_extension(slf: &Bound<'_, Self>, name: &str, entrypoint: Option<&str>) -> PyResult<()> {
        let py = slf.py();
        py.import("sys")?.call_method1("audit", ("sqlite3.load_extension", slf, name))?;
        let core = slf.get().check(py)?.core;
        let file = cstring(name)?;
        let entry_point = entrypoint.map(cstring).transpose()?;
        Connection::run(py, &core, |core| core.with(|handle| Ok(handle.load_extension(&file, entry_point.as_deref())?)))
    }
}

impl Connection {
    fn limit(&self, py: Python<'_>, category: i32, value: i32) -> PyResult<i32> {
        let core = self.check(py)?.core;
        Connection::run(py, &core, |core| core.with(|handle| Ok(handle.limit(category, value))))?
            .ok_or_else(|| errors::new(py, "ProgrammingError", "'category' is out of bounds"))
    }
}

/// The switches with one boolean; the others take other arguments, and must not be passed these.
fn check_switch(switch: i32) -> PyResult<()> {
    const KNOWN: [i32; 16] = [
        ffi::SQLITE_DBCONFIG_ENABLE_FKEY,
        ffi::SQLITE_DBCONFIG_ENABLE_TRIGGER,
        ffi::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER,
        ffi::SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION,
        ffi::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
        ffi::SQLITE_DBCONFIG_ENABLE_QPSG,
        ffi::SQLITE_DBCONFIG_TRIGGER_EQP,
        ffi::SQLITE_DBCONFIG_RESET_DATABASE,
        ffi::SQLITE_DBCONFIG_DEFENSIVE,
        ffi::SQLITE_DBCONFIG_WRITABLE_SCHEMA,
        ffi::SQLITE_DBCONFIG_LEGACY_ALTER_TABLE,
        ffi::SQLITE_DBCONFIG_DQS_DML,
        ffi::SQLITE_DBCONFIG_DQS_DDL,
        ffi::SQLITE_DBCONFIG_ENABLE_VIEW,
        ffi::SQLITE_DBCONFIG_LEGACY_FILE_FORMAT,
        ffi::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    ];
    if KNOWN.contains(&switch) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("unknown config 'op': {switch}")))
}

/// From 3.14 on a number of arguments that cannot be is the caller's error, told as such.
fn check_argument_count(py: Python<'_>, core: &Arc<Core>, name: &str, count: i32) -> PyResult<()> {
    if super::minor(py) < 14 {
        return Ok(());
    }
    let limit =
        Connection::run(py, core, |core| core.with(|handle| Ok(handle.limit(ffi::SQLITE_LIMIT_FUNCTION_ARG, -1))))?;
    match limit {
        Some(limit) if count < -1 || count > limit => {
            let message = format!("'{name}' must be between -1 and {limit}, not {count}");
            Err(errors::new(py, "ProgrammingError", &message))
        }
        _ => Ok(()),
    }
}

fn creation_error(py: Python<'_>, error: Error, message: &str) -> PyErr {
    match error {
        Error::Sqlite(_) => errors::new(py, "OperationalError", message),
        other => errors::from_core(py, &other),
    }
}

/// Say whether a text ends with a complete statement.
#[pyfunction]
#[pyo3(signature = (statement))]
pub fn complete_statement(statement: &Bound<'_, PyString>) -> PyResult<bool> {
    let text: CString = name_of(statement)?;
    let text: &CStr = &text;
    Ok(writelane_core::sqlite::complete_statement(text))
}

/// Have connections opened from now on in this process share their caches, or not.
#[pyfunction]
#[pyo3(signature = (do_enable))]
pub fn enable_shared_cache(py: Python<'_>, do_enable: bool) -> PyResult<()> {
    writelane_core::sqlite::enable_shared_cache(do_enable).map_err(|error| errors::from_sqlite(py, &error))
}
