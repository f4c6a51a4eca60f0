//! The connection class.

use super::arguments;
use super::callback::raised_by_collation;
use super::convert::TextFactory;
use super::cursor::Cursor;
use crate::errors;
use crate::interpreter::detach;
use pyo3::PyTraverseError;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple, PyType};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use writelane_core::connection::{Connection as Core, Error, Options, Prepared};
use writelane_core::process::thread_ident;
use writelane_core::sqlite::{OpenFlags, ffi};

/// How many prepared statements a connection keeps unless it is told otherwise.
const CACHED_STATEMENTS: i64 = 128;

/// How long a connection waits for a lock unless it is told otherwise, in seconds.
const DEFAULT_TIMEOUT: f64 = 5.0;

/// What a connection can be told when it is made; the last three only by keyword.
const PARAMETERS: [&str; 11] = [
    "database",
    "timeout",
    "detect_types",
    "isolation_level",
    "check_same_thread",
    "factory",
    "cached_statements",
    "uri",
    "autocommit",
    "begin",
    "idle_rollback",
];

/// The value that asks for the transaction control of PEP 249's early days.
pub const LEGACY_TRANSACTION_CONTROL: i32 = -1;

/// When a transaction begins by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocommit {
    /// Before a change of rows, unless `isolation_level` is None.
    Legacy,
    /// Never.
    Enabled,
    /// Always: when one ends the next begins.
    Disabled,
}

/// A connection to a database.
///
/// It stands in for `sqlite3.Connection`; its write transactions wait their turn with every other writer.
#[pyclass(frozen, subclass, weakref, module = "writelane.dbapi")]
pub struct Connection {
    state: Mutex<State>,
}

struct State {
    initialized: bool,
    core: Option<Arc<Core>>,
    isolation: Option<&'static str>,
    autocommit: Autocommit,
    detect_types: i32,
    /// The thread that may use it; `None`: any.
    thread: Option<u64>,
    row_factory: Option<Py<PyAny>>,
    text_factory: TextFactory,
}

/// What a cursor needs to know to run a statement.
pub struct Settings {
    /// The open database.
    pub core: Arc<Core>,
    /// The statement that begins a transaction before a change of rows.
    pub implicit: Option<&'static str>,
    /// Whether the legacy transaction control is in force.
    pub legacy: bool,
    /// The bits of `detect_types`.
    pub detect_types: i32,
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Check that the calling thread may use this connection, that it was set up and that it is open.
    pub fn check(&self, py: Python<'_>) -> PyResult<Settings> {
        let state = self.state();
        if !state.initialized {
            return Err(errors::new(py, "ProgrammingError", "Base Connection.__init__ not called."));
        }
        check_thread(py, state.thread)?;
        let core = state.core.clone().ok_or_else(|| errors::from_core(py, &Error::Closed))?;
        let legacy = state.autocommit == Autocommit::Legacy;
        let implicit = if legacy { state.isolation } else { None };
        Ok(Settings { core, implicit, legacy, detect_types: state.detect_types })
    }

    /// As [`Connection::check`], for a cursor that has the core already: return what becomes of text.
    pub fn check_reader(&self, py: Python<'_>) -> PyResult<TextFactory> {
        let state = self.state();
        if state.initialized && state.core.is_some() && state.thread.is_none_or(|owner| owner == thread_ident()) {
            return Ok(state.text_factory.duplicate(py));
        }
        drop(state);
        self.check(py)?;
        Ok(self.text_factory_now(py))
    }

    /// Check the thread only: for what a closed connection still allows.
    pub fn check_thread(&self, py: Python<'_>) -> PyResult<()> {
        let thread = self.state().thread;
        check_thread(py, thread)
    }

    pub fn check_open(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        let state = self.state();
        if !state.initialized {
            return Err(errors::new(py, "ProgrammingError", "Base Connection.__init__ not called."));
        }
        state.core.clone().ok_or_else(|| errors::from_core(py, &Error::Closed))
    }

    /// Return what becomes of text.
    pub fn text_factory_now(&self, py: Python<'_>) -> TextFactory {
        self.state().text_factory.duplicate(py)
    }

    /// Return what becomes of rows, for a new cursor.
    pub fn row_factory_now(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state().row_factory.as_ref().map(|factory| factory.clone_ref(py))
    }

    /// Run `call` detached from the interpreter, and raise what went wrong, or what a collation raised meanwhile.
    pub fn run<T: Send>(
        py: Python<'_>,
        core: &Arc<Core>,
        call: impl FnOnce(&Core) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let result = Self::run_alone(py, core, call);
        match raised_by_collation() {
            Some(raised) if result.is_ok() => Err(raised),
            _ => result,
        }
    }

    /// As [`Connection::run`], but leave what a collation raised to be asked for.
    pub fn run_alone<T: Send>(
        py: Python<'_>,
        core: &Arc<Core>,
        call: impl FnOnce(&Core) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let result = detach(py, || call(core));
        if let Some(begun) = core.wants_location()
            && let Some(location) = crate::telemetry::location::of_caller(py)
        {
            core.begun_at(begun, location);
        }
        result.map_err(|error| errors::from_core(py, &error))
    }

    fn do_commit(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.check(py)?.core;
        match self.state().autocommit {
            Autocommit::Enabled => return Ok(()),
            Autocommit::Legacy | Autocommit::Disabled => {}
        }
        Self::run(py, &core, Core::commit)?;
        self.begin_next(py, &core)
    }

    fn do_rollback(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.check(py)?.core;
        match self.state().autocommit {
            Autocommit::Enabled => return Ok(()),
            Autocommit::Legacy | Autocommit::Disabled => {}
        }
        Self::run(py, &core, Core::rollback)?;
        self.begin_next(py, &core)
    }

    fn begin_next(&self, py: Python<'_>, core: &Arc<Core>) -> PyResult<()> {
        if self.state().autocommit == Autocommit::Disabled {
            Self::run(py, core, |core| core.begin("BEGIN"))?;
        }
        Ok(())
    }

    /// Make a cursor by the application's own `cursor` method where a subclass may have one.
    fn make_cursor<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        if slf.as_any().is_exact_instance_of::<Connection>() {
            Ok(Cursor::on(slf)?.into_any())
        } else {
            slf.call_method0("cursor")
        }
    }
}

fn check_thread(py: Python<'_>, thread: Option<u64>) -> PyResult<()> {
    match thread {
        Some(owner) if owner != thread_ident() => {
            let message = format!(
                "SQLite objects created in a thread can only be used in that same thread. The object was created in \
                 thread id {owner} and this is thread id {}.",
                thread_ident()
            );
            Err(errors::new(py, "ProgrammingError", &message))
        }
        _ => Ok(()),
    }
}

/// Check SQL text and return its bytes.
pub fn sql_bytes<'a>(sql: &'a Bound<'_, PyString>) -> PyResult<&'a [u8]> {
    let py = sql.py();
    let text = sql.to_str()?.as_bytes();
    if text.contains(&0) {
        let message = "the query contains a null character";
        return Err(if super::minor(py) < 11 {
            PyValueError::new_err(message)
        } else {
            errors::new(py, "ProgrammingError", message)
        });
    }
    Ok(text)
}

/// The BEGIN of implicit transactions; `None`: there are none.
#[derive(Clone, Copy)]
struct Isolation(Option<&'static str>);

impl Isolation {
    const DEFAULT: Self = Self(Some("BEGIN "));
    const LEVELS: [(&'static str, &'static str); 4] = [
        ("", "BEGIN "),
        ("DEFERRED", "BEGIN DEFERRED"),
        ("IMMEDIATE", "BEGIN IMMEDIATE"),
        ("EXCLUSIVE", "BEGIN EXCLUSIVE"),
    ];
}

impl FromPyObject<'_, '_> for Isolation {
    type Error = PyErr;

    fn extract(level: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if level.is_none() {
            return Ok(Self(None));
        }
        let Ok(text) = level.cast::<PyString>() else {
            return Err(PyTypeError::new_err("isolation_level must be str or None"));
        };
        let text = text.to_str()?;
        if text.contains('\0') {
            return Err(PyValueError::new_err("embedded null character"));
        }
        Self::LEVELS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
            .map(|(_, begin)| Self(Some(begin)))
            .ok_or_else(|| {
                let message = "isolation_level string must be '', 'DEFERRED', 'IMMEDIATE', or 'EXCLUSIVE'";
                PyValueError::new_err(message)
            })
    }
}

/// An argument that was given, whatever it is, `None` too.
pub struct Given(pub Option<Py<PyAny>>);

impl FromPyObject<'_, '_> for Given {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value.to_owned().unbind())))
    }
}

impl FromPyObject<'_, '_> for Autocommit {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(flag) = value.cast_exact::<PyBool>() {
            return Ok(if flag.is_true() { Self::Enabled } else { Self::Disabled });
        }
        match value.extract::<i32>() {
            Ok(LEGACY_TRANSACTION_CONTROL) => Ok(Self::Legacy),
            _ => Err(PyValueError::new_err("autocommit must be True, False, or sqlite3.LEGACY_TRANSACTION_CONTROL")),
        }
    }
}

fn given<'py, T>(value: &Option<Bound<'py, PyAny>>, default: T) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    value.as_ref().map_or(Ok(default), |value| value.extract())
}

fn truth(value: &Option<Bound<'_, PyAny>>, default: bool) -> PyResult<bool> {
    value.as_ref().map_or(Ok(default), |value| value.is_truthy())
}

/// Say whether the environment chooses a journal for the whole process that may be used on any filesystem, as it does
/// for `writelane.open`. A rollback journal also needs an owner there, which a connection cannot be.
fn trusts_filesystems() -> bool {
    std::env::var_os("WRITELANE_JOURNAL")
        .is_some_and(|journal| !["", "auto", "delete"].iter().any(|known| journal == *known))
}

/// Read a time-out in seconds: below nothing is nothing, beyond all bounds is without end.
fn timeout(seconds: f64) -> Duration {
    if seconds.is_nan() || seconds <= 0.0 {
        Duration::ZERO
    } else {
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(
        signature = (*_args, **_kwargs),
        text_signature = "(database, timeout=5.0, detect_types=0, isolation_level='', check_same_thread=True, \
                          factory=None, cached_statements=128, uri=False, *, autocommit=-1, begin='immediate', idle_rollback=None)"
    )]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            state: Mutex::new(State {
                initialized: false,
                core: None,
                isolation: None,
                autocommit: Autocommit::Legacy,
                detect_types: 0,
                thread: None,
                row_factory: None,
                text_factory: TextFactory::Str,
            }),
        }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __init__(slf: &Bound<'_, Self>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        arguments::warn_positions(py, args.len(), "_sqlite3.Connection", &PARAMETERS[1..8])?;
        let values = arguments::take("Connection", PARAMETERS, 1, 8, args, kwargs)?.values;
        let [database, timeout, detect_types, isolation_level, check_same_thread, _factory, cached_statements, uri, ..] =
            &values;
        let [.., autocommit, begin, idle_rollback] = &values;
        let database = database.clone().unwrap_or_else(|| py.None().into_bound(py));
        let timeout = given(timeout, DEFAULT_TIMEOUT)?;
        let detect_types = given(detect_types, 0)?;
        let isolation_level = given(isolation_level, Isolation::DEFAULT)?;
        let check_same_thread = truth(check_same_thread, true)?;
        let cached_statements: i64 = given(cached_statements, CACHED_STATEMENTS)?;
        let uri = truth(uri, false)?;
        let autocommit = match autocommit {
            Some(_) if super::minor(py) < 12 => {
                let message = "'autocommit' is an invalid keyword argument for Connection() before Python 3.12";
                return Err(PyTypeError::new_err(message));
            }
            autocommit => given(autocommit, Autocommit::Legacy)?,
        };
        let begin: String = given(begin, "immediate".to_owned())?;
        let audit = |name: &Bound<'_, PyAny>| -> PyResult<()> {
            py.import("sys")?.call_method1("audit", ("sqlite3.connect", name)).map(drop)
        };
        // 3.10 tells of the bytes that the name becomes.
        let converted_first = super::minor(py) < 11;
        if !converted_first {
            audit(&database)?;
        }
        let name = py.import("os")?.call_method1("fsencode", (database,))?;
        if converted_first {
            audit(&name)?;
        }
        let name = name.cast::<PyBytes>()?.as_bytes();
        if name.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        let begin_immediate = match begin.as_str() {
            "immediate" => true,
            "deferred" => false,
            _ => return Err(PyValueError::new_err("begin must be 'immediate' or 'deferred'")),
        };
        let idle_rollback = match idle_rollback {
            Some(seconds) if !seconds.is_none() => {
                let seconds: f64 = seconds.extract()?;
                if seconds.is_nan() || seconds <= 0.0 {
                    return Err(PyValueError::new_err("idle_rollback must be more than 0 seconds, or None"));
                }
                Some(self::timeout(seconds))
            }
            _ => None,
        };
        let options = Options {
            idle_rollback,
            timeout: self::timeout(timeout),
            begin_immediate,
            cached_statements: usize::try_from(cached_statements).unwrap_or(0),
            checkpoints: crate::checkpoints::thresholds(None)?,
            trust_filesystem: trusts_filesystems(),
            signalled: crate::interpreter::signalled,
        };
        let mut flags = ffi::SQLITE_OPEN_READWRITE
            | ffi::SQLITE_OPEN_CREATE
            | ffi::SQLITE_OPEN_NOMUTEX
            | ffi::SQLITE_OPEN_EXRESCODE;
        if uri {
            flags |= ffi::SQLITE_OPEN_URI;
        }
        // Set up anew: what was open is let go first, and stays open for cursors that still read from it.
        let former = {
            let mut state = this.state();
            state.initialized = false;
            state.core.take()
        };
        detach(py, || drop(former));
        let core = detach(py, || Core::open(name, OpenFlags(flags), None, options))
            .map_err(|error| errors::from_core(py, &error))?;
        if let Some(path) = detach(py, || core.file_to_warn_of()) {
            py.import("writelane.surroundings")?.call_method1("announce_filesystem", (path,))?;
        }
        let former_factories = {
            let mut state = this.state();
            state.core = Some(Arc::clone(&core));
            state.isolation = isolation_level.0;
            state.autocommit = autocommit;
            state.detect_types = detect_types;
            state.thread = check_same_thread.then(thread_ident);
            state.initialized = true;
            (state.row_factory.take(), std::mem::replace(&mut state.text_factory, TextFactory::Str))
        };
        drop(former_factories);
        py.import("sys")?.call_method1("audit", ("sqlite3.connect/handle", slf))?;
        this.begin_next(py, &core)
    }

    /// Return a cursor for the connection.
    #[pyo3(signature = (factory=Given(None)))]
    fn cursor<'py>(slf: &Bound<'py, Self>, factory: Given) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().check(py)?;
        let Some(factory) = factory.0 else { return Ok(Cursor::on(slf)?.into_any()) };
        let cursor = factory.bind(py).call1((slf,))?;
        // By its real type: `__class__` may say anything.
        if !cursor.get_type().is_subclass_of::<Cursor>()? {
            let kind = cursor.get_type().name()?;
            return Err(PyTypeError::new_err(format!("factory must return a cursor, not {kind}")));
        }
        if let Some(row_factory) = slf.get().row_factory_now(py) {
            cursor.setattr("row_factory", row_factory)?;
        }
        Ok(cursor)
    }

    /// Create a cursor, run a statement on it, and return it.
    #[pyo3(signature = (sql, parameters=None, /))]
    fn execute<'py>(
        slf: &Bound<'py, Self>,
        sql: &Bound<'py, PyAny>,
        parameters: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let cursor = Self::make_cursor(slf)?;
        if let Ok(own) = cursor.cast_exact::<Cursor>() {
            return Cursor::execute(own, sql, parameters).map(|cursor| cursor.into_any());
        }
        match parameters {
            Some(parameters) => cursor.call_method1("execute", (sql, parameters)),
            None => cursor.call_method1("execute", (sql,)),
        }
    }

    /// Create a cursor, run a statement on it with many parameters, and return it.
    #[pyo3(signature = (sql, parameters, /))]
    fn executemany<'py>(
        slf: &Bound<'py, Self>,
        sql: &Bound<'py, PyAny>,
        parameters: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::make_cursor(slf)?.call_method1("executemany", (sql, parameters))
    }

    /// Create a cursor, run a script on it, and return it.
    #[pyo3(signature = (sql_script, /))]
    fn executescript<'py>(slf: &Bound<'py, Self>, sql_script: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::make_cursor(slf)?.call_method1("executescript", (sql_script,))
    }

    /// Prepare a statement without running it.
    #[pyo3(signature = (sql=Given(None), /))]
    fn __call__(slf: &Bound<'_, Self>, sql: Given) -> PyResult<Statement> {
        let py = slf.py();
        let core = slf.get().check(py)?.core;
        let sql = sql.0.ok_or_else(|| PyTypeError::new_err("function missing required argument 'sql' (pos 1)"))?;
        let sql = sql.bind(py).cast::<PyString>()?;
        let text = sql_bytes(sql)?;
        let prepared = Self::run(py, &core, |core| core.prepare(text))?;
        Ok(Statement { core, prepared: Mutex::new(Some(prepared)) })
    }

    /// Commit the open transaction; without one, do nothing.
    ///
    /// Blocks while readers of a database without a log are in the way, at most the connection's time-out.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.do_commit(py)
    }

    /// Roll the open transaction back; without one, do nothing.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.do_rollback(py)
    }

    /// Close the connection. A transaction that is open is rolled back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        {
            let state = self.state();
            if !state.initialized {
                return Err(errors::new(py, "ProgrammingError", "Base Connection.__init__ not called."));
            }
            check_thread(py, state.thread)?;
        }
        let (core, always) = {
            let mut state = self.state();
            (state.core.take(), state.autocommit == Autocommit::Disabled)
        };
        if let Some(core) = core {
            if always && core.in_transaction() {
                // Said aloud, so that a trace sees it; what SQLite says to it, closing makes good.
                drop(detach(py, || core.rollback()));
            }
            detach(py, || {
                core.close();
                drop(core);
            });
        }
        Ok(())
    }

    /// End the statement, or the wait for a lock, that the connection is in. For any thread; never blocks.
    fn interrupt(&self, py: Python<'_>) -> PyResult<()> {
        self.check_open(py)?.interrupt();
        Ok(())
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().check(slf.py())?;
        Ok(slf.clone())
    }

    /// Commit, or after an exception roll back; where the commit fails, roll back and raise its error.
    #[pyo3(signature = (r#type=None, value=None, traceback=None, /))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        r#type: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let py = slf.py();
        let this = slf.get();
        if r#type.is_none() && value.is_none() && traceback.is_none() {
            if let Err(error) = this.do_commit(py) {
                if let Err(second) = this.do_rollback(py) {
                    second.set_context(py, Some(error));
                    return Err(second);
                }
                return Err(error);
            }
        } else {
            this.do_rollback(py)?;
        }
        Ok(false)
    }

    /// Whether a transaction is open.
    #[getter]
    fn in_transaction(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.check_open(py)?.in_transaction())
    }

    /// The rows changed since the connection was opened.
    #[getter]
    fn total_changes(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.check_open(py)?.total_changes())
    }

    /// When a transaction begins by itself under the legacy control: None (never), '', 'DEFERRED', 'IMMEDIATE' or
    /// 'EXCLUSIVE'.
    #[getter]
    fn get_isolation_level(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.check_open(py)?;
        Ok(self.state().isolation.map(|begin| begin["BEGIN ".len()..].trim()))
    }

    #[setter]
    fn set_isolation_level(&self, py: Python<'_>, level: Isolation) -> PyResult<()> {
        if level.0.is_none() {
            // Leaving the implicit transactions behind ends the one that is open.
            let core = self.check(py)?.core;
            self.state().isolation = None;
            if self.state().autocommit == Autocommit::Legacy {
                Self::run(py, &core, Core::commit)?;
            }
        } else {
            self.state().isolation = level.0;
        }
        Ok(())
    }

    /// When a transaction begins by itself: `LEGACY_TRANSACTION_CONTROL`, True (never) or False (always).
    #[getter]
    fn get_autocommit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check(py)?;
        Ok(match self.state().autocommit {
            Autocommit::Legacy => LEGACY_TRANSACTION_CONTROL.into_pyobject(py)?.into_any(),
            Autocommit::Enabled => PyBool::new(py, true).to_owned().into_any(),
            Autocommit::Disabled => PyBool::new(py, false).to_owned().into_any(),
        })
    }

    #[setter]
    fn set_autocommit(&self, py: Python<'_>, autocommit: Autocommit) -> PyResult<()> {
        let core = self.check(py)?.core;
        match autocommit {
            Autocommit::Enabled => Self::run(py, &core, Core::commit)?,
            Autocommit::Disabled => Self::run(py, &core, |core| core.begin("BEGIN"))?,
            Autocommit::Legacy => {}
        }
        self.state().autocommit = autocommit;
        Ok(())
    }

    #[deleter]
    fn delete_isolation_level(&self) -> PyResult<()> {
        Err(PyAttributeError::new_err("cannot delete attribute"))
    }

    #[deleter]
    fn delete_autocommit(&self) -> PyResult<()> {
        Err(PyAttributeError::new_err("cannot delete autocommit attribute"))
    }

    #[deleter]
    fn delete_row_factory(&self) -> PyResult<()> {
        Err(PyAttributeError::new_err("cannot delete row_factory attribute"))
    }

    #[deleter]
    fn delete_text_factory(&self) -> PyResult<()> {
        Err(PyAttributeError::new_err("cannot delete text_factory attribute"))
    }

    /// What makes a row of a cursor and a tuple; None: the tuple is the row. For cursors made from now on.
    #[getter]
    fn get_row_factory(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.row_factory_now(py)
    }

    #[setter]
    fn set_row_factory(&self, factory: &Bound<'_, PyAny>) {
        let factory = (!factory.is_none()).then(|| factory.clone().unbind());
        let former = std::mem::replace(&mut self.state().row_factory, factory);
        drop(former);
    }

    /// What makes a value of the bytes of a text; by default `str`.
    #[getter]
    fn get_text_factory(&self, py: Python<'_>) -> Py<PyAny> {
        self.state().text_factory.object(py)
    }

    #[setter]
    fn set_text_factory(&self, factory: &Bound<'_, PyAny>) {
        let former = std::mem::replace(&mut self.state().text_factory, TextFactory::of(factory));
        drop(former);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Nobody holds this lock across anything that can run the collector.
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        if let Some(factory) = &state.row_factory {
            visit.call(factory)?;
        }
        match &state.text_factory {
            TextFactory::Other(factory) => visit.call(factory),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        let former = {
            let mut state = self.state();
            (state.row_factory.take(), std::mem::replace(&mut state.text_factory, TextFactory::Str))
        };
        drop(former);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let core = self.state().core.take();
        if let Some(core) = core {
            let place = std::ptr::from_ref(self);
            Python::attach(|py| warn_unclosed(py, place, &core));
            // Closing may write the log back, which takes as long as it takes.
            Python::attach(|py| detach(py, || drop(core)));
        }
    }
}

/// From 3.13 on warn of a connection that was not closed.
fn warn_unclosed(py: Python<'_>, place: *const Connection, core: &Core) {
    if super::minor(py) < 13 || core.is_inherited() {
        return;
    }
    // An object may end while an exception is on its way.
    let pending = PyErr::take(py);
    let category = py.get_type::<pyo3::exceptions::PyResourceWarning>();
    let message =
        std::ffi::CString::new(format!("unclosed database in <writelane.dbapi.Connection object at {place:p}>"));
    if let Ok(message) = message
        && let Err(error) = PyErr::warn(py, &category, &message, 1)
    {
        error.write_unraisable(py, None);
    }
    if let Some(pending) = pending {
        pending.restore(py);
    }
}

/// A statement that was prepared and not run.
#[pyclass(frozen, module = "writelane.dbapi")]
pub struct Statement {
    core: Arc<Core>,
    prepared: Mutex<Option<Prepared>>,
}

impl Drop for Statement {
    fn drop(&mut self) {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(prepared) = prepared {
            let core = &self.core;
            Python::attach(|py| detach(py, || core.give_back(prepared)));
        }
    }
}

/// Add the exception classes to the connection class, as PEP 249 suggests.
pub fn add_exceptions(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    for name in [
        "Warning",
        "Error",
        "InterfaceError",
        "DatabaseError",
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
    ] {
        class.setattr(name, errors::class(py, name)?)?;
    }
    Ok(())
}
