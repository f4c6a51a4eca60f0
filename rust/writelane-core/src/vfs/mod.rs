//! Our own copy of SQLite's way to the kernel: locks that another copy in this process cannot drop.

use std::io;
use std::path::Path;

/// Put our answers into the system-call table of the bundled SQLite. Every open goes through here first.
pub fn install() {}

/// Waits in the kernel for the write lock of a write-ahead log, without taking it.
pub struct WriteLockProbe {}

impl WriteLockProbe {
    /// Make a probe for the `-shm` file at `path`, which must exist.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(_path: &Path) -> io::Result<Self> {
        Ok(Self {})
    }

    /// Block until the write lock was free for a moment. Only one thread of a process calls this at a time.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self) -> io::Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(())
    }
}
