//! What the calls of a connection tell telemetry: the same counts that the writer keeps of the same file.

use super::{Connection, Error, Kind, State};
use crate::job::{Account, Waited};
use crate::sqlite::{Handle, code_name, ffi};
use crate::telemetry::Telemetry;
use crate::telemetry::snapshots::Place;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The part of a connection that measures it.
pub(super) struct Meter {
    telemetry: Arc<Telemetry>,
    /// Where the connection's snapshot is open.
    snapshot: Arc<Place>,
    /// Not 0: a transaction took the lock, or a snapshot was left open, in the last call, and nobody has said where in the
    /// code that was. It is the number of the transaction, or [`NO_TRANSACTION`].
    wants_location: AtomicU64,
    /// The transaction that began last, and where. Never locked across anything: whoever says where must not wait for
    /// another thread that uses the connection.
    begun: Mutex<Begun>,
}

/// Where a transaction was begun.
#[derive(Default)]
struct Begun {
    number: u64,
    location: Option<Arc<str>>,
}

/// Stands for the number of a transaction where only a snapshot was opened.
const NO_TRANSACTION: u64 = u64::MAX;

/// What is measured over several calls.
#[derive(Default)]
pub(super) struct Course {
    /// The time at which the call began that is running, as long as nothing in it has taken any.
    pub(super) arrived: Cell<Option<Instant>>,
    /// The time at which it ended, until that is told to others.
    pub(super) left: Cell<Option<Instant>>,
    /// The open snapshot is known to be one, so that its place in the code was asked for.
    reading: Cell<bool>,
    writing: RefCell<Option<Writing>>,
}

/// A transaction that has the write lock.
struct Writing {
    since: Instant,
    statement: Arc<str>,
}

/// The text of a statement.
#[derive(Clone, Copy)]
pub(super) enum Text<'a> {
    /// Kept with the statement.
    Kept(&'a Arc<str>),
    /// Somebody else's.
    Passing(&'a str),
}

impl Text<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Kept(text) => text,
            Self::Passing(text) => text,
        }
    }

    fn keep(self) -> Arc<str> {
        match self {
            Self::Kept(text) => Arc::clone(text),
            Self::Passing(text) => text.into(),
        }
    }
}

impl Meter {
    pub(super) fn new(path: &Path) -> Self {
        let telemetry = Telemetry::of(path);
        let snapshot = telemetry.place();
        Self { telemetry, snapshot, wants_location: AtomicU64::new(0), begun: Mutex::default() }
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Return the counts of the file in this process; `None`: in memory or temporary.
    pub fn telemetry(&self) -> Option<&Arc<Telemetry>> {
        self.meter.as_ref().map(|meter| &meter.telemetry)
    }

    /// Return what was begun by the last call, if it was a transaction that has the write lock, or a snapshot that was left
    /// open: [`Connection::begun_at`] is to be told where in the code that was. Says so once. Never blocks.
    pub fn wants_location(&self) -> Option<u64> {
        let wanted = &self.meter.as_ref()?.wants_location;
        if wanted.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(wanted.swap(0, Ordering::Relaxed)).filter(|number| *number != 0)
    }

    /// Say where in the code the open transaction or snapshot was begun, to be told if it holds the lock, or is open, long.
    /// Never blocks.
    pub fn begun_at(&self, number: u64, location: Arc<str>) {
        if self.is_inherited() {
            return;
        }
        let Some(meter) = &self.meter else { return };
        meter.snapshot.begun_at(Arc::clone(&location));
        let mut begun = meter.begun();
        if begun.number == number {
            begun.location.get_or_insert(location);
        }
    }

    /// Run a call that executes `sql`, settle it, and count it. The connection's waits have been begun for this call.
    pub(super) fn measured<T>(
        &self,
        state: &State,
        handle: &Arc<Handle>,
        sql: Text<'_>,
        kind: Kind,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(meter) = self.meter.as_ref().filter(|meter| meter.telemetry.is_on()) else {
            let result = call();
            self.settle(state, handle);
            return result;
        };
        // Two readings of the clock for each call, which everything else goes by that is told of it.
        let began = Instant::now();
        state.course.arrived.set(Some(began));
        let result = call();
        let ended = Instant::now();
        state.course.arrived.set(None);
        state.course.left.set(Some(ended));
        let took = ended.saturating_duration_since(began);
        let (lock, retries, held) = self.waits.account(ended);
        let lock = lock.min(took);
        let own = took.saturating_sub(lock);
        let hold = self.note_hold(meter, state, handle, sql, (began + lock, ended));
        // The copying of a full log is waited for by the caller too.
        let tended =
            self.settle(state, handle).map_or(Duration::ZERO, |tended| tended.saturating_duration_since(ended));
        let (run, commit) = if kind == Kind::Commit { (Duration::ZERO, own) } else { (own, Duration::ZERO) };
        let waited = Waited { queue: Duration::ZERO, lock, run, commit: commit + tended };
        let account = Account { waited, retries, group: 0, holder: held.main(), held };
        let mut recorder = meter.telemetry.recorder();
        recorder.statement(sql.as_str(), &account, result.as_ref().err().map(error_name));
        if let Some((writing, held, location)) = hold {
            recorder.held(&writing.statement, held, location.as_ref());
        }
        result
    }

    /// After a call that had no wait between two moments: note what has the write lock now, and return what had it and
    /// has given it up, with the time that it was held.
    fn note_hold(
        &self,
        meter: &Meter,
        state: &State,
        handle: &Handle,
        sql: Text<'_>,
        (since, until): (Instant, Instant),
    ) -> Option<(Writing, Duration, Option<Arc<str>>)> {
        let mut writing = state.course.writing.borrow_mut();
        let fresh = || Writing { since, statement: sql.keep() };
        match (&*writing, handle.writes_main()) {
            (None, true) => {
                *writing = Some(fresh());
                let mut begun = meter.begun();
                *begun = Begun { number: begun.number + 1, location: None };
                meter.wants_location.store(begun.number, Ordering::Relaxed);
                None
            }
            // Its own transaction, begun and ended in this call.
            (None, false) if self.waits.has_turn() => {
                let held = until.saturating_duration_since(since);
                meter.telemetry.is_long(held).then(|| (fresh(), held, None))
            }
            (Some(_), false) => writing.take().map(|over| {
                let held = until.saturating_duration_since(over.since);
                let location = if meter.telemetry.is_long(held) { meter.begun().location.take() } else { None };
                (over, held, location)
            }),
            _ => None,
        }
    }

    /// Before a statement that only reads: unless one is open, it may open a snapshot, however long it runs.
    pub(super) fn note_read(&self, state: &State, sql: &str) {
        if let Some(meter) = self.meter.as_ref().filter(|meter| !meter.snapshot.is_open()) {
            meter.snapshot.begin(sql, state.course.arrived.get().unwrap_or_else(Instant::now));
        }
    }

    /// After a call: note whether a snapshot is open.
    pub(super) fn note_snapshot(&self, state: &State, handle: &Handle) {
        let Some(meter) = &self.meter else { return };
        let reading = handle.reads_main();
        let known = state.course.reading.replace(reading);
        if !reading {
            meter.snapshot.end();
        } else if !known {
            if !meter.snapshot.is_open() {
                let writing = state.course.writing.borrow();
                let (statement, since) =
                    writing.as_ref().map_or(("", Instant::now()), |writing| (&*writing.statement, writing.since));
                meter.snapshot.begin(statement, since);
            }
            let wanted = &meter.wants_location;
            let _ = wanted.compare_exchange(0, NO_TRANSACTION, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// When the connection is closed: end what goes on.
    pub(super) fn end_course(&self, state: &State) {
        let Some(meter) = &self.meter else { return };
        state.course.reading.set(false);
        meter.snapshot.end();
        if let Some(ended) = state.course.writing.take() {
            let held = ended.since.elapsed();
            meter.telemetry.recorder().held(&ended.statement, held, meter.begun().location.as_ref());
        }
    }
}

/// Return the name that errors are counted under.
fn error_name(error: &Error) -> &'static str {
    match error {
        Error::Sqlite(error) | Error::TimedOut { error, .. } | Error::StaleSnapshot(error) => code_name(error.code),
        Error::Signalled => "INTERRUPTED",
        Error::Interrupted => code_name(ffi::SQLITE_INTERRUPT),
        Error::TransactionLost(_) => code_name(ffi::SQLITE_ABORT_ROLLBACK),
        Error::TooLong => code_name(ffi::SQLITE_TOOBIG),
        Error::SeveralStatements | Error::ParameterCount { .. } | Error::NotForMany(_) => code_name(ffi::SQLITE_MISUSE),
        Error::UnsafeFilesystem(_) => "UNSAFE_FILESYSTEM",
        Error::Closed => "CLOSED",
        Error::Inherited => "FORKED",
    }
}
