//! A forked child opens what its parent has open: both take real locks, and none outlives who took it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Connection, Gate, Outsider, Scratch, create, fork, listen, open_files, outsider_role, outsider_sees,
    outsiders_are_refused, role as own_role, run_role, say, start,
};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use writelane_core::process;
use writelane_core::sqlite::ffi;
use writelane_core::vfs::{Probed, WriteLockProbe};

const BUSY: Result<(), i32> = Err(ffi::SQLITE_BUSY);

#[test]
#[ignore = "a process that the other tests start"]
fn role() {
    let role = own_role().expect("started by another test");
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["outsider", kind, path] => outsider_role(kind, path),
        ["six outcomes", journal] => six_outcomes(journal),
        ["grandchild"] => grandchild(),
        ["holder with a child", path] => holder_with_a_child(Path::new(path)),
        ["inherited"] => inherited(),
        ["hammer"] => hammer(),
        ref other => panic!("no such role: {other:?}"),
    }
}

#[test]
fn parent_and_child_exclude_each_other_in_wal_mode() {
    run_role(&["six outcomes", "wal"], &[]);
}

#[test]
fn parent_and_child_exclude_each_other_in_delete_mode() {
    run_role(&["six outcomes", "delete"], &[]);
}

#[test]
fn parent_and_child_exclude_each_other_without_description_locks() {
    run_role(&["six outcomes", "wal"], &[("WRITELANE_NO_OFD_LOCKS", "1")]);
}

fn six_outcomes(journal: &str) {
    let scratch = Scratch::new();
    let path = &scratch.file("app.db");
    create(path, journal);
    let parent = Connection::ours(path);
    parent.begin().unwrap();
    parent.insert(0).unwrap();

    let child = fork(|| Connection::ours(path).begin() == BUSY);
    assert!(child.succeeded(), "the child is kept out while the parent holds the lock");
    assert!(outsiders_are_refused(path), "the child's exit dropped nothing");

    // The child's connection is open before the parent commits, and writes after.
    let (opened, committed, holding, checked) = (Gate::new(), Gate::new(), Gate::new(), Gate::new());
    let child = fork(|| {
        let own = Connection::ours(path);
        let refused = own.begin() == BUSY && own.count() == Ok(0);
        opened.open();
        committed.pass();
        let written = own.insert(1) == Ok(());
        let held = own.begin() == Ok(()) && own.insert(2) == Ok(());
        holding.open();
        checked.pass();
        refused && written && held && own.run("COMMIT") == Ok(())
    });
    opened.pass();
    parent.run("COMMIT").unwrap();
    committed.open();
    holding.pass();
    assert!(outsiders_are_refused(path), "others are kept out while the child holds the lock");
    assert_eq!(parent.begin(), BUSY, "the parent is kept out while the child holds the lock");
    checked.open();
    assert!(child.succeeded(), "the child writes after the parent's commit");
    parent.insert(3).unwrap();
    drop(parent);
    outsider_sees(path, 4);
}

#[test]
fn grandchildren_take_real_locks() {
    run_role(&["grandchild"], &[]);
}

fn grandchild() {
    let scratch = Scratch::new();
    let path = &scratch.file("app.db");
    create(path, "wal");
    let parent = Connection::ours(path);
    parent.insert(0).unwrap();
    let child = fork(|| {
        let own = Connection::ours(path);
        let mut fine = own.begin() == Ok(()) && own.insert(1) == Ok(());
        let grandchild = fork(|| {
            let mine = Connection::ours(path);
            mine.begin() == BUSY && mine.count() == Ok(1)
        });
        fine &= grandchild.succeeded();
        fine &= outsiders_are_refused(path);
        fine &= own.run("COMMIT") == Ok(());
        let grandchild = fork(|| Connection::ours(path).insert(2) == Ok(()));
        fine && grandchild.succeeded() && own.count() == Ok(3)
    });
    assert!(child.succeeded());
    assert_eq!(parent.count(), Ok(3));
    drop(parent);
    outsider_sees(path, 3);
}

#[test]
fn a_killed_holder_frees_its_locks_though_its_child_lives() {
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "wal");
    let keep = Connection::ours(&path);
    keep.insert(0).unwrap();
    let mut holder = start(&["holder with a child", path.to_str().unwrap()]);
    let child: i32 = holder.hear().parse().unwrap();
    assert!(outsiders_are_refused(&path));
    holder.kill();
    // SAFETY: signal 0 only asks whether the process is there.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child lives");
    keep.insert(1).unwrap();
    Outsider::start("foreign", &path).run("INSERT INTO t VALUES(2)").unwrap();
    outsider_sees(&path, 3);
    // SAFETY: the child of the holder, which waits for this.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

fn holder_with_a_child(path: &Path) {
    let own = Connection::ours(path);
    let probe = WriteLockProbe::open(&path.with_extension("db-shm")).unwrap();
    assert_eq!(probe.wait().unwrap(), Probed::Free);
    own.begin().unwrap();
    own.insert(-1).unwrap();
    let (up, never) = (Gate::new(), Gate::new());
    let child = fork(|| {
        up.open();
        never.pass();
        true
    });
    // The child's fork handler has run.
    up.pass();
    say(&child.pid().to_string());
    listen();
}

#[test]
fn what_a_child_inherits_is_not_used_and_not_closed() {
    run_role(&["inherited"], &[]);
}

fn inherited() {
    let scratch = Scratch::new();
    let path = &scratch.file("app.db");
    create(path, "wal");
    let parent = RefCell::new(Some(Connection::ours(path)));
    parent.borrow().as_ref().unwrap().insert(0).unwrap();
    let probe = RefCell::new(Some(WriteLockProbe::open(&scratch.file("app.db-shm")).unwrap()));
    // In this mode SQLite says at once that it got no lock; in the other it tries for ten seconds.
    let other = &scratch.file("other.db");
    create(other, "delete");
    let idle = Connection::ours(other);
    idle.count().unwrap();
    let generation = process::generation();
    let directory = scratch.path();
    let child = fork(|| {
        // What is left open is what the parent's SQLite works with: nothing that carries a lock.
        let mut open = open_files(directory);
        open.sort();
        let bare = open == ["app.db", "app.db-shm", "app.db-wal", "other.db"].map(|name| directory.join(name));
        let (parent, probe) = (parent.take().unwrap(), probe.take().unwrap());
        let Connection::Ours(handle) = &parent else { return false };
        let refused = handle.is_inherited() && probe.wait().is_err() && probe.try_wait().is_err();
        drop(probe);
        drop(parent);
        let (one, two) = (Connection::ours(path), Connection::ours(other));
        let works = one.insert(1) == Ok(()) && two.insert(1) == Ok(());
        // Not even a caller that does not ask can do harm through what it inherited: it gets no lock.
        let no_lock = idle.begin().is_err();
        bare && process::generation() == generation + 1 && refused && works && no_lock
    });
    assert!(child.succeeded());
    assert_eq!(probe.borrow().as_ref().unwrap().wait().unwrap(), Probed::Free);
    assert_eq!(parent.borrow().as_ref().unwrap().insert(2), Ok(()));
    assert_eq!(idle.insert(2), Ok(()));
    outsider_sees(path, 3);
    outsider_sees(other, 2);
}

#[test]
fn forks_under_load_hang_neither_parent_nor_child() {
    run_role(&["hammer"], &[]);
}

/// Threads are everywhere inside SQLite while the process forks; each child uses all of it.
fn hammer() {
    const FORKS: i64 = 200;
    let scratch = Scratch::new();
    let path = scratch.file("app.db");
    create(&path, "wal");
    let stop = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            let (path, other) = (path.clone(), scratch.file(&format!("other{number}.db")));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    use_everything(&path, &other);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for number in 0..FORKS {
        let (path, other) = (path.clone(), scratch.file(&format!("child{number}.db")));
        let child = fork(move || {
            use_everything(&path, &other);
            Connection::ours(&path).patient().insert(number) == Ok(())
        });
        assert!(child.succeeded(), "child {number}");
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(rounds.load(Ordering::Relaxed) > 0);
    outsider_sees(&path, FORKS);
}

fn use_everything(path: &Path, other: &Path) {
    let shared = Connection::ours(path).patient();
    shared.count().unwrap();
    let own = Connection::ours(other);
    own.run(
        "PRAGMA journal_mode=DELETE; PRAGMA synchronous=OFF; PRAGMA cache_size=10;
         CREATE TABLE IF NOT EXISTS u(x);
         CREATE TEMP TABLE v(x);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
         INSERT INTO v SELECT randomblob(1000) FROM n;
         BEGIN IMMEDIATE; INSERT INTO u SELECT count(*) FROM v; COMMIT;
         BEGIN; DELETE FROM u; ROLLBACK;",
    )
    .unwrap();
    assert_eq!(own.int("SELECT count(*) > 0 FROM u"), Ok(1));
}
