//! Descriptors that are kept so that no lock is dropped do not pile up.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Connection, Outsider, Scratch, create, open_files, outsider_role, outsider_sees, role as own_role, run_role,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use writelane_core::sqlite::{Handle, OpenFlags, ffi};
use writelane_core::vfs::{self, Owner, Probed, WriteLockProbe};

const MANY: usize = 10_000;

#[test]
#[ignore = "a process that the other tests start"]
fn role() {
    let role = own_role().expect("started by another test");
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["outsider", kind, path] => outsider_role(kind, path),
        ["one file", journal] => one_file(journal),
        ["many files"] => many_files(),
        ["held files"] => held_files(),
        ["held files", directory] => hold_files(Path::new(directory)),
        ["deleted"] => deleted(),
        ["standard streams"] => standard_streams(),
        ["read only"] => read_only(),
        ["carried over"] => carried_over(),
        ["permissions"] => permissions(),
        ref other => panic!("no such role: {other:?}"),
    }
}

#[test]
fn opening_one_file_ten_thousand_times_keeps_few_descriptors_in_wal_mode() {
    run_role(&["one file", "wal"], &[]);
}

#[test]
fn opening_one_file_ten_thousand_times_keeps_few_descriptors_in_delete_mode() {
    run_role(&["one file", "delete"], &[]);
}

#[test]
fn without_description_locks_few_descriptors_are_kept_too() {
    run_role(&["one file", "wal"], &[("WRITELANE_NO_OFD_LOCKS", "1")]);
    run_role(&["many files"], &[("WRITELANE_NO_OFD_LOCKS", "1")]);
}

fn one_file(journal: &str) {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, journal);
    for _ in 0..MANY / 2 {
        assert_eq!(Connection::ours(&path).count(), Ok(0));
        assert_eq!(Connection::ours_readonly(&path).count(), Ok(0));
    }
    let open = open_files(scratch.path());
    assert!(open.len() <= 8, "{open:?}");
    // The same while another connection stays.
    let keep = Connection::ours(&path);
    keep.insert(0).unwrap();
    for _ in 0..MANY / 2 {
        assert_eq!(Connection::ours(&path).count(), Ok(1));
    }
    let open = open_files(scratch.path());
    assert!(open.len() <= 12, "{open:?}");
}

#[test]
fn opening_ten_thousand_files_keeps_few_descriptors() {
    run_role(&["many files"], &[]);
}

fn many_files() {
    let scratch = Scratch::new();
    let template = scratch.file("template.db");
    create(&template, "delete");
    let bytes = std::fs::read(&template).unwrap();
    let mut most = 0;
    for number in 0..MANY {
        let path = scratch.file(&format!("{number}.db"));
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Connection::ours(&path).count(), Ok(0));
        if number % 2 == 1 {
            std::fs::remove_file(&path).unwrap();
        }
        if number % 100 == 0 {
            most = most.max(open_files(scratch.path()).len());
        }
    }
    assert!(most <= 300, "{most} descriptors");
    vfs::release_idle();
    assert_eq!(open_files(scratch.path()), Vec::<PathBuf>::new());
}

/// Files that another process keeps locked cannot be tried with a lock of ours; still they do not pile up.
#[test]
fn files_that_others_keep_locked_do_not_pile_up() {
    run_role(&["held files"], &[]);
}

const HELD: usize = 400;

fn held_files() {
    let scratch = Scratch::new();
    for number in 0..HELD {
        create(&scratch.file(&format!("{number}.db")), "wal");
    }
    let mut holder = common::start(&["held files", scratch.path().to_str().unwrap()]);
    assert_eq!(holder.hear(), "held");
    // One of them is in use by the other copy in this process, too: its lock must stay.
    let path = scratch.file("0.db");
    let foreign = Connection::foreign(&path);
    foreign.begin().unwrap();
    foreign.insert(0).unwrap();
    for number in 0..HELD {
        assert_eq!(Connection::ours(&scratch.file(&format!("{number}.db"))).count(), Ok(0));
    }
    let open = open_files(scratch.path());
    assert!(open.len() <= 300, "{} descriptors", open.len());
    assert_eq!(Outsider::start("ours", &path).run("INSERT INTO t VALUES(-1)"), Err(ffi::SQLITE_BUSY));
    vfs::release_idle();
    assert_eq!(Outsider::start("ours", &path).run("INSERT INTO t VALUES(-1)"), Err(ffi::SQLITE_BUSY));
    foreign.run("COMMIT").unwrap();
    drop(foreign);
    holder.end();
    outsider_sees(&path, 1);
}

fn hold_files(directory: &Path) {
    // Two files for each database, more than the usual limit.
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let held: Vec<_> = (0..HELD).map(|number| Connection::ours(&directory.join(format!("{number}.db")))).collect();
    for connection in &held {
        connection.count().unwrap();
    }
    common::say("held");
    common::listen();
}

#[test]
fn the_space_of_a_deleted_file_is_given_back() {
    run_role(&["deleted"], &[]);
}

fn deleted() {
    let scratch = Scratch::new();
    let (path, other) = (scratch.file("app.db"), scratch.file("other.db"));
    create(&path, "wal");
    Connection::ours(&path).insert(0).unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(Connection::ours(&other));
    let open = open_files(scratch.path());
    assert!(open.iter().all(|file| file.starts_with(&other)), "{open:?}");
    // A new file of the same name is another file.
    create(&path, "wal");
    assert_eq!(Connection::ours(&path).count(), Ok(0));
    outsider_sees(&path, 0);
}

#[test]
fn a_database_never_gets_a_standard_streams_descriptor() {
    run_role(&["standard streams"], &[]);
}

fn standard_streams() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    // SAFETY: nothing of this process reads from its standard input.
    unsafe { libc::close(0) };
    create(&path, "wal");
    let connection = Connection::ours(&path);
    connection.insert(0).unwrap();
    let input = std::fs::read_link("/proc/self/fd/0").unwrap();
    assert_eq!(input, Path::new("/dev/null"));
    drop(connection);
    outsider_sees(&path, 1);
}

/// A file that may only be read gets its locks through a descriptor that can only read; when it becomes writable, what
/// is locked is carried over.
#[test]
fn shared_locks_survive_when_a_read_only_file_becomes_writable() {
    run_role(&["read only"], &[]);
}

fn become_ordinary(directory: &Path, file: &Path) {
    // SAFETY: asks; then gives up root for good, which this process does not need.
    unsafe {
        if libc::geteuid() == 0 {
            const NOBODY: u32 = 65534;
            std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
            std::os::unix::fs::chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
            // Who gives up root may no longer look into /proc/self/fd, as a daemon; this one may.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn read_only() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "delete");
    vfs::release_idle();
    become_ordinary(scratch.path(), &path);
    let mut outsider = Outsider::start("foreign", &path);
    set_mode(&path, 0o444);

    let reader = Connection::ours_readonly(&path);
    reader.run("BEGIN").unwrap();
    assert_eq!(reader.count(), Ok(0));
    assert_eq!(outsider.run("INSERT INTO t VALUES(-1)"), Err(ffi::SQLITE_BUSY), "a reader is in the way of a commit");

    set_mode(&path, 0o644);
    let writer = Connection::ours(&path);
    writer.begin().unwrap();
    writer.insert(0).unwrap();
    assert_eq!(writer.run("COMMIT"), Err(ffi::SQLITE_BUSY), "our reader is still in the way");
    writer.run("ROLLBACK").unwrap();
    assert_eq!(outsider.run("INSERT INTO t VALUES(-1)"), Err(ffi::SQLITE_BUSY), "the reader's lock was carried over");
    reader.run("COMMIT").unwrap();
    writer.insert(0).unwrap();
    outsider.run("INSERT INTO t VALUES(1)").unwrap();
    assert_eq!(reader.count(), Ok(2));
}

/// As above, asked of the system calls that SQLite makes: SQLite itself happens to take such a lock anew.
#[test]
fn a_lock_is_carried_over_to_the_descriptor_that_can_write() {
    run_role(&["carried over"], &[]);
}

fn carried_over() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    std::fs::write(&path, "x").unwrap();
    become_ordinary(scratch.path(), &path);
    set_mode(&path, 0o444);
    let calls = SystemCalls::of_sqlite();
    let reader = calls.open(&path, libc::O_RDONLY);
    assert!(calls.lock(reader, libc::F_RDLCK, 10, 5));
    assert!(calls.lock(reader, libc::F_RDLCK, 30, 5));
    assert!(calls.lock(reader, libc::F_UNLCK, 30, 5));
    assert!(!calls.lock(reader, libc::F_WRLCK, 50, 1), "it can only read");
    set_mode(&path, 0o644);
    let writer = calls.open(&path, libc::O_RDWR);
    assert!(calls.lock(writer, libc::F_WRLCK, 50, 1));
    let stranger = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let is_free = |start| {
        let mut lock = lock_of(libc::F_WRLCK, start, 1);
        // SAFETY: a descriptor of ours and a valid structure.
        let answer = unsafe {
            use std::os::fd::AsRawFd;
            libc::fcntl(stranger.as_raw_fd(), libc::F_OFD_GETLK, std::ptr::from_mut(&mut lock))
        };
        assert_eq!(answer, 0);
        i32::from(lock.l_type) == libc::F_UNLCK
    };
    let free: Vec<_> = [9, 10, 14, 15, 30, 50].map(is_free).into();
    assert_eq!(free, [true, false, false, true, true, false]);
}

/// The system calls as our SQLite makes them.
struct SystemCalls {
    open: unsafe extern "C" fn(*const libc::c_char, i32, i32) -> i32,
    fcntl: unsafe extern "C" fn(i32, i32, *mut libc::flock) -> i32,
}

impl SystemCalls {
    fn of_sqlite() -> Self {
        vfs::install().unwrap();
        // SAFETY: the VFS is never freed, the names are NUL-terminated, and the types are those SQLite calls these with.
        unsafe {
            let found = ffi::sqlite3_vfs_find(c"unix".as_ptr());
            let get = (*found).xGetSystemCall.unwrap();
            Self {
                open: std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn(_, _, _) -> _>(
                    get(found, c"open".as_ptr()).unwrap(),
                ),
                fcntl: std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn(_, _, _) -> _>(
                    get(found, c"fcntl".as_ptr()).unwrap(),
                ),
            }
        }
    }

    fn open(&self, path: &Path, flags: i32) -> i32 {
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { (self.open)(path.as_ptr(), flags | libc::O_CLOEXEC, 0) };
        assert!(fd >= 0);
        fd
    }

    fn lock(&self, fd: i32, kind: i32, start: i64, length: i64) -> bool {
        // SAFETY: a valid structure.
        unsafe { (self.fcntl)(fd, libc::F_SETLK, &mut lock_of(kind, start, length)) == 0 }
    }
}

fn lock_of(kind: i32, start: i64, length: i64) -> libc::flock {
    // SAFETY: a plain C structure, for which all zeros are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_start = start;
    lock.l_len = length;
    lock
}

#[test]
fn a_kept_descriptor_opens_nothing_that_may_no_longer_be_opened() {
    run_role(&["permissions"], &[]);
}

fn permissions() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "delete");
    become_ordinary(scratch.path(), &path);
    Connection::ours(&path).insert(0).unwrap();
    set_mode(&path, 0o000);
    assert_eq!(Handle::open(&path, OpenFlags::EXISTING).err().map(|error| error.primary()), Some(ffi::SQLITE_CANTOPEN));
    set_mode(&path, 0o444);
    let reader = Connection::ours(&path);
    assert_eq!(reader.count(), Ok(1));
    assert_eq!(reader.insert(1), Err(ffi::SQLITE_READONLY));
}

#[test]
fn a_probe_waits_for_the_write_lock_wherever_it_is_held() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "wal");
    let ours = Connection::ours(&path);
    assert_eq!(ours.count(), Ok(0));
    let probe = WriteLockProbe::open(&scratch.file("app.db-shm")).unwrap();
    assert_eq!(probe.try_wait().unwrap(), Probed::Free);
    assert_eq!(probe.wait().unwrap(), Probed::Free);
    assert_eq!(ours.insert(0), Ok(()), "the probe keeps nothing");

    // Another connection of this process, and another process.
    ours.begin().unwrap();
    assert_eq!(probe.try_wait().unwrap(), Probed::Held(Some(Owner::Description)));
    ours.run("COMMIT").unwrap();
    let mut outsider = Outsider::start("foreign", &path);
    outsider.run("BEGIN IMMEDIATE").unwrap();
    outsider.run("INSERT INTO t VALUES(1)").unwrap();
    assert_eq!(probe.try_wait().unwrap(), Probed::Held(Some(Owner::Process(outsider.pid().unsigned_abs()))));
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let found = probe.wait().unwrap();
        let rows = Connection::ours(&path).count();
        sender.send((found, rows)).unwrap();
        probe
    });
    outsider.run("COMMIT").unwrap();
    assert_eq!(receiver.recv().unwrap(), (Probed::Free, Ok(2)), "it waited for the commit");
    let probe = waiter.join().unwrap();

    // A killed holder.
    outsider.run("BEGIN IMMEDIATE").unwrap();
    assert_eq!(probe.try_wait().unwrap(), Probed::Held(Some(Owner::Process(outsider.pid().unsigned_abs()))));
    outsider.kill();
    assert_eq!(probe.wait().unwrap(), Probed::Free);

    drop(ours);
    drop(Connection::ours(&scratch.file("app.db")));
    assert!(!scratch.file("app.db-shm").exists(), "the last connection takes the file away");
    assert_eq!(probe.try_wait().unwrap(), Probed::Replaced);
    assert_eq!(probe.wait().unwrap(), Probed::Replaced);
    let missing = WriteLockProbe::open(&scratch.file("app.db-shm")).err().map(|error| error.kind());
    assert_eq!(missing, Some(std::io::ErrorKind::NotFound));
    let ours = Connection::ours(&scratch.file("app.db"));
    ours.insert(2).unwrap();
    assert_eq!(probe.wait().unwrap(), Probed::Replaced, "a new file is not the old one");
    let probe = WriteLockProbe::open(&scratch.file("app.db-shm")).unwrap();
    assert_eq!(probe.wait().unwrap(), Probed::Free);
}

#[test]
fn a_handle_notices_that_its_file_was_moved_deleted_or_replaced() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "delete");
    let first = vfs::identity(&path).unwrap();
    let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
    assert_eq!(handle.has_moved(), Ok(false));
    std::fs::rename(&path, scratch.file("moved.db")).unwrap();
    assert_eq!(handle.has_moved(), Ok(true));
    create(&path, "delete");
    assert_eq!(handle.has_moved(), Ok(true));
    assert_ne!(vfs::identity(&path).unwrap(), first);
    assert_eq!(vfs::identity(&scratch.file("moved.db")).unwrap(), first);
    let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(handle.has_moved(), Ok(true));
    let memory = Handle::open_name(b":memory:", OpenFlags::WRITER, None).unwrap();
    assert_eq!(memory.has_moved(), Ok(false));
}
