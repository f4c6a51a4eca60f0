//! The lock file: which process of *this* host. The kernel frees the lock when its holder dies.
//!
//! A POSIX record lock, since it is not inherited by forked children, which would keep it alive. Such a lock is lost
//! when the process closes any descriptor of the file: one registry of the process sees to it that a file we have
//! locked is never opened again.

use super::record::{Owner, RECORD_BYTES};
use crate::process::{self, PerProcess};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// The locks this process holds, and what it wrote into their files.
type Held = HashMap<FileId, [u8; RECORD_BYTES]>;

/// Lock the registry. A forked child starts with a new one: it holds none of its parent's locks.
fn registry() -> MutexGuard<'static, Held> {
    static HELD: PerProcess<Mutex<Held>> = PerProcess::new();
    HELD.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that this process holds.
#[derive(Debug)]
pub struct OwnerLock {
    file: Option<File>,
    path: PathBuf,
    id: FileId,
    generation: u64,
}

/// What came of the attempt to take a lock.
#[derive(Debug)]
pub enum Taken {
    /// It is ours.
    Ours(OwnerLock),
    /// Another process has it; its record, where it can be read.
    Theirs(Option<Owner>),
}

impl OwnerLock {
    /// Take the lock without waiting. The file is made when missing, with `mode`, and never deleted.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take(path: &Path, mode: u32) -> io::Result<Taken> {
        let mut held = registry();
        if let Ok(found) = fs::symlink_metadata(path)
            && let Some(record) = held.get(&(found.dev(), found.ino()))
        {
            return Ok(Taken::Theirs(Owner::decode(record)));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        let found = file.metadata()?;
        if found.len() == 0 {
            // Whoever may write the database may own it. Of no consequence where it is refused.
            let _ = file.set_permissions(fs::Permissions::from_mode(mode & 0o666 | 0o600));
        }
        let mut lock = record_lock(libc::F_WRLCK);
        // SAFETY: the descriptor is open and `lock` is a valid flock struct.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &mut lock) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(Taken::Theirs(read_record(&file))),
                _ => Err(error),
            };
        }
        let id = (found.dev(), found.ino());
        held.insert(id, [0; RECORD_BYTES]);
        Ok(Taken::Ours(Self { file: Some(file), path: path.to_owned(), id, generation: process::generation() }))
    }

    /// Return device and inode of the lock file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Write down who holds it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(&self, owner: &Owner) -> io::Result<()> {
        let record = owner.encode();
        if let Some(file) = &self.file {
            file.write_all_at(&record, 0)?;
        }
        registry().insert(self.id, record);
        Ok(())
    }

    /// Say whether the path still names the file that is locked: one deleted or replaced locks nobody out.
    pub fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id)
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        if self.generation != process::generation() {
            // The parent's: its lock is not ours to forget, and the descriptor may be shared with others of its kind.
            std::mem::forget(self.file.take());
            return;
        }
        let mut held = registry();
        held.remove(&self.id);
        // Under the registry, so that nobody opens the file between the two.
        drop(self.file.take());
    }
}

/// Return who holds the lock at `path`, alive as far as this host's kernel knows. Blocks on nothing.
///
/// # Errors
/// What the kernel says; a missing file is `None`.
pub fn holder(path: &Path) -> io::Result<Option<Option<Owner>>> {
    let held = registry();
    match fs::symlink_metadata(path) {
        Ok(found) => {
            if let Some(record) = held.get(&(found.dev(), found.ino())) {
                return Ok(Some(Owner::decode(record)));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)?;
    let mut lock = record_lock(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` is a valid flock struct.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then(|| read_record(&file)))
}

fn read_record(file: &File) -> Option<Owner> {
    let mut record = [0; RECORD_BYTES];
    let length = file.read_at(&mut record, 0).ok()?;
    Owner::decode(&record[..length])
}

fn record_lock(kind: i32) -> libc::flock {
    // SAFETY: flock is plain data, and all zeros is a valid value of it.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_len = 1;
    lock
}
