//! The writer's own connection: transactions, savepoints and statements, each a single call.
//!
//! It knows nothing of queues, groups or waits. It never keeps a cursor open: a half-read SELECT would pin an old
//! snapshot, and then even BEGIN IMMEDIATE fails with `SQLITE_BUSY_SNAPSHOT`.

use super::home_file::HomeFile;
use super::shared_flush::{self, By};
use crate::error::Error;
use crate::job::{Call, Durability, Effect, Parameters};
use crate::kind::{self, Kind};
use crate::policy::flush as policy;
use crate::sqlite::{Authorization, Authorizer, Handle, SqliteError, Statement, Step, Value, ValueRef, ffi};
use crate::vfs::{self, SharedWords, WrittenLog};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prepared statements kept by default.
pub const STATEMENTS_MAX: usize = 256;

/// A statement of a caller, with what the authorizer saw of it.
struct Prepared {
    statement: Statement,
    /// It inserts into, updates or deletes from a table of the user.
    changes_rows: bool,
    inserts: bool,
    used: u64,
}

/// What the authorizer is told and tells.
#[derive(Default)]
struct Guard {
    /// Statements of callers are being prepared or run, not our own.
    callers: AtomicBool,
    /// The statement runs outside any transaction, and may be a PRAGMA that has no effect inside one.
    alone: AtomicBool,
    /// Transaction statements and ATTACH are denied to them.
    seen: Mutex<SeenByGuard>,
}

#[derive(Default)]
struct SeenByGuard {
    denied: Option<Kind>,
    changes_rows: bool,
    inserts: bool,
    schema: bool,
}

/// The writer's connection.
pub struct Engine {
    // Statements before the handle: they are finalized first.
    begin: Statement,
    commit: Statement,
    rollback: Statement,
    savepoint: Statement,
    release: Statement,
    rollback_to: Statement,
    prepared: HashMap<Arc<str>, Prepared>,
    clock: u64,
    guard: Arc<Guard>,
    _authorizer: Authorizer,
    handle: Arc<Handle>,
    place: HomeFile,
    durability: Option<Durability>,
    has_log: bool,
    /// Commits are made without a sync, which the engine does after them, when the write lock is free.
    syncs_itself: bool,
    /// What processes leave each other in memory, looked up when it is first asked for.
    words: Option<Option<Arc<SharedWords>>>,
    /// How long a flush of the log took of late.
    usual_flush: Duration,
    /// A sync failed, be it a checkpoint's: what the log holds may not be on the disk, whatever the next sync says.
    distrusts_log: bool,
}

impl Engine {
    /// Make an engine of an open handle.
    ///
    /// # Errors
    /// What SQLite says while it prepares the engine's own statements.
    pub fn new(handle: Arc<Handle>) -> Result<Self, SqliteError> {
        // Random, so that no statement of a caller can name it by accident; the authorizer denies it anyway.
        let name = format!("wl_{:016x}", random_bits());
        let own = |sql: &str| {
            Statement::prepare(&handle, sql.as_bytes(), ffi::SQLITE_PREPARE_PERSISTENT)
                .and_then(|(statement, _)| statement.ok_or_else(|| SqliteError::from_code(ffi::SQLITE_INTERNAL)))
        };
        let (begin, commit, rollback) = (own("BEGIN IMMEDIATE")?, own("COMMIT")?, own("ROLLBACK")?);
        let savepoint = own(&format!("SAVEPOINT {name}"))?;
        let release = own(&format!("RELEASE {name}"))?;
        let rollback_to = own(&format!("ROLLBACK TO {name}"))?;
        let guard = Arc::new(Guard::default());
        let authorizer = {
            let guard = Arc::clone(&guard);
            Authorizer::install(&handle, move |action, first, second| guard.ask(action, first, second))
        };
        Ok(Self {
            begin,
            commit,
            rollback,
            savepoint,
            release,
            rollback_to,
            prepared: HashMap::new(),
            clock: 0,
            guard,
            _authorizer: authorizer,
            place: HomeFile::watch(handle.main_file().as_deref()),
            handle,
            durability: None,
            has_log: false,
            syncs_itself: false,
            words: None,
            usual_flush: Duration::ZERO,
            distrusts_log: false,
        })
    }

    /// Return the handle.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Say whether the database file was deleted, replaced or renamed.
    pub fn has_moved(&mut self, now: Instant) -> bool {
        self.place.has_moved(&self.handle, now)
    }

    /// Say whether no transaction is open. Asked after every statement that failed, never guessed.
    pub fn autocommit(&self) -> bool {
        self.handle.autocommit()
    }

    /// Set how durable the next commits are. Outside a transaction only: inside, SQLite ignores it.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn set_durability(&mut self, durability: Durability) -> Result<(), SqliteError> {
        if self.durability != Some(durability) {
            let has_log = self.finds_log()?;
            let syncs_itself = durability >= Durability::Full && has_log;
            self.handle.execute_batch(match durability {
                Durability::Off => "PRAGMA synchronous=OFF",
                Durability::Normal => "PRAGMA synchronous=NORMAL",
                _ if syncs_itself => "PRAGMA synchronous=NORMAL",
                Durability::Full => "PRAGMA synchronous=FULL",
                Durability::Extra => "PRAGMA synchronous=EXTRA",
            })?;
            (self.durability, self.has_log, self.syncs_itself) = (Some(durability), has_log, syncs_itself);
            self.words = None;
        }
        Ok(())
    }

    /// Say whether the database is known to have a write-ahead log. It keeps it for as long as the handle is open and no
    /// setting of its own changes that: who would change the journal mode must have the file alone.
    pub fn has_log(&self) -> bool {
        self.has_log
    }

    fn finds_log(&self) -> Result<bool, SqliteError> {
        let (statement, _) = Statement::prepare(&self.handle, b"PRAGMA main.journal_mode", 0)?;
        let Some(statement) = statement else { return Ok(false) };
        let has_row = statement.step()? == Step::Row;
        Ok(has_row && matches!(&statement.row()[..], [Value::Text(mode)] if **mode == *b"wal"))
    }

    /// Say whether the last commit still has to be brought to the disk, with [`Engine::sync`].
    pub fn owes_sync(&self) -> bool {
        self.syncs_itself
    }

    /// Bring the log to the disk, and with it all that was committed before, or have another process do it. Needs no lock of
    /// SQLite's.
    ///
    /// # Errors
    /// What the disk says. After that no sync is believed until the log was folded into the database: the kernel tells
    /// of a page that it could not write once, and counts it as written from then on.
    pub fn sync(&mut self) -> Result<By, SqliteError> {
        let written = vfs::take_written_log();
        // A checkpoint syncs the log, too, and it was the one that was told then.
        self.distrusts_log |= self.handle.take_disk_error();
        let synced =
            if self.distrusts_log { self.fold_log().map(|()| By::Itself) } else { self.share_sync_of_log(written) };
        self.distrusts_log = synced.is_err();
        synced
    }

    fn share_sync_of_log(&mut self, written: Option<WrittenLog>) -> Result<By, SqliteError> {
        let Some((words, written)) = self.shared_words().zip(written) else {
            return self.handle.sync_log().map(|()| By::Itself);
        };
        let took = Cell::new(None);
        let flush = || {
            let begun = Instant::now();
            let flushed = self.handle.sync_log();
            took.set(Some(begun.elapsed()));
            flushed
        };
        let by = if policy::is_shared(self.usual_flush) {
            shared_flush::share(words.flushes(), policy::PATIENCE, flush)
        } else {
            flush().map(|()| By::Itself)
        };
        if let Some(took) = took.get() {
            self.usual_flush = policy::smooth(self.usual_flush, took);
        }
        if by == Ok(By::Another)
            && let Err(error) = written.check()
        {
            return match error.raw_os_error() {
                Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(SqliteError::from_code(ffi::SQLITE_IOERR_FSYNC)),
                // It does not tell here.
                _ => self.handle.sync_log().map(|()| By::Itself),
            };
        }
        by
    }

    /// Return what processes leave each other in memory, if commits wait for the disk after they gave the write lock up.
    pub fn shared_words(&mut self) -> Option<Arc<SharedWords>> {
        if !self.syncs_itself {
            return None;
        }
        let handle = &self.handle;
        self.words.get_or_insert_with(|| handle.shared_words().map(Arc::new)).clone()
    }

    /// Copy all of the log to the database file and sync that. The log's pages are read from memory, so that it does
    /// not matter which of them the disk has.
    fn fold_log(&self) -> Result<(), SqliteError> {
        match self.handle.checkpoint(ffi::SQLITE_CHECKPOINT_PASSIVE) {
            (Ok(()), log, copied) if copied >= log => Ok(()),
            (Err(error), ..) => Err(error),
            (Ok(()), ..) => Err(SqliteError::from_code(ffi::SQLITE_IOERR_FSYNC)),
        }
    }

    /// Return how durable the next commit is, if it was set.
    pub fn durability(&self) -> Option<Durability> {
        self.durability
    }

    /// BEGIN IMMEDIATE.
    ///
    /// # Errors
    /// `SQLITE_BUSY` where another connection holds the write lock; nothing has begun then.
    pub fn begin(&self) -> Result<(), SqliteError> {
        run_own(&self.begin)
    }

    /// As [`Engine::begin`], for a transaction that is over at once.
    ///
    /// # Errors
    /// As [`Engine::begin`].
    pub fn begin_short(&self) -> Result<(), SqliteError> {
        vfs::leaving_marks(|| run_own(&self.begin))
    }

    /// COMMIT.
    ///
    /// # Errors
    /// Whether the transaction is still open is asked with [`Engine::autocommit`].
    pub fn commit(&self) -> Result<(), SqliteError> {
        if self.has_log { vfs::gathering_frames(|| run_own(&self.commit)) } else { run_own(&self.commit) }
    }

    /// ROLLBACK, if a transaction is open.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn rollback(&self) -> Result<(), SqliteError> {
        if self.autocommit() { Ok(()) } else { run_own(&self.rollback) }
    }

    /// SAVEPOINT, under the engine's own name.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn savepoint(&self) -> Result<(), SqliteError> {
        run_own(&self.savepoint)
    }

    /// RELEASE the engine's savepoint.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn release(&self) -> Result<(), SqliteError> {
        run_own(&self.release)
    }

    /// ROLLBACK TO the engine's savepoint and RELEASE it.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn undo(&self) -> Result<(), SqliteError> {
        run_own(&self.rollback_to)?;
        run_own(&self.release)
    }

    /// Run one statement of a caller, to its end.
    ///
    /// # Errors
    /// What SQLite says of it, a parameter list that does not fit, a statement that must not be a job.
    pub fn run(&mut self, call: &Call) -> Result<Effect, Error> {
        self.for_callers(|engine| engine.run_prepared(&call.sql, std::slice::from_ref(&call.parameters)))
            .map_err(|(error, _)| error)
    }

    /// Run one statement for many rows of parameters.
    ///
    /// # Errors
    /// As [`Engine::run`], with the row (from 0) that failed.
    pub fn run_many(&mut self, sql: &Arc<str>, rows: &[Parameters]) -> Result<Effect, (Error, usize)> {
        self.for_callers(|engine| engine.run_prepared(sql, rows))
    }

    /// Run one statement of a caller outside any transaction.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_alone(&mut self, call: &Call) -> Result<Effect, Error> {
        self.guard.alone.store(true, Ordering::Relaxed);
        let prepared = self.for_callers(|engine| engine.prepare(&call.sql));
        self.guard.alone.store(false, Ordering::Relaxed);
        prepared?;
        // VACUUM begins a transaction and attaches a file by statements of its own.
        let result = self.run_prepared(&call.sql, std::slice::from_ref(&call.parameters));
        // A setting acts when it is prepared, so it must be prepared anew each time.
        self.prepared.remove(&call.sql);
        // It may be one of those that the durability was made of.
        (self.durability, self.has_log, self.syncs_itself, self.words) = (None, false, false, None);
        result.map_err(|(error, _)| error)
    }

    fn for_callers<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        self.guard.callers.store(true, Ordering::Relaxed);
        let result = run(self);
        self.guard.callers.store(false, Ordering::Relaxed);
        result
    }

    fn run_prepared(&mut self, sql: &Arc<str>, rows: &[Parameters]) -> Result<Effect, (Error, usize)> {
        self.prepare(sql).map_err(|error| (error, 0))?;
        let Some(prepared) = self.prepared.get(sql) else {
            return Err((Error::Usage("the statement is empty".into()), 0));
        };
        let result = execute(&self.handle, prepared, rows);
        prepared.statement.reset();
        prepared.statement.clear_bindings();
        result.map_err(|(error, row)| {
            let denied = self.guard.seen.lock().unwrap_or_else(PoisonError::into_inner).denied.take();
            match error {
                Error::Sqlite(error) => (kind::explain_denial(error, denied), row),
                other => (other, row),
            }
        })
    }

    fn prepare(&mut self, sql: &Arc<str>) -> Result<(), Error> {
        self.clock += 1;
        if let Some(prepared) = self.prepared.get_mut(sql) {
            prepared.used = self.clock;
            return Ok(());
        }
        if sql.contains('\0') {
            return Err(Error::Usage("the query contains a null character".into()));
        }
        *self.guard.seen.lock().unwrap_or_else(PoisonError::into_inner) = SeenByGuard::default();
        let result = Statement::prepare(&self.handle, sql.as_bytes(), ffi::SQLITE_PREPARE_PERSISTENT);
        let seen = std::mem::take(&mut *self.guard.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let (statement, rest) = result.map_err(|error| kind::explain_denial(error, seen.denied))?;
        let Some(statement) = statement else {
            return Err(Error::Usage("the statement is empty".into()));
        };
        if kind::has_statement(&self.handle, &sql.as_bytes()[rest..]) {
            return Err(Error::Usage("You can only execute one statement at a time.".into()));
        }
        if self.prepared.len() >= STATEMENTS_MAX
            && let Some(oldest) = self.prepared.iter().min_by_key(|(_, p)| p.used).map(|(text, _)| Arc::clone(text))
        {
            self.prepared.remove(&oldest);
        }
        let changes_rows = seen.changes_rows && !seen.schema && !statement.is_explain();
        let prepared = Prepared { statement, changes_rows, inserts: changes_rows && seen.inserts, used: self.clock };
        self.prepared.insert(Arc::clone(sql), prepared);
        Ok(())
    }
}

impl Guard {
    fn ask(&self, action: i32, first: Option<&CStr>, second: Option<&CStr>) -> Authorization {
        if !self.callers.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let deny = |seen: &mut SeenByGuard, kind: Kind| {
            seen.denied = Some(kind);
            Authorization::Deny
        };
        match action {
            ffi::SQLITE_TRANSACTION => deny(&mut seen, kind::forbidden_transaction("BEGIN, COMMIT and ROLLBACK")),
            ffi::SQLITE_SAVEPOINT => deny(&mut seen, kind::forbidden_transaction("SAVEPOINT, RELEASE and ROLLBACK TO")),
            ffi::SQLITE_ATTACH | ffi::SQLITE_DETACH => deny(&mut seen, kind::forbidden_attach()),
            ffi::SQLITE_PRAGMA => {
                let name = first.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                let argument = second.map(|text| text.to_string_lossy().into_owned());
                match kind::pragma(&name, argument.as_deref()) {
                    forbidden @ Kind::Forbidden(_) => deny(&mut seen, forbidden),
                    Kind::Setting if !self.alone.load(Ordering::Relaxed) => deny(&mut seen, kind::forbidden_inside()),
                    _ => Authorization::Allow,
                }
            }
            ffi::SQLITE_INSERT | ffi::SQLITE_UPDATE | ffi::SQLITE_DELETE => {
                if !first.is_some_and(|table| table.to_bytes().starts_with(b"sqlite_")) {
                    seen.changes_rows = true;
                    seen.inserts |= action == ffi::SQLITE_INSERT;
                }
                Authorization::Allow
            }
            ffi::SQLITE_CREATE_INDEX..=ffi::SQLITE_CREATE_VIEW
            | ffi::SQLITE_DROP_INDEX..=ffi::SQLITE_DROP_VIEW
            | ffi::SQLITE_ALTER_TABLE
            | ffi::SQLITE_REINDEX
            | ffi::SQLITE_ANALYZE
            | ffi::SQLITE_CREATE_VTABLE
            | ffi::SQLITE_DROP_VTABLE => {
                seen.schema = true;
                Authorization::Allow
            }
            _ => Authorization::Allow,
        }
    }
}

fn run_own(statement: &Statement) -> Result<(), SqliteError> {
    let result = statement.step().map(|_| ());
    statement.reset();
    result
}

/// No insert gives this rowid: SQLite's own start at 1, and nobody writes the smallest number there is.
const NO_ROWID: i64 = i64::MIN;

fn execute(handle: &Handle, prepared: &Prepared, rows: &[Parameters]) -> Result<Effect, (Error, usize)> {
    let statement = &prepared.statement;
    let mut effect = Effect { rowcount: -1, ..Effect::default() };
    if prepared.inserts {
        handle.set_last_insert_rowid(NO_ROWID);
    }
    for (row, parameters) in rows.iter().enumerate() {
        if row > 0 {
            statement.reset();
        }
        bind(statement, parameters).map_err(|error| (error, row))?;
        let before = handle.total_changes();
        loop {
            match statement.step() {
                Ok(Step::Row) => effect.rows.push(statement.row()),
                Ok(Step::Done) => break,
                Err(error) => return Err((error.into(), row)),
            }
        }
        if prepared.changes_rows {
            let changed = if handle.total_changes() == before { 0 } else { handle.changes() };
            effect.rowcount = effect.rowcount.max(0) + changed;
        }
    }
    if prepared.inserts {
        let rowid = handle.last_insert_rowid();
        effect.lastrowid = (rowid != NO_ROWID).then_some(rowid);
    }
    effect.columns =
        (0..statement.column_count()).map(|index| statement.column_name(index).unwrap_or_default().into()).collect();
    Ok(effect)
}

/// Up to this many names, looking through all of them beats a table.
const NAMES_SEARCHED_MAX: usize = 16;

/// Bind `parameters`, borrowing their bytes: the caller resets and clears the statement before they go.
pub(crate) fn bind(statement: &Statement, parameters: &Parameters) -> Result<(), Error> {
    let count = statement.parameter_count();
    match parameters {
        Parameters::Positional(values) => {
            if values.len() != count {
                return Err(Error::Parameters(
                    format!(
                        "Incorrect number of bindings supplied. The current statement uses {count}, and there are {} \
                         supplied.",
                        values.len()
                    )
                    .into(),
                ));
            }
            for (index, value) in values.iter().enumerate() {
                bind_value(statement, index + 1, value)?;
            }
        }
        Parameters::Named(values) => {
            // Named one by one, a hundred thousand names would take minutes, with the write lock held.
            let known: HashMap<&str, &Value> = if values.len() > NAMES_SEARCHED_MAX {
                values.iter().map(|(name, value)| (&**name, value)).collect()
            } else {
                HashMap::new()
            };
            for index in 1..=count {
                let Some(name) = statement.parameter_name(index) else {
                    return Err(Error::Parameters(
                        format!("Binding {index} has no name, but you supplied a dictionary (which has only names).")
                            .into(),
                    ));
                };
                let named = &name[1..];
                let value = if known.is_empty() {
                    values.iter().find(|(known, _)| **known == *named).map(|(_, value)| value)
                } else {
                    known.get(named).copied()
                };
                let Some(value) = value else {
                    return Err(Error::Parameters(
                        format!("You did not supply a value for binding parameter {name}.").into(),
                    ));
                };
                bind_value(statement, index, value)?;
            }
        }
        Parameters::Linked(_) => {
            return Err(Error::Usage("the value of another call can be used in the same batch only".into()));
        }
    }
    Ok(())
}

fn bind_value(statement: &Statement, index: usize, value: &Value) -> Result<(), SqliteError> {
    let value = match value {
        Value::Null => ValueRef::Null,
        Value::Integer(integer) => ValueRef::Integer(*integer),
        Value::Real(real) => ValueRef::Real(*real),
        Value::Text(text) => ValueRef::Text(text),
        Value::Blob(blob) => ValueRef::Blob(blob),
    };
    // SAFETY: every caller of `bind` holds the parameters until it has reset the statement and cleared them.
    unsafe { statement.bind_borrowed(index, value) }
}

/// Return random bits, good against coincidence, not against an attacker.
pub(crate) fn random_bits() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}
