//! A write makes no memory for what is recorded of it: a job of a database, or one of an application's own connection.
#![allow(clippy::unwrap_used)]

mod allocator;

use allocator::{CALLS, own_calls};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use writelane_core::connection::{Connection, Describe, Options};
use writelane_core::database::{self, CallOptions, Database};
use writelane_core::job::{Account, Parameters};
use writelane_core::policy::checkpoint::Thresholds;
use writelane_core::sqlite::{Cells, OpenFlags, ValueRef, ffi};
use writelane_core::telemetry::Telemetry;
use writelane_core::wait::Patience;

/// One test at a time: the allocations of all threads are counted.
static ALONE: Mutex<()> = Mutex::new(());

const WRITES: usize = 2_000;
/// Two texts with five histograms of 48 blocks each, a block and room for its address: what is made once for all time.
const HISTOGRAMS: usize = 2 * 5 * 48 * 2;

fn run(connection: &Connection, sql: &str, implicit: Option<&'static str>) {
    let mut cells = Cells::default();
    cells.push(ValueRef::Integer(7));
    let prepared = connection.prepare(sql.as_bytes()).unwrap();
    let cells = if prepared.parameter_count() == 1 { cells } else { Cells::default() };
    connection.execute(prepared, &cells, implicit, Describe::Names).unwrap();
}

fn allocations(connection: &Connection, implicit: Option<&'static str>) -> usize {
    let write = || {
        let mut cells = Cells::default();
        cells.push(ValueRef::Integer(7));
        let before = own_calls();
        let prepared = connection.prepare_at_once(b"INSERT INTO t(x) VALUES (?)").unwrap();
        connection.execute(prepared, &cells, implicit, Describe::Names).unwrap();
        connection.commit().unwrap();
        own_calls() - before
    };
    (0..WRITES).map(|_| write()).sum()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("writelane-recording-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn recording_a_write_of_a_connection_allocates_nothing() {
    let _alone = ALONE.lock();
    let folder = folder("connection");
    let path = folder.join("app.db");
    let options = Options {
        timeout: Duration::from_secs(60),
        begin_immediate: true,
        cached_statements: 16,
        idle_rollback: None,
        checkpoints: Thresholds::default(),
        trust_filesystem: true,
        signalled: || false,
    };
    let flags = OpenFlags(ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_NOMUTEX);
    let connection = Connection::open(path.to_str().unwrap().as_bytes(), flags, None, options).unwrap();
    for sql in ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF", "CREATE TABLE t(x)", "INSERT INTO t(x) VALUES (?)"]
    {
        run(&connection, sql, None);
    }
    for implicit in [None, Some("BEGIN ")] {
        connection.telemetry().unwrap().set_on(false);
        let without = allocations(&connection, implicit);
        connection.telemetry().unwrap().set_on(true);
        let with = allocations(&connection, implicit);
        assert!(with < without + HISTOGRAMS, "{with} with telemetry, {without} without");
    }
    let counted = connection.telemetry().unwrap().statements();
    assert!(
        counted.iter().any(|stats| &*stats.sql == "INSERT INTO t(x) VALUES (?)" && stats.count > 2 * WRITES as u64)
    );
    connection.close();
    std::fs::remove_dir_all(&folder).unwrap();
}

const INSERT: &str = "INSERT INTO t(x) VALUES (1)";
const CALL: CallOptions = CallOptions { deadline: Some(None), durable: false };
const NEVER: fn() -> bool = || false;

#[test]
fn recording_a_job_allocates_nothing() {
    let _alone = ALONE.lock();
    let folder = folder("job");
    let db = Database::open(&folder.join("app.db"), database::Options::default(), &NEVER).unwrap();
    db.execute("CREATE TABLE t(x)", Parameters::none(), &CALL, &NEVER).unwrap();
    let itself = || {
        let before = own_calls();
        db.execute(INSERT, Parameters::none(), &CALL, &NEVER).unwrap();
        own_calls() - before
    };
    let by_the_writer = || {
        let before = CALLS.load(Ordering::Relaxed);
        let ticket = db.enqueue_at_once(db.one(INSERT, Parameters::none()).unwrap(), &CALL).unwrap();
        ticket.wait(&Patience { until: None, interrupted: &NEVER }).unwrap();
        ticket.take().unwrap().unwrap();
        CALLS.load(Ordering::Relaxed) - before
    };
    let count = |write: &dyn Fn() -> usize, on: bool| {
        db.telemetry().set_on(on);
        let mut all: Vec<_> = (0..WRITES).map(|_| write()).collect();
        all.sort_unstable();
        // Most writes: some make a block of a histogram, or wake the thread that tends the log.
        all[WRITES / 2]
    };
    let writes: [&dyn Fn() -> usize; 2] = [&itself, &by_the_writer];
    for write in writes {
        let without = count(write, false);
        assert_eq!(count(write, true), without);
    }
    assert!(db.telemetry().statements().iter().any(|stats| &*stats.sql == INSERT && stats.count >= 2 * WRITES as u64));
    db.close(None, &NEVER).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_known_statement_is_recorded_without_an_allocation() {
    let _alone = ALONE.lock();
    let telemetry = Telemetry::default();
    let account = Account::default();
    telemetry.record_one(INSERT, &account, None);
    let before = own_calls();
    for _ in 0..WRITES {
        let mut recorder = telemetry.recorder();
        recorder.group(1, Duration::ZERO, INSERT);
        recorder.job(INSERT, &account, None);
    }
    // One block for how long the lock was held.
    assert!(own_calls() - before <= 2);
}
