//! Our own copy of SQLite's way to the kernel: locks that nothing else in this process can drop.
//!
//! POSIX record locks belong to the process. When any code of a process closes any descriptor of a file, all locks
//! the process holds on it are gone, and two copies of SQLite in one process (ours and the one under the standard
//! library's `sqlite3`) do not exclude each other at all. So this module answers some of the system calls of the
//! bundled SQLite itself (`xSetSystemCall`, <https://www.sqlite.org/c3ref/vfs.html>):
//!
//! - `fcntl`: record locks become *open file description* locks (fcntl(2), Linux 3.15). They conflict with POSIX locks,
//!   also with those of the same process, and belong to a descriptor that nobody else knows. All locks on one inode go
//!   through one descriptor, the *canonical* one, since SQLite lets one connection unlock what another locked.
//! - `close` and `open`: a descriptor of a file that somebody may hold POSIX locks on is not closed, which would drop
//!   them, but *parked* and handed out again; `descriptors.rs` says when it may really go.
//! - `fstat` and `stat`: SQLite keeps its bookkeeping of locks in memory by (device, inode). In a forked child that
//!   memory is the parent's and so are the locks in it; mixing a number that a fork raises into `st_dev` makes every
//!   file new to the child. `st_ino` stays true, since SQLite compares it to see whether a file was moved.
//! - `pwrite` and `pread`: what a commit writes to the log goes in one call; `log_writes.rs` says why that is safe.
//!
//! Around a fork, SQLite's static mutexes and ours are held, so that the child gets them unlocked and what they guard
//! whole; the child then really closes the canonical and parked descriptors, or a lock of its parent's would live on
//! in it.
//!
//! # Where there are no such locks
//! On a kernel without them (Linux before 3.15, gVisor), on 32-bit Linux and on other systems, and where
//! `WRITELANE_NO_OFD_LOCKS` is set to something but `0` and nothing, SQLite's own POSIX locks stay. Then the open of a
//! database that other code of this process has open is refused (on Linux; elsewhere it cannot be told), but what is
//! opened later cannot be seen. Elsewhere than on Linux, no system call is replaced: there, a child that was forked
//! while its parent had a database open must not open the same one. That part is untested.

use crate::process::ForkOnce;
use crate::sqlite::SqliteError;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(target_os = "linux")]
mod descriptors;
mod foreign;
#[cfg(target_os = "linux")]
mod fork;
#[cfg(target_os = "linux")]
mod hooks;
mod identity;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod log_writes;
mod probe;
#[cfg(target_os = "linux")]
mod read_marks;
mod shared_words;

pub use foreign::foreign_copy_has_open;
pub use identity::{FileIdentity, identity};
pub use probe::{Owner, Probed, WriteLockProbe};
pub use shared_words::{SharedWords, Woken, Word};

/// Whose the locks on database files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// They belong to a descriptor of ours: nothing else in this process can drop them.
    Description,
    /// They belong to the process: any close of the file by other code drops them.
    Process,
}

static INSTALL: ForkOnce = ForkOnce::new();
static KIND: AtomicU8 = AtomicU8::new(NOT_INSTALLED);
const NOT_INSTALLED: u8 = 0;
const DESCRIPTION: u8 = 1;
const PROCESS: u8 = 2;
const MISSING: u8 = 3;

/// Put our answers into the system-call table of the bundled SQLite. Every open goes through here first.
///
/// Blocks for less than a millisecond, the first time; does nothing after that.
///
/// # Errors
/// The bundled SQLite has no `unix` VFS, or one that does not let its system calls be replaced: then no database
/// may be opened, since nothing would protect it.
#[inline]
pub fn install() -> Result<(), SqliteError> {
    INSTALL.call(|| {
        // Before anything is locked or initialised: a fork from here on waits for the end of this.
        crate::process::watch_forks();
        KIND.store(install_once(), Ordering::Release);
    });
    if KIND.load(Ordering::Acquire) == MISSING { Err(missing()) } else { Ok(()) }
}

/// Return whose the locks on database files are. [`install`] must have succeeded.
pub fn lock_kind() -> LockKind {
    if KIND.load(Ordering::Acquire) == DESCRIPTION { LockKind::Description } else { LockKind::Process }
}

#[cold]
fn missing() -> SqliteError {
    SqliteError {
        code: rusqlite::ffi::SQLITE_NOTFOUND,
        message: "the bundled SQLite has no \"unix\" VFS whose system calls can be replaced, so its locks cannot be \
                  protected from other code in this process"
            .into(),
        offset: None,
    }
}

#[cfg(target_os = "linux")]
fn install_once() -> u8 {
    let kind = if kernel::has_description_locks() { DESCRIPTION } else { PROCESS };
    if hooks::replace() && fork::learn_mutexes() { kind } else { MISSING }
}

#[cfg(not(target_os = "linux"))]
fn install_once() -> u8 {
    PROCESS
}

/// Let go of the descriptors of all files that no connection uses, where that drops nobody's locks.
///
/// A descriptor that is kept for the next connection holds the space of a deleted file and keeps its filesystem
/// mounted; a database that is closed for good is a good moment for this. Others can find each file busy for some
/// microseconds. Files that others keep locked stay open if this process has them open otherwise, too.
pub fn release_idle() {
    #[cfg(target_os = "linux")]
    descriptors::lock().release_all_idle();
}

/// Run `call`, which makes a commit or fails, with the commit's frames gathered into few writes (`log_writes.rs`).
///
/// # Errors
/// Those of `call`, and `SQLITE_IOERR_WRITE`: then a transaction that is open is to be rolled back.
#[inline]
pub(crate) fn gathering_frames<T>(call: impl FnOnce() -> Result<T, SqliteError>) -> Result<T, SqliteError> {
    #[cfg(target_os = "linux")]
    return log_writes::gather(call);
    #[cfg(not(target_os = "linux"))]
    call()
}

/// Begin a short write, with the marks of what is read in the log left where they are (`read_marks.rs`).
#[inline]
pub(crate) fn leaving_marks<T>(begin: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "linux")]
    return read_marks::leave(begin);
    #[cfg(not(target_os = "linux"))]
    begin()
}

/// Return the descriptor of the log that this thread wrote the end of a commit to in the last [`gathering_frames`], and
/// forget it.
pub(crate) fn take_written_log() -> Option<WrittenLog> {
    #[cfg(target_os = "linux")]
    return log_writes::take_written();
    #[cfg(not(target_os = "linux"))]
    None
}

/// The log that a commit was just written to.
#[derive(Clone, Copy)]
pub(crate) struct WrittenLog(#[cfg_attr(not(target_os = "linux"), expect(dead_code))] i32);

impl WrittenLog {
    /// Ask whether the kernel could write what it has written of the log; it tells each descriptor once. Who flushes is told
    /// anyway, and who relies on another's flush is to ask: its own pages may have failed before that.
    ///
    /// # Errors
    /// What the disk says, or why the kernel does not tell. Source: sync_file_range(2).
    pub fn check(self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        kernel::check_written(self.0)?;
        Ok(())
    }
}

/// Say whether the last open on this thread was refused because other code of this process has the file open, and
/// forget it.
pub(crate) fn take_refusal() -> bool {
    #[cfg(target_os = "linux")]
    return hooks::take_refusal();
    #[cfg(not(target_os = "linux"))]
    false
}

pub(crate) fn before_fork() {
    if INSTALL.settle() {
        #[cfg(target_os = "linux")]
        fork::before();
    }
}

pub(crate) fn after_fork_in_parent() {
    #[cfg(target_os = "linux")]
    fork::in_parent();
}

pub(crate) fn after_fork_in_child() {
    #[cfg(target_os = "linux")]
    fork::in_child();
}
