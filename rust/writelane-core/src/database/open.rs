//! Opening and closing: one writer per process and file, however often and under whichever name it is opened.

use super::{Database, File, obstacle};
use crate::checkpoint::Checkpointer;
use crate::error::{Error, OpenError};
use crate::filesystem;
use crate::job::Durability;
use crate::kind::Judge;
use crate::lane::Lane;
use crate::ownership::{self, Ownership, OwnershipError, Scope};
use crate::policy::{backoff, checkpoint, deadline, group, retry};
use crate::process::{self, PerProcess};
use crate::queue::Bounds;
use crate::readers::{Readers, Settings};
use crate::sqlite::{Handle, OpenFlags, SqliteError, Statement, Step, ValueRef, ffi};
use crate::telemetry::Telemetry;
use crate::wait::{GaveUp, Patience};
use crate::writer::engine::{Engine, random_bits};
use crate::writer::{Setup, Writer};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// Which journal a file is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// A write-ahead log for a new file on a local filesystem; an existing file keeps what it has.
    Auto,
    /// A write-ahead log; an existing file is converted, in turn.
    Wal,
    /// A rollback journal; an existing file is converted, in turn. On a network filesystem with one owning host.
    Delete,
    /// What the file has; a new file gets SQLite's default, a rollback journal.
    Keep,
}

/// Who else may open the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody on this host.
    Shared,
    /// This process alone.
    Exclusive,
}

/// How a file is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far a commit has come when its caller is answered.
    pub durability: Durability,
    /// How long a call waits unless it says otherwise; `None` without end.
    pub deadline: Option<Duration>,
    /// The bounds of the queue. The first open of a file in a process decides.
    pub bounds: Bounds,
    /// The bounds of a group. The first open decides.
    pub limits: group::Limits,
    /// When to checkpoint. The first open decides.
    pub checkpoints: checkpoint::Thresholds,
    /// The journal.
    pub journal: Journal,
    /// The journal was chosen for the whole process, and the filesystem is used though it is not to be trusted.
    pub trust_filesystem: bool,
    /// Who else may open it.
    pub access: Access,
    /// Open to read only: there is no writer then.
    pub readonly: bool,
    /// The most connections that read at once.
    pub readers_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Normal,
            deadline: Some(Duration::from_secs(30)),
            bounds: Bounds { jobs_max: 1024, bytes_max: 64 << 20 },
            limits: group::Limits::default(),
            checkpoints: checkpoint::Thresholds::default(),
            journal: Journal::Auto,
            trust_filesystem: false,
            access: Access::Shared,
            readonly: false,
            readers_max: 8,
        }
    }
}

/// A file of this process: its writer while there is one. The lock is held while it is opened or closed.
pub(super) type Slot = Arc<Mutex<Weak<File>>>;

#[derive(Default)]
struct Registry {
    slots: Mutex<HashMap<(u64, u64), Slot>>,
    /// Writers that were let go without waiting for them.
    leaving: Mutex<Vec<Arc<File>>>,
}

static REGISTRY: PerProcess<Registry> = PerProcess::new();

impl Database {
    /// Open `path`, creating the file where it is missing (unless it is opened to read only).
    ///
    /// Blocks up to the deadline of `options` where another process holds the file exclusively (recovery, a change
    /// of its journal).
    ///
    /// # Errors
    /// What stands in the way, with the path and what to do.
    pub fn open(path: &Path, options: Options, interrupted: super::Interrupted<'_>) -> Result<Self, Box<OpenError>> {
        let failed = |error: Error, advice: Option<&str>| {
            Box::new(OpenError { path: path.to_owned(), error, advice: advice.map(Into::into) })
        };
        let patience = Patience { until: deadline::until(Instant::now(), options.deadline), interrupted };
        if let Err((error, advice)) = look_first(path, &options) {
            return Err(failed(error, advice.as_deref()));
        }
        let opened = if options.readonly {
            open_to_read(path, options.readers_max, &patience).map(Arc::new)
        } else {
            find_or_open(path, &options, &patience)
        };
        let file = opened.map_err(|error| {
            let advice = advice(path, &error, options.readonly);
            failed(error, advice.as_deref())
        })?;
        Ok(Self { file, options, closed: AtomicBool::new(false) })
    }
}

/// Refuse what can be told without opening anything.
fn look_first(path: &Path, options: &Options) -> Result<(), (Error, Option<String>)> {
    let cannot = |message: &str, advice: Option<String>| {
        let error = SqliteError { code: ffi::SQLITE_CANTOPEN, message: message.into(), offset: None };
        (Error::Sqlite(error), advice)
    };
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err((
            Error::Usage("a database without a file has no other writers".into()),
            Some("use writelane.dbapi.connect(\":memory:\")".to_owned()),
        ));
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(cannot("unable to open database file: it is a directory", None)),
        Ok(found) if found.nlink() > 1 && !options.readonly => {
            // SQLite names the log after the path, so a second hard link has a second log for the same pages.
            return Err((
                Error::UnsafeFilesystem(
                    format!("{} has {} hard links", path.display(), found.nlink()).into(),
                ),
                Some(
                    "SQLite keeps one log for each name of a file, and two logs corrupt it: remove the other links, or \
                     use a symbolic link"
                        .to_owned(),
                ),
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.readonly => {
            return Err(cannot("unable to open database file: it does not exist", None));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !folder.is_dir() {
                let advice = format!("the folder {} does not exist: create it first", folder.display());
                return Err(cannot("unable to open database file", Some(advice)));
            }
        }
        Err(error) => return Err(cannot("unable to open database file", Some(error.to_string()))),
    }
    let judgement =
        filesystem::judge(path).map_err(|error| cannot("unable to open database file", Some(error.to_string())))?;
    if judgement.refuses() && options.journal != Journal::Delete && !options.trust_filesystem && !options.readonly {
        return Err((Error::UnsafeFilesystem(judgement.refusal(path).into()), None));
    }
    Ok(())
}

fn find_or_open(path: &Path, options: &Options, patience: &Patience<'_>) -> Result<Arc<File>, Error> {
    let owned = claim(path, options, patience)?;
    // SQLite creates the file; only then has it an identity.
    let handle = Handle::open(path, OpenFlags::WRITER)?;
    let key = identity(path)?;
    let slot = {
        let mut slots = REGISTRY.get().slots.lock().unwrap_or_else(PoisonError::into_inner);
        // A place that nobody stands at and whose file is gone is one for a file that may be gone too.
        slots.retain(|known, slot| {
            *known == key || Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|file| file.strong_count() > 0)
        });
        Arc::clone(slots.entry(key).or_default())
    };
    let mut place = wait_for(&slot, patience)?;
    if let Some(file) = place.upgrade()
        && !file.writer.as_ref().is_some_and(|writer| writer.shared().is_poisoned())
        && join(&file)
    {
        drop(handle);
        return Ok(file);
    }
    let file = Arc::new(open_to_write(path, handle, options, owned, patience, Arc::clone(&slot))?);
    *place = Arc::downgrade(&file);
    Ok(file)
}

/// Become a user of a file, unless its last user has gone.
fn join(file: &File) -> bool {
    file.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| (users > 0).then_some(users + 1)).is_ok()
}

/// Wait for a place that another thread opens or closes the file at.
fn wait_for<'a>(slot: &'a Slot, patience: &Patience<'_>) -> Result<MutexGuard<'a, Weak<File>>, Error> {
    let started = Instant::now();
    loop {
        match slot.try_lock() {
            Ok(place) => return Ok(place),
            Err(TryLockError::Poisoned(place)) => return Ok(place.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        match patience.next_slice() {
            Ok(slice) => std::thread::sleep(slice.min(LOOK_AGAIN)),
            Err(GaveUp::Interrupted) => return Err(Error::Interrupted),
            Err(GaveUp::TimedOut) => {
                let after = started.elapsed();
                return Err(Error::Timeout { phase: crate::error::Phase::Lock, after, holder: None });
            }
        }
    }
}

/// How often to look whether another thread of this process has opened or closed the file.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Own the file where that is asked for, or make sure that nobody else does.
fn claim(path: &Path, options: &Options, patience: &Patience<'_>) -> Result<Option<Ownership>, Error> {
    let judgement = filesystem::judge(path).map_err(io_error)?;
    let mine = |found: &Arc<File>| found.ownership.is_some();
    let already = identity(path).ok().is_some_and(|key| {
        let slot = REGISTRY.get().slots.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        slot.is_some_and(|slot| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).upgrade().as_ref().is_some_and(mine)
        })
    });
    if already {
        return Ok(None);
    }
    let database = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if options.access == Access::Exclusive || judgement.refuses() {
        return match Ownership::acquire(&database, Scope::on(&judgement), patience) {
            Ok(ownership) => Ok(Some(ownership)),
            Err(OwnershipError::Interrupted) => Err(Error::Interrupted),
            Err(error @ OwnershipError::Io { .. }) => Err(Error::Sqlite(SqliteError {
                code: ffi::SQLITE_CANTOPEN,
                message: error.to_string().into(),
                offset: None,
            })),
            Err(error) => Err(Error::OwnedElsewhere(error.to_string().into())),
        };
    }
    match ownership::look(&database) {
        Ok(Some(sighting)) if sighting.certain => {
            let error = OwnershipError::Held { database, owner: sighting.owner.map(Box::new), silent: None };
            Err(Error::OwnedElsewhere(error.to_string().into()))
        }
        Ok(_) => Ok(None),
        Err(error) => Err(io_error(error)),
    }
}

fn open_to_write(
    path: &Path,
    handle: Arc<Handle>,
    options: &Options,
    ownership: Option<Ownership>,
    patience: &Patience<'_>,
    slot: Slot,
) -> Result<File, Error> {
    // A first read recovers the log of a dead process and shows a file that is no database.
    let empty = retried(patience, || ask(&handle, "PRAGMA page_count"))? == Some("0".to_owned());
    set_journal(&handle, options, empty, patience)?;
    if handle.is_readonly() {
        return Err(Error::Sqlite(SqliteError {
            code: ffi::SQLITE_READONLY,
            message: "attempt to write a readonly database".into(),
            offset: None,
        }));
    }
    let checkpointer = Checkpointer::of(path, options.checkpoints);
    checkpointer.decide(options.checkpoints);
    checkpointer.adopt(&handle)?;
    checkpointer.set_has_writer(true);
    let engine = Engine::new(handle)?;
    let judge = Judge::new(Handle::open(path, OpenFlags::READER)?);
    let settings = Arc::new(Settings::default());
    let writer = Writer::start(Setup {
        path: path.to_owned(),
        engine,
        lane: Some(Lane::of(path)),
        bounds: options.bounds,
        limits: options.limits,
        checkpointer,
        ownership: ownership.map(Arc::new),
        settings: Arc::clone(&settings),
    })
    .map_err(io_error)?;
    Ok(File {
        path: path.to_owned(),
        judge,
        readers: Some(Readers::new(path.to_owned(), options.readers_max, settings)),
        ownership: writer.shared().ownership().cloned(),
        telemetry: Arc::clone(writer.shared().telemetry()),
        writer: Some(writer),
        aside: Mutex::default(),
        generation: process::generation(),
        users: 1.into(),
        slot: Some(slot),
    })
}

fn open_to_read(path: &Path, readers_max: usize, patience: &Patience<'_>) -> Result<File, Error> {
    let handle = Handle::open(path, OpenFlags::READER)?;
    retried(patience, || ask(&handle, "PRAGMA schema_version"))?;
    Ok(File {
        path: path.to_owned(),
        judge: Judge::new(handle),
        readers: Some(Readers::new(path.to_owned(), readers_max, Arc::default())),
        ownership: None,
        telemetry: Telemetry::of(path),
        writer: None,
        aside: Mutex::default(),
        generation: process::generation(),
        users: 1.into(),
        slot: None,
    })
}

/// Bring the file to the journal it is to have; waits its turn, since SQLite does not.
fn set_journal(handle: &Arc<Handle>, options: &Options, empty: bool, patience: &Patience<'_>) -> Result<(), Error> {
    let current = retried(patience, || ask(handle, "PRAGMA journal_mode"))?.unwrap_or_default();
    let wanted = match options.journal {
        Journal::Auto if empty => "wal",
        Journal::Wal => "wal",
        Journal::Delete => "delete",
        Journal::Auto | Journal::Keep => return Ok(()),
    };
    if current == wanted || (wanted == "delete" && current != "wal") {
        return Ok(());
    }
    let now = retried(patience, || ask(handle, &format!("PRAGMA journal_mode={wanted}")))?.unwrap_or_default();
    if now == wanted {
        return Ok(());
    }
    Err(Error::Sqlite(SqliteError {
        code: ffi::SQLITE_CANTOPEN,
        message: format!("the journal mode stays {now:?}, {wanted:?} is not to be had here").into(),
        offset: None,
    }))
}

/// Run one statement that returns one text.
fn ask(handle: &Arc<Handle>, sql: &str) -> Result<Option<String>, SqliteError> {
    let (Some(statement), _) = Statement::prepare(handle, sql.as_bytes(), 0)? else { return Ok(None) };
    let mut answer = None;
    while statement.step()? == Step::Row {
        answer = match statement.column(0) {
            ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Integer(number) => Some(number.to_string()),
            _ => None,
        };
    }
    Ok(answer)
}

/// Try until it is not contention that stops it.
fn retried<T>(patience: &Patience<'_>, mut attempt: impl FnMut() -> Result<T, SqliteError>) -> Result<T, Error> {
    let started = Instant::now();
    let mut attempts = 0;
    loop {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if retry::remedy(error.code, retry::Point::Begin) == retry::Remedy::Report {
            return Err(error.into());
        }
        match patience.next_slice() {
            Ok(slice) => std::thread::sleep(backoff::sleep(attempts, random_bits() as u32).min(slice)),
            Err(GaveUp::Interrupted) => return Err(Error::Interrupted),
            Err(GaveUp::TimedOut) => {
                let after = started.elapsed();
                return Err(Error::Timeout { phase: crate::error::Phase::Lock, after, holder: None });
            }
        }
        attempts += 1;
    }
}

fn identity(path: &Path) -> Result<(u64, u64), Error> {
    let found = fs::metadata(path).map_err(io_error)?;
    Ok((found.dev(), found.ino()))
}

fn io_error(error: io::Error) -> Error {
    Error::Sqlite(SqliteError { code: ffi::SQLITE_CANTOPEN, message: error.to_string().into(), offset: None })
}

/// Say what to do about an error of opening, where we know more than SQLite says.
fn advice(path: &Path, error: &Error, readonly: bool) -> Option<String> {
    let Error::Sqlite(error) = error else { return None };
    match error.primary() {
        ffi::SQLITE_NOTADB | ffi::SQLITE_CORRUPT => {
            Some(format!("run `writelane doctor {}` to see what is wrong; nothing was changed", path.display()))
        }
        ffi::SQLITE_FULL => Some("the disk is full: make room, nothing was changed".to_owned()),
        ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM | ffi::SQLITE_IOERR => {
            obstacle::find(path, readonly)
        }
        _ => None,
    }
}

/// Close the connections that are not the writer's.
fn close_beside(file: &File) {
    if let Some(readers) = &file.readers {
        readers.close();
    }
    file.judge.close();
    drop(file.aside.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Let go of a file: its last user stops the writer, doing what is queued first.
///
/// # Errors
/// The wait was interrupted; the writer stops by itself.
pub(super) fn release(
    file: &Arc<File>,
    within: Option<Duration>,
    interrupted: super::Interrupted<'_>,
) -> Result<(), GaveUp> {
    if file.users.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    // Whoever opens the file again meanwhile waits until this writer is gone.
    let patience = Patience { until: None, interrupted };
    let _place = match file.slot.as_ref().map(|slot| wait_for(slot, &patience)) {
        Some(Err(_)) => {
            let_go(file);
            return Err(GaveUp::Interrupted);
        }
        Some(Ok(place)) => Some(place),
        None => None,
    };
    close_beside(file);
    let stopped = file.writer.as_ref().map_or(Ok(()), |writer| writer.stop(within, interrupted));
    if stopped.is_err() {
        let_go(file);
    }
    stopped
}

/// Let go of a file without waiting: its writer does what is queued and stops by itself.
pub(super) fn release_soon(file: &Arc<File>) {
    if file.users.fetch_sub(1, Ordering::AcqRel) == 1 {
        let_go(file);
    }
}

fn let_go(file: &Arc<File>) {
    if let Some(readers) = &file.readers {
        readers.close();
    }
    if let Some(writer) = &file.writer {
        writer.stop_soon();
        let mut leaving = REGISTRY.get().leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|file| file.writer.as_ref().is_some_and(|writer| !writer.is_finished()));
        leaving.push(Arc::clone(file));
    }
}

/// Stop every writer of this process, doing what is queued `within` that time. Called at interpreter exit.
///
/// An interactive transaction that is still open, and that nobody waits behind, is not waited for.
pub fn close_all(within: Duration) {
    let until = Instant::now() + within;
    let registry = REGISTRY.get();
    let slots: Vec<Slot> = registry.slots.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    let mut files: Vec<Arc<File>> =
        std::mem::take(&mut *registry.leaving.lock().unwrap_or_else(PoisonError::into_inner));
    // A place that is in use is one where a thread is just opening, and has queued nothing, or closing, and drains.
    let never = || false;
    let patience = Patience { until: Some(until), interrupted: &never };
    files.extend(slots.iter().filter_map(|slot| wait_for(slot, &patience).ok()?.upgrade()));
    for file in &files {
        if let Some(writer) = &file.writer {
            writer.abandon_leases();
            writer.stop_soon();
        }
    }
    for file in files {
        if let Some(writer) = &file.writer {
            // Never interrupted.
            let _ = writer.stop(Some(until.saturating_duration_since(Instant::now())), &never);
        }
        close_beside(&file);
    }
}
