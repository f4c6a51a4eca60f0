//! The system calls that SQLite makes, as we answer them.
//!
//! `open` and `fcntl` are variadic in C. SQLite calls `open` through a pointer to a function of three arguments.
//! `fcntl` it calls through a variadic pointer, always with a third argument, and Rust cannot define a variadic
//! function; on Linux a caller passes the first three arguments of a variadic call in the same registers as those of
//! any other (x86-64, AArch64, RISC-V, s390x and POWER ELFv2 alike, since they are integers and pointers). It is not so
//! on Apple's AArch64, one reason why this is for Linux.

use super::descriptors::{self, INHERITED, Inode};
use super::{LockKind, kernel, lock_kind, log_writes, read_marks};
use libc::{c_char, c_int, c_void};
use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::ptr;

thread_local! {
    /// Whether the last open on this thread was refused because other code of this process has the file open.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn take_refusal() -> bool {
    REFUSED.replace(false)
}

/// Put the hooks into SQLite's table. Return false where there is no such table.
pub(super) fn replace() -> bool {
    // SAFETY: may be called at any time; the name is NUL-terminated. It initialises SQLite.
    let vfs = unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) };
    if vfs.is_null() {
        return false;
    }
    // SAFETY: a registered VFS is never freed.
    let (version, set) = unsafe { ((*vfs).iVersion, (*vfs).xSetSystemCall) };
    // The member exists since version 3 of the structure.
    let (true, Some(set)) = (version >= 3, set) else { return false };
    // SAFETY: function pointers all have one representation; SQLite casts each back to the type it calls it with,
    // which is the type it has here (see the module's comment for `fcntl`).
    let table: [(&CStr, unsafe extern "C" fn()); 5] = unsafe {
        [
            (c"open", std::mem::transmute::<OpenCall, unsafe extern "C" fn()>(open)),
            (c"close", std::mem::transmute::<CloseCall, unsafe extern "C" fn()>(close)),
            (c"fcntl", std::mem::transmute::<FcntlCall, unsafe extern "C" fn()>(fcntl)),
            (c"fstat", std::mem::transmute::<FstatCall, unsafe extern "C" fn()>(fstat)),
            (c"stat", std::mem::transmute::<StatCall, unsafe extern "C" fn()>(stat)),
        ]
    };
    // SAFETY: as above. The two names of each are one call where `off_t` has 64 bits, and SQLite is built with either.
    let at_offset: [(&CStr, unsafe extern "C" fn()); 4] = unsafe {
        [
            (c"pwrite", std::mem::transmute::<WriteCall, unsafe extern "C" fn()>(pwrite)),
            (c"pwrite64", std::mem::transmute::<WriteCall, unsafe extern "C" fn()>(pwrite)),
            (c"pread", std::mem::transmute::<ReadCall, unsafe extern "C" fn()>(pread)),
            (c"pread64", std::mem::transmute::<ReadCall, unsafe extern "C" fn()>(pread)),
        ]
    };
    let at_offset = at_offset.into_iter().filter(|_| cfg!(target_pointer_width = "64"));
    table.into_iter().chain(at_offset).all(|(name, call)| {
        // SAFETY: a NUL-terminated name and a function that lives as long as the process.
        unsafe { set(vfs, name.as_ptr(), Some(call)) == ffi::SQLITE_OK }
    })
}

type OpenCall = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
type CloseCall = unsafe extern "C" fn(c_int) -> c_int;
type FcntlCall = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
type FstatCall = unsafe extern "C" fn(c_int, *mut libc::stat64) -> c_int;
type WriteCall = unsafe extern "C" fn(c_int, *const c_void, usize, libc::off_t) -> isize;
type ReadCall = unsafe extern "C" fn(c_int, *mut c_void, usize, libc::off_t) -> isize;
type StatCall = unsafe extern "C" fn(*const c_char, *mut libc::stat64) -> c_int;

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: SQLite passes a NUL-terminated path.
    let path = unsafe { CStr::from_ptr(path) };
    match open_tracked(path, flags, mode as libc::mode_t) {
        Ok(fd) => fd,
        Err(error) => {
            kernel::set_errno_of(&error);
            -1
        }
    }
}

/// Open a file, or hand out a parked descriptor of it, and keep track of it where somebody may lock it.
pub(super) fn open_tracked(path: &CStr, flags: c_int, mode: libc::mode_t) -> io::Result<c_int> {
    if lock_kind() == LockKind::Process {
        refuse_shared(path)?;
    }
    if let Some(fd) = descriptors::reuse(path, flags) {
        return Ok(fd);
    }
    let fd = match kernel::open(path, flags, mode) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
                && descriptors::lock().release_all_idle() =>
        {
            kernel::open(path, flags, mode)?
        }
        answer => answer?,
    };
    descriptors::adopt(fd, Some(path))?;
    Ok(fd)
}

/// Where locks belong to the process, refuse a file that other code of this process has open.
fn refuse_shared(path: &CStr) -> io::Result<()> {
    let Some(found) = kernel::inspect_path(path) else { return Ok(()) };
    if !found.is_regular || descriptors::is_log(path) {
        return Ok(());
    }
    // Where /proc cannot be read nothing can be told, and no copy of SQLite could be used at all if that refused.
    let foreign = descriptors::lock().foreign_files().is_ok_and(|files| files.contains(&found.file));
    if foreign {
        REFUSED.set(true);
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Ok(())
}

unsafe extern "C" fn close(fd: c_int) -> c_int {
    descriptors::give_back(fd)
}

unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let command = match command {
        libc::F_SETLK => libc::F_OFD_SETLK,
        libc::F_SETLKW => libc::F_OFD_SETLKW,
        libc::F_GETLK => libc::F_OFD_GETLK,
        // SAFETY: what SQLite wanted of its own descriptor.
        _ => return unsafe { libc::fcntl(fd, command, argument) },
    };
    // SAFETY: SQLite passes a valid flock structure with each of these commands.
    let wanted = unsafe { &mut *argument.cast::<libc::flock>() };
    if i32::from(wanted.l_type) == libc::F_UNLCK {
        log_writes::before_unlock();
    } else if command == libc::F_OFD_SETLK && read_marks::is_to_stay(wanted) {
        kernel::set_errno(libc::EAGAIN);
        return -1;
    }
    if lock_kind() == LockKind::Process {
        return lock_in_process(fd, command, wanted);
    }
    let mut lock = *wanted;
    let answer = match descriptors::inode_of(fd) {
        Some(inode) if ptr::eq(inode, &INHERITED) => Err(io::Error::from_raw_os_error(libc::EBADF)),
        Some(inode) => lock_file(fd, inode, command, &mut lock),
        // A database under the name of a log; see `descriptors::is_log`.
        None => descriptors::adopt_any(fd).and_then(|inode| lock_file(fd, inode, command, &mut lock)),
    };
    match answer {
        Ok(()) => {
            if command == libc::F_OFD_GETLK {
                *wanted = lock;
            }
            0
        }
        Err(error) => {
            kernel::set_errno_of(&error);
            -1
        }
    }
}

unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, length: usize, at: libc::off_t) -> isize {
    // SAFETY: SQLite passes a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    answer(log_writes::write(fd, bytes, at))
}

unsafe extern "C" fn pread(fd: c_int, bytes: *mut c_void, length: usize, at: libc::off_t) -> isize {
    match log_writes::before_read(fd) {
        // SAFETY: SQLite passes a buffer of this length.
        Ok(()) => unsafe { libc::pread(fd, bytes, length, at) },
        Err(error) => answer(Err(error)),
    }
}

fn answer(result: io::Result<usize>) -> isize {
    match result {
        Ok(length) => length.cast_signed(),
        Err(error) => {
            kernel::set_errno_of(&error);
            -1
        }
    }
}

/// Lock through the canonical descriptor. No mutex is taken where there is one, and none is held while waiting.
#[inline]
fn lock_file(fd: c_int, inode: &'static Inode, command: c_int, lock: &mut libc::flock) -> io::Result<()> {
    match inode.canonical() {
        Some(canonical) => kernel::lock_description(canonical, command, lock),
        None => descriptors::lock_slowly(fd, inode, command, lock),
    }
}

fn lock_in_process(fd: c_int, command: c_int, lock: &mut libc::flock) -> c_int {
    let command = match command {
        libc::F_OFD_SETLK => libc::F_SETLK,
        libc::F_OFD_SETLKW => libc::F_SETLKW,
        _ => libc::F_GETLK,
    };
    if descriptors::inode_of(fd).is_some_and(|inode| ptr::eq(inode, &INHERITED)) {
        kernel::set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: `lock` is a valid flock structure.
    unsafe { libc::fcntl(fd, command, ptr::from_mut(lock)) }
}

unsafe extern "C" fn fstat(fd: c_int, found: *mut libc::stat64) -> c_int {
    // SAFETY: SQLite passes a valid out pointer.
    let answer = unsafe { libc::fstat64(fd, found) };
    if answer == 0 {
        // SAFETY: just filled in.
        unsafe { estrange(found) };
    }
    answer
}

unsafe extern "C" fn stat(path: *const c_char, found: *mut libc::stat64) -> c_int {
    // SAFETY: SQLite passes a NUL-terminated path and a valid out pointer.
    let answer = unsafe { libc::stat64(path, found) };
    if answer == 0 {
        // SAFETY: just filled in.
        unsafe { estrange(found) };
    }
    answer
}

/// Mix the number of forks behind this process into the device.
///
/// Linux device numbers fit in 32 bits (12 of major, 20 of minor number), so the number goes above them: no two
/// generations give the same device, whatever the devices.
///
/// # Safety
/// `found` points to a filled-in structure.
unsafe fn estrange(found: *mut libc::stat64) {
    let generation = crate::process::generation();
    // SAFETY: by contract of this function.
    unsafe { (*found).st_dev ^= (generation << 32) as libc::dev_t };
}
