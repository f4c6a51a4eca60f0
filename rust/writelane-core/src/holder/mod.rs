//! Who holds a database's write lock: what the kernel and the lane's records tell.
//!
//! Never wrong, sometimes unknown. Nothing here opens the database, its log or its shared memory: closing them would
//! drop locks.

pub mod locks;
pub mod process;

use crate::lane::{Doing, Record};
use locks::{FileLock, Owner, RESERVED, WAL_CHECKPOINT, WAL_WRITE};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who holds the write lock, as far as it can be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process, and what it is known to be doing.
    Process {
        /// The process.
        pid: u32,
        /// Its command line, shortened.
        command: String,
        /// The statement it published; `None` for a foreign process.
        statement: Option<String>,
        /// How long it has held the lock, where that is known.
        held: Option<Duration>,
        /// Whether it is stopped (SIGSTOP, Ctrl-Z, a debugger).
        stopped: bool,
    },
    /// A process in another container, whose number means nothing here.
    Elsewhere {
        /// Its command line, shortened.
        command: String,
        /// The statement it published.
        statement: Option<String>,
        /// How long it has held the lock, where that is known.
        held: Option<Duration>,
    },
    /// Somebody, but neither the lane file nor the kernel says who.
    Unknown,
}

impl Holder {
    /// Say whether two sightings are of the same holder doing the same.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Process { pid, statement, .. }, Self::Process { pid: other, statement: theirs, .. }) => {
                pid == other && statement == theirs
            }
            (Self::Elsewhere { command, statement, .. }, Self::Elsewhere { command: other, statement: theirs, .. }) => {
                command == other && statement == theirs
            }
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (command, statement, held) = match self {
            Self::Nobody => return f.write_str("nobody"),
            Self::Unknown => return f.write_str("an unknown process"),
            Self::Process { pid, command, statement, held, stopped } => {
                write!(f, "process {pid}{}", if *stopped { ", which is stopped" } else { "" })?;
                (command, statement, held)
            }
            Self::Elsewhere { command, statement, held } => {
                f.write_str("a process in another container")?;
                (command, statement, held)
            }
        };
        if !command.is_empty() {
            write!(f, " ({command})")?;
        }
        if let Some(held) = held {
            write!(f, ", for {:.3} s", held.as_secs_f64())?;
        }
        statement.as_ref().map_or(Ok(()), |statement| write!(f, ", with: {statement}"))
    }
}

/// Return the name of a file that SQLite keeps beside the database at `path`.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Say who runs a checkpoint of the database at `path`. Reads `/proc/locks`, and where that does not say whose a lock is, the
/// locks of each of `ours`, which are processes.
pub fn of_checkpoint(path: &Path, ours: impl IntoIterator<Item = u32>) -> Holder {
    let shared_memory = beside(path, "-shm");
    let locks = locks::on_file(&shared_memory).unwrap_or_default();
    match locks.iter().find(|lock| lock.holds(WAL_CHECKPOINT)).map(|lock| lock.owner) {
        None => Holder::Nobody,
        Some(Owner::Process(pid)) => of_pid(pid, None),
        Some(Owner::Description) => {
            let inode = fs::metadata(&shared_memory).map_or(0, |found| found.ino());
            let found = ours.into_iter().find(|pid| locks::held_by(*pid, inode, WAL_CHECKPOINT..=WAL_CHECKPOINT));
            found.map_or(Holder::Unknown, |pid| of_pid(pid, None))
        }
    }
}

/// How often the kernel's list is read before a lock that is not in it counts as free: a list longer than a page is
/// read in pieces, and a lock between two pieces is missed when others come and go meanwhile.
const READINGS: usize = 3;

/// Say who holds the write lock of the database at `path`, given the lane's records of it. Reads `/proc/locks`: some
/// 50 us.
pub fn of_write_lock(path: &Path, records: &[Record]) -> Holder {
    let mut owner = None;
    for _ in 0..READINGS {
        let (Ok(shared), Ok(main)) = (locks::on_file(&beside(path, "-shm")), locks::on_file(path)) else {
            return Holder::Unknown;
        };
        owner = write_lock(&shared, &main);
        if owner.is_some() {
            break;
        }
    }
    match owner {
        Some(owner) => of_lock(owner, records),
        // From inside a container the locks of processes outside it are not listed.
        None if process::sees_all_pids() => Holder::Nobody,
        None => Holder::Unknown,
    }
}

/// Say who the owner of the write lock is, given the lane's records.
pub fn of_lock(owner: Owner, records: &[Record]) -> Holder {
    match owner {
        Owner::Process(pid) => of_pid(pid, records.iter().find(|record| is_here(record) && record.pid == pid)),
        Owner::Description => of_record(records).map_or(Holder::Unknown, |record| {
            if is_here(record) {
                return of_pid(record.pid, Some(record));
            }
            Holder::Elsewhere {
                command: record.command.clone(),
                statement: statement(record),
                held: Some(record.since()),
            }
        }),
    }
}

/// Pick the owner of the write lock out of the locks on the `-shm` file and on the database itself.
fn write_lock(shared: &[FileLock], main: &[FileLock]) -> Option<Owner> {
    let holder =
        |locks: &[FileLock], byte| locks.iter().find(|lock| lock.exclusive && lock.holds(byte)).map(|lock| lock.owner);
    holder(shared, WAL_WRITE).or_else(|| holder(main, RESERVED))
}

/// Pick the one process of ours that may have the lock; `None` where more than one may.
fn of_record(records: &[Record]) -> Option<&Record> {
    let only = |doing| {
        let mut all = records.iter().filter(move |record| record.doing == doing);
        (all.next(), all.next())
    };
    match only(Doing::Holding) {
        (Some(record), None) => Some(record),
        (Some(_), Some(_)) => None,
        (None, _) => match (only(Doing::Turn), only(Doing::Hidden)) {
            ((Some(record), None), (None, _)) => Some(record),
            _ => None,
        },
    }
}

fn is_here(record: &Record) -> bool {
    record.namespace == process::namespace()
}

fn of_pid(pid: u32, record: Option<&Record>) -> Holder {
    let stat = process::Stat::of(pid);
    // A record of an earlier process of the same number says nothing of this one.
    let record = record.filter(|record| {
        stat.is_none_or(|stat| stat.started == record.started) && matches!(record.doing, Doing::Holding | Doing::Turn)
    });
    Holder::Process {
        pid,
        command: process::command(pid).or_else(|| record.map(|record| record.command.clone())).unwrap_or_default(),
        statement: record.and_then(statement),
        held: record.map(Record::since),
        stopped: stat.is_some_and(process::Stat::is_stopped),
    }
}

fn statement(record: &Record) -> Option<String> {
    (!record.statement.is_empty()).then(|| record.statement.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32, doing: Doing) -> Record {
        Record {
            pid,
            started: 1,
            namespace: process::namespace(),
            boot: 0,
            command: "agent".into(),
            board: 0,
            doing,
            since_ns: 0,
            statement: "INSERT".into(),
            waiting: 0,
            waiting_since_ns: 0,
            wanted: String::new(),
        }
    }

    #[test]
    fn of_several_that_may_hold_the_lock_none_is_named() {
        let (holding, turn, idle) = (record(1, Doing::Holding), record(2, Doing::Turn), record(3, Doing::Nothing));
        assert_eq!(of_record(&[idle.clone(), turn.clone(), holding.clone()]), Some(&holding));
        assert_eq!(of_record(&[idle.clone(), turn.clone()]), Some(&turn));
        assert_eq!(of_record(&[turn.clone(), turn.clone()]), None);
        assert_eq!(of_record(&[turn.clone(), record(5, Doing::Hidden)]), None);
        assert_eq!(of_record(&[record(5, Doing::Hidden), holding.clone()]), Some(&holding));
        assert_eq!(of_record(&[holding.clone(), holding.clone()]), None);
        assert_eq!(of_record(&[idle, record(4, Doing::Blocked)]), None);
    }

    #[test]
    fn the_log_s_write_lock_is_told_from_readers_and_openers() {
        let lock = |pid, exclusive, byte| FileLock {
            owner: Owner::Process(pid),
            exclusive,
            waiting: false,
            device: (0, 0),
            inode: 1,
            first: byte,
            last: byte,
        };
        let shared = [lock(1, false, 128), lock(1, false, 124), lock(2, true, 121), lock(3, true, 120)];
        assert_eq!(write_lock(&shared, &[]), Some(Owner::Process(3)));
        assert_eq!(write_lock(&shared[..3], &[]), None);
        assert_eq!(write_lock(&[], &[lock(4, true, RESERVED)]), Some(Owner::Process(4)));
        assert_eq!(write_lock(&[FileLock { waiting: true, ..shared[3] }], &[]), None);
    }

    #[test]
    fn a_holder_is_described_in_words() {
        let holder = Holder::Process {
            pid: 7,
            command: "python app.py".into(),
            statement: Some("UPDATE t".into()),
            held: Some(Duration::from_millis(1500)),
            stopped: true,
        };
        assert_eq!(holder.to_string(), "process 7, which is stopped (python app.py), for 1.500 s, with: UPDATE t");
        assert_eq!(Holder::Unknown.to_string(), "an unknown process");
    }
}
