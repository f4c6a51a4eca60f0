//! A connection to one database, and what it can be asked.

use super::codes::{code_name, primary};
use crate::vfs::SharedWords;
use rusqlite::ffi;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What SQLite said: its extended result code and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteError {
    /// The extended result code, `ffi::SQLITE_BUSY_SNAPSHOT` for example.
    pub code: i32,
    /// SQLite's message, without parameter values of ours.
    pub message: Box<str>,
    /// The byte offset of the token in the SQL text that the error is about, where SQLite knows it.
    pub offset: Option<usize>,
}

impl SqliteError {
    /// Make an error from a bare result code, with SQLite's own English for it.
    pub fn from_code(code: i32) -> Self {
        // SAFETY: sqlite3_errstr returns a constant NUL-terminated string for every code.
        let text = unsafe { CStr::from_ptr(ffi::sqlite3_errstr(code)) };
        Self { code, message: text.to_string_lossy().into(), offset: None }
    }

    /// Return the primary result code.
    pub fn primary(&self) -> i32 {
        primary(self.code)
    }

    /// Return the name of the extended result code.
    pub fn name(&self) -> &'static str {
        code_name(self.code)
    }
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.name())
    }
}

impl std::error::Error for SqliteError {}

/// How to open a file: a thin set over the `SQLITE_OPEN_*` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags(pub i32);

impl OpenFlags {
    /// Read and write, create when missing; one thread at a time uses the handle.
    pub const WRITER: Self = Self(
        ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_NOMUTEX | ffi::SQLITE_OPEN_EXRESCODE,
    );
    /// Read and write an existing file; one thread at a time uses the handle.
    pub const EXISTING: Self = Self(ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_NOMUTEX | ffi::SQLITE_OPEN_EXRESCODE);
    /// Read only; one thread at a time uses the handle.
    pub const READER: Self = Self(ffi::SQLITE_OPEN_READONLY | ffi::SQLITE_OPEN_NOMUTEX | ffi::SQLITE_OPEN_EXRESCODE);
}

/// What is said of a file that must not be opened here, see [`crate::vfs`].
const REFUSED: &str = "this process has the file open through another SQLite library or a plain open(), and this kernel \
                       has no open file description locks: either would drop the other's locks. Close it there first, \
                       or use one of the two only";

/// The pages of a write-ahead log, as its writers count them.
#[derive(Default)]
pub struct LogPages {
    /// In the log, after the last commit.
    pub present: AtomicI32,
    /// Written by commits, until somebody sets it to zero.
    pub written: AtomicI32,
}

/// An open database connection.
///
/// Every statement keeps its handle alive. The methods take `&self` and are *not* synchronised: a handle may
/// move between threads, but its owner lets one thread at a time use it (or opens it with
/// `SQLITE_OPEN_FULLMUTEX` and takes care of the error message, which belongs to the last call).
pub struct Handle {
    db: *mut ffi::sqlite3,
    alive: Arc<Mutex<bool>>,
    generation: u64,
    log_pages: OnceLock<Arc<LogPages>>,
    /// A checkpoint met an error of the disk.
    met_disk_error: AtomicBool,
    #[cfg(test)]
    plan: Option<Arc<super::faults::Plan>>,
}

// SAFETY: a sqlite3 object built with SQLITE_THREADSAFE=1 is not bound to a thread; that only one thread uses
// it at a time is the contract of this type, kept by its owners (the engine's mutex, a DB-API connection's).
unsafe impl Send for Handle {}
// SAFETY: as above; `&Handle` is shared by the statements of one owner.
unsafe impl Sync for Handle {}

impl Handle {
    /// Open `path` (a plain file name, never a URI).
    ///
    /// # Errors
    /// What SQLite says, `SQLITE_CANTOPEN` and its kin; a path with a NUL in it is `SQLITE_CANTOPEN`.
    pub fn open(path: &Path, flags: OpenFlags) -> Result<Arc<Self>, SqliteError> {
        // A name that begins with `file:` would be read as a URI where SQLITE_USE_URI is on.
        let bytes = path.as_os_str().as_bytes();
        let plain = if bytes.starts_with(b"file:") { [b"./", bytes].concat() } else { bytes.to_vec() };
        Self::open_name(&plain, flags, None)
    }

    /// Open `name` as SQLite reads it: a file name, `:memory:`, `""`, or with `SQLITE_OPEN_URI` a URI.
    ///
    /// # Errors
    /// As [`Handle::open`]; where locks belong to the process (see [`crate::vfs`]), `SQLITE_CANTOPEN` for a file that
    /// other code of this process has open.
    pub fn open_name(name: &[u8], flags: OpenFlags, vfs: Option<&CStr>) -> Result<Arc<Self>, SqliteError> {
        crate::vfs::install()?;
        crate::vfs::take_refusal();
        let name = CString::new(name).map_err(|_| SqliteError {
            code: ffi::SQLITE_CANTOPEN,
            message: "the file name contains a NUL character".into(),
            offset: None,
        })?;
        #[cfg(test)]
        let plan = super::faults::Plan::find(name.as_bytes());
        let mut db = ptr::null_mut();
        // SAFETY: `name` and `vfs` are NUL-terminated and outlive the call; `db` is a valid out pointer.
        let code =
            unsafe { ffi::sqlite3_open_v2(name.as_ptr(), &mut db, flags.0, vfs.map_or(ptr::null(), CStr::as_ptr)) };
        if code != ffi::SQLITE_OK {
            let error = if db.is_null() {
                SqliteError::from_code(ffi::SQLITE_NOMEM)
            } else {
                // SAFETY: a failed open still yields a handle, good for its error message and to be closed.
                let error = unsafe { last_error(db, code) };
                // SAFETY: as above; nothing else knows this handle.
                unsafe { ffi::sqlite3_close(db) };
                error
            };
            if crate::vfs::take_refusal() {
                return Err(SqliteError { message: REFUSED.into(), ..error });
            }
            return Err(error);
        }
        // SAFETY: `db` is open and ours.
        unsafe { ffi::sqlite3_extended_result_codes(db, 1) };
        // This SQLite is built so that a new connection may load extensions; nobody has allowed it yet.
        // SAFETY: as above.
        unsafe { ffi::sqlite3_enable_load_extension(db, 0) };
        let handle = Arc::new(Self {
            db,
            alive: Arc::new(Mutex::new(true)),
            generation: crate::process::generation(),
            log_pages: OnceLock::new(),
            met_disk_error: AtomicBool::new(false),
            #[cfg(test)]
            plan,
        });
        handle.may_fail(|| "open".to_owned())?;
        super::builtins::register(&handle)?;
        Ok(handle)
    }

    /// Fail in SQLite's place, where a test wants this call to.
    #[inline]
    #[cfg_attr(not(test), allow(unused_variables, clippy::unused_self))]
    pub(super) fn may_fail(&self, call: impl FnOnce() -> String) -> Result<(), SqliteError> {
        #[cfg(test)]
        super::faults::ask(self, self.plan.as_ref(), false, call)?;
        Ok(())
    }

    /// As [`Handle::may_fail`], for the step of a statement.
    #[inline]
    #[cfg_attr(not(test), allow(unused_variables, clippy::unused_self))]
    pub(super) fn step_may_fail(&self, call: impl FnOnce() -> String) -> Result<(), SqliteError> {
        #[cfg(test)]
        super::faults::ask(self, self.plan.as_ref(), true, call)?;
        Ok(())
    }

    /// Return the C pointer, for the few calls this type does not wrap.
    pub fn as_ptr(&self) -> *mut ffi::sqlite3 {
        self.db
    }

    /// Say whether this handle was inherited through a fork. Such a handle must not be used at all.
    pub fn is_inherited(&self) -> bool {
        self.generation != crate::process::generation()
    }

    /// Return the error of the last failed call with this result code.
    pub fn error(&self, code: i32) -> SqliteError {
        // SAFETY: the handle is open for as long as `self` lives.
        unsafe { last_error(self.db, code) }
    }

    /// Say whether the handle is in autocommit mode, that is, not inside a transaction.
    ///
    /// This, and not a guess, tells whether an error took the transaction with it.
    /// Source: <https://www.sqlite.org/c3ref/get_autocommit.html>.
    pub fn autocommit(&self) -> bool {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_get_autocommit(self.db) != 0 }
    }

    /// Return the rows changed by the last statement that changed any.
    pub fn changes(&self) -> i64 {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_changes64(self.db) }
    }

    /// Return the rows changed since the handle was opened.
    pub fn total_changes(&self) -> i64 {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_total_changes64(self.db) }
    }

    /// Return the rowid of the last insert.
    pub fn last_insert_rowid(&self) -> i64 {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_last_insert_rowid(self.db) }
    }

    /// Set the value that [`Handle::last_insert_rowid`] returns until the next insert.
    pub fn set_last_insert_rowid(&self, rowid: i64) {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_set_last_insert_rowid(self.db, rowid) }
    }

    /// Return `SQLITE_TXN_NONE`, `_READ` or `_WRITE` over all attached databases.
    pub fn transaction_state(&self) -> i32 {
        // SAFETY: the handle is open; a null schema means all of them.
        unsafe { ffi::sqlite3_txn_state(self.db, ptr::null()) }
    }

    /// Say whether the main database is being written, that is, whether this handle has its write lock.
    pub fn writes_main(&self) -> bool {
        // SAFETY: the handle is open; the schema name is NUL-terminated.
        unsafe { ffi::sqlite3_txn_state(self.db, c"main".as_ptr()) == ffi::SQLITE_TXN_WRITE }
    }

    /// Say whether the main database is being read or written, that is, whether this handle has a snapshot of it open.
    pub fn reads_main(&self) -> bool {
        // SAFETY: the handle is open; the schema name is NUL-terminated.
        unsafe { ffi::sqlite3_txn_state(self.db, c"main".as_ptr()) >= ffi::SQLITE_TXN_READ }
    }

    /// Say whether deferred foreign keys are violated right now, so that COMMIT would fail.
    ///
    /// Source: <https://www.sqlite.org/c3ref/c_dbstatus_options.html> (`SQLITE_DBSTATUS_DEFERRED_FKS`).
    pub fn deferred_violations(&self) -> bool {
        let (mut current, mut high) = (0, 0);
        // SAFETY: the handle is open, both out pointers are valid.
        let code =
            unsafe { ffi::sqlite3_db_status(self.db, ffi::SQLITE_DBSTATUS_DEFERRED_FKS, &mut current, &mut high, 0) };
        code == ffi::SQLITE_OK && current != 0
    }

    /// Set the time SQLite itself sleeps and retries on a lock, in milliseconds; 0 returns at once.
    pub fn busy_timeout_ms(&self, milliseconds: i32) {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_busy_timeout(self.db, milliseconds) };
    }

    /// Return the file of the main database, or `None` where there is none (in memory, temporary).
    pub fn main_file(&self) -> Option<std::path::PathBuf> {
        // SAFETY: the handle is open; the name lives as long as the handle.
        let name = unsafe { ffi::sqlite3_db_filename(self.db, c"main".as_ptr()) };
        if name.is_null() {
            return None;
        }
        // SAFETY: a non-null name is NUL-terminated.
        let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
        (!bytes.is_empty()).then(|| std::ffi::OsStr::from_bytes(bytes).into())
    }

    /// Say whether the main database cannot be written through this handle.
    pub fn is_readonly(&self) -> bool {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_db_readonly(self.db, c"main".as_ptr()) == 1 }
    }

    /// Set a run-time limit (`SQLITE_LIMIT_*`) and return its former value; a negative `value` only asks.
    ///
    /// `None`: there is no such limit. Source: <https://www.sqlite.org/c3ref/limit.html>.
    pub fn limit(&self, category: i32, value: i32) -> Option<i32> {
        // SAFETY: the handle is open; an unknown category answers -1.
        let former = unsafe { ffi::sqlite3_limit(self.db, category, value) };
        (former >= 0).then_some(former)
    }

    /// Have SQLite itself checkpoint after a commit that leaves `pages` or more in the log; 0 never.
    pub fn wal_autocheckpoint(&self, pages: i32) {
        // SAFETY: the handle is open.
        unsafe { ffi::sqlite3_wal_autocheckpoint(self.db, pages) };
    }

    /// Run statements that return nothing, one after another.
    ///
    /// # Errors
    /// What SQLite says at the first that fails.
    pub fn execute_batch(&self, sql: &str) -> Result<(), SqliteError> {
        let text = CString::new(sql).map_err(|_| SqliteError {
            code: ffi::SQLITE_ERROR,
            message: "the SQL text contains a NUL character".into(),
            offset: None,
        })?;
        self.may_fail(|| format!("exec {sql}"))?;
        // SAFETY: the handle is open, `text` is NUL-terminated, no callback.
        let code = unsafe { ffi::sqlite3_exec(self.db, text.as_ptr(), None, ptr::null_mut(), ptr::null_mut()) };
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.error(code)) }
    }

    /// Run `wal_checkpoint` and return (frames in the log, frames copied), each -1 where there is no log.
    ///
    /// # Errors
    /// `SQLITE_BUSY` where another checkpoint runs; I/O errors.
    /// Source: <https://www.sqlite.org/c3ref/wal_checkpoint_v2.html>.
    pub fn checkpoint(&self, mode: i32) -> (Result<(), SqliteError>, i32, i32) {
        let (mut log, mut copied) = (-1, -1);
        if let Err(error) = self.may_fail(|| format!("checkpoint {mode}")) {
            return (Err(error), log, copied);
        }
        // SAFETY: the handle is open, "main" is NUL-terminated, both out pointers are valid.
        let code = unsafe { ffi::sqlite3_wal_checkpoint_v2(self.db, c"main".as_ptr(), mode, &mut log, &mut copied) };
        if primary(code) == ffi::SQLITE_IOERR {
            self.met_disk_error.store(true, Ordering::Relaxed);
        }
        let result = if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.error(code)) };
        (result, log, copied)
    }

    /// Say whether a checkpoint has met an error of the disk since this was asked last.
    pub fn take_disk_error(&self) -> bool {
        self.met_disk_error.load(Ordering::Relaxed) && self.met_disk_error.swap(false, Ordering::Relaxed)
    }

    /// Return how many frames the log has, and how many of them are in the database by now, whoever wrote and copied
    /// them. `None`: there is no log.
    ///
    /// Reads two numbers of the shared memory that this handle has open. Only for a handle that has a log and shares it:
    /// the memory would be made where there is none. Sources: <https://www.sqlite.org/walformat.html> (the WAL-index
    /// header: `mxFrame`, `nBackfill`), <https://www.sqlite.org/c3ref/io_methods.html> (`xShmMap`).
    pub fn log_frames(&self) -> Option<(u32, u32)> {
        const FRAMES: usize = 16;
        const BACKFILLED: usize = 96;
        let memory = self.log_memory()?;
        // SAFETY: the region is mapped for as long as the file is open, is a page or more long and begins on one, and
        // these numbers are written as a whole.
        let read =
            |at| unsafe { AtomicU32::from_ptr(memory.as_ptr().cast::<u8>().add(at).cast()) }.load(Ordering::Relaxed);
        Some((read(FRAMES), read(BACKFILLED)))
    }

    /// Return the words that processes leave each other in the shared memory that this handle has open. Only for a handle that
    /// has a log and shares it. `None`: there is no log, or they are not to be had.
    pub fn shared_words(&self) -> Option<SharedWords> {
        // SAFETY: a region, which is a page or more, is mapped for as long as the file is open.
        unsafe { SharedWords::of(self.log_memory()?) }
    }

    /// Return the first region of the shared memory.
    fn log_memory(&self) -> Option<NonNull<c_void>> {
        const REGION: i32 = 32 << 10;
        let (file, methods) = self.file(ffi::SQLITE_FCNTL_FILE_POINTER).ok()??;
        let map = methods.xShmMap.filter(|_| methods.iVersion >= 2)?;
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: the file is open; without the flag to extend it, nothing is made that is not there.
        let code = unsafe { map(file, 0, REGION, 0, ptr::from_mut(&mut memory).cast()) };
        NonNull::new(memory).filter(|_| code == ffi::SQLITE_OK)
    }

    /// Have the pages of the log counted in `pages` after every commit; turns automatic checkpoints off.
    ///
    /// The first call counts. Sources: <https://www.sqlite.org/c3ref/wal_hook.html>,
    /// <https://www.sqlite.org/c3ref/c_dbstatus_options.html> (`SQLITE_DBSTATUS_CACHE_WRITE`).
    pub fn watch_log(&self, pages: Arc<LogPages>) {
        let pages = self.log_pages.get_or_init(|| pages);
        // SAFETY: the atomic lives as long as the handle, which keeps it.
        unsafe { ffi::sqlite3_wal_hook(self.db, Some(note_log_pages), Arc::as_ptr(pages).cast_mut().cast()) };
    }

    /// Say whether the database file was renamed, deleted or replaced since it was opened.
    ///
    /// What is written after that is in a file that nobody finds. Temporary and in-memory databases never move.
    ///
    /// # Errors
    /// What SQLite says. Source: <https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html>
    /// (`SQLITE_FCNTL_HAS_MOVED`).
    pub fn has_moved(&self) -> Result<bool, SqliteError> {
        self.may_fail(|| "has_moved".to_owned())?;
        let mut moved: i32 = 0;
        // SAFETY: this file control writes an int.
        match unsafe { self.file_control(ffi::SQLITE_FCNTL_HAS_MOVED, &mut moved) } {
            ffi::SQLITE_OK => Ok(moved != 0),
            ffi::SQLITE_NOTFOUND => Ok(false),
            code => Err(SqliteError::from_code(code)),
        }
    }

    /// Bring the write-ahead log to the disk, with the sync that SQLite itself would use. Needs no lock.
    ///
    /// # Errors
    /// What the disk says; `SQLITE_MISUSE` where there is no log. Sources:
    /// <https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html> (`SQLITE_FCNTL_JOURNAL_POINTER`), <https://www.sqlite.org/c3ref/io_methods.html> (`xSync`).
    pub fn sync_log(&self) -> Result<(), SqliteError> {
        self.may_fail(|| "sync_log".to_owned())?;
        let found = self.file(ffi::SQLITE_FCNTL_JOURNAL_POINTER)?;
        let Some((file, sync)) = found.and_then(|(file, methods)| Some((file, methods.xSync?))) else {
            return Err(SqliteError::from_code(ffi::SQLITE_MISUSE));
        };
        // SAFETY: the file is open, and the method is its own.
        match unsafe { sync(file, ffi::SQLITE_SYNC_NORMAL) } {
            ffi::SQLITE_OK => Ok(()),
            code => Err(SqliteError::from_code(code)),
        }
    }

    /// Return a file of the main database, with its methods; `None` where it is not open. It lives until a statement on
    /// this handle closes it, and whoever calls has the handle for itself.
    fn file(&self, which: i32) -> Result<Option<(*mut ffi::sqlite3_file, &ffi::sqlite3_io_methods)>, SqliteError> {
        let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
        // SAFETY: these file controls write a pointer to a file.
        match unsafe { self.file_control(which, &mut file) } {
            ffi::SQLITE_OK => {
                // SAFETY: a file that SQLite tells of is live, and its methods live as long as SQLite; one that is not
                // open has none.
                let methods = unsafe { file.as_ref().and_then(|found| found.pMethods.as_ref()) };
                Ok(methods.map(|methods| (file, methods)))
            }
            code => Err(SqliteError::from_code(code)),
        }
    }

    /// Ask the main database's file something.
    ///
    /// # Safety
    /// `answer` is of the type that `question` writes.
    unsafe fn file_control<T>(&self, question: i32, answer: &mut T) -> i32 {
        // SAFETY: the handle is open and "main" is NUL-terminated; the rest is the caller's word.
        unsafe { ffi::sqlite3_file_control(self.db, c"main".as_ptr(), question, ptr::from_mut(answer).cast()) }
    }

    /// Set a `SQLITE_DBCONFIG_*` switch and return its value.
    ///
    /// # Errors
    /// What SQLite says of an unknown switch.
    pub fn set_config(&self, switch: i32, on: bool) -> Result<bool, SqliteError> {
        let mut now: i32 = 0;
        // SAFETY: the switches taken here are those with the (int, int*) signature.
        let code = unsafe { ffi::sqlite3_db_config(self.db, switch, i32::from(on), ptr::from_mut(&mut now)) };
        if code == ffi::SQLITE_OK { Ok(now != 0) } else { Err(self.error(code)) }
    }

    /// Return something with which another thread can interrupt this handle.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { db: self.db, alive: Arc::clone(&self.alive) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        *alive = false;
        if self.is_inherited() {
            // The parent's locks, mutexes and shared memory are behind this handle: leave it alone.
            return;
        }
        // SAFETY: the handle is open and this is its last owner: every statement holds its handle alive, so none is left.
        unsafe { ffi::sqlite3_close(self.db) };
    }
}

/// Pages in the log of an attached database at which it is copied; as for the main one, under 1,000.
const ATTACHED_LOG_PAGES: c_int = 900;

unsafe extern "C" fn note_log_pages(
    pages: *mut c_void,
    db: *mut ffi::sqlite3,
    schema: *const c_char,
    count: c_int,
) -> c_int {
    // SAFETY: SQLite passes the schema's NUL-terminated name.
    if unsafe { CStr::from_ptr(schema) } == c"main" {
        // SAFETY: set by `watch_log`; the handle keeps the counts alive.
        let pages = unsafe { &*pages.cast::<LogPages>() };
        pages.present.store(count, Ordering::Relaxed);
        let (mut written, mut high) = (0, 0);
        // SAFETY: SQLite's own handle, inside a call of its own; both out pointers are valid.
        unsafe { ffi::sqlite3_db_status(db, ffi::SQLITE_DBSTATUS_CACHE_WRITE, &mut written, &mut high, 1) };
        pages.written.fetch_add(written, Ordering::Relaxed);
    } else if count >= ATTACHED_LOG_PAGES {
        // Nobody else looks after the log of an attached database. What this cannot copy the next one will.
        // SAFETY: SQLite's own arguments; a checkpoint is what its own hook does in this place.
        unsafe {
            let passive = ffi::SQLITE_CHECKPOINT_PASSIVE;
            ffi::sqlite3_wal_checkpoint_v2(db, schema, passive, ptr::null_mut(), ptr::null_mut())
        };
    }
    ffi::SQLITE_OK
}

/// Interrupts a handle from another thread, and knows when the handle is gone.
#[derive(Clone)]
pub struct Interrupter {
    db: *mut ffi::sqlite3,
    alive: Arc<Mutex<bool>>,
}

// SAFETY: sqlite3_interrupt may be called from any thread while the handle is open, which `alive` guards.
unsafe impl Send for Interrupter {}
// SAFETY: as above.
unsafe impl Sync for Interrupter {}

impl Interrupter {
    /// Make every running statement of the handle return `SQLITE_INTERRUPT` soon.
    pub fn interrupt(&self) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if *alive {
            // SAFETY: the handle cannot be closed while `alive` is locked.
            unsafe { ffi::sqlite3_interrupt(self.db) };
        }
    }
}

/// Read the error of the last call on `db`.
///
/// # Safety
/// `db` is a handle that [`ffi::sqlite3_open_v2`] returned and that is not closed.
unsafe fn last_error(db: *mut ffi::sqlite3, code: i32) -> SqliteError {
    // SAFETY: by contract of this function.
    let (extended, message, offset) = unsafe {
        (
            ffi::sqlite3_extended_errcode(db),
            CStr::from_ptr(ffi::sqlite3_errmsg(db)).to_string_lossy().into(),
            ffi::sqlite3_error_offset(db),
        )
    };
    // The handle keeps the error of its last call; trust it only where it is the one that was returned.
    if primary(extended) == primary(code) {
        let code = if code > 0xff { code } else { extended };
        SqliteError { code, message, offset: usize::try_from(offset).ok() }
    } else {
        SqliteError::from_code(code)
    }
}
