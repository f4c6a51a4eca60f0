//! Two copies of SQLite in one process, on one file: neither drops the other's locks, and they exclude each other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Connection, Scratch, create, fork, outsider_role, outsider_sees, outsiders_are_refused, role as own_role, run_role,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use writelane_core::sqlite::{Handle, OpenFlags, ffi};
use writelane_core::vfs::{self, LockKind, WriteLockProbe};

const BUSY: Result<(), i32> = Err(ffi::SQLITE_BUSY);

#[test]
#[ignore = "a process that the other tests start"]
fn role() {
    let role = own_role().expect("started by another test");
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["outsider", kind, path] => outsider_role(kind, path),
        ["ours holds", journal] => ours_holds(journal),
        ["foreign holds", journal] => foreign_holds(journal),
        ["both write", journal] => both_write(journal),
        ["foreign stays"] => foreign_stays(),
        ["named like a log"] => named_like_a_log(),
        ["without description locks"] => without_description_locks(),
        ref other => panic!("no such role: {other:?}"),
    }
}

#[test]
fn nothing_in_the_process_drops_our_locks_in_wal_mode() {
    run_role(&["ours holds", "wal"], &[]);
}

#[test]
fn nothing_in_the_process_drops_our_locks_in_delete_mode() {
    run_role(&["ours holds", "delete"], &[]);
}

fn ours_holds(journal: &str) {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, journal);
    let ours = Connection::ours(&path);
    ours.insert(0).unwrap();
    ours.begin().unwrap();
    ours.insert(1).unwrap();
    assert!(outsiders_are_refused(&path), "before anything happens");

    let foreign = Connection::foreign(&path);
    assert_eq!(foreign.count(), Ok(1), "the other copy reads");
    assert_eq!(foreign.begin(), BUSY, "the other copy is kept out");
    drop(foreign);
    assert!(outsiders_are_refused(&path), "after the other copy's close");

    for suffix in ["", "-wal", "-shm", "-journal"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        if file.exists() {
            std::fs::read(&file).unwrap();
            assert!(outsiders_are_refused(&path), "after a plain read of {}", file.display());
        }
    }

    let second = Connection::ours(&path);
    assert_eq!(second.count(), Ok(1));
    drop(second);
    assert!(outsiders_are_refused(&path), "after the close of a second connection of ours");

    assert!(fork(|| true).succeeded());
    assert!(outsiders_are_refused(&path), "after a child came and went");
    let child = fork({
        let path = path.clone();
        move || Connection::ours(&path).count() == Ok(1) && Connection::foreign(&path).count() == Ok(1)
    });
    assert!(child.succeeded());
    assert!(outsiders_are_refused(&path), "after a child that read the file");

    ours.run("COMMIT").unwrap();
    drop(ours);
    outsider_sees(&path, 2);
}

#[test]
fn we_do_not_drop_the_locks_of_the_other_copy_in_wal_mode() {
    run_role(&["foreign holds", "wal"], &[]);
}

#[test]
fn we_do_not_drop_the_locks_of_the_other_copy_in_delete_mode() {
    run_role(&["foreign holds", "delete"], &[]);
}

fn foreign_holds(journal: &str) {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, journal);
    let foreign = Connection::foreign(&path);
    foreign.insert(0).unwrap();
    foreign.begin().unwrap();
    foreign.insert(1).unwrap();
    for round in 0..3 {
        let ours = Connection::ours(&path);
        assert_eq!(ours.count(), Ok(1));
        assert_eq!(ours.begin(), BUSY, "we are kept out");
        drop(ours);
        assert!(outsiders_are_refused(&path), "after our close, round {round}");
        // Opened and closed without ever being locked.
        drop(Connection::ours(&path));
        assert!(outsiders_are_refused(&path), "after our close without a statement, round {round}");
        let readonly = Connection::ours_readonly(&path);
        assert_eq!(readonly.count(), Ok(1));
        drop(readonly);
        assert!(outsiders_are_refused(&path), "after our close of a reader, round {round}");
        if journal == "wal" {
            drop(WriteLockProbe::open(&scratch.file("app.db-shm")).unwrap());
            assert!(outsiders_are_refused(&path), "after the close of a probe, round {round}");
        }
        vfs::release_idle();
        assert!(outsiders_are_refused(&path), "after idle files were let go of, round {round}");
    }
    foreign.run("COMMIT").unwrap();
    drop(foreign);
    outsider_sees(&path, 2);
}

#[test]
fn both_copies_write_at_once_in_wal_mode() {
    run_role(&["both write", "wal"], &[]);
}

#[test]
fn both_copies_write_at_once_in_delete_mode() {
    run_role(&["both write", "delete"], &[]);
}

fn both_write(journal: &str) {
    let rows: i64 = if journal == "wal" { 4_000 } else { 500 };
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, journal);
    let write = |kind: &'static str, path: PathBuf| {
        std::thread::spawn(move || {
            let mut connection = Connection::of(kind, &path).patient();
            connection.run("PRAGMA synchronous=OFF").unwrap();
            for row in 0..rows {
                if row % 50 == 49 {
                    connection = Connection::of(kind, &path).patient();
                    connection.run("PRAGMA synchronous=OFF").unwrap();
                }
                connection.insert(row).unwrap_or_else(|code| panic!("{kind}, row {row}: code {code}"));
            }
        })
    };
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (path, done) = (path.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                for kind in ["ours", "foreign"] {
                    let now = Connection::of(kind, &path).patient().count().unwrap();
                    assert!(now >= seen, "rows vanished: {seen} before, {now} now");
                    seen = now;
                }
            }
        })
    };
    let writers = [write("ours", path.clone()), write("foreign", path.clone())];
    for writer in writers {
        writer.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    outsider_sees(&path, 2 * rows);
}

/// The last of our connections is closed while the other copy has the file open and idle: the log is in use.
#[test]
fn our_last_close_leaves_the_log_that_the_other_copy_uses() {
    run_role(&["foreign stays"], &[]);
}

fn foreign_stays() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "wal");
    let foreign = Connection::foreign(&path);
    foreign.insert(0).unwrap();
    let ours = Connection::ours(&path);
    ours.insert(1).unwrap();
    drop(ours);
    assert!(scratch.file("app.db-wal").exists(), "the log is still in use");
    outsider_sees(&path, 2);
    foreign.insert(2).unwrap();
    outsider_sees(&path, 3);
    // And the other way round.
    let ours = Connection::ours(&path);
    ours.insert(3).unwrap();
    drop(foreign);
    assert!(scratch.file("app.db-wal").exists(), "the log is still in use");
    outsider_sees(&path, 4);
    ours.insert(4).unwrap();
    drop(ours);
    outsider_sees(&path, 5);
}

/// A database may be called as if it were the log of another.
#[test]
fn a_database_named_like_a_log_is_protected_too() {
    run_role(&["named like a log"], &[]);
}

fn named_like_a_log() {
    let scratch = Scratch::new();
    for name in ["a-journal", "b-wal", "c-mj0123459AB"] {
        let path = scratch.file(name);
        create(&path, "delete");
        std::fs::write(scratch.file(&name[..1]), "a file of the name that the log would belong to").unwrap();
        let foreign = Connection::foreign(&path);
        foreign.begin().unwrap();
        foreign.insert(0).unwrap();
        let ours = Connection::ours(&path);
        assert_eq!(ours.count(), Ok(0));
        drop(ours);
        assert!(outsiders_are_refused(&path), "{name}");
        foreign.run("COMMIT").unwrap();
    }
}

#[test]
fn without_description_locks_a_file_open_elsewhere_in_the_process_is_refused() {
    run_role(&["without description locks"], &[("WRITELANE_NO_OFD_LOCKS", "1")]);
}

fn without_description_locks() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "wal");
    assert_eq!(vfs::lock_kind(), LockKind::Process);
    let refused = |path: &Path| match Handle::open(path, OpenFlags::WRITER) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.primary(), ffi::SQLITE_CANTOPEN);
            assert!(error.message.contains("another SQLite library"), "{error}");
            true
        }
    };

    // Nothing is open: it works as SQLite always does.
    let ours = Connection::ours(&path);
    ours.begin().unwrap();
    ours.insert(0).unwrap();
    assert!(outsiders_are_refused(&path));
    assert!(!vfs::foreign_copy_has_open(&path).unwrap());
    assert!(!refused(&path), "a second connection of ours is welcome");
    assert!(outsiders_are_refused(&path), "after the close of a second connection of ours");
    ours.run("COMMIT").unwrap();
    drop(ours);

    let foreign = Connection::foreign(&path);
    foreign.begin().unwrap();
    foreign.insert(1).unwrap();
    assert!(vfs::foreign_copy_has_open(&path).unwrap());
    assert!(refused(&path));
    assert_eq!(Connection::ours(&scratch.file("other.db")).run(&format!("ATTACH '{}' AS o", path.display())), {
        Err(ffi::SQLITE_CANTOPEN)
    });
    assert!(outsiders_are_refused(&path), "the refusal dropped no lock");
    foreign.run("COMMIT").unwrap();
    drop(foreign);
    assert!(!vfs::foreign_copy_has_open(&path).unwrap());
    assert!(!refused(&path));

    // A plain reader of the file is as dangerous.
    let reader = std::fs::File::open(&path).unwrap();
    assert!(refused(&path));
    drop(reader);

    // In a child, the descriptors of the parent's connections are no stranger's.
    let ours = Connection::ours(&path);
    ours.begin().unwrap();
    let child = fork({
        let path = path.clone();
        move || {
            let own = Connection::ours(&path);
            own.count() == Ok(2) && own.begin() == BUSY
        }
    });
    assert!(child.succeeded());
    assert!(outsiders_are_refused(&path));
    ours.insert(2).unwrap();
    ours.run("COMMIT").unwrap();
    drop(ours);
    outsider_sees(&path, 3);
    assert!(!vfs::foreign_copy_has_open(&scratch.file("missing.db")).unwrap());
}
