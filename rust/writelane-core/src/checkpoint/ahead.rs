//! Has the log written to the disk ahead of the checkpoint, which otherwise waits for all of it at once.
//!
//! Nobody waits for it here, and nothing relies on it: the checkpoint syncs the log as ever, and finds little to do.

use crate::holder::beside;
use crate::policy::checkpoint::{Ahead, write_ahead};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

#[derive(Default)]
pub(super) struct WriteAhead {
    /// Pages of the log when its writing was last begun.
    begun: AtomicI32,
    count: AtomicU64,
}

impl WriteAhead {
    /// After a commit that left so many pages in the log: begin to write them, if there are many new ones.
    #[inline]
    pub(super) fn note(&self, database: &Path, pages: i32) {
        match write_ahead(self.begun.load(Ordering::Relaxed), pages) {
            Ahead::Wait => {}
            Ahead::BeganAnew => self.begun.store(0, Ordering::Relaxed),
            Ahead::Write => {
                self.begun.store(pages, Ordering::Relaxed);
                self.write(database);
            }
        }
    }

    #[cold]
    fn write(&self, database: &Path) {
        // Opened each time, since the log may be another file by now. Nobody locks this file, as they do the database and
        // the `-shm`, so that its close drops nobody's lock.
        if File::open(beside(database, "-wal")).is_ok_and(|log| begin_to_write(&log)) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Return how often the writing was begun.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(target_os = "linux")]
fn begin_to_write(log: &File) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: an open descriptor and no pointers. Zero bytes: to the end of the file.
    unsafe { libc::sync_file_range(log.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn begin_to_write(_log: &File) -> bool {
    false
}
