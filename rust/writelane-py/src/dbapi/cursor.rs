//! The cursor class.

use super::callback::raised_by_collation;
use super::connection::{Connection, Given, Settings, sql_bytes};
use super::convert::{self, Casts, TextFactory};
use super::row::{Row, is_row_type};
use crate::errors;
use crate::interpreter::detach;
use pyo3::PyTraverseError;
use pyo3::exceptions::{PyAttributeError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use writelane_core::connection::{Column, Connection as Core, Describe, Error, Fetched, NotForMany, Prepared};
use writelane_core::sqlite::Cells;

/// Converters are looked for by the declared type of a column.
pub const PARSE_DECLTYPES: i32 = 1;
/// Converters are looked for by a name in brackets in the name of a column.
pub const PARSE_COLNAMES: i32 = 2;

/// The patch releases since which a number of rows is one: before, nothing and less asked for all there is.
const ROWS_ARE_COUNTED: [(u8, u8); 2] = [(13, 8), (14, 1)];

/// Rows fetched, or inserted, for each time the interpreter is let go.
const BATCH_ROWS: usize = 256;
/// Bytes of text and blobs in such a batch, beyond which it ends early.
const BATCH_BYTES: usize = 1 << 17;

/// A cursor: a statement and the rows it has yet to give.
#[pyclass(frozen, subclass, weakref, module = "writelane.dbapi")]
pub struct Cursor {
    state: Mutex<State>,
    /// Whether a call on this cursor is running; a second one from inside it is refused.
    running: AtomicBool,
    /// Room for rows and parameters, kept between calls.
    scratch: Mutex<Cells>,
}

struct State {
    initialized: bool,
    closed: bool,
    connection: Option<Py<Connection>>,
    core: Option<Arc<Core>>,
    rows: Option<u64>,
    /// The columns of the result, from which the description is made when it is asked for.
    columns: Vec<Column>,
    cut_names: bool,
    description: Option<Py<PyTuple>>,
    lastrowid: Option<i64>,
    rowcount: i64,
    arraysize: i64,
    row_factory: Option<Py<PyAny>>,
    casts: Option<Casts>,
}

impl State {
    fn blank() -> Self {
        Self {
            initialized: false,
            closed: false,
            connection: None,
            core: None,
            rows: None,
            columns: Vec::new(),
            cut_names: false,
            description: None,
            lastrowid: None,
            rowcount: -1,
            arraysize: 1,
            row_factory: None,
            casts: None,
        }
    }
}

/// Marks a cursor as running while it lives.
struct Mark<'a>(&'a Cursor);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// A call on a cursor; while it lives, others are refused.
struct Running<'a, 'py> {
    cursor: &'a Cursor,
    py: Python<'py>,
    connection: Py<Connection>,
    settings: Settings,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.cursor.running.store(false, Ordering::Release);
    }
}

/// What rows are made with.
struct Maker<'py> {
    text_factory: TextFactory,
    casts: Option<Casts>,
    description: Option<Bound<'py, PyTuple>>,
    row_factory: Option<Bound<'py, PyAny>>,
    native_row: bool,
}

impl Maker<'_> {
    /// Say whether making a row may run code of the application, which then must not see rows fetched ahead.
    fn runs_code(&self) -> bool {
        self.casts.is_some() || self.text_factory.runs_code() || (self.row_factory.is_some() && !self.native_row)
    }
}

impl Cursor {
    fn blank() -> Self {
        Self {
            state: Mutex::new(State::blank()),
            running: AtomicBool::new(false),
            scratch: Mutex::new(Cells::default()),
        }
    }

    /// Make a cursor of exactly this class.
    pub fn on<'py>(connection: &Bound<'py, Connection>) -> PyResult<Bound<'py, Self>> {
        let py = connection.py();
        connection.get().check(py)?;
        let mut cursor = Self::blank();
        let state = cursor.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.initialized = true;
        state.connection = Some(connection.clone().unbind());
        state.row_factory = connection.get().row_factory_now(py);
        Bound::new(py, cursor)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the description of the result, if there is one.
    pub fn description_tuple(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        let (columns, cut_names) = {
            let mut state = self.state();
            if state.columns.is_empty() {
                return Ok(state.description.as_ref().map(|description| description.clone_ref(py)));
            }
            (std::mem::take(&mut state.columns), state.cut_names)
        };
        let description = convert::description(py, &columns, cut_names)?.unbind();
        self.state().description = Some(description.clone_ref(py));
        Ok(Some(description))
    }

    /// Check that a call may run, and refuse others while it does.
    fn enter<'a, 'py>(&'a self, py: Python<'py>) -> PyResult<Running<'a, 'py>> {
        let connection = {
            let state = self.state();
            if !state.initialized {
                return Err(errors::new(py, "ProgrammingError", "Base Cursor.__init__ not called."));
            }
            if state.closed {
                return Err(errors::new(py, "ProgrammingError", "Cannot operate on a closed cursor."));
            }
            state.connection.as_ref().map(|connection| connection.clone_ref(py))
        };
        let connection =
            connection.ok_or_else(|| errors::new(py, "ProgrammingError", "Base Cursor.__init__ not called."))?;
        if self.running.swap(true, Ordering::Acquire) {
            return Err(errors::new(py, "ProgrammingError", "Recursive use of cursors not allowed."));
        }
        match connection.get().check(py) {
            Ok(settings) => Ok(Running { cursor: self, py, connection, settings }),
            Err(error) => {
                self.running.store(false, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Let the rows go that the last statement has left.
    fn drop_rows(&self, py: Python<'_>) {
        let (core, rows) = {
            let mut state = self.state();
            (state.core.take(), state.rows.take())
        };
        if let (Some(core), Some(rows)) = (core, rows) {
            detach(py, move || {
                core.drop_rows(rows);
                drop(core);
            });
        }
    }

    fn maker<'py>(&self, running: &Running<'_, 'py>) -> PyResult<Maker<'py>> {
        let py = running.py;
        let text_factory = running.connection.get().text_factory_now(py);
        let (row_factory, casts) = {
            let state = self.state();
            (state.row_factory.as_ref().map(|factory| factory.bind(py).clone()), state.casts.clone())
        };
        let native_row = row_factory.as_ref().is_some_and(is_row_type);
        let description = if native_row { self.description_tuple(py)?.map(|made| made.into_bound(py)) } else { None };
        Ok(Maker { text_factory, casts, description, row_factory, native_row })
    }

    /// Copy rows out of SQLite, away from the interpreter.
    fn fetch_cells(&self, py: Python<'_>, rows_max: usize, cells: &mut Cells) -> PyResult<Fetched> {
        cells.clear();
        let (core, number) = {
            let state = self.state();
            match (&state.core, state.rows) {
                (Some(core), Some(number)) => (Arc::clone(core), number),
                _ => return Ok(Fetched::default()),
            }
        };
        self.fetch_from(py, core, number, rows_max, cells)
    }

    fn fetch_from(
        &self,
        py: Python<'_>,
        core: Arc<Core>,
        number: u64,
        rows_max: usize,
        cells: &mut Cells,
    ) -> PyResult<Fetched> {
        let result = detach(py, || {
            let result = core.fetch(number, rows_max, BATCH_BYTES, cells);
            drop(core);
            result
        });
        if let Some(raised) = raised_by_collation()
            && result.is_ok()
        {
            self.drop_rows(py);
            return Err(raised);
        }
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(error) => {
                self.state().rows = None;
                return Err(errors::from_core(py, &error));
            }
        };
        if !fetched.more {
            let mut state = self.state();
            state.rows = None;
            if let Some(changes) = fetched.changes {
                state.rowcount = changes;
            }
        }
        Ok(fetched)
    }

    fn make_row<'py>(
        slf: &Bound<'py, Self>,
        maker: &Maker<'py>,
        cells: &Cells,
        first: usize,
        columns: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let row = convert::row(py, cells, first, columns, &maker.text_factory, maker.casts.as_ref(), &|| {
            slf.get().description_tuple(py).ok().flatten().map(|made| made.into_bound(py))
        })?;
        match &maker.row_factory {
            None => Ok(row.into_any()),
            Some(_) if maker.native_row => Ok(Bound::new(py, Row::of(row, maker.description.as_ref()))?.into_any()),
            Some(factory) => factory.call1((slf, row)),
        }
    }

    fn fetch_list<'py>(slf: &Bound<'py, Self>, wanted: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let this = slf.get();
        let running = this.enter(py)?;
        let list = PyList::empty(py);
        let maker = this.maker(&running)?;
        let batch = if maker.runs_code() { 1 } else { BATCH_ROWS };
        let mut cells = std::mem::take(&mut *this.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        loop {
            let left = wanted.map_or(batch, |wanted| (wanted - list.len()).min(batch));
            if left == 0 {
                break;
            }
            let fetched = this.fetch_cells(py, left, &mut cells)?;
            for row in 0..fetched.rows {
                list.append(Self::make_row(slf, &maker, &cells, row * fetched.columns, fetched.columns)?)?;
            }
            if !fetched.more {
                break;
            }
            py.check_signals()?;
        }
        *this.scratch.lock().unwrap_or_else(PoisonError::into_inner) = cells;
        Ok(list)
    }

    fn prepare(running: &Running<'_, '_>, sql: &Bound<'_, PyAny>, function: &str) -> PyResult<Prepared> {
        let Ok(sql) = sql.cast::<PyString>() else {
            let kind = sql.get_type().name()?;
            return Err(PyTypeError::new_err(format!("{function}() argument 1 must be str, not {kind}")));
        };
        let text = sql_bytes(sql)?;
        let core = &running.settings.core;
        match core.prepare_at_once(text) {
            Some(prepared) => Ok(prepared),
            None => Connection::run(running.py, core, |core| core.prepare(text)),
        }
    }

    fn begin_statement(&self, prepared: &Prepared) {
        let former = {
            let mut state = self.state();
            state.rowcount = if prepared.changes_rows() { 0 } else { -1 };
            state.columns.clear();
            (state.description.take(), state.casts.take())
        };
        drop(former);
    }

    fn failed(&self, error: PyErr) -> PyErr {
        self.state().rowcount = -1;
        error
    }

    fn run_once(&self, running: &Running<'_, '_>, prepared: Prepared, cells: &Cells) -> PyResult<()> {
        let py = running.py;
        let Settings { core, implicit, detect_types, .. } = &running.settings;
        let describe = if detect_types & PARSE_DECLTYPES == 0 { Describe::Names } else { Describe::Types };
        let outcome = Connection::run_alone(py, core, |core| core.execute(prepared, cells, *implicit, describe));
        if let Some(raised) = raised_by_collation()
            && let Ok(outcome) = &outcome
        {
            if let Some(rows) = outcome.rows {
                detach(py, || core.drop_rows(rows));
            }
            return Err(raised);
        }
        let outcome = outcome?;
        {
            let mut state = self.state();
            state.core = Some(Arc::clone(core));
            state.rows = outcome.rows;
            state.lastrowid = Some(outcome.last_rowid);
            if let Some(changes) = outcome.changes {
                state.rowcount = changes;
            }
        }
        if outcome.columns.is_empty() {
            return Ok(());
        }
        let by_name = detect_types & PARSE_COLNAMES != 0;
        let casts = match detect_types {
            0 => None,
            _ => convert::casts(py, &outcome.columns, by_name, detect_types & PARSE_DECLTYPES != 0)?,
        };
        if let (Some(casts), Some(rows)) = (&casts, outcome.rows) {
            let raw = casts.iter().map(Option::is_some).collect();
            detach(py, || core.give_raw(rows, raw));
        }
        let mut state = self.state();
        state.columns = outcome.columns;
        state.cut_names = by_name;
        state.casts = casts;
        Ok(())
    }

    fn run_many(
        &self,
        running: &Running<'_, '_>,
        prepared: &mut Prepared,
        parameters: &Bound<'_, PyAny>,
        cells: &mut Cells,
    ) -> PyResult<i64> {
        let py = running.py;
        let Settings { core, implicit, .. } = &running.settings;
        // A list of rows can be read ahead. What an iterator does may depend on the rows before, and outside a
        // transaction each of them is to be durable before the next is asked for.
        let listed = parameters.is_exact_instance_of::<PyList>() || parameters.is_exact_instance_of::<PyTuple>();
        let batch = if listed || core.in_transaction() || implicit.is_some() { BATCH_ROWS } else { 1 };
        let mut iterator = parameters.try_iter()?;
        let mut changes = 0;
        let mut ended = None;
        while ended.is_none() {
            cells.clear();
            let mut rows = 0;
            while rows < batch && cells.byte_len() < BATCH_BYTES {
                let before = cells.len();
                match iterator.next() {
                    None => {
                        ended = Some(Ok(()));
                        break;
                    }
                    Some(row) => {
                        if let Err(error) = row.and_then(|row| convert::push_parameters(cells, prepared, &row)) {
                            cells.truncate(before);
                            ended = Some(Err(error));
                            break;
                        }
                    }
                }
                rows += 1;
            }
            if rows > 0 {
                let cells = &*cells;
                let many = Connection::run(py, core, |core| core.execute_many(prepared, cells, rows, *implicit))?;
                changes += many.changes;
                py.check_signals()?;
            }
        }
        ended.unwrap_or(Ok(()))?;
        Ok(changes)
    }
}

#[pymethods]
impl Cursor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::blank()
    }

    #[pyo3(signature = (connection, /))]
    fn __init__(slf: &Bound<'_, Self>, connection: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        if !connection.get_type().is_subclass_of::<Connection>()? {
            let kind = connection.get_type().name()?;
            return Err(PyTypeError::new_err(format!("Cursor() argument 1 must be sqlite3.Connection, not {kind}")));
        }
        let connection = connection.cast::<Connection>()?;
        if this.running.load(Ordering::Acquire) {
            return Err(errors::new(py, "ProgrammingError", "Recursive use of cursors not allowed."));
        }
        this.drop_rows(py);
        let former = {
            let mut state = this.state();
            let next = State { initialized: true, connection: Some(connection.clone().unbind()), ..State::blank() };
            std::mem::replace(&mut *state, next)
        };
        drop(former);
        connection.get().check_thread(py)
    }

    /// Run a statement, with the values of its placeholders in a sequence or a mapping; return the cursor.
    ///
    /// A write waits its turn, at most the connection's time-out, and then raises `WriteTimeout`.
    #[pyo3(signature = (sql, parameters=None, /))]
    pub fn execute<'py>(
        slf: &Bound<'py, Self>,
        sql: &Bound<'py, PyAny>,
        parameters: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let this = slf.get();
        let running = this.enter(py)?;
        this.drop_rows(py);
        let prepared = Self::prepare(&running, sql, "execute").map_err(|error| this.failed(error))?;
        this.begin_statement(&prepared);
        let mut cells = std::mem::take(&mut *this.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        cells.clear();
        let pushed = match parameters {
            Some(parameters) => convert::push_parameters(&mut cells, &prepared, parameters),
            None if prepared.parameter_count() == 0 => Ok(()),
            None => {
                Err(errors::from_core(py, &Error::ParameterCount { expected: prepared.parameter_count(), given: 0 }))
            }
        };
        let result = match pushed {
            Ok(()) => this.run_once(&running, prepared, &cells),
            Err(error) => {
                let core = &running.settings.core;
                detach(py, || core.give_back(prepared));
                Err(error)
            }
        };
        *this.scratch.lock().unwrap_or_else(PoisonError::into_inner) = cells;
        result.map_err(|error| this.failed(error))?;
        drop(running);
        Ok(slf.clone())
    }

    /// Run a statement that changes rows once for each item of an iterable; return the cursor.
    #[pyo3(signature = (sql, seq_of_parameters, /))]
    fn executemany<'py>(
        slf: &Bound<'py, Self>,
        sql: &Bound<'py, PyAny>,
        seq_of_parameters: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let this = slf.get();
        let running = this.enter(py)?;
        this.drop_rows(py);
        let mut prepared = Self::prepare(&running, sql, "executemany").map_err(|error| this.failed(error))?;
        this.begin_statement(&prepared);
        let mut cells = std::mem::take(&mut *this.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        let result = if prepared.is_readonly() {
            Err(errors::from_core(py, &Error::NotForMany(NotForMany::Reads)))
        } else {
            this.run_many(&running, &mut prepared, seq_of_parameters, &mut cells)
        };
        let core = &running.settings.core;
        detach(py, || core.give_back(prepared));
        *this.scratch.lock().unwrap_or_else(PoisonError::into_inner) = cells;
        let changes = result.map_err(|error| this.failed(error))?;
        {
            let mut state = this.state();
            if state.rowcount >= 0 {
                state.rowcount = changes;
            }
        }
        drop(running);
        Ok(slf.clone())
    }

    /// Run every statement of a script, dropping their rows; under the legacy control, commit first.
    #[pyo3(signature = (sql_script, /))]
    fn executescript<'py>(slf: &Bound<'py, Self>, sql_script: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let this = slf.get();
        let Ok(script) = sql_script.cast::<PyString>() else {
            if super::minor(py) < 11 {
                return Err(PyValueError::new_err("script argument must be unicode."));
            }
            let kind = sql_script.get_type().name()?;
            return Err(PyTypeError::new_err(format!("executescript() argument must be str, not {kind}")));
        };
        let text = script.to_str()?.as_bytes();
        if text.contains(&0) {
            return Err(PyValueError::new_err("embedded null character"));
        }
        let running = this.enter(py)?;
        this.drop_rows(py);
        let legacy = running.settings.legacy;
        Connection::run(py, &running.settings.core, |core| {
            core.check_script(text)?;
            if legacy {
                core.commit()?;
            }
            core.script(text)
        })?;
        drop(running);
        Ok(slf.clone())
    }

    /// Return the next row, or None.
    fn fetchone<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::__next__(slf)
    }

    /// Return the next `size` rows, by default `arraysize`.
    #[pyo3(signature = (size=Given(None)), text_signature = "($self, size=1)")]
    fn fetchmany<'py>(slf: &Bound<'py, Self>, size: Given) -> PyResult<Bound<'py, PyList>> {
        let size = match size.0 {
            Some(size) => row_count(size.bind(slf.py()))?,
            None => slf.get().state().arraysize,
        };
        let all = size <= 0 && !super::has_patch(slf.py(), &ROWS_ARE_COUNTED);
        Self::fetch_list(slf, if all { None } else { Some(usize::try_from(size).unwrap_or(0)) })
    }

    /// Return all the rows that are left.
    fn fetchall<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        Self::fetch_list(slf, None)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        // What a row costs is paid for each of them, so everything is asked for at once.
        let (connection, core, number, row_factory, casts) = {
            let state = this.state();
            let (true, false, Some(connection), Some(core), Some(number)) =
                (state.initialized, state.closed, &state.connection, &state.core, state.rows)
            else {
                drop(state);
                // Without rows, or with an error to raise.
                return this.enter(py).map(|_| None);
            };
            let row_factory = state.row_factory.as_ref().map(|factory| factory.bind(py).clone());
            (connection.clone_ref(py), Arc::clone(core), number, row_factory, state.casts.clone())
        };
        if this.running.swap(true, Ordering::Acquire) {
            return Err(errors::new(py, "ProgrammingError", "Recursive use of cursors not allowed."));
        }
        let _mark = Mark(this);
        let text_factory = connection.get().check_reader(py)?;
        let native_row = row_factory.as_ref().is_some_and(is_row_type);
        let description = if native_row { this.description_tuple(py)?.map(|made| made.into_bound(py)) } else { None };
        let maker = Maker { text_factory, casts, description, row_factory, native_row };
        // Nobody but the running call is ever at it.
        let mut cells = this.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        cells.clear();
        let fetched = this.fetch_from(py, core, number, 1, &mut cells)?;
        if fetched.rows == 0 { Ok(None) } else { Self::make_row(slf, &maker, &cells, 0, fetched.columns).map(Some) }
    }

    /// Close the cursor; its rows are dropped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let connection = {
            let state = self.state();
            match &state.connection {
                Some(connection) if state.initialized => connection.clone_ref(py),
                _ => return Err(errors::new(py, "ProgrammingError", "Base Cursor.__init__ not called.")),
            }
        };
        if self.running.load(Ordering::Acquire) {
            return Err(errors::new(py, "ProgrammingError", "Recursive use of cursors not allowed."));
        }
        connection.get().check(py)?;
        self.drop_rows(py);
        self.state().closed = true;
        Ok(())
    }

    /// Do nothing; required by PEP 249.
    #[pyo3(signature = (sizes, /))]
    fn setinputsizes(&self, sizes: &Bound<'_, PyAny>) {
        let _ = sizes;
    }

    /// Do nothing; required by PEP 249.
    #[pyo3(signature = (size, column=None, /))]
    fn setoutputsize(&self, size: &Bound<'_, PyAny>, column: Option<&Bound<'_, PyAny>>) {
        let _ = (size, column);
    }

    /// The connection the cursor belongs to.
    #[getter]
    fn connection(&self, py: Python<'_>) -> Option<Py<Connection>> {
        self.state().connection.as_ref().map(|connection| connection.clone_ref(py))
    }

    /// The columns of the result, a tuple of 7 each, or None.
    #[getter]
    fn description(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        self.description_tuple(py)
    }

    /// The rowid of the row inserted last, as of this cursor's own last statement.
    #[getter]
    fn lastrowid(&self) -> Option<i64> {
        self.state().lastrowid
    }

    /// The rows changed by this cursor's own last statement, or -1.
    #[getter]
    fn rowcount(&self) -> i64 {
        self.state().rowcount
    }

    /// How many rows `fetchmany` returns by default.
    #[getter]
    fn get_arraysize(&self) -> i64 {
        self.state().arraysize
    }

    #[setter]
    fn set_arraysize(&self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        self.state().arraysize = row_count(size)?;
        Ok(())
    }

    #[deleter]
    fn delete_arraysize(slf: &Bound<'_, Self>) -> PyResult<()> {
        let kind = slf.get_type().fully_qualified_name()?;
        Err(PyAttributeError::new_err(format!("attribute 'arraysize' of '{kind}' objects cannot be deleted")))
    }

    /// What makes a row of this cursor and a tuple; None: the tuple is the row.
    #[getter]
    fn get_row_factory(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state().row_factory.as_ref().map(|factory| factory.clone_ref(py))
    }

    #[setter]
    fn set_row_factory(&self, factory: &Bound<'_, PyAny>) {
        let factory = (!factory.is_none()).then(|| factory.clone().unbind());
        let former = std::mem::replace(&mut self.state().row_factory, factory);
        drop(former);
    }

    #[deleter]
    fn delete_row_factory(&self) -> PyResult<()> {
        Err(PyAttributeError::new_err("cannot delete row_factory attribute"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Nobody holds this lock across anything that can run the collector.
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        if let Some(connection) = &state.connection {
            visit.call(connection)?;
        }
        if let Some(factory) = &state.row_factory {
            visit.call(factory)?;
        }
        if let Some(description) = &state.description {
            visit.call(description)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let former = {
            let mut state = self.state();
            (state.connection.take(), state.row_factory.take(), state.description.take(), state.casts.take())
        };
        drop(former);
    }
}

/// Read a number of rows.
fn row_count(size: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = size.py();
    if !super::has_patch(py, &ROWS_ARE_COUNTED) {
        return Ok(size.extract::<i32>()?.into());
    }
    match size.extract::<i64>() {
        Ok(size) if size < 0 => Err(PyValueError::new_err("value must be positive")),
        Ok(size) if size > i64::from(u32::MAX) => {
            Err(PyOverflowError::new_err("Python int too large to convert to C uint32_t"))
        }
        Err(error) if error.is_instance_of::<PyOverflowError>(py) && size.lt(0)? => {
            Err(PyValueError::new_err("value must be positive"))
        }
        other => other,
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (core, rows) = (state.core.take(), state.rows.take());
        if let (Some(core), Some(rows)) = (core, rows) {
            Python::attach(|py| {
                detach(py, move || {
                    core.drop_rows(rows);
                    drop(core);
                });
            });
        }
    }
}
