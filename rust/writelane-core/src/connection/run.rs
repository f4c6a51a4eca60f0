//! Statements: prepared, run, their rows fetched or read into memory.

use super::error::{Error, NotForMany};
use super::kind::{Kind, kind, without_blank};
use super::measure::Text;
use super::{Connection, Rows, State};
use crate::sqlite::{Cells, Handle, Statement, Step, ValueRef, ffi};
use crate::vfs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A statement ready to run. It must be run, or given back with [`Connection::give_back`].
pub struct Prepared {
    statement: Option<Statement>,
    sql: Arc<str>,
    kind: Kind,
    changes_rows: bool,
}

/// What is to be known of the result's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Describe {
    /// Their names.
    Names,
    /// Their names and the types they were declared with.
    Types,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: Box<[u8]>,
    /// The type it was declared with, where it was asked for and there is one.
    pub declared: Option<Box<[u8]>>,
}

/// What running a statement gave.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number under which rows can be fetched, where there are any.
    pub rows: Option<u64>,
    /// The columns of the result.
    pub columns: Vec<Column>,
    /// The rows changed, for a statement that changes rows and has ended.
    pub changes: Option<i64>,
    /// The last inserted rowid of the connection, right after the statement.
    pub last_rowid: i64,
}

/// What running a statement with many rows of parameters gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Many {
    /// The rows changed.
    pub changes: i64,
}

/// What a fetch gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// How many rows.
    pub rows: usize,
    /// How many columns each has.
    pub columns: usize,
    /// Whether more can be fetched.
    pub more: bool,
    /// The rows changed, for a statement that changes rows and has ended with this fetch.
    pub changes: Option<i64>,
}

impl Prepared {
    /// Return how many parameters the statement takes.
    pub fn parameter_count(&self) -> usize {
        self.statement.as_ref().map_or(0, Statement::parameter_count)
    }

    /// Return the name of parameter `index` (from 1) with its prefix, or `None` where it has none.
    pub fn parameter_name(&self, index: usize) -> Option<&str> {
        self.statement.as_ref()?.parameter_name(index)
    }

    /// Say whether the statement makes no direct change to the database.
    pub fn is_readonly(&self) -> bool {
        self.statement.as_ref().is_none_or(Statement::is_readonly)
    }

    /// Say whether the statement inserts, updates or deletes rows.
    pub fn changes_rows(&self) -> bool {
        self.changes_rows
    }
}

impl Connection {
    /// Prepare the one statement in `sql`, or take it from the cache.
    ///
    /// # Errors
    /// [`Error::SeveralStatements`], [`Error::TooLong`], and what SQLite says.
    pub fn prepare(&self, sql: &[u8]) -> Result<Prepared, Error> {
        let (state, handle) = self.enter()?;
        check_length(&handle, sql)?;
        let kind = kind(sql);
        let text: &[u8] = if kind == Kind::BareBegin && self.promotes_begin() { b"BEGIN IMMEDIATE" } else { sql };
        // What acts while it is prepared is prepared each time.
        let kept = if kind == Kind::BusyTimeout { None } else { state.cache.borrow_mut().take(text) };
        let (sql, statement) = match kept {
            Some((sql, statement)) => (sql, Some(statement)),
            None => {
                let (statement, rest) = self.prepare_patiently(&state, &handle, text)?;
                if statement.is_some() && !without_blank(&text[rest..], false).is_empty() {
                    return Err(Error::SeveralStatements);
                }
                (String::from_utf8_lossy(text).into(), statement)
            }
        };
        let changes_rows = match kind {
            Kind::Dml => true,
            Kind::With => statement.as_ref().is_some_and(|statement| !statement.is_readonly()),
            _ => false,
        };
        Ok(Prepared { statement, sql, kind, changes_rows })
    }

    /// Take the one statement in `sql` from the cache, if it is there. Never blocks.
    pub fn prepare_at_once(&self, sql: &[u8]) -> Option<Prepared> {
        if self.is_inherited() {
            return None;
        }
        let state = self.state.try_lock()?;
        let kind = kind(sql);
        if matches!(kind, Kind::BareBegin | Kind::BusyTimeout) {
            return None;
        }
        let (sql, statement) = state.cache.try_borrow_mut().ok()?.take(sql)?;
        let changes_rows = kind == Kind::Dml || (kind == Kind::With && !statement.is_readonly());
        Some(Prepared { statement: Some(statement), sql, kind, changes_rows })
    }

    fn prepare_patiently(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: &[u8],
    ) -> Result<(Option<Statement>, usize), Error> {
        if kind(sql) == Kind::BusyTimeout {
            return self.prepare_busy_timeout(state, handle, sql);
        }
        self.waits.begin_read();
        let mut attempt = 0;
        loop {
            match Statement::prepare(handle, sql, ffi::SQLITE_PREPARE_PERSISTENT) {
                Err(error) if error.primary() == ffi::SQLITE_BUSY => {
                    if !self.waits.wait(attempt) {
                        return Err(self.gave_up(error));
                    }
                    attempt += 1;
                }
                other => return Ok(other?),
            }
        }
    }

    /// Give a statement back that is not run after all.
    pub fn give_back(&self, prepared: Prepared) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.lock();
        if let Some(statement) = prepared.statement {
            state.keep(prepared.sql, statement);
        }
    }

    /// Run a statement with the parameters in `parameters`, beginning `implicit` first if it changes rows.
    ///
    /// # Errors
    /// [`Error::ParameterCount`], [`Error::TransactionLost`], [`Error::TimedOut`], [`Error::StaleSnapshot`] and
    /// what SQLite says.
    pub fn execute(
        &self,
        prepared: Prepared,
        parameters: &Cells,
        implicit: Option<&'static str>,
        describe: Describe,
    ) -> Result<Outcome, Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        let (sql, kind) = (Arc::clone(&prepared.sql), prepared.kind);
        self.measured(&state, &handle, Text::Kept(&sql), kind, || {
            self.execute_in(&state, &handle, prepared, parameters, implicit, describe)
        })
    }

    fn execute_in(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        prepared: Prepared,
        parameters: &Cells,
        implicit: Option<&'static str>,
        describe: Describe,
    ) -> Result<Outcome, Error> {
        let Prepared { statement, sql, kind, changes_rows } = prepared;
        let Some(statement) = statement else {
            return Ok(Outcome { last_rowid: handle.last_insert_rowid(), ..Outcome::default() });
        };
        if kind == Kind::Rollback && handle.autocommit() && state.lost.take().is_some() {
            state.keep(sql, statement);
            return Ok(Outcome { last_rowid: handle.last_insert_rowid(), ..Outcome::default() });
        }
        let begun = self
            .check_parameters(&statement, parameters.len())
            .and_then(|()| self.check_writable(state, &statement, kind))
            .and_then(|()| bind(&statement, parameters, 0))
            .and_then(|()| self.begin_for(state, handle, changes_rows, implicit, &sql));
        let stepped = begun.and_then(|begun| {
            let result = self.first_step(state, handle, &statement, &sql, kind);
            if begun && result.is_err() {
                // The transaction began with this statement: its own error tells all that was lost.
                state.lost.take();
            }
            result
        });
        let step = match stepped {
            Ok(step) => step,
            Err(error) => {
                state.keep(sql, statement);
                return Err(error);
            }
        };
        let last_rowid = handle.last_insert_rowid();
        let columns = columns(&statement, describe);
        match step {
            Step::Row => {
                let rows = Rows::new(sql, statement, changes_rows, columns.len());
                let number = self.next_cursor.fetch_add(1, Ordering::Relaxed);
                if state.handle.borrow().is_none() {
                    return Err(Error::Closed);
                }
                state.cursors.borrow_mut().insert(number, rows);
                Ok(Outcome { rows: Some(number), columns, changes: None, last_rowid })
            }
            Step::Done => {
                let changes = changes_rows.then(|| handle.changes());
                state.keep(sql, statement);
                Ok(Outcome { rows: None, columns, changes, last_rowid })
            }
        }
    }

    /// Run a statement once for each of the `rows` rows of parameters in `parameters`; stop at the first error.
    ///
    /// The statement is handed back for the next call.
    ///
    /// # Errors
    /// [`Error::NotForMany`] and those of [`Connection::execute`].
    pub fn execute_many(
        &self,
        prepared: &mut Prepared,
        parameters: &Cells,
        rows: usize,
        implicit: Option<&'static str>,
    ) -> Result<Many, Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        let (sql, kind) = (Arc::clone(&prepared.sql), prepared.kind);
        self.measured(&state, &handle, Text::Kept(&sql), kind, || {
            self.execute_many_in(&state, &handle, prepared, parameters, rows, implicit)
        })
    }

    fn execute_many_in(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        prepared: &mut Prepared,
        parameters: &Cells,
        rows: usize,
        implicit: Option<&'static str>,
    ) -> Result<Many, Error> {
        let Some(statement) = &prepared.statement else { return Ok(Many::default()) };
        let (kind, changes_rows) = (prepared.kind, prepared.changes_rows);
        if statement.is_readonly() {
            return Err(Error::NotForMany(NotForMany::Reads));
        }
        let width = statement.parameter_count();
        self.check_writable(state, statement, kind)?;
        let sql = &*prepared.sql;
        let begun = self.begin_for(state, handle, changes_rows, implicit, sql)?;
        let mut changes = 0;
        let mut run = || -> Result<(), Error> {
            for row in 0..rows {
                bind(statement, parameters, row * width)?;
                // Inside a transaction that has the write lock no lock can be in the way.
                let mut step = if handle.autocommit() || !handle.writes_main() {
                    self.first_step(state, handle, statement, sql, kind)?
                } else {
                    self.later_step(state, handle, statement, kind)?
                };
                while step == Step::Row {
                    step = self.later_step(state, handle, statement, kind)?;
                }
                statement.reset();
                if changes_rows {
                    changes += handle.changes();
                }
                if handle.autocommit() {
                    self.settle(state, handle);
                }
            }
            Ok(())
        };
        let result = if handle.writes_main() { self.run_gathered(state, handle, run) } else { run() };
        statement.reset();
        statement.clear_bindings();
        if begun && result.is_err() {
            state.lost.take();
        }
        result.map(|()| Many { changes })
    }

    /// Run many rows of a transaction that has the write lock. Frames that SQLite's cache has no room for go to the log in
    /// few writes; where they do not get there, the transaction is lost, as it is when SQLite's own write fails.
    fn run_gathered(
        &self,
        state: &State,
        handle: &Handle,
        run: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        vfs::gathering_frames(|| Ok(run())).unwrap_or_else(|error| {
            let rolled_back = if handle.autocommit() { Ok(()) } else { handle.execute_batch("ROLLBACK") };
            self.note_loss(state, handle, false, Kind::Dml, &error);
            rolled_back?;
            Err(error.into())
        })
    }

    fn begin_for(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        changes_rows: bool,
        implicit: Option<&'static str>,
        sql: &str,
    ) -> Result<bool, Error> {
        match implicit {
            Some(begin) if changes_rows && handle.autocommit() => {
                self.begin_implicit(state, handle, begin, sql)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn check_parameters(&self, statement: &Statement, given: usize) -> Result<(), Error> {
        let expected = statement.parameter_count();
        if expected == given { Ok(()) } else { Err(Error::ParameterCount { expected, given }) }
    }

    fn check_writable(&self, state: &State, statement: &Statement, kind: Kind) -> Result<(), Error> {
        let reads = statement.is_readonly()
            && !matches!(kind, Kind::Commit | Kind::Savepoint | Kind::BareBegin | Kind::Begin | Kind::Rollback);
        let told = !state.lost.borrow().as_ref().is_some_and(|lost| lost.idle);
        if reads && told { Ok(()) } else { self.check_lost(state, kind) }
    }

    /// Step a statement that has been stepped before, noting the loss of a transaction.
    fn later_step(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        statement: &Statement,
        kind: Kind,
    ) -> Result<Step, Error> {
        let autocommit = handle.autocommit();
        statement.step().map_err(|error| {
            self.note_loss(state, handle, autocommit, kind, &error);
            self.gave_up(error)
        })
    }

    /// Copy up to `rows_max` rows, but no more than fit `bytes_max`, behind what `out` holds.
    ///
    /// # Errors
    /// What SQLite says; the rows then are dropped.
    pub fn fetch(&self, number: u64, rows_max: usize, bytes_max: usize, out: &mut Cells) -> Result<Fetched, Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin_read();
        let Some(mut rows) = state.cursors.borrow_mut().take(number) else {
            // Rows that a transaction which was left alone took with it are not "no more rows".
            return match &*state.lost.borrow() {
                Some(lost) if lost.idle => Err(Error::TransactionLost(lost.why.clone())),
                _ => Ok(Fetched::default()),
            };
        };
        let result = self.fetch_in(&state, &handle, &mut rows, rows_max, bytes_max, out);
        match &result {
            Ok(fetched) if fetched.more => {
                let homeless = state.cursors.borrow_mut().put_back(number, rows);
                drop(homeless);
            }
            _ => {
                state.cursors.borrow_mut().remove(number);
                if let Some(statement) = rows.statement.take() {
                    state.keep(rows.sql, statement);
                }
            }
        }
        // Between the rows of one statement nothing happens that others ask about.
        if !result.as_ref().is_ok_and(|fetched| fetched.more) {
            self.settle(&state, &handle);
        }
        result
    }

    fn fetch_in(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        rows: &mut Rows,
        rows_max: usize,
        bytes_max: usize,
        out: &mut Cells,
    ) -> Result<Fetched, Error> {
        let mut fetched = Fetched { columns: rows.columns, more: true, ..Fetched::default() };
        let statement = match &rows.statement {
            Some(statement) if rows.next == rows.memory.len() => statement,
            _ => return rows.take_from_memory(fetched, rows_max, out),
        };
        // The row may have more columns than the statement had when it was prepared.
        fetched.columns = statement.data_count();
        while fetched.rows < rows_max && out.byte_len() <= bytes_max {
            copy_row(statement, fetched.columns, &rows.raw, out);
            fetched.rows += 1;
            if self.later_step(state, handle, statement, Kind::Other)? == Step::Done {
                fetched.more = false;
                fetched.changes = rows.changes_rows.then(|| handle.changes());
                break;
            }
        }
        Ok(fetched)
    }

    /// Give the marked columns of these rows as the bytes of their text, for converters.
    pub fn give_raw(&self, number: u64, columns: Vec<bool>) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.lock();
        if let Some(rows) = state.cursors.borrow_mut().get_mut(number) {
            rows.raw = columns.into();
        }
    }

    /// Drop the rows that are left.
    pub fn drop_rows(&self, number: u64) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.lock();
        let Some(mut rows) = state.cursors.borrow_mut().remove(number) else { return };
        if let Some(statement) = rows.statement.take() {
            state.keep(rows.sql, statement);
        }
        if let Some(handle) = state.handle.borrow().clone() {
            self.settle(&state, &handle);
        }
    }

    /// Read the rest of every half-read statement into memory, so that none stands in the way of a write.
    pub(super) fn drain(&self, state: &State) {
        let numbers = state.cursors.borrow().numbers();
        for number in numbers {
            let Some(mut rows) = state.cursors.borrow_mut().take(number) else { continue };
            rows.read_to_end();
            if let (true, Some(statement)) = (rows.changes_rows, &rows.statement) {
                rows.changes = Some(statement.handle().changes());
            }
            if let Some(statement) = rows.statement.take() {
                state.keep(Arc::clone(&rows.sql), statement);
            }
            let homeless = state.cursors.borrow_mut().put_back(number, rows);
            drop(homeless);
        }
    }

    /// Check that a script is not longer than the connection allows.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn check_script(&self, sql: &[u8]) -> Result<(), Error> {
        let (_state, handle) = self.enter()?;
        check_length(&handle, sql)
    }

    /// Run every statement of `sql`, dropping their rows.
    ///
    /// # Errors
    /// Those of [`Connection::execute`], at the first statement that fails.
    pub fn script(&self, sql: &[u8]) -> Result<(), Error> {
        let mut rest = sql;
        loop {
            let (state, handle) = self.enter()?;
            check_length(&handle, sql)?;
            let (statement, used) = self.prepare_patiently(&state, &handle, rest)?;
            let text = &rest[..used];
            if let Some(statement) = statement {
                self.waits.begin();
                let shown = String::from_utf8_lossy(without_blank(text, true));
                self.measured(&state, &handle, Text::Passing(&shown), kind(text), || {
                    self.run_to_end(&state, &handle, statement, text)
                })?;
            }
            rest = &rest[used..];
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn run_to_end(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        mut statement: Statement,
        text: &[u8],
    ) -> Result<(), Error> {
        let kind = kind(text);
        if kind == Kind::Rollback && handle.autocommit() && state.lost.take().is_some() {
            return Ok(());
        }
        if kind == Kind::BareBegin && self.promotes_begin() {
            statement = Statement::prepare(handle, b"BEGIN IMMEDIATE", 0)?.0.unwrap_or(statement);
        }
        self.check_writable(state, &statement, kind)?;
        let mut step = self.first_step(state, handle, &statement, &String::from_utf8_lossy(text), kind)?;
        while step == Step::Row {
            step = self.later_step(state, handle, &statement, kind)?;
        }
        Ok(())
    }
}

impl State {
    /// Keep a statement for its next use, or drop it where the connection is closed.
    fn keep(&self, sql: Arc<str>, statement: Statement) {
        if self.handle.borrow().is_some() {
            self.cache.borrow_mut().give_back(sql, statement);
        }
    }
}

impl Rows {
    fn new(sql: Arc<str>, statement: Statement, changes_rows: bool, columns: usize) -> Self {
        Self {
            sql,
            statement: Some(statement),
            changes_rows,
            memory: Cells::default(),
            columns,
            next: 0,
            raw: Box::default(),
            changes: None,
            error: None,
        }
    }

    fn take_from_memory(&mut self, mut fetched: Fetched, rows_max: usize, out: &mut Cells) -> Result<Fetched, Error> {
        while fetched.rows < rows_max && self.next < self.memory.len() {
            for index in self.next..self.next + self.columns {
                out.push(self.memory.get(index));
            }
            self.next += self.columns;
            fetched.rows += 1;
        }
        if self.next >= self.memory.len() {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            fetched.more = false;
            fetched.changes = self.changes;
        }
        Ok(fetched)
    }

    fn read_to_end(&mut self) {
        let Some(statement) = &self.statement else { return };
        if !statement.is_running() {
            return;
        }
        self.columns = statement.data_count();
        loop {
            copy_row(statement, self.columns, &self.raw, &mut self.memory);
            match statement.step() {
                Ok(Step::Row) => {}
                Ok(Step::Done) => return,
                Err(error) => {
                    // As when it is fetched row by row: the row in front of an error is not given.
                    self.memory.truncate(self.memory.len() - self.columns);
                    self.error = Some(error.into());
                    return;
                }
            }
        }
    }
}

fn check_length(handle: &Handle, sql: &[u8]) -> Result<(), Error> {
    match handle.limit(ffi::SQLITE_LIMIT_SQL_LENGTH, -1) {
        Some(limit) if sql.len() > limit.unsigned_abs() as usize => Err(Error::TooLong),
        _ => Ok(()),
    }
}

#[inline]
fn copy_row(statement: &Statement, columns: usize, raw: &[bool], out: &mut Cells) {
    if raw.is_empty() {
        statement.copy_row(columns, out);
        return;
    }
    for column in 0..columns {
        if raw.get(column).copied().unwrap_or(false) {
            out.push(statement.column_raw(column).map_or(ValueRef::Null, ValueRef::Blob));
        } else {
            out.push(statement.column(column));
        }
    }
}

fn bind(statement: &Statement, parameters: &Cells, first: usize) -> Result<(), Error> {
    for index in 0..statement.parameter_count() {
        statement.bind(index + 1, parameters.get(first + index))?;
    }
    Ok(())
}

fn columns(statement: &Statement, describe: Describe) -> Vec<Column> {
    (0..statement.column_count())
        .map(|index| Column {
            name: statement.column_name(index).unwrap_or_default().into(),
            declared: match describe {
                Describe::Names => None,
                Describe::Types => statement.column_decltype(index).map(Into::into),
            },
        })
        .collect()
}
