//! Transactions: their begin, their end, their turn in the lane, and what is left when an error takes one away.

use super::kind::Kind;
use super::measure::Text;
use super::policy::{Busy, Decision, decide};
use super::waits::Ended;
use super::{Connection, Error, Lost, State, install_busy};
use crate::lane::Holder;
use crate::sqlite::{Handle, SqliteError, Statement, Step, ValueRef, ffi};
use crate::vfs;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Connection {
    /// Commit the open transaction; without one, do nothing.
    ///
    /// # Errors
    /// [`Error::TransactionLost`], [`Error::TimedOut`] where readers of a database without a log do not leave,
    /// and what SQLite says; the transaction then is still open unless [`Connection::in_transaction`] denies it.
    pub fn commit(&self) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        match self.check_lost(&state, Kind::Commit) {
            Ok(()) if !handle.autocommit() => self.control_measured(&state, &handle, "COMMIT", Kind::Commit),
            settled => self.settled(&state, &handle, settled),
        }
    }

    /// Roll the open transaction back, and acknowledge one that was lost; without one, do nothing.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn rollback(&self) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        state.lost.take();
        if handle.autocommit() {
            self.settled(&state, &handle, Ok(()))
        } else {
            self.control_measured(&state, &handle, "ROLLBACK", Kind::Rollback)
        }
    }

    /// Begin a transaction with `sql` (a BEGIN) unless one is open.
    ///
    /// # Errors
    /// [`Error::TransactionLost`], [`Error::TimedOut`], and what SQLite says.
    pub fn begin(&self, sql: &'static str) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        match self.check_lost(&state, Kind::Dml) {
            Ok(()) if handle.autocommit() => self.control_measured(&state, &handle, sql, Kind::Begin),
            settled => self.settled(&state, &handle, settled),
        }
    }

    fn settled(&self, state: &State, handle: &Arc<Handle>, result: Result<(), Error>) -> Result<(), Error> {
        self.settle(state, handle);
        result
    }

    /// Say whether a BEGIN without a mode is to take the write lock at once.
    pub(super) fn promotes_begin(&self) -> bool {
        self.options.begin_immediate && self.lane.is_some()
    }

    /// Begin the transaction that a change of rows opens by itself.
    ///
    /// It writes in its first statement, so on a shared file it takes the lock right away, whatever its mode.
    /// Others are told that it holds the lock for `cause`, the statement that begins it.
    pub(super) fn begin_implicit(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: &'static str,
        cause: &str,
    ) -> Result<(), Error> {
        if !handle.autocommit() {
            return Ok(());
        }
        let sql = if self.lane.is_some() && sql != "BEGIN EXCLUSIVE" { "BEGIN IMMEDIATE" } else { sql };
        self.control(state, handle, sql, Kind::Begin, cause)
    }

    fn control_measured(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: &'static str,
        kind: Kind,
    ) -> Result<(), Error> {
        self.measured(state, handle, Text::Passing(sql), kind, || self.control(state, handle, sql, kind, sql))
    }

    /// Run a statement of our own, for `cause`.
    fn control(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: &'static str,
        kind: Kind,
        cause: &str,
    ) -> Result<(), Error> {
        let kept = {
            let mut control = state.control.borrow_mut();
            control.iter().position(|(text, _)| *text == sql).map(|place| control.swap_remove(place).1)
        };
        let statement = match kept {
            Some(statement) => statement,
            None => Statement::prepare(handle, sql.as_bytes(), ffi::SQLITE_PREPARE_PERSISTENT)?
                .0
                .ok_or_else(|| SqliteError::from_code(ffi::SQLITE_INTERNAL))?,
        };
        let result = self.first_step(state, handle, &statement, cause, kind);
        statement.reset();
        if state.handle.borrow().is_some() {
            state.control.borrow_mut().push((sql, statement));
        }
        result.map(|_| ())
    }

    /// Refuse what must not follow a transaction that was lost, until the loss is acknowledged.
    pub(super) fn check_lost(&self, state: &State, kind: Kind) -> Result<(), Error> {
        if matches!(kind, Kind::BareBegin | Kind::Begin) {
            // Whoever begins anew knows that the old one is gone: inside it, BEGIN would be an error.
            state.lost.take();
        }
        match &*state.lost.borrow() {
            Some(lost) => Err(Error::TransactionLost(lost.why.clone())),
            None => Ok(()),
        }
    }

    /// Take a turn in the lane, unless there is one or there is no lane.
    pub(super) fn take_turn(&self, state: &State, handle: &Arc<Handle>, sql: &str) -> Result<(), Error> {
        let Some(lane) = &self.lane else { return Ok(()) };
        if !self.waits.wants_turn(handle.writes_main()) {
            return Ok(());
        }
        let now = state.course.arrived.take().unwrap_or_else(Instant::now);
        self.waits.enter(lane, sql, now).map_err(|ended| self.ended(ended, SqliteError::from_code(ffi::SQLITE_BUSY)))
    }

    /// Step a statement for the first time: in the lane if it writes, again after a lock was in the way, with the loss
    /// of a transaction noted.
    pub(super) fn first_step(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        statement: &Statement,
        sql: &str,
        kind: Kind,
    ) -> Result<Step, Error> {
        if statement.is_readonly() {
            self.waits.set_for_write_lock(false);
            self.note_read(state, sql);
        } else {
            self.take_turn(state, handle, sql)?;
        }
        let mut attempt = 0;
        let mut drained = false;
        loop {
            let autocommit = handle.autocommit();
            let stepped = if kind == Kind::Checkpoint {
                self.checkpoint(state, handle, statement)
            } else {
                self.step(statement, kind, autocommit)
            };
            let error = match stepped {
                Ok(Step::Row) if kind == Kind::Checkpoint && is_busy(statement) => {
                    if self.pause_checkpoint(state, handle, sql, attempt)? {
                        statement.reset();
                        attempt += 1;
                        continue;
                    }
                    return Ok(Step::Row);
                }
                Ok(step) => {
                    // Whoever has ended the transaction holds nothing any more.
                    if !matches!(kind, Kind::Commit | Kind::Rollback) {
                        self.waits.holding(sql);
                    }
                    return Ok(step);
                }
                Err(error) => error,
            };
            if error.primary() != ffi::SQLITE_BUSY {
                self.note_loss(state, handle, autocommit, kind, &error);
                return Err(error.into());
            }
            let busy = Busy {
                code: error.code,
                kind,
                autocommit,
                wal: self.waits.has_log(),
                given_up: self.waits.ended().is_some(),
                drained,
            };
            match decide(busy) {
                Decision::Wait => {
                    statement.reset();
                    if !self.waits.wait(attempt) {
                        return Err(self.gave_up(error));
                    }
                    attempt += 1;
                }
                Decision::Drain => {
                    statement.reset();
                    self.drain(state);
                    drained = true;
                }
                Decision::Stale => return Err(Error::StaleSnapshot(error)),
                Decision::Fail => return Err(self.gave_up(error)),
            }
        }
    }

    /// Step a statement that was reset. Where it is a transaction of its own, or ends one, its commit takes few system calls.
    fn step(&self, statement: &Statement, kind: Kind, autocommit: bool) -> Result<Step, SqliteError> {
        // A statement that gives rows commits with a later step.
        let whole = autocommit && matches!(kind, Kind::Dml | Kind::With) && statement.column_count() == 0;
        match kind {
            _ if self.lane.is_none() || statement.is_readonly() && kind != Kind::Commit => statement.step(),
            Kind::Commit => vfs::gathering_frames(|| statement.step()),
            _ if whole => vfs::leaving_marks(|| vfs::gathering_frames(|| statement.step())),
            _ => statement.step(),
        }
    }

    /// Try a checkpoint once, which asks nobody how long to wait: the busy handler would be asked with the write lock held,
    /// so that the others waited as long as the readers do.
    fn checkpoint(&self, state: &State, handle: &Arc<Handle>, statement: &Statement) -> Result<Step, SqliteError> {
        let ours = state.busy.take();
        drop(ours);
        let stepped = statement.step();
        if state.handle.borrow().is_some() {
            *state.busy.borrow_mut() = Some(install_busy(handle, &self.waits));
        }
        stepped
    }

    /// Let others write while readers are in the way of a checkpoint; `false`: its time is over, and it says busy.
    fn pause_checkpoint(&self, state: &State, handle: &Arc<Handle>, sql: &str, attempt: u32) -> Result<bool, Error> {
        self.waits.give_up_turn();
        let busy = || SqliteError::from_code(ffi::SQLITE_BUSY);
        match self.waits.pause(attempt) {
            Ok(()) => {}
            Err(Ended::TimedOut) => return Ok(false),
            Err(ended) => return Err(self.ended(ended, busy())),
        }
        match self.take_turn(state, handle, sql) {
            Ok(()) => Ok(true),
            Err(Error::TimedOut { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Note that an error took the application's transaction with it.
    pub(super) fn note_loss(
        &self,
        state: &State,
        handle: &Handle,
        autocommit_before: bool,
        kind: Kind,
        error: &SqliteError,
    ) {
        // A failed COMMIT says itself that the transaction is gone.
        if !autocommit_before && handle.autocommit() && !matches!(kind, Kind::Commit | Kind::Rollback) {
            *state.lost.borrow_mut() = Some(Lost { why: error.message.clone(), idle: false });
        }
    }

    /// Return the error of a call whose wait is over, or whose lock is not to be waited for.
    pub(super) fn gave_up(&self, error: SqliteError) -> Error {
        match self.waits.ended() {
            Some(ended) => self.ended(ended, error),
            None => Error::Sqlite(error),
        }
    }

    fn ended(&self, ended: Ended, error: SqliteError) -> Error {
        match ended {
            Ended::Signalled => Error::Signalled,
            Ended::Interrupted => Error::Interrupted,
            Ended::TimedOut => {
                let holder = self.waits.holder().filter(|holder| matches!(holder, Holder::Process { .. }));
                let now = || self.lane.as_ref().map_or(Holder::Unknown, |lane| lane.holder());
                let holder = holder.unwrap_or_else(now);
                Error::TimedOut { error, waited: self.waits.waited(), holder: Box::new(holder) }
            }
        }
    }

    /// Prepare `PRAGMA busy_timeout`, which acts while it is prepared and puts SQLite's own busy handler in the place
    /// of ours: let it, take its time-out over, and put ours back.
    pub(super) fn prepare_busy_timeout(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: &[u8],
    ) -> Result<(Option<Statement>, usize), Error> {
        let milliseconds = |timeout: Option<Duration>| {
            timeout.map_or(i32::MAX, |timeout| i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
        };
        let before = milliseconds(self.waits.timeout());
        let ours = state.busy.take();
        drop(ours);
        handle.busy_timeout_ms(before);
        let prepared = Statement::prepare(handle, sql, 0);
        let after = Statement::prepare(handle, b"PRAGMA busy_timeout", 0).ok().and_then(|(asked, _)| {
            let asked = asked?;
            asked.step().ok()?;
            match asked.column(0) {
                ValueRef::Integer(after) if after != i64::from(before) => u64::try_from(after).ok(),
                _ => None,
            }
        });
        if let Some(after) = after {
            self.waits.set_timeout(Duration::from_millis(after));
        }
        *state.busy.borrow_mut() = Some(install_busy(handle, &self.waits));
        Ok(prepared?)
    }
}

/// Say whether the row that a checkpoint gave says that somebody was in its way.
fn is_busy(statement: &Statement) -> bool {
    matches!(statement.column(0), ValueRef::Integer(busy) if busy != 0)
}
