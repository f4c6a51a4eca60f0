//! Where a process says what it does: one page of memory that others can read and nobody can take away.
//!
//! A record changes with every turn, so it must cost next to nothing, and a write to the lane file is a write to the
//! disk's journal, which every commit then waits for. So the file names the process only, and the record itself lies
//! in a memory file of the process, sealed against shrinking (a mapped file that can shrink kills whoever touches it),
//! which others open through `/proc/PID/fd`. Where that is not to be had, the record is written to the lane file.

use super::slot::SIZE;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;

const LENGTH: usize = 4096;

/// A page of this process that others can read.
pub struct Board {
    file: Option<File>,
    memory: NonNull<u8>,
    inode: u64,
    generation: u64,
}

// SAFETY: the memory is this value's own mapping, bound to no thread.
unsafe impl Send for Board {}

impl Board {
    /// Make one.
    ///
    /// # Errors
    /// What the kernel says; `Unsupported` on other systems than Linux.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        // SAFETY: the name is NUL-terminated.
        let descriptor =
            unsafe { libc::memfd_create(c"writelane".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(LENGTH as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open, and this command takes an integer.
        if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length, wherever the kernel puts it.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, libc::MAP_SHARED, descriptor, 0) };
        match NonNull::new(memory.cast::<u8>()).filter(|_| memory != libc::MAP_FAILED) {
            Some(memory) => {
                let inode = file.metadata()?.ino();
                Ok(Self { file: Some(file), memory, inode, generation: crate::process::generation() })
            }
            None => Err(io::Error::last_os_error()),
        }
    }

    /// Not supported.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Return the number of its descriptor, by which others find it.
    pub fn descriptor(&self) -> u32 {
        self.file.as_ref().and_then(|file| u32::try_from(file.as_raw_fd()).ok()).unwrap_or(0)
    }

    /// Show this record.
    pub fn write(&mut self, record: &[u8; SIZE]) {
        // SAFETY: the mapping is at least this long, lives as long as `self`, and cannot lose its pages: the file is
        // sealed. Others read it by system calls only, and tell a record in the middle of a change by its checksum.
        unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), self.memory.as_ptr(), SIZE) };
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let own = self.file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|meta| meta.ino() == self.inode);
        if self.generation != crate::process::generation() || !own {
            // The number may be another file's by now.
            std::mem::forget(self.file.take());
        }
        // SAFETY: the mapping made in `new`, which nobody else knows.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), LENGTH) };
    }
}

/// Read the board of a process of this pid namespace. `None` where this user may not, or it is not there any more.
pub fn read(pid: u32, descriptor: u32) -> Option<[u8; SIZE]> {
    let path = format!("/proc/{pid}/fd/{descriptor}");
    // What the number means by now is looked at before it is opened: the open of a device or a FIFO can do harm.
    if !std::fs::read_link(&path).ok()?.to_str()?.starts_with("/memfd:writelane") {
        return None;
    }
    let file = File::open(path).ok()?;
    let mut bytes = [0; SIZE];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}
