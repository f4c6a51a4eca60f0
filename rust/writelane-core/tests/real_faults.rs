//! Real faults below SQLite: its system calls and its memory fail at the Nth call, once or for ever.
//!
//! After each: no acknowledged job lost, none half done, none run twice, nobody left waiting, and the database usable
//! again. One test, since the system-call table and the allocator are the process's own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common;

use common::Scratch;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use writelane_core::database::{CallOptions, Database, Options};
use writelane_core::error::Error;
use writelane_core::job::{Call, Durability, Failure, Parameters, Work};
use writelane_core::policy::checkpoint::Mode;
use writelane_core::sqlite::{Handle, OpenFlags, Statement, Step, Value, ffi};
use writelane_core::wait::Patience;

/// What fails, counted over all threads.
static KIND: AtomicI32 = AtomicI32::new(0);
static AT: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FOR_EVER: AtomicBool = AtomicBool::new(false);
static ERRNO: AtomicI32 = AtomicI32::new(0);

const NOTHING: i32 = 0;
const WRITE: i32 = 1;
const READ: i32 = 2;
const SIZE: i32 = 3;
const MEMORY: i32 = 4;

fn fails(kind: i32) -> bool {
    if KIND.load(Ordering::SeqCst) != kind {
        return false;
    }
    let count = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
    let at = AT.load(Ordering::SeqCst);
    let now = count == at || (FOR_EVER.load(Ordering::SeqCst) && count > at);
    if now {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = ERRNO.load(Ordering::SeqCst) };
    }
    now
}

unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, size: usize, at: i64) -> isize {
    // SAFETY: SQLite passes what the system call wants.
    if fails(WRITE) { -1 } else { unsafe { libc::pwrite64(fd, from, size, at) } }
}

unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, size: usize, at: i64) -> isize {
    // SAFETY: as above.
    if fails(READ) { -1 } else { unsafe { libc::pread64(fd, to, size, at) } }
}

unsafe extern "C" fn ftruncate(fd: c_int, size: i64) -> c_int {
    // SAFETY: as above.
    if fails(SIZE) { -1 } else { unsafe { libc::ftruncate64(fd, size) } }
}

unsafe extern "C" fn mmap(to: *mut c_void, size: usize, prot: c_int, flags: c_int, fd: c_int, at: i64) -> *mut c_void {
    // SAFETY: as above.
    if fails(SIZE) { libc::MAP_FAILED } else { unsafe { libc::mmap64(to, size, prot, flags, fd, at) } }
}

type Allocate = unsafe extern "C" fn(c_int) -> *mut c_void;
type Reallocate = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;

/// SQLite's own allocator.
static MEMORY_METHODS: OnceLock<(Allocate, Reallocate)> = OnceLock::new();

unsafe extern "C" fn allocate(size: c_int) -> *mut c_void {
    if fails(MEMORY) {
        return std::ptr::null_mut();
    }
    let methods = MEMORY_METHODS.get().expect("set before SQLite began");
    // SAFETY: SQLite's own allocator.
    unsafe { (methods.0)(size) }
}

unsafe extern "C" fn reallocate(old: *mut c_void, size: c_int) -> *mut c_void {
    if fails(MEMORY) {
        return std::ptr::null_mut();
    }
    let methods = MEMORY_METHODS.get().expect("set before SQLite began");
    // SAFETY: as above.
    unsafe { (methods.1)(old, size) }
}

fn put_faults_in() {
    // SAFETY: before SQLite is initialised, with a structure that it fills in and one that it copies.
    unsafe {
        let mut methods: ffi::sqlite3_mem_methods = std::mem::zeroed();
        assert_eq!(ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut methods), ffi::SQLITE_OK);
        let own = (methods.xMalloc.expect("SQLite has one"), methods.xRealloc.expect("SQLite has one"));
        MEMORY_METHODS.set(own).expect("once");
        methods.xMalloc = Some(allocate);
        methods.xRealloc = Some(reallocate);
        assert_eq!(ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods), ffi::SQLITE_OK);
    }
    writelane_core::vfs::install().unwrap();
    // SAFETY: a registered VFS is never freed; SQLite calls each pointer with the type it has here.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let set = (*vfs).xSetSystemCall.expect("the unix VFS has a table");
        type Write = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
        type Read = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
        type Truncate = unsafe extern "C" fn(c_int, i64) -> c_int;
        type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
        let table: [(&CStr, unsafe extern "C" fn()); 6] = [
            (c"pwrite", std::mem::transmute::<Write, unsafe extern "C" fn()>(pwrite)),
            (c"pwrite64", std::mem::transmute::<Write, unsafe extern "C" fn()>(pwrite)),
            (c"pread", std::mem::transmute::<Read, unsafe extern "C" fn()>(pread)),
            (c"pread64", std::mem::transmute::<Read, unsafe extern "C" fn()>(pread)),
            (c"ftruncate", std::mem::transmute::<Truncate, unsafe extern "C" fn()>(ftruncate)),
            (c"mmap", std::mem::transmute::<Map, unsafe extern "C" fn()>(mmap)),
        ];
        let mut replaced = 0;
        for (name, call) in table {
            let name: *const c_char = name.as_ptr();
            replaced += i32::from(set(vfs, name, Some(call)) == ffi::SQLITE_OK);
        }
        assert!(replaced >= 4, "only {replaced} of the calls go through the table");
    }
}

const CALL: CallOptions = CallOptions { deadline: None, durable: false };
const LEFT_WAITING: Duration = Duration::from_secs(100);

fn insert(job: i64, row: i64) -> (String, Parameters) {
    let values = [Value::Integer(job), Value::Integer(row)];
    (
        "INSERT INTO done(job, row, text) VALUES (?, ?, hex(randomblob(300)))".into(),
        Parameters::Positional(values.into()),
    )
}

type Told = Result<(), Error>;

fn workload(db: &Database, log: &mut Vec<(i64, i64, Told)>) {
    let never = || false;
    let patience = Patience { until: None, interrupted: &never };
    let told = |result: Result<(), Box<Failure>>| result.map_err(|failure| failure.error);
    for job in 1..4 {
        let (sql, parameters) = insert(job, 0);
        log.push((job, 1, told(db.execute(&sql, parameters, &CALL, &never).map(drop))));
    }
    let lease = db.transaction("hold", &CALL, &never);
    let works: Vec<(i64, i64, Result<Work, Box<Failure>>)> = vec![
        (10, 1, db.one(&insert(10, 0).0, insert(10, 0).1)),
        (11, 2, db.batch(vec![insert(11, 0), insert(11, 1)])),
        (12, 4, db.many(&insert(12, 0).0, (0..4).map(|row| insert(12, row).1).collect())),
        (13, 1, db.one(&format!("{} RETURNING job", insert(13, 0).0), insert(13, 0).1)),
    ];
    let tickets: Vec<_> = works
        .into_iter()
        .map(|(job, rows, work)| (job, rows, work.and_then(|work| db.enqueue_at_once(work, &CALL))))
        .collect();
    let leased = lease.and_then(|mut lease| {
        for row in 0..2 {
            let (sql, parameters) = insert(20, row);
            lease.run(&Call { sql: sql.into(), parameters })?;
        }
        lease.commit(&patience).map(drop)
    });
    log.push((20, 2, told(leased)));
    for (job, rows, ticket) in tickets {
        let answer = ticket.and_then(|ticket| {
            ticket.wait(&patience).unwrap();
            ticket.take().expect("nobody cancels").map(drop)
        });
        log.push((job, rows, told(answer)));
    }
    let _ = db.execute("SELECT sum(row) FROM done", Parameters::none(), &CALL, &never);
    let _ = db.checkpoint(Mode::Truncate, &CALL, &never);
    let (sql, parameters) = insert(30, 0);
    log.push((30, 1, told(db.execute(&sql, parameters, &CallOptions { durable: true, ..CALL }, &never).map(drop))));
}

fn rows_in(path: &Path) -> BTreeMap<i64, Vec<i64>> {
    let handle = Handle::open(path, OpenFlags::EXISTING).unwrap();
    let ask = |sql: &str| {
        let (statement, _) = Statement::prepare(&handle, sql.as_bytes(), 0).unwrap();
        let statement = statement.unwrap();
        let mut rows = Vec::new();
        while statement.step().unwrap() == Step::Row {
            rows.push(statement.row());
        }
        rows
    };
    assert_eq!(*ask("PRAGMA integrity_check")[0], [Value::from("ok")]);
    let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in ask("SELECT job, row FROM done ORDER BY job, row") {
        let [Value::Integer(job), Value::Integer(row)] = *row else { panic!("a row that nobody wrote: {row:?}") };
        found.entry(job).or_default().push(row);
    }
    found
}

/// Run the workload with one fault; return how many calls of its kind there were.
fn run_with(kind: i32, errno: i32, at: u64, for_ever: bool) -> u64 {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    {
        let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
        handle
            .execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE done(job INTEGER, row INTEGER, text TEXT)")
            .unwrap();
    }
    let options = Options { deadline: Some(LEFT_WAITING), durability: Durability::Normal, ..Options::default() };
    let never = || false;
    let mut log = Vec::new();
    AT.store(at, Ordering::SeqCst);
    COUNT.store(0, Ordering::SeqCst);
    FOR_EVER.store(for_ever, Ordering::SeqCst);
    ERRNO.store(errno, Ordering::SeqCst);
    KIND.store(kind, Ordering::SeqCst);
    let opened = Database::open(&path, options.clone(), &never);
    if let Ok(db) = &opened {
        workload(db, &mut log);
    }
    KIND.store(NOTHING, Ordering::SeqCst);
    let count = COUNT.load(Ordering::SeqCst);

    let (sql, parameters) = insert(100, 0);
    if let Ok(db) = opened {
        if let Err(failure) = db.execute(&sql, parameters.clone(), &CALL, &never) {
            assert!(matches!(failure.error, Error::Poisoned(_)), "after the fault: {}", failure.error);
            let again = Database::open(&path, options, &never).unwrap();
            again.execute(&sql, parameters, &CALL, &never).unwrap();
            again.close(None, &never).unwrap();
        }
        db.close(None, &never).unwrap();
    } else {
        let again = Database::open(&path, options, &never).unwrap();
        again.execute(&sql, parameters, &CALL, &never).unwrap();
        again.close(None, &never).unwrap();
    }
    let found = rows_in(&path);
    assert_eq!(found.get(&100), Some(&vec![0]));
    for (job, rows, told) in &log {
        let whole: Vec<i64> = (0..*rows).collect();
        let there = found.get(job).cloned().unwrap_or_default();
        match told {
            Ok(()) => assert_eq!(there, whole, "job {job} was acknowledged"),
            Err(Error::CommitUncertain(_) | Error::Poisoned(_)) => {
                assert!(there.is_empty() || there == whole, "job {job} is half there: {there:?}");
            }
            Err(error) => assert!(there.is_empty(), "job {job} was refused ({error}) and is there: {there:?}"),
        }
        assert!(at > 0 || told.is_ok(), "job {job} without any fault: {told:?}");
    }
    count
}

fn watched(name: &str, kind: i32, errno: i32, at: u64, for_ever: bool) -> u64 {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let count = run_with(kind, errno, at, for_ever);
        let _ = sender.send(());
        count
    });
    let which = format!("{name} number {at}{}", if for_ever { " and all after it" } else { "" });
    let waited = receiver.recv_timeout(LEFT_WAITING / 2);
    assert!(waited != Err(mpsc::RecvTimeoutError::Timeout), "{which}: somebody is left waiting");
    thread.join().unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        panic!("{which}: {said}")
    })
}

/// Every call up to here fails; beyond, every so many, since there are thousands of allocations.
const ALL: u64 = 150;
const STRIDE: u64 = 37;

#[test]
fn system_calls_and_memory_that_fail_lose_no_acknowledged_job() {
    put_faults_in();
    for (name, kind, errno) in [
        ("a write with EIO", WRITE, libc::EIO),
        ("a write with ENOSPC", WRITE, libc::ENOSPC),
        ("a write with EINTR", WRITE, libc::EINTR),
        ("a read with EIO", READ, libc::EIO),
        ("a read with ETIMEDOUT", READ, libc::ETIMEDOUT),
        ("a change of size or a mapping with EIO", SIZE, libc::EIO),
        ("an allocation", MEMORY, libc::ENOMEM),
    ] {
        let count = watched(name, kind, errno, 0, false);
        assert!(count > 2, "{name}: {count} calls in all");
        println!("{name}: {count} calls");
        // A write that is interrupted for ever is tried again for ever.
        for for_ever in if errno == libc::EINTR { vec![false] } else { vec![false, true] } {
            let mut at = 1;
            while at <= count {
                watched(name, kind, errno, at, for_ever);
                at += if at < ALL { 1 } else { STRIDE };
            }
        }
    }
}
