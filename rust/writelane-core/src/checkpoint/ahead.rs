//! Has the log written to the disk ahead of the checkpoint, which otherwise waits for all of it at once.
//!
//! Nobody waits for it here, and nothing relies on it: the checkpoint syncs the log as ever, and finds little to do. To
//! begin the writing takes as long as ten commits, so a thread of its own does it, one a process.

use super::Checkpointer;
use crate::holder::beside;
use crate::policy::checkpoint::{AHEAD_OWN_PAGES, Ahead, write_ahead};
use crate::process::PerProcess;
use crate::threads;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

/// What is known of the writing of one log.
#[derive(Default)]
pub(super) struct WriteAhead {
    /// Pages of the log when its writing was last asked for.
    begun: AtomicI32,
    count: AtomicU64,
}

#[derive(Default)]
struct Clerk {
    duty: Mutex<Duty>,
    news: Condvar,
}

#[derive(Default)]
struct Duty {
    files: Vec<Weak<Checkpointer>>,
    running: bool,
}

static CLERK: PerProcess<Clerk> = PerProcess::new();

impl WriteAhead {
    /// Return how often the writing was begun.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn write(&self, database: &Path) {
        // Opened each time, since the log may be another file by now. Nobody locks this file, as they do the database and
        // the `-shm`, so that its close drops nobody's lock.
        if File::open(beside(database, "-wal")).is_ok_and(|log| begin_to_write(&log)) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// After a commit: have the log written, if there are many new pages of which this process has written some.
#[inline]
pub(super) fn note(file: &Arc<Checkpointer>, synced: bool) {
    let pages = file.pages.present.load(Ordering::Relaxed);
    let begun = &file.ahead.begun;
    match write_ahead(begun.load(Ordering::Relaxed), pages) {
        Ahead::Wait => {}
        Ahead::BeganAnew => begun.store(0, Ordering::Relaxed),
        Ahead::Write => {
            begun.store(pages, Ordering::Relaxed);
            let written = file.pages.written.swap(0, Ordering::Relaxed);
            if !synced && written >= AHEAD_OWN_PAGES {
                ask(file);
            }
        }
    }
}

#[cold]
fn ask(file: &Arc<Checkpointer>) {
    let clerk = CLERK.get();
    let mut duty = clerk.lock();
    duty.files.push(Arc::downgrade(file));
    if duty.running {
        // Or the thread would wake up to wait for the lock.
        drop(duty);
        clerk.news.notify_one();
    } else {
        // Without a thread the checkpoint has more to do.
        duty.running = threads::start("wl-ahead", || run(clerk)).is_ok();
    }
}

fn run(clerk: &Clerk) {
    let mut duty = clerk.lock();
    loop {
        let files = std::mem::take(&mut duty.files);
        if !files.is_empty() {
            drop(duty);
            for file in files.iter().filter_map(Weak::upgrade) {
                file.ahead.write(&file.path);
            }
            duty = clerk.lock();
            continue;
        }
        let (back, ended) = clerk.news.wait_timeout(duty, IDLE).unwrap_or_else(PoisonError::into_inner);
        duty = back;
        if ended.timed_out() && duty.files.is_empty() {
            duty.running = false;
            return;
        }
    }
}

impl Clerk {
    fn lock(&self) -> MutexGuard<'_, Duty> {
        self.duty.lock().unwrap_or_else(PoisonError::into_inner)
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
