//! The engine, lent to a caller for an interactive transaction.

use super::engine::Engine;
use super::{Borrower, Shared};
use crate::error::Error;
use crate::job::{Account, Call, Effect, Failure, Waited};
use crate::lane::Turn;
use crate::process;
use crate::telemetry::snapshots::Place;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the writer puts the engine down for the caller who asked for it.
pub struct Desk {
    /// What telemetry knows the transaction by.
    pub label: Arc<str>,
    state: Mutex<State>,
}

enum State {
    Empty,
    Lent(Box<Lease>),
    Abandoned,
}

impl Desk {
    /// Make an empty desk.
    pub fn new(label: Arc<str>) -> Arc<Self> {
        Arc::new(Self { label, state: Mutex::new(State::Empty) })
    }

    /// Put the lease down. It is given back if the caller has gone.
    pub(super) fn put(&self, lease: Box<Lease>) -> Result<(), Box<Lease>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Abandoned) {
            return Err(lease);
        }
        *state = State::Lent(lease);
        Ok(())
    }

    /// Take the lease up.
    pub fn take(&self) -> Option<Box<Lease>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Empty) {
            State::Lent(lease) => Some(lease),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Say that the caller has gone: a lease that was put down or will be is given back.
    pub fn abandon(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *state, State::Abandoned);
        drop(state);
        drop(before);
    }
}

/// An open write transaction on the engine, which nobody else has meanwhile.
///
/// Dropped without [`Lease::commit`] it is rolled back. In a forked child it is leaked.
pub struct Lease {
    engine: Option<Box<Engine>>,
    turn: Option<Turn>,
    shared: Arc<Shared>,
    generation: u64,
    began: Instant,
    account: Account,
    run: Duration,
    /// The place in the code that began it.
    location: Option<Arc<str>>,
    snapshot: Arc<Place>,
    recorded: bool,
    /// Why the transaction is gone though the caller did not end it.
    lost: Option<Error>,
    label: Arc<str>,
}

impl Lease {
    pub(super) fn new(
        engine: Box<Engine>,
        turn: Option<Turn>,
        shared: Arc<Shared>,
        label: Arc<str>,
        account: Account,
    ) -> Box<Self> {
        let snapshot = shared.telemetry.place();
        snapshot.begin_elsewhere(&label, Instant::now());
        Box::new(Self {
            engine: Some(engine),
            turn,
            shared,
            generation: process::generation(),
            began: Instant::now(),
            account,
            run: Duration::ZERO,
            location: None,
            snapshot,
            recorded: false,
            lost: None,
            label,
        })
    }

    /// Run one statement inside the transaction, to its end. Blocks for as long as it runs.
    ///
    /// # Errors
    /// What SQLite says; the transaction lives on unless the error says otherwise. After SQLite rolled the
    /// transaction back, every further statement and the commit are refused.
    pub fn run(&mut self, call: &Call) -> Result<(Effect, Account), Box<Failure>> {
        self.check()?;
        let started = Instant::now();
        let Some(engine) = self.engine.as_mut() else { return Err(Box::new(Error::Closed.into())) };
        if let Some(turn) = self.turn.as_mut() {
            turn.holding(&call.sql);
        }
        let result = engine.run(call);
        let gone = engine.autocommit();
        let account = self.ran(&call.sql, started, result.as_ref().err());
        match result {
            Ok(effect) => Ok((effect, account)),
            Err(error) => {
                if gone {
                    self.lost = Some(error.clone());
                }
                let statement = Some(Arc::clone(&call.sql));
                Err(Box::new(Failure { error, statement, position: None, account }))
            }
        }
    }

    /// Run one statement for many rows of parameters, all or none.
    ///
    /// # Errors
    /// As [`Lease::run`].
    pub fn run_many(
        &mut self,
        sql: &Arc<str>,
        rows: &[crate::job::Parameters],
    ) -> Result<(Effect, Account), Box<Failure>> {
        self.check()?;
        let started = Instant::now();
        let Some(engine) = self.engine.as_mut() else { return Err(Box::new(Error::Closed.into())) };
        if let Some(turn) = self.turn.as_mut() {
            turn.holding(sql);
        }
        let result = engine
            .savepoint()
            .map_err(|error| (error.into(), 0))
            .and_then(|()| engine.run_many(sql, rows))
            .and_then(|effect| engine.release().map(|()| effect).map_err(|error| (error.into(), 0)));
        if result.is_err() && !engine.autocommit() && engine.undo().is_err() {
            // Some of its rows are in the transaction and cannot be taken out alone: none of it may be committed.
            self.lost = result.as_ref().err().map(|(error, _)| error.clone());
            let _ = engine.rollback();
        }
        let gone = engine.autocommit();
        let account = self.ran(sql, started, result.as_ref().err().map(|(error, _)| error));
        match result {
            Ok(effect) => Ok((effect, account)),
            Err((error, row)) => {
                if gone {
                    self.lost = Some(error.clone());
                }
                Err(Box::new(Failure { error, statement: Some(Arc::clone(sql)), position: Some(row), account }))
            }
        }
    }

    /// Count a statement that has run since `started`, and return how it fared.
    fn ran(&mut self, sql: &str, started: Instant, error: Option<&Error>) -> Account {
        let waited = Waited { run: started.elapsed(), ..Waited::default() };
        self.run += waited.run;
        let account = Account { waited, group: 1, ..Account::default() };
        self.shared.telemetry.record_one(sql, &account, error);
        account
    }

    /// Commit, give the engine back and return how the transaction fared.
    ///
    /// # Errors
    /// Why it was not committed; it is rolled back then.
    pub fn commit(mut self: Box<Self>, patience: &crate::wait::Patience<'_>) -> Result<Account, Box<Failure>> {
        if let Err(mut failure) = self.check() {
            failure.account = self.account();
            return Err(failure);
        }
        let started = Instant::now();
        let result =
            self.shared.commit(self.engine.as_deref_mut(), &mut self.turn, patience, started, &mut self.account);
        self.account.waited.run = started.duration_since(self.began);
        self.account.waited.commit = started.elapsed();
        self.account.group = 1;
        let account = self.account.clone();
        self.record(result.as_ref().err());
        self.give_back();
        match result {
            Ok(_) => Ok(account),
            Err(error) => Err(Box::new(Failure { error, statement: Some("COMMIT".into()), position: None, account })),
        }
    }

    /// Roll back, give the engine back and return how the transaction fared.
    pub fn rollback(mut self: Box<Self>) -> Account {
        self.give_back();
        self.account()
    }

    /// Say which task of this thread the transaction belongs to; 0: the thread itself.
    pub fn belongs_to(&self, task: u64) {
        self.shared.set_borrower(Some(Borrower { thread: std::thread::current().id(), task }));
    }

    /// Say where in the code the transaction was begun, to be told if it holds the lock, or its snapshot is open, long.
    pub fn begun_at(&mut self, location: Arc<str>) {
        self.snapshot.begun_at(Arc::clone(&location));
        self.location = Some(location);
    }

    /// Return how long the lock has been held.
    pub fn held(&self) -> Duration {
        self.began.elapsed()
    }

    /// Return how the transaction fared until now: its waits before it began, and all since as what it ran.
    pub fn account(&self) -> Account {
        let mut account = self.account.clone();
        account.waited.run = self.began.elapsed();
        account
    }

    fn check(&self) -> Result<(), Box<Failure>> {
        if self.generation != process::generation() {
            return Err(Box::new(Error::Forked.into()));
        }
        match &self.lost {
            None => Ok(()),
            Some(cause) => Err(Box::new(
                Error::Usage(
                    format!(
                        "SQLite rolled this transaction back when a statement failed ({cause}); nothing of it is in \
                         the database: leave the block and run it again"
                    )
                    .into(),
                )
                .into(),
            )),
        }
    }

    /// Count the transaction as one job: its statements are counted by themselves, so that what it ran is only the
    /// time between them.
    fn record(&mut self, error: Option<&Error>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let held = self.began.elapsed();
        let mut account = self.account.clone();
        account.waited.run = held.saturating_sub(self.run).saturating_sub(account.waited.commit);
        let mut recorder = self.shared.telemetry.recorder();
        recorder.job(&self.label, &account, error);
        recorder.held(&self.label, held, self.location.as_ref());
    }

    fn give_back(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        self.snapshot.end();
        if self.generation == process::generation() {
            self.shared.set_borrower(None);
        }
        if self.generation != process::generation() {
            std::mem::forget(engine);
            std::mem::forget(self.turn.take());
            return;
        }
        let lost = self.lost.take();
        // A rollback that fails leaves a transaction open; the engine is of no use to others then. A panic must not
        // leave them waiting for the engine.
        let usable =
            catch_unwind(AssertUnwindSafe(|| engine.rollback().is_ok() && engine.autocommit())).unwrap_or(false);
        // Undoing it is a part of it.
        self.record(lost.as_ref());
        let turn = self.turn.take();
        if usable {
            self.shared.leave_log_to_writer(turn, Some(engine), Instant::now());
        } else {
            drop(turn);
            self.shared.poison("a transaction could not be rolled back");
            drop(engine);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}
