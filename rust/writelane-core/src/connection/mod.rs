//! A connection of an application's own: its handle, its cursors, its transaction, and the lane it writes through.
//!
//! The writer thread runs jobs; this runs whatever an application does with a connection of its own, one call
//! at a time, on the caller's thread. Every method may block, so none is called with an interpreter's lock held,
//! save those that say otherwise.

mod blob;
mod copy;
mod cursors;
mod error;
mod hook;
mod idle;
mod kind;
mod lock;
mod measure;
mod place;
mod policy;
mod run;
mod transaction;
mod waits;

pub use copy::CopyStep;
pub use error::{Error, NotForMany};
pub use kind::{Kind, kind, without_blank};
pub use run::{Column, Describe, Fetched, Many, Outcome, Prepared};

use crate::checkpoint::Checkpointer;
use crate::lane::Lane;
use crate::policy::checkpoint::Thresholds;
use crate::sqlite::{
    Authorizer, Blob, BusyHandler, Cells, Handle, Interrupter, OpenFlags, Progress, Statement, StatementCache, Trace,
};
use cursors::Cursors;
use lock::{Held, ReentrantLock};
use measure::{Course, Meter, Text};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use waits::Waits;

/// How a connection behaves.
#[derive(Clone, Copy)]
pub struct Options {
    /// How long a call waits for a lock.
    pub timeout: Duration,
    /// Whether a bare BEGIN takes the write lock at once.
    pub begin_immediate: bool,
    /// How many prepared statements are kept.
    pub cached_statements: usize,
    /// How long a transaction may be left alone before it is rolled back for the sake of others; `None`: for ever.
    pub idle_rollback: Option<Duration>,
    /// When to checkpoint, unless a database of this process decides that.
    pub checkpoints: Thresholds,
    /// Whether any filesystem is taken for one that can be trusted.
    pub trust_filesystem: bool,
    /// Asked during a wait, at least every 50 ms: `true` ends it with [`Error::Signalled`].
    pub signalled: fn() -> bool,
}

/// A connection to one database.
pub struct Connection {
    state: ReentrantLock<State>,
    waits: Arc<Waits>,
    interrupter: Interrupter,
    options: Options,
    generation: u64,
    /// The lane of the database file; `None`: in memory, temporary or read-only.
    lane: Option<Arc<Lane>>,
    checkpointer: Option<Arc<Checkpointer>>,
    this: Weak<Self>,
    /// Since when a transaction is open and no call runs; kept where idle transactions are rolled back.
    idle_since: Mutex<Option<Instant>>,
    watched: AtomicBool,
    /// `None`: in memory or temporary.
    meter: Option<Meter>,
    /// Whether the filesystem is only taken for local.
    warned: bool,
    in_transaction: AtomicBool,
    total_changes: AtomicI64,
    next_cursor: AtomicU64,
}

/// What the lock guards. No cell is borrowed while SQLite runs, since SQLite may call back into here.
struct State {
    busy: RefCell<Option<BusyHandler>>,
    handle: RefCell<Option<Arc<Handle>>>,
    cache: RefCell<StatementCache>,
    /// BEGIN, COMMIT and ROLLBACK of our own.
    control: RefCell<Vec<(&'static str, Statement)>>,
    cursors: RefCell<Cursors>,
    blobs: RefCell<BTreeMap<u64, Blob>>,
    hooks: RefCell<Hooks>,
    lost: RefCell<Option<Lost>>,
    course: Course,
}

/// What the application has asked to be told of.
#[derive(Default)]
struct Hooks {
    authorizer: Option<Authorizer>,
    trace: Option<Trace>,
    progress: Option<Progress>,
}

/// A transaction that is gone and whose loss nobody has acknowledged.
#[derive(Clone)]
struct Lost {
    why: Box<str>,
    /// Whether it was left alone, so that its application has not been told yet: then reads are refused too.
    idle: bool,
}

/// The rows a statement has yet to give.
struct Rows {
    sql: Arc<str>,
    /// `None` where they were read into memory.
    statement: Option<Statement>,
    changes_rows: bool,
    memory: Cells,
    columns: usize,
    next: usize,
    /// The columns to give as the bytes of their text, for a converter; empty: none.
    raw: Box<[bool]>,
    changes: Option<i64>,
    error: Option<Error>,
}

impl Connection {
    /// Open a database: a file name, `:memory:`, `""`, or with `SQLITE_OPEN_URI` in `flags` a URI.
    ///
    /// # Errors
    /// [`Error::UnsafeFilesystem`], and what SQLite says.
    pub fn open(name: &[u8], flags: OpenFlags, vfs: Option<&CStr>, options: Options) -> Result<Arc<Self>, Error> {
        crate::vfs::install()?;
        let warned = if options.trust_filesystem { false } else { place::judge(name, flags)? };
        let handle = Handle::open_name(name, flags, vfs)?;
        let file = handle.main_file();
        let meter = file.as_deref().map(Meter::new);
        let writable = file.clone().filter(|_| !handle.is_readonly());
        let lane = writable.as_deref().map(Lane::of);
        let waits = Arc::new(Waits::new(options.timeout, options.signalled, file.as_deref(), lane.clone()));
        let checkpointer = writable.map(|path| Checkpointer::of(&path, options.checkpoints));
        if let Some(checkpointer) = &checkpointer {
            checkpointer.adopt(&handle)?;
        }
        let state = State {
            busy: RefCell::new(Some(install_busy(&handle, &waits))),
            handle: RefCell::new(Some(Arc::clone(&handle))),
            cache: RefCell::new(StatementCache::new(options.cached_statements)),
            control: RefCell::new(Vec::new()),
            cursors: RefCell::new(Cursors::default()),
            blobs: RefCell::new(BTreeMap::new()),
            hooks: RefCell::new(Hooks::default()),
            lost: RefCell::new(None),
            course: Course::default(),
        };
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            idle_since: Mutex::new(None),
            watched: AtomicBool::new(false),
            state: ReentrantLock::new(state),
            waits,
            interrupter: handle.interrupter(),
            options,
            generation: crate::process::generation(),
            lane,
            checkpointer,
            meter,
            warned,
            in_transaction: AtomicBool::new(false),
            total_changes: AtomicI64::new(0),
            next_cursor: AtomicU64::new(1),
        }))
    }

    /// Say whether the connection was inherited through a fork. Never blocks.
    pub fn is_inherited(&self) -> bool {
        self.generation != crate::process::generation()
    }

    /// Say whether a transaction is open, also one that was rolled back and not yet acknowledged.
    ///
    /// Never blocks: while another thread runs a statement, this is the answer from before it.
    pub fn in_transaction(&self) -> bool {
        if !self.is_inherited()
            && let Some(state) = self.state.try_lock()
            && let Some(handle) = &*state.handle.borrow()
        {
            return !handle.autocommit() || state.lost.borrow().is_some();
        }
        self.in_transaction.load(Ordering::Relaxed)
    }

    /// Return the rows changed since the connection was opened. Never blocks, as [`Connection::in_transaction`].
    pub fn total_changes(&self) -> i64 {
        if !self.is_inherited()
            && let Some(state) = self.state.try_lock()
            && let Some(handle) = &*state.handle.borrow()
        {
            return handle.total_changes();
        }
        self.total_changes.load(Ordering::Relaxed)
    }

    /// Return the file on a filesystem that is only taken for local, for a warning to be given.
    pub fn file_to_warn_of(&self) -> Option<PathBuf> {
        if !self.warned || self.is_inherited() {
            return None;
        }
        self.state.lock().handle.borrow().as_ref().and_then(|handle| handle.main_file())
    }

    /// End the statement and the wait that are going on. Never blocks; for any thread.
    pub fn interrupt(&self) {
        self.waits.interrupt();
        self.interrupter.interrupt();
    }

    /// Return how long a call waits for a lock; `None`: without end.
    pub fn timeout(&self) -> Option<Duration> {
        self.waits.timeout()
    }

    /// Run `call` on the handle, alone, and settle what it did to the transaction.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Inherited`], and those of `call`.
    pub fn with<T>(&self, call: impl FnOnce(&Arc<Handle>) -> Result<T, Error>) -> Result<T, Error> {
        let (state, handle) = self.enter()?;
        let result = call(&handle);
        self.settle(&state, &handle);
        result
    }

    /// As [`Connection::with`], for a call that writes: it takes a turn in the lane first, under the name `what`.
    ///
    /// # Errors
    /// Those of [`Connection::with`], and of the wait for the turn.
    pub fn with_turn<T>(&self, what: &str, call: impl FnOnce(&Arc<Handle>) -> Result<T, Error>) -> Result<T, Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        self.measured(&state, &handle, Text::Passing(what), Kind::Other, || {
            self.take_turn(&state, &handle, what).and_then(|()| call(&handle))
        })
    }

    /// Close: half-read rows are dropped, an open transaction is rolled back.
    pub fn close(&self) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.lock();
        let cursors = state.cursors.take();
        drop(cursors);
        let blobs = state.blobs.take();
        drop(blobs);
        let hooks = state.hooks.take();
        drop(hooks);
        let control = state.control.take();
        drop(control);
        state.cache.borrow_mut().clear();
        // Statements that run right now, further up this thread's stack, keep the handle alive until they end.
        let busy = state.busy.take();
        drop(busy);
        self.end_course(&state);
        let handle = state.handle.take();
        drop(handle);
        state.lost.take();
        self.in_transaction.store(false, Ordering::Relaxed);
        self.waits.give_up_turn();
    }

    fn enter(&self) -> Result<(Held<'_, State>, Arc<Handle>), Error> {
        if self.is_inherited() {
            return Err(Error::Inherited);
        }
        let state = self.state.lock();
        let handle = state.handle.borrow().clone().ok_or(Error::Closed)?;
        Ok((state, handle))
    }

    /// After a call: note what others ask for, and give the lane up where nothing is left to write.
    ///
    /// Returns when the log was tended, if it was.
    fn settle(&self, state: &State, handle: &Arc<Handle>) -> Option<Instant> {
        let open = !handle.autocommit() || state.lost.borrow().is_some();
        self.in_transaction.store(open, Ordering::Relaxed);
        self.note_idle(!handle.autocommit());
        self.total_changes.store(handle.total_changes(), Ordering::Relaxed);
        self.note_snapshot(state, handle);
        let now = state.course.left.take();
        if self.lane.is_some()
            && self.waits.has_turn()
            && !handle.writes_main()
            && let Some(mut turn) = self.waits.give_turn()
        {
            let now = now.unwrap_or_else(Instant::now);
            let checkpointer = self.checkpointer.as_ref();
            if let Some(checkpointer) = checkpointer.filter(|checkpointer| checkpointer.note_commit_at(now, false)) {
                // A cut holds SQLite's write lock while it asks the busy handler about readers, and ours would wait for
                // that very lock: whoever tends the log does not wait.
                drop(state.busy.take());
                turn.hold_others_up();
                checkpointer.act(handle, 0);
                *state.busy.borrow_mut() = Some(install_busy(handle, &self.waits));
                drop(turn);
                return Some(Instant::now());
            }
            turn.leave_at(now);
        }
        None
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

fn install_busy(handle: &Arc<Handle>, waits: &Arc<Waits>) -> BusyHandler {
    let waits = Arc::clone(waits);
    BusyHandler::install(handle, move |attempt| waits.wait(attempt))
}
