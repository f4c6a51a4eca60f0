//! A write of an application's own connection makes no memory for what is recorded of it.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use writelane_core::connection::{Connection, Describe, Options};
use writelane_core::policy::checkpoint::Thresholds;
use writelane_core::sqlite::{Cells, OpenFlags, ValueRef, ffi};

thread_local! {
    /// The allocations of this thread: the log is tended by another one.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is done by the system's allocator; calls are only counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
        let before = COUNT.get();
        let prepared = connection.prepare_at_once(b"INSERT INTO t(x) VALUES (?)").unwrap();
        connection.execute(prepared, &cells, implicit, Describe::Names).unwrap();
        connection.commit().unwrap();
        COUNT.get() - before
    };
    (0..WRITES).map(|_| write()).sum()
}

#[test]
fn recording_a_write_allocates_nothing() {
    let folder = std::env::temp_dir().join(format!("writelane-recording-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
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
