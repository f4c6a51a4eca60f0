//! The idle log of a file without a writer thread is copied into the database, also after that could not be done at first.
//!
//! A binary of its own, since the limit on descriptors is the process's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common;

use common::{Scratch, create};
use std::fs::File;
use std::time::{Duration, Instant};
use writelane_core::checkpoint::Checkpointer;
use writelane_core::lane::Lane;
use writelane_core::policy::checkpoint::Thresholds;
use writelane_core::sqlite::{Handle, OpenFlags};

/// No limit on speed: how long to wait for what must come within seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Descriptors that the process may have from here on.
const DESCRIPTORS: u64 = 128;

fn until(condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    condition()
}

/// Take every descriptor that is left.
fn exhaust() -> Vec<File> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid pointer; the result is looked at.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = DESCRIPTORS.min(limit.rlim_max);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let mut taken = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_idle_log_is_copied_when_there_are_descriptors_again() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "WAL");
    let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
    // As a connection has it: what is open already needs no descriptor later.
    let lane = Lane::of(&path);
    drop(lane.try_enter("test"));
    let thresholds = Thresholds { idle: Duration::from_millis(1), ..Thresholds::default() };
    let log = Checkpointer::of(&path, thresholds);
    log.adopt(&handle).unwrap();
    handle.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    let taken = exhaust();
    if log.note_commit_at(Instant::now(), false) {
        log.act(&handle, 0);
    }
    assert!(until(|| log.stats().errors >= 2), "it is tried again: {:?}", log.stats());
    assert!(log.uncopied() > 0, "{:?}", log.stats());
    assert_eq!(log.stats().count, 0);
    drop(taken);
    assert!(until(|| log.uncopied() == 0), "{:?}", log.stats());
    let stats = log.stats();
    assert_eq!((stats.log, stats.copied > 0), (stats.copied, true), "{stats:?}");
}
