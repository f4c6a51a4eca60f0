//! The system calls the hooks are made of.

use super::FileIdentity;
use libc::{c_int, c_short, flock};
use std::ffi::CStr;
use std::io;
use std::io::Write;

/// The first descriptor that is not a standard stream's: a database must never be where somebody prints to.
const FIRST_FREE: c_int = 3;

/// Say whether open file description locks are to be used and the kernel has them.
pub(super) fn has_description_locks() -> bool {
    // SQLite's `struct flock` and lock commands are those of `libc::flock` on 64-bit systems only.
    if cfg!(not(target_pointer_width = "64")) || disabled() {
        return false;
    }
    // A real lock on a file that everybody has: a kernel without these locks answers EINVAL.
    let Ok(fd) = open(c"/dev/null", libc::O_RDONLY | libc::O_CLOEXEC, 0) else { return false };
    let answer = lock_description(fd, libc::F_OFD_SETLK, &mut whole_file(libc::F_RDLCK));
    let has = match answer {
        Ok(()) => true,
        Err(error) => matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)),
    };
    close(fd);
    has
}

fn disabled() -> bool {
    std::env::var_os("WRITELANE_NO_OFD_LOCKS").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Return a lock of the given type on all bytes that a file has or may get.
pub(super) fn whole_file(kind: c_int) -> flock {
    range(kind, 0, 0)
}

/// Return a lock of the given type on `length` bytes from `start`.
pub(super) fn range(kind: c_int, start: i64, length: i64) -> flock {
    // SAFETY: a plain C structure, for which all zeros are a value.
    let mut lock: flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as c_short;
    lock.l_whence = libc::SEEK_SET as c_short;
    lock.l_start = start as libc::off_t;
    lock.l_len = length as libc::off_t;
    lock
}

/// Set, wait for or ask about a lock of the descriptor's file description.
#[inline]
pub(super) fn lock_description(fd: c_int, command: c_int, lock: &mut flock) -> io::Result<()> {
    // The kernel demands it of these commands; SQLite leaves the field as it was on its stack.
    lock.l_pid = 0;
    // SAFETY: `lock` is a valid flock structure, which these commands read and (F_OFD_GETLK) write.
    let answer = unsafe { libc::fcntl(fd, command, std::ptr::from_mut(lock)) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ask whether all of a file could be written that was begun to be.
pub(super) fn check_written(fd: c_int) -> io::Result<()> {
    // SAFETY: no pointers; on a descriptor that is no file's, an error.
    let answer = unsafe { libc::sync_file_range(fd, 0, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Write at an offset.
#[inline]
pub(super) fn write(fd: c_int, bytes: &[u8], at: libc::off_t) -> io::Result<usize> {
    // SAFETY: the buffer is readable for its length.
    let written = unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Open a file with a descriptor above the standard streams'.
///
/// Where one of those is closed, it is first pointed at `/dev/null`, as SQLite would do *after* its open; but to undo
/// an open is to close, and to close may drop the locks of others.
pub(super) fn open(path: &CStr, flags: c_int, mode: libc::mode_t) -> io::Result<c_int> {
    for stream in 0..FIRST_FREE {
        // SAFETY: asks about a number; opens a constant path.
        unsafe {
            if libc::fcntl(stream, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
    // SAFETY: `path` is NUL-terminated.
    let fd = unsafe { libc::open(path.as_ptr(), flags, libc::c_uint::from(mode)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    if fd >= FIRST_FREE {
        return Ok(fd);
    }
    // Another thread closed a standard stream in between.
    // SAFETY: `fd` is ours; dup2 puts /dev/null in its place at once.
    unsafe {
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_FREE);
        let error = io::Error::last_os_error();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            libc::dup2(null, fd);
            libc::close(null);
        }
        if high < 0 { Err(error) } else { Ok(high) }
    }
}

/// Open the file behind a descriptor anew: the same inode, whatever its path names by now.
///
/// `/proc` may be missing or closed to this process (PR_SET_DUMPABLE); then the path is tried. The caller finds out
/// which file it got.
pub(super) fn reopen(fd: c_int, path: Option<&CStr>, access: c_int) -> io::Result<c_int> {
    let mut name = [0u8; 32];
    let mut rest = &mut name[..];
    // The name is at most 25 bytes long, the rest stays NUL.
    let written = write!(rest, "/proc/self/fd/{fd}");
    let flags = access | libc::O_CLOEXEC | libc::O_NOCTTY;
    let by_number = match CStr::from_bytes_until_nul(&name) {
        Ok(name) if written.is_ok() => open(name, flags, 0),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    match (by_number, path) {
        (Ok(fd), _) => Ok(fd),
        (Err(error), Some(path)) if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            open(path, flags | libc::O_NOFOLLOW, 0)
        }
        (Err(error), _) => Err(error),
    }
}

/// Close a descriptor for good.
pub(super) fn close(fd: c_int) -> c_int {
    // SAFETY: by all callers, a descriptor of ours that nobody uses any more.
    unsafe { libc::close(fd) }
}

/// What a descriptor is a descriptor of.
pub(super) struct Opened {
    /// Which file.
    pub(super) file: FileIdentity,
    /// Whether it is a regular file.
    pub(super) is_regular: bool,
    /// How many names it still has.
    pub(super) links: u64,
}

impl Opened {
    #[allow(clippy::unnecessary_cast, reason = "the widths of these fields differ between architectures")]
    fn from(found: &libc::stat64) -> Self {
        Self {
            file: FileIdentity { device: found.st_dev as u64, inode: found.st_ino as u64 },
            is_regular: found.st_mode & libc::S_IFMT == libc::S_IFREG,
            links: found.st_nlink as u64,
        }
    }
}

/// Say what a descriptor is a descriptor of.
pub(super) fn inspect(fd: c_int) -> Option<Opened> {
    // SAFETY: a plain C structure, for which all zeros are a value.
    let mut found: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a valid out pointer.
    (unsafe { libc::fstat64(fd, &mut found) } == 0).then(|| Opened::from(&found))
}

/// Say what a path names, without following it where it is a symbolic link.
pub(super) fn inspect_path(path: &CStr) -> Option<Opened> {
    // SAFETY: a plain C structure, for which all zeros are a value.
    let mut found: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is NUL-terminated, `found` is a valid out pointer.
    (unsafe { libc::lstat64(path.as_ptr(), &mut found) } == 0).then(|| Opened::from(&found))
}

/// Say whether this process may open the path with this access mode now, by its effective user.
pub(super) fn may_open(path: &CStr, access: c_int) -> bool {
    let mode = match access {
        libc::O_RDONLY => libc::R_OK,
        libc::O_WRONLY => libc::W_OK,
        _ => libc::R_OK | libc::W_OK,
    };
    // SAFETY: `path` is NUL-terminated.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) == 0 }
}

/// Return the access mode a descriptor was opened with.
pub(super) fn access_mode(fd: c_int) -> c_int {
    // SAFETY: asks about a descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_ACCMODE }
}

/// Say whether a descriptor only names its file: nothing is locked through it, and its close drops no lock.
pub(super) fn only_names(fd: c_int) -> bool {
    // SAFETY: asks about a number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    #[cfg(target_os = "linux")]
    return flags >= 0 && flags & libc::O_PATH != 0;
    #[cfg(not(target_os = "linux"))]
    return flags < 0;
}

/// Set `errno`, which is where SQLite looks for the reason of a failure.
pub(super) fn set_errno(code: c_int) {
    // SAFETY: the C library gives every thread its own.
    unsafe { *libc::__errno_location() = code };
}

/// Set `errno` to what an error says.
pub(super) fn set_errno_of(error: &io::Error) {
    set_errno(error.raw_os_error().unwrap_or(libc::EIO));
}
