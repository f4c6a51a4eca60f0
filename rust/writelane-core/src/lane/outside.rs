//! The lane as a bystander sees it, also from a process that writes nothing.

use super::registry;
use super::slot::{Doing, Record};
use crate::holder::locks::{self, Owner};
use crate::holder::{self, Holder, process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process that waits for its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// The process, as its own pid namespace numbers it.
    pub pid: u32,
    /// Its command line, shortened.
    pub command: String,
    /// The statement that the first of its waiting threads wants to run, shortened.
    pub statement: String,
    /// How long that thread has waited.
    pub waited: Duration,
    /// How many of its threads wait.
    pub threads: u16,
    /// Whether it has its turn already, and waits for SQLite's lock, which a writer outside the lane holds.
    pub in_front: bool,
    /// Whether the process is stopped.
    pub stopped: bool,
}

/// Who is on a database right now.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Who holds the write lock.
    pub holder: Holder,
    /// Who waits, longest first.
    pub waiters: Vec<Waiter>,
    /// The processes of ours that have written to the database and still have it open.
    pub members: Vec<u32>,
    /// Processes outside the lane that have the database open (known for a write-ahead log only).
    pub foreign: Vec<u32>,
    /// Processes outside the lane that read, and may keep the log from shrinking.
    pub foreign_readers: Vec<u32>,
    /// Processes outside the lane that run a checkpoint right now.
    pub foreign_checkpoint: Option<u32>,
    /// Whether anybody runs a checkpoint of the write-ahead log right now.
    pub checkpointing: bool,
    /// Why the lane file could not be read, where it could not; without it nobody of ours is named.
    pub trouble: Option<String>,
}

/// Look at the database at `path`: who holds its write lock, who waits, who has it open.
///
/// Opens neither the database nor its log nor its shared memory. Some 200 us.
pub fn look(path: &Path) -> View {
    let path: PathBuf = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (records, trouble) = match registry::records(&path) {
        Ok(records) => (records, None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let shared = locks::on_file(&holder::beside(&path, "-shm")).unwrap_or_default();
    let foreign = |is: &dyn Fn(&locks::FileLock) -> bool| {
        let mut pids: Vec<u32> = shared
            .iter()
            .filter(|lock| !lock.waiting && is(lock))
            .filter_map(|lock| match lock.owner {
                Owner::Process(pid) => Some(pid),
                Owner::Description => None,
            })
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    };
    View {
        holder: holder::of_write_lock(&path, &records),
        waiters: waiters(&records),
        members: records.iter().map(|record| record.pid).collect(),
        foreign: foreign(&|lock| lock.holds(locks::WAL_OPEN)),
        foreign_readers: foreign(&|lock| locks::WAL_READERS.into_iter().any(|byte| lock.holds(byte))),
        foreign_checkpoint: foreign(&|lock| lock.holds(locks::WAL_CHECKPOINT)).first().copied(),
        checkpointing: shared.iter().any(|lock| lock.holds(locks::WAL_CHECKPOINT)),
        trouble,
    }
}

fn waiters(records: &[Record]) -> Vec<Waiter> {
    let now = process::monotonic_ns();
    let mut waiters = Vec::new();
    for record in records {
        let mut add = |in_front, since_ns: u64, statement: &String, threads| {
            waiters.push(Waiter {
                pid: record.pid,
                command: record.command.clone(),
                statement: statement.clone(),
                waited: Duration::from_nanos(now.saturating_sub(since_ns)),
                threads,
                in_front,
                stopped: process::is_stopped(record.pid),
            });
        };
        if record.doing == Doing::Blocked {
            add(true, record.since_ns, &record.statement, 1);
        }
        if record.waiting > 0 {
            add(false, record.waiting_since_ns, &record.wanted, record.waiting);
        }
    }
    waiters.sort_by(|a, b| b.in_front.cmp(&a.in_front).then(b.waited.cmp(&a.waited)));
    waiters
}
