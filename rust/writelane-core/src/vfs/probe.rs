//! Waiting in the kernel for the write lock of a write-ahead log.

use super::FileIdentity;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The byte of the `-shm` file that a writer locks: `WAL_WRITE_LOCK` in <https://www.sqlite.org/walformat.html>, 2.3.
#[cfg(target_os = "linux")]
const WRITE_LOCK: i64 = 120;
/// The byte that everybody shares who has the log open: `WALINDEX_LOCK_DMS` in <https://www.sqlite.org/src/file/src/os_unix.c>.
#[cfg(target_os = "linux")]
const OPEN_LOCK: i64 = 128;

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// The write lock was free for a moment.
    Free,
    /// Somebody holds the write lock; `None` for a process whose number means nothing in this container.
    Held(Option<Owner>),
    /// The path names another `-shm` file by now, or none: open a new probe, or poll where there is none.
    Replaced,
}

/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A process of this pid namespace.
    Process(u32),
    /// An open file description, as all locks of this library are: the kernel does not say whose.
    Description,
}

/// Waits in the kernel for the write lock of a write-ahead log, without keeping it.
///
/// It has a descriptor of its own, so that it excludes every writer, also one of this process; it must be asked
/// only by who holds no lock of SQLite's that somebody who has the write lock waits for (in the busy handler of BEGIN
/// IMMEDIATE none is held). A database in rollback-journal mode has no `-shm` file and cannot be probed: poll.
/// Where locks belong to the process ([`super::LockKind::Process`]) it polls and sees other processes only.
pub struct WriteLockProbe {
    path: PathBuf,
    file: FileIdentity,
    fd: i32,
    generation: u64,
}

impl WriteLockProbe {
    /// Make a probe for the `-shm` file at `path`: the real path of the database, as SQLite resolves it, and `-shm`.
    ///
    /// # Errors
    /// What the kernel says, `NotFound` where there is no such file; `Unsupported` on other systems than Linux.
    pub fn open(path: &Path) -> io::Result<Self> {
        super::install().map_err(io::Error::other)?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        let (fd, file) = open_descriptor(&name)?;
        Ok(Self { path: path.to_owned(), file, fd, generation: crate::process::generation() })
    }

    /// Return the `-shm` file this probe looks at.
    pub fn file(&self) -> FileIdentity {
        self.file
    }

    /// Say whether the path still names the file this probe looks at.
    ///
    /// # Errors
    /// What stat(2) says, but that there is no such file.
    pub fn is_current(&self) -> io::Result<bool> {
        match super::identity(&self.path) {
            Ok(file) => Ok(file == self.file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn usable(&self) -> io::Result<()> {
        if self.generation == crate::process::generation() {
            Ok(())
        } else {
            Err(io::Error::other("this probe was inherited through a fork"))
        }
    }
}

#[cfg(target_os = "linux")]
impl WriteLockProbe {
    /// Block until the write lock was free for a moment, and return `Free`; or return `Replaced`.
    ///
    /// No time limit: the kernel has none for this. Signals do not end the wait.
    ///
    /// # Errors
    /// What the kernel says; a probe inherited through a fork is refused.
    pub fn wait(&self) -> io::Result<Probed> {
        let found = self.hold()?;
        self.release();
        Ok(found)
    }

    /// As [`WriteLockProbe::wait`], but on `Free` keep everybody from the write lock until [`WriteLockProbe::release`].
    ///
    /// Whoever writes in a loop finds the lock held and backs off, while the thread that is to have it wakes up. To be
    /// held for less than a writer's shortest pause. Where locks belong to the process nothing is kept.
    ///
    /// # Errors
    /// As [`WriteLockProbe::wait`].
    pub fn hold(&self) -> io::Result<Probed> {
        self.usable()?;
        if !self.is_current()? {
            return Ok(Probed::Replaced);
        }
        if super::lock_kind() == super::LockKind::Process {
            // A lock of the process taken here would be merged with SQLite's own and its release would drop that.
            while self.ask(WRITE_LOCK)? != Probed::Free {
                std::thread::sleep(POLL);
            }
        } else {
            while let Err(error) = self.set(libc::F_OFD_SETLKW, libc::F_WRLCK) {
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        match self.is_current() {
            Ok(true) => Ok(Probed::Free),
            other => {
                self.release();
                other.map(|_| Probed::Replaced)
            }
        }
    }

    /// Give up what [`WriteLockProbe::hold`] kept, from whichever thread. Does nothing where nothing is kept.
    pub fn release(&self) {
        if self.usable().is_ok() && super::lock_kind() == super::LockKind::Description {
            // Fails only where the descriptor is gone, and the lock with it.
            let _ = self.set(libc::F_OFD_SETLK, libc::F_UNLCK);
        }
    }

    /// Say without waiting whether the write lock is free.
    ///
    /// # Errors
    /// As [`WriteLockProbe::wait`].
    pub fn try_wait(&self) -> io::Result<Probed> {
        self.usable()?;
        // Ask instead of trying: a try that succeeds would turn a writer away for a moment.
        let found = self.ask(WRITE_LOCK)?;
        Ok(if self.is_current()? { found } else { Probed::Replaced })
    }

    /// Say whether anybody has the log open: where nobody has, its write lock says nothing.
    ///
    /// # Errors
    /// As [`WriteLockProbe::wait`].
    pub fn is_log_open(&self) -> io::Result<bool> {
        self.usable()?;
        Ok(self.ask(OPEN_LOCK)? != Probed::Free)
    }

    fn ask(&self, byte: i64) -> io::Result<Probed> {
        let mut lock = super::kernel::range(libc::F_WRLCK, byte, 1);
        if super::lock_kind() == super::LockKind::Process {
            // SAFETY: `lock` is a valid flock structure.
            if unsafe { libc::fcntl(self.fd, libc::F_GETLK, std::ptr::from_mut(&mut lock)) } != 0 {
                return Err(io::Error::last_os_error());
            }
        } else {
            super::kernel::lock_description(self.fd, libc::F_OFD_GETLK, &mut lock)?;
        }
        Ok(match i32::from(lock.l_type) {
            libc::F_UNLCK => Probed::Free,
            _ => Probed::Held(match u32::try_from(lock.l_pid) {
                Ok(0) => None,
                Ok(pid) => Some(Owner::Process(pid)),
                Err(_) => Some(Owner::Description),
            }),
        })
    }

    fn set(&self, command: i32, kind: i32) -> io::Result<()> {
        super::kernel::lock_description(self.fd, command, &mut super::kernel::range(kind, WRITE_LOCK, 1))
    }
}

/// How often to ask where it cannot be waited for.
#[cfg(target_os = "linux")]
const POLL: std::time::Duration = std::time::Duration::from_millis(1);

#[cfg(target_os = "linux")]
fn open_descriptor(name: &std::ffi::CStr) -> io::Result<(i32, FileIdentity)> {
    let fd = super::hooks::open_tracked(name, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW, 0)?;
    let Some(found) = super::kernel::inspect(fd) else {
        let error = io::Error::last_os_error();
        super::descriptors::give_back(fd);
        return Err(error);
    };
    super::descriptors::lock().add_probe(fd);
    Ok((fd, found.file))
}

#[cfg(target_os = "linux")]
impl Drop for WriteLockProbe {
    fn drop(&mut self) {
        // A forked child has closed it already, and the number may be another file's.
        if self.usable().is_ok() {
            super::descriptors::lock().remove_probe(self.fd);
            super::descriptors::give_back(self.fd);
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl WriteLockProbe {
    /// Not supported: see [`WriteLockProbe::open`].
    ///
    /// # Errors
    /// Always.
    pub fn hold(&self) -> io::Result<Probed> {
        self.wait()
    }

    /// Does nothing.
    pub fn release(&self) {}

    /// Not supported: see [`WriteLockProbe::open`].
    ///
    /// # Errors
    /// Always.
    pub fn wait(&self) -> io::Result<Probed> {
        self.usable().and_then(|()| Err(io::Error::from(io::ErrorKind::Unsupported)))
    }

    /// Not supported: see [`WriteLockProbe::open`].
    ///
    /// # Errors
    /// Always.
    pub fn try_wait(&self) -> io::Result<Probed> {
        self.wait()
    }

    /// Not supported: see [`WriteLockProbe::open`].
    ///
    /// # Errors
    /// Always.
    pub fn is_log_open(&self) -> io::Result<bool> {
        self.wait().map(|_| false)
    }
}

#[cfg(not(target_os = "linux"))]
fn open_descriptor(_name: &std::ffi::CStr) -> io::Result<(i32, FileIdentity)> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
