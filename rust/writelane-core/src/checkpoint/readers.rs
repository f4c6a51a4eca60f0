//! Who reads the log, and so keeps it from being reused.

use crate::holder::process::command;
use crate::holder::{beside, locks};
use crate::lane;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process that reads the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The process.
    pub pid: u32,
    /// Its command line, shortened; empty where it cannot be read.
    pub command: String,
}

/// Return the processes that hold a read mark of the log of the database at `path`. Opens none of its files.
///
/// Foreign processes are found in the kernel's list of locks. Our own hold theirs by open file descriptions, which that
/// list does not name; their own descriptors do. A process of another user or container may be missing.
pub fn of_log(path: &Path) -> Vec<Reader> {
    let shared_memory = beside(path, "-shm");
    let reads = |lock: &locks::FileLock| locks::WAL_READERS.into_iter().any(|byte| lock.holds(byte));
    let mut pids = BTreeSet::new();
    let mut unnamed = false;
    for lock in locks::on_file(&shared_memory).unwrap_or_default().iter().filter(|lock| reads(lock)) {
        match lock.owner {
            locks::Owner::Process(pid) => drop(pids.insert(pid)),
            locks::Owner::Description => unnamed = true,
        }
    }
    if unnamed && let Ok(found) = fs::metadata(&shared_memory) {
        let ours = lane::outside::look(path).members.into_iter().chain([std::process::id()]);
        pids.extend(ours.filter(|pid| locks::held_by(*pid, found.ino(), locks::WAL_READERS)));
    }
    pids.into_iter().map(|pid| Reader { pid, command: command(pid).unwrap_or_default() }).collect()
}
