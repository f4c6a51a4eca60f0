//! The lane file: the record lock that is the turn, who waits for it, and a record for each process.
//!
//! POSIX record locks belong to the process and are dropped at the first close of *any* descriptor of the file, so
//! there is one descriptor for each lane file in a process. They are free at once when their owner is killed, also
//! while its forked children live, which flock and open-file-description locks are not.
//!
//! Everything here may fail without harm: whoever has no lane file takes SQLite's own lock without queueing.

use super::board;
use super::slot::{self, Doing, Page, Record};
use crate::holder::{self, process};
use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The byte of the one process that looks whether outsiders have the database open.
pub const LOOKOUT: i64 = 97;
/// The byte that it has a lock on for as long as some have.
pub const OUTSIDERS: i64 = 98;
/// The byte that everybody who waits for [`FRONT`] has a shared lock on. When that is given up, the kernel wakes the first
/// who waits for it, and whoever asks until that one runs would get it instead: this byte says that somebody is about to.
pub const WAITING: i64 = 99;
/// The byte that those of them who do not want to write without end have a shared lock on too.
pub const PRESSED: i64 = 100;
/// The byte whose lock is the turn. The kernel serves those who wait for it in the order they came (Linux 5.0).
pub const FRONT: i64 = 101;
/// Where the records begin. The lock on a record's first byte says that its writer lives.
const SLOTS: i64 = 4096;

const MAGIC: &[u8; 16] = b"writelane lane\n\0";
/// The format of what lies in the file. A file of another one is left alone.
const VERSION: u32 = 1;
const HEADER: usize = 32;

/// What the beginning of a lane file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Nothing yet, or nothing any more: to be written.
    Blank,
    /// This format.
    Ours,
    /// A format that this version does not know: not to be touched, its locks may mean something else.
    Foreign,
    /// Not a lane file's: its bytes are not to be touched; the locks work all the same.
    Garbage,
}

impl Header {
    fn read(bytes: &[u8]) -> Self {
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Blank;
        }
        match bytes.split_at_checked(MAGIC.len()) {
            Some((magic, rest)) if magic == MAGIC => {
                if rest == &Self::bytes()[MAGIC.len()..] {
                    Self::Ours
                } else {
                    Self::Foreign
                }
            }
            _ => Self::Garbage,
        }
    }

    fn bytes() -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&VERSION.to_le_bytes());
        bytes[20..24].copy_from_slice(&(slot::SIZE as u32).to_le_bytes());
        bytes[24..28].copy_from_slice(&(slot::COUNT as u32).to_le_bytes());
        bytes
    }
}

/// What is known of a lock that somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The owner; `None` where it lives in another pid namespace.
    pub pid: Option<u32>,
}

/// An open lane file.
pub struct LaneFile {
    file: Option<File>,
    identity: (u64, u64),
    writable: bool,
    /// The records that lanes of this process have: its own locks do not tell, since they never conflict.
    taken: [AtomicU64; slot::COUNT / 64],
    generation: u64,
}

/// Return the name of the lane file of the database at `path`.
pub fn path_of(path: &Path) -> PathBuf {
    holder::beside(path, "-lane")
}

/// Return the identity of the file at `path` itself, following no link.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().filter(Metadata::is_file).map(|meta| (meta.dev(), meta.ino()))
}

impl LaneFile {
    /// Open the lane file of the database at `path`, and make it where there is none.
    ///
    /// Only to be called through the registry, which keeps a process from opening a lane file twice.
    ///
    /// # Errors
    /// What the kernel says; `InvalidData` for a file of another format or what is no plain file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path_of(path);
        let file = match open(&name, 0, 0) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let database = std::fs::metadata(path)?;
                match open(&name, libc::O_CREAT | libc::O_EXCL, database.mode() & 0o666) {
                    Ok(file) => {
                        follow_permissions(&file, &database);
                        file
                    }
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => open(&name, 0, 0)?,
                    Err(error) => return Err(error),
                }
            }
            other => other?,
        };
        Self::adopt(file)
    }

    fn adopt(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidData, "the lane file is not a plain file"));
        }
        let writable = match header(&file)? {
            Header::Blank => file.write_all_at(&Header::bytes(), 0).is_ok(),
            Header::Ours => true,
            Header::Garbage => false,
            Header::Foreign => {
                return Err(io::Error::new(ErrorKind::InvalidData, "the lane file has another version's format"));
            }
        };
        Ok(Self {
            file: Some(file),
            identity: (meta.dev(), meta.ino()),
            writable,
            taken: Default::default(),
            generation: crate::process::generation(),
        })
    }

    /// Return device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn file(&self) -> &File {
        match &self.file {
            Some(file) => file,
            None => unreachable!("only drop takes the file"),
        }
    }

    /// Say whether the descriptor still is this file's, and the file still has a name.
    pub fn is_intact(&self) -> bool {
        self.is_own() && self.file().metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    /// Say whether the descriptor still is this file's: somebody who closes descriptors by number may have taken it.
    fn is_own(&self) -> bool {
        self.file().metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity)
    }

    /// Take the lock on `byte` if it is free.
    ///
    /// # Errors
    /// What the kernel says, other than that somebody has it.
    pub fn try_lock(&self, byte: i64) -> io::Result<bool> {
        match self.lock_call(libc::F_SETLK, libc::F_WRLCK, byte, 1) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Say that this process waits, and whether it is `pressed`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn announce(&self, pressed: bool) -> io::Result<()> {
        self.lock_call(libc::F_SETLK, libc::F_RDLCK, WAITING, 1 + i64::from(pressed)).map(drop)
    }

    /// Say that it does not wait any more.
    pub fn announce_end(&self) {
        self.unlock_all(WAITING, 2);
    }

    /// Say whether another process waits that is pressed.
    pub fn is_pressed(&self) -> bool {
        self.blocker(PRESSED, 1).is_some()
    }

    /// Wait in the kernel for the lock on `byte`, without end.
    ///
    /// # Errors
    /// What the kernel says; `EDEADLK` also where two lanes of two processes only look like a deadlock.
    pub fn lock(&self, byte: i64) -> io::Result<()> {
        loop {
            match self.lock_call(libc::F_SETLKW, libc::F_WRLCK, byte, 1) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Take the front if nobody has it, and nobody waits for it.
    ///
    /// # Errors
    /// What the kernel says, other than that somebody is there.
    pub fn try_front(&self) -> io::Result<bool> {
        Ok(!self.has_waiters() && self.try_lock(FRONT)?)
    }

    /// Give the lock on `byte` up.
    pub fn unlock(&self, byte: i64) {
        self.unlock_all(byte, 1);
    }

    fn unlock_all(&self, byte: i64, count: i64) {
        // Unlocking fails only where the descriptor is gone, and then the lock is gone with it.
        let _ = self.lock_call(libc::F_SETLK, libc::F_UNLCK, byte, count);
    }

    /// Say who has a lock in `bytes` that would keep this process from it.
    pub fn blocker(&self, byte: i64, count: i64) -> Option<Blocker> {
        let lock = self.lock_call(libc::F_GETLK, libc::F_WRLCK, byte, count).ok()?;
        (i32::from(lock.l_type) != libc::F_UNLCK)
            .then(|| Blocker { pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0) })
    }

    /// Say whether another process waits for the turn, or has it.
    pub fn is_contended(&self) -> bool {
        self.blocker(WAITING, 1 + FRONT - WAITING).is_some()
    }

    /// Say whether another process has a record here.
    pub fn has_others(&self) -> bool {
        self.blocker(SLOTS, (slot::COUNT * slot::SIZE) as i64).is_some()
    }

    /// Say whether another process waits for the turn.
    pub fn has_waiters(&self) -> bool {
        self.blocker(WAITING, 1).is_some()
    }

    fn lock_call(&self, command: i32, kind: i32, byte: i64, count: i64) -> io::Result<libc::flock> {
        let mut lock = record_lock(kind, byte, count);
        // SAFETY: the descriptor is open for as long as `self` lives, and the commands used take a pointer to a
        // `flock` that is valid for the call.
        match unsafe { libc::fcntl(self.file().as_raw_fd(), command, &raw mut lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(lock),
        }
    }

    /// Take a record for this process, if one is free.
    pub fn claim_slot(&self) -> Option<usize> {
        if !self.writable {
            return None;
        }
        slots_of(std::process::id()).find(|&index| {
            let (word, bit) = (&self.taken[index / 64], 1 << (index % 64));
            if word.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
                return false;
            }
            let ours = self.try_lock(slot_at(index)).unwrap_or(false);
            if !ours {
                word.fetch_and(!bit, Ordering::AcqRel);
            }
            ours
        })
    }

    /// Give a record up that [`LaneFile::claim_slot`] returned.
    pub fn give_slot(&self, index: usize) {
        self.unlock(slot_at(index));
        self.taken[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
    }

    /// Write the record `index`. A write that fails leaves an older record or a torn one, which nobody trusts.
    pub fn write_slot(&self, index: usize, page: &mut Page) {
        let _ = self.file().write_all_at(page.seal(), slot_at(index) as u64);
    }

    /// Say whether the record `index` still is the one that `page` is written to: somebody may have truncated the file,
    /// or it may be what this process left there when it had the database open before, with another board.
    pub fn has_slot(&self, index: usize, page: &Page) -> bool {
        let mut bytes = [0; slot::SIZE];
        self.file().read_exact_at(&mut bytes, slot_at(index) as u64).is_ok()
            && Record::read(&bytes).is_some_and(|record| page.is_of(&record))
    }

    /// Read the records of all living processes, this one's among them.
    pub fn records(&self) -> Vec<Record> {
        let mine = |index: usize| self.taken[index / 64].load(Ordering::Acquire) & (1 << (index % 64)) != 0;
        read_records(self.file(), |index| mine(index) || self.blocker(slot_at(index), 1).is_some())
    }

    /// Read the record of another living process of this pid namespace.
    pub fn record_of(&self, pid: u32) -> Option<Record> {
        let its = |index: &usize| self.blocker(slot_at(*index), 1).is_some_and(|owner| owner.pid == Some(pid));
        let record = read_record(self.file(), slots_of(pid).find(its)?)?;
        (record.pid == pid && record.boot == process::boot()).then(|| on_board(record))
    }
}

impl Drop for LaneFile {
    fn drop(&mut self) {
        // The number may be another file's by now: in a forked child, or where somebody closed descriptors by number.
        // In a child, closing even the right one could drop locks the child has taken since.
        if self.generation != crate::process::generation() || !self.is_own() {
            std::mem::forget(self.file.take());
        }
    }
}

/// Read the records of the lane file of the database at `path`, from a process that does not have it open.
///
/// # Errors
/// What the kernel says; `InvalidData` for a file of another format.
pub fn look(path: &Path) -> io::Result<Vec<Record>> {
    let name = CString::new(path_of(path).as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = open_call(&name, flags, 0)?;
    if !file.metadata()?.is_file() || header(&file)? == Header::Foreign {
        return Err(io::Error::new(ErrorKind::InvalidData, "not a lane file that this version knows"));
    }
    Ok(read_records(&file, |index| {
        let mut lock = record_lock(libc::F_WRLCK, slot_at(index), 1);
        // SAFETY: the descriptor is open, and F_GETLK takes a pointer to a `flock` that is valid for the call.
        let told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } == 0;
        told && i32::from(lock.l_type) != libc::F_UNLCK
    }))
}

/// Return the places for a record of this process, in the order in which it looks for a free one.
fn slots_of(pid: u32) -> impl Iterator<Item = usize> {
    (0..slot::COUNT).map(move |step| (pid as usize + step) % slot::COUNT)
}

fn read_record(file: &File, index: usize) -> Option<Record> {
    let mut bytes = [0; slot::SIZE];
    // A torn record is whole again a moment later; three tries outlast any single write.
    (0..3).find_map(|_| {
        file.read_exact_at(&mut bytes, slot_at(index) as u64).ok()?;
        Record::read(&bytes)
    })
}

fn read_records(file: &File, is_alive: impl Fn(usize) -> bool) -> Vec<Record> {
    let boot = process::boot();
    (0..slot::COUNT)
        .filter_map(|index| {
            let record = read_record(file, index)?;
            (record.boot == boot && is_alive(index)).then(|| on_board(record))
        })
        .collect()
}

/// Return the record that a process has on its board, where it has one.
fn on_board(named: Record) -> Record {
    if named.board == 0 {
        return named;
    }
    let seen = (named.namespace == process::namespace()).then(|| {
        let same = |record: &Record| (record.pid, record.started) == (named.pid, named.started);
        (0..3).find_map(|_| board::read(named.pid, named.board).and_then(|bytes| Record::read(&bytes)).filter(same))
    });
    seen.flatten().unwrap_or(Record { doing: Doing::Hidden, ..named })
}

fn slot_at(index: usize) -> i64 {
    SLOTS + (index * slot::SIZE) as i64
}

fn header(file: &File) -> io::Result<Header> {
    let mut bytes = [0; HEADER];
    let mut length = 0;
    while length < HEADER {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Header::read(&bytes))
}

fn open(name: &Path, more: i32, mode: u32) -> io::Result<File> {
    let name = CString::new(name.as_os_str().as_bytes())?;
    // Without O_NONBLOCK the open of a FIFO put there would never come back.
    open_call(&name, libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | more, mode)
}

fn open_call(name: &CString, flags: i32, mode: u32) -> io::Result<File> {
    // SAFETY: the name is NUL-terminated and outlives the call.
    let descriptor = unsafe { libc::open(name.as_ptr(), flags, mode) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Give a new lane file the permissions of its database, and its owner where that is allowed, as SQLite does for a log.
fn follow_permissions(file: &File, database: &Metadata) {
    // Whoever may write the database and not the lane file goes without: no harm, so no error.
    // SAFETY: plain system calls on an open descriptor.
    unsafe {
        if libc::geteuid() == 0 {
            libc::fchown(file.as_raw_fd(), database.uid(), database.gid());
        }
        libc::fchmod(file.as_raw_fd(), (database.mode() & 0o666) as libc::mode_t);
    }
}

fn record_lock(kind: i32, byte: i64, count: i64) -> libc::flock {
    // SAFETY: `flock` is plain old data, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte;
    lock.l_len = count;
    lock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_told_from_garbage_and_from_another_version() {
        let ours = Header::bytes();
        assert_eq!(Header::read(&ours), Header::Ours);
        assert_eq!(Header::read(&[0; HEADER]), Header::Blank);
        assert_eq!(Header::read(&[7; HEADER]), Header::Garbage);
        let mut later = ours;
        later[16] = 2;
        assert_eq!(Header::read(&later), Header::Foreign);
        let mut torn = ours;
        torn[3] = b'!';
        assert_eq!(Header::read(&torn), Header::Garbage);
    }
}
