//! The lane's promises, with real processes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod peer;

use peer::{AT_MOST, Peer, connect, for_ever, insert, wait_until};
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use writelane_core::holder::{Holder, beside};
use writelane_core::lane::{Lane, outside};
use writelane_core::sqlite::{Handle, OpenFlags, Statement, Step, ValueRef};
use writelane_core::wait::{GaveUp, Patience};

#[test]
#[ignore = "the other process of these tests, started by them"]
fn another_process() {
    peer::run();
}

/// A folder with a database, gone when the test is over.
struct Scene {
    folder: PathBuf,
}

impl Scene {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("writelane-lane-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let scene = Self { folder };
        let db = Handle::open(&scene.database(), OpenFlags::WRITER).unwrap();
        db.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, x)").unwrap();
        scene
    }

    fn database(&self) -> PathBuf {
        self.folder.join("app.db")
    }

    fn lane_file(&self) -> PathBuf {
        beside(&self.database(), "-lane")
    }

    fn rows(&self) -> i64 {
        let db = connect(&self.database());
        let (statement, _) = Statement::prepare(&db, b"SELECT count(*) FROM t", 0).unwrap();
        let statement = statement.unwrap();
        assert!(matches!(statement.step().unwrap(), Step::Row));
        match statement.column(0) {
            ValueRef::Integer(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    fn peer(&self) -> Peer {
        Peer::start(&self.database())
    }

    fn is_waiting(&self, pid: u32) -> bool {
        outside::look(&self.database()).waiters.iter().any(|waiter| waiter.pid == pid)
    }

    fn wait_until_waiting(&self, peer: &Peer) {
        wait_until("the other process waits", || self.is_waiting(peer.pid()));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o700));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn every_name_of_a_file_leads_to_one_lane() {
    let scene = Scene::new();
    let (link, hard) = (scene.folder.join("link.db"), scene.folder.join("hard.db"));
    symlink(scene.database(), &link).unwrap();
    fs::hard_link(scene.database(), &hard).unwrap();
    let lane = Lane::of(&scene.database());
    assert!(Arc::ptr_eq(&lane, &Lane::of(&link)) && Arc::ptr_eq(&lane, &Lane::of(&hard)));
    assert!(!scene.lane_file().exists(), "nobody wanted to write yet");
}

#[test]
fn a_new_file_in_a_deleted_one_s_place_has_a_lane_of_its_own() {
    let scene = Scene::new();
    // The number of a deleted file goes to the next one made, as a rule; whichever it gets, the lane is not the old one.
    let old = Lane::of(&scene.database());
    for name in ["app.db", "app.db-wal", "app.db-shm"] {
        let _ = fs::remove_file(scene.folder.join(name));
    }
    fs::create_dir(scene.folder.join("other")).unwrap();
    let new = scene.folder.join("other/new.db");
    fs::write(&new, "").unwrap();
    let lane = Lane::of(&new);
    assert!(!Arc::ptr_eq(&old, &lane));
    drop(lane.enter("new", &for_ever()).unwrap());
    assert_eq!(lane.stats().alone, 0);
}

#[test]
fn threads_are_served_in_the_order_they_came() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let turn = lane.enter("first", &for_ever()).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let (own, order) = (Arc::clone(&lane), Arc::clone(&order));
            let thread = std::thread::spawn(move || {
                let _turn = own.enter("next", &for_ever()).unwrap();
                order.lock().unwrap().push(n);
            });
            wait_until("the thread waits", || lane.stats().waiting == n + 1);
            thread
        })
        .collect();
    assert!(lane.try_enter("not before them").is_none());
    drop(turn);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_second_process_waits_for_the_first() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let (mut one, mut two) = (scene.peer(), scene.peer());
    // Two that wait make the first take its turn with a lock, and not on the fast path.
    assert_eq!(one.ask("enter"), "in");
    assert_eq!(one.ask("sql BEGIN IMMEDIATE"), "done");
    assert_eq!(two.ask("enter"), "in");
    assert_eq!(two.ask("sql BEGIN IMMEDIATE"), "SQLITE_BUSY");
    two.tell("await_lock");
    scene.wait_until_waiting(&two);
    assert!(two.hears_nothing_yet());
    assert!(lane.try_enter("behind both").is_none());
    assert_eq!(one.ask("sql COMMIT"), "done");
    assert_eq!(two.hear(), "free");
    assert_eq!(one.ask("leave"), "out");
    assert_eq!(two.ask("leave"), "out");
    wait_until("the lane is free again", || lane.try_enter("me").is_some());
}

#[test]
fn who_queues_is_seen_by_one_that_never_pauses() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let db = connect(&scene.database());
    let turn = lane.enter("fast", &for_ever()).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut other = scene.peer();
    assert_eq!(other.ask("enter"), "in");
    other.tell("await_lock");
    scene.wait_until_waiting(&other);
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(other.hear(), "free");
    drop(turn);
    // The other has its place between processes and does not give it up.
    let until = Instant::now() + Duration::from_secs(20);
    while lane.try_enter("fast").is_some() {
        assert!(Instant::now() < until, "it is gone past for ever");
    }
    assert_eq!(other.ask("leave"), "out");
    wait_until("the lane is free again", || lane.try_enter("me").is_some());
}

#[test]
fn processes_in_a_loop_take_turns() {
    let scene = Scene::new();
    let mut peers: Vec<Peer> = (0..4).map(|_| scene.peer()).collect();
    for peer in &mut peers {
        // Each turn outlasts its time, so that every one is followed by another's.
        assert_eq!(peer.ask("loop 3"), "looping");
    }
    let count = |peer: &mut Peer| peer.ask("turns").parse::<u64>().unwrap();
    wait_until("one has had 60 turns", || peers.iter_mut().any(|peer| count(peer) >= 60));
    let turns: Vec<u64> = peers.iter_mut().map(count).collect();
    for peer in &mut peers {
        assert_eq!(peer.ask("stop"), "stopped");
    }
    // In turn they are as good as equal; with SQLite's own back-off, or none in turn, some have had next to none.
    assert!(turns.iter().all(|turns| *turns >= 40), "turns: {turns:?}");
}

#[test]
fn a_deadline_ends_the_wait_and_leaves_nothing_behind() {
    let scene = Scene::new();
    let mut holder = scene.peer();
    let lane = Lane::of(&scene.database());
    let turn = front(&scene, &lane, &mut holder);
    assert_eq!(holder.ask("enter 80"), "timed out");
    drop(turn);
    // Its agent, granted the place too late, must have given it up.
    let mut third = scene.peer();
    for peer in [&mut holder, &mut third] {
        assert_eq!(peer.ask("enter"), "in");
        assert_eq!(peer.ask("leave"), "out");
    }
}

/// Take a turn that holds the lock between processes, so that others really wait for it.
fn front(scene: &Scene, lane: &Arc<Lane>, other: &mut Peer) -> writelane_core::lane::Turn {
    let turn = lane.enter("FRONT", &for_ever()).unwrap();
    let db = connect(&scene.database());
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(other.ask("enter"), "in");
    other.tell("await_lock");
    scene.wait_until_waiting(other);
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(other.hear(), "free");
    // Now the other has the front; whoever enters next takes its place properly.
    drop(turn);
    let (own, done) = (Arc::clone(lane), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&done);
    let waiting = std::thread::spawn(move || {
        let turn = own.enter("FRONT", &for_ever()).unwrap();
        flag.store(true, Ordering::Relaxed);
        turn
    });
    wait_until("this process waits", || lane.stats().waiting == 1);
    assert!(!done.load(Ordering::Relaxed));
    assert_eq!(other.ask("leave"), "out");
    waiting.join().unwrap()
}

#[test]
fn an_interruption_ends_the_wait() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let turn = lane.enter("held", &for_ever()).unwrap();
    let interrupted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let patience = Patience { until: None, interrupted: &|| interrupted.load(Ordering::Relaxed) };
            lane.enter("waits", &patience).map(drop)
        });
        wait_until("the thread waits", || lane.stats().waiting == 1);
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(waiter.join().unwrap(), Err(GaveUp::Interrupted));
    });
    assert_eq!(lane.stats().waiting, 0);
    drop(turn);
    assert!(lane.try_enter("free").is_some());
}

#[test]
fn a_free_lane_is_taken_also_after_the_deadline() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let late = Patience { until: Some(Instant::now()), interrupted: &|| false };
    let turn = lane.enter("late", &late).unwrap();
    assert_eq!(lane.enter("later", &late).map(drop), Err(GaveUp::TimedOut));
    drop(turn);
}

#[test]
fn a_killed_holder_lets_the_next_in() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut holder = scene.peer();
    let turn = front(&scene, &lane, &mut holder);
    holder.tell("enter");
    scene.wait_until_waiting(&holder);
    drop(turn);
    assert_eq!(holder.hear(), "in");
    let mut next = scene.peer();
    next.tell("enter");
    scene.wait_until_waiting(&next);
    holder.signal(libc::SIGKILL);
    assert_eq!(next.hear(), "in");
    wait_until("the dead is forgotten", || !outside::look(&scene.database()).members.contains(&holder.pid()));
}

#[test]
fn a_killed_waiter_is_passed_over() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut first = scene.peer();
    let turn = front(&scene, &lane, &mut first);
    first.tell("enter");
    scene.wait_until_waiting(&first);
    let mut second = scene.peer();
    second.tell("enter");
    scene.wait_until_waiting(&second);
    first.signal(libc::SIGKILL);
    drop(turn);
    assert_eq!(second.hear(), "in");
}

#[test]
fn a_stopped_waiter_does_not_stop_the_others() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut stopped = scene.peer();
    let turn = front(&scene, &lane, &mut stopped);
    stopped.tell("enter");
    scene.wait_until_waiting(&stopped);
    stopped.signal(libc::SIGSTOP);
    let mut other = scene.peer();
    other.tell("insert 20");
    drop(turn);
    assert_eq!(other.hear(), "done");
    assert_eq!(scene.rows(), 20);
    let view = outside::look(&scene.database());
    assert!(view.waiters.iter().any(|waiter| waiter.pid == stopped.pid() && waiter.stopped), "{view:?}");
    stopped.signal(libc::SIGCONT);
    assert_eq!(stopped.hear(), "in");
    assert_eq!(stopped.ask("leave"), "out");
    assert_eq!(other.ask("insert 5"), "done");
}

#[test]
fn a_stopped_front_is_gone_past_until_it_goes_on() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut stopped = scene.peer();
    let turn = front(&scene, &lane, &mut stopped);
    stopped.tell("enter");
    scene.wait_until_waiting(&stopped);
    drop(turn);
    assert_eq!(stopped.hear(), "in");
    stopped.signal(libc::SIGSTOP);
    let (mut one, mut two) = (scene.peer(), scene.peer());
    one.tell("insert 20");
    two.tell("insert 20");
    assert_eq!((one.hear(), two.hear()), ("done".into(), "done".into()));
    assert_ne!(one.ask("bypasses"), "0");
    assert_eq!(scene.rows(), 40);
    stopped.signal(libc::SIGCONT);
    assert_eq!(stopped.ask("leave"), "out");
    assert_eq!((one.ask("insert 20"), two.ask("insert 20")), ("done".into(), "done".into()));
}

#[test]
fn who_does_nothing_with_its_turn_does_not_keep_the_others_for_ever() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut idle = scene.peer();
    let turn = front(&scene, &lane, &mut idle);
    idle.tell("enter");
    scene.wait_until_waiting(&idle);
    drop(turn);
    assert_eq!(idle.hear(), "in");
    assert_eq!(scene.peer().ask("insert 1"), "done");
    assert_eq!(idle.ask("leave"), "out");
}

#[test]
fn an_outsider_that_asks_every_100_ms_gets_in() {
    let scene = Scene::new();
    let mut peers = [scene.peer(), scene.peer()];
    let _open = connect(&scene.database());
    for peer in &mut peers {
        // Back to back, each longer than a turn: without windows there is next to no free moment.
        assert_eq!(peer.ask("loop 3"), "looping");
    }
    for peer in &mut peers {
        wait_until("it writes", || peer.ask("turns") != "0");
    }
    // What a plain SQLite has that opened the database: enough to be given windows.
    let _present = Outsider::start(&scene.database(), |lock| {
        lock(libc::F_RDLCK, 128);
    });
    wait_until("windows are given", || peers.iter_mut().all(|peer| peer.ask("windows") != "0"));
    // What it does when it wants to write and has waited a while.
    let outsider = Outsider::start(&scene.database(), |lock| {
        // With the share of free time that is promised, one in a million asks more often.
        for _ in 0..100 {
            if lock(libc::F_WRLCK, 120) {
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) };
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // SAFETY: as above.
        unsafe { libc::_exit(1) };
    });
    let code = outsider.wait();
    for peer in &mut peers {
        assert_eq!(peer.ask("stop"), "stopped");
    }
    assert_eq!(code, 0, "it never found the lock free");
}

#[test]
fn many_threads_of_many_processes_lose_no_row() {
    let scene = Scene::new();
    let mut peers: Vec<Peer> = (0..4).map(|_| scene.peer()).collect();
    for peer in &mut peers {
        peer.tell("threads 32 10");
    }
    for peer in &mut peers {
        assert_eq!(peer.hear(), "done");
    }
    assert_eq!(scene.rows(), 4 * 32 * 10);
}

#[test]
fn whatever_happens_to_the_lane_file_no_write_fails() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 8] = [
        ("deleted", |lane| fs::remove_file(lane).unwrap()),
        ("deleted and made anew by somebody", |lane| {
            fs::remove_file(lane).unwrap();
            fs::write(lane, "").unwrap();
        }),
        ("truncated", |lane| drop(fs::File::create(lane).unwrap())),
        ("full of garbage", |lane| {
            let file = fs::OpenOptions::new().write(true).open(lane).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5; 1 << 17], 0).unwrap();
        }),
        ("of another version", |lane| {
            let file = fs::OpenOptions::new().write(true).open(lane).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[9], 16).unwrap();
        }),
        ("without permissions", |lane| fs::set_permissions(lane, fs::Permissions::from_mode(0o0)).unwrap()),
        ("renamed", |lane| fs::rename(lane, beside(lane, ".old")).unwrap()),
        ("a folder", |lane| {
            fs::remove_file(lane).unwrap();
            fs::create_dir(lane).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let scene = Scene::new();
        let (mut one, mut two) = (scene.peer(), scene.peer());
        one.tell("threads 2 300");
        two.tell("threads 2 300");
        wait_until("the lane file is there", || scene.lane_file().exists());
        // From a process of its own: closing it here would drop the locks of this process, not theirs.
        damage(&scene.lane_file());
        let mut three = scene.peer();
        three.tell("threads 2 300");
        for peer in [&mut one, &mut two, &mut three] {
            assert_eq!(peer.hear(), "done", "{what}");
        }
        assert_eq!(scene.rows(), 1800, "{what}");
        // And none is held up afterwards.
        for peer in [&mut one, &mut two, &mut three] {
            assert_eq!(peer.ask("enter"), "in", "{what}");
            assert_eq!(peer.ask("leave"), "out", "{what}");
        }
    }
}

#[test]
fn what_lies_at_the_lane_file_s_name_is_not_followed_nor_changed() {
    let scene = Scene::new();
    let victim = scene.folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, scene.lane_file()).unwrap();
    let mut peer = scene.peer();
    assert_eq!(peer.ask("insert 3"), "done");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(peer.ask("alone"), "3");

    fs::remove_file(scene.lane_file()).unwrap();
    fs::write(scene.lane_file(), "somebody's notes, longer than a header").unwrap();
    let mut peer = scene.peer();
    assert_eq!(peer.ask("insert 3"), "done");
    assert_eq!(fs::read_to_string(scene.lane_file()).unwrap(), "somebody's notes, longer than a header");

    let later = [b"writelane lane\n\0".as_slice(), &[2; 16]].concat();
    fs::write(scene.lane_file(), &later).unwrap();
    let mut peer = scene.peer();
    assert_eq!(peer.ask("insert 3"), "done");
    assert_eq!(fs::read(scene.lane_file()).unwrap(), later);
    assert_eq!(peer.ask("alone"), "3");

    fs::remove_file(scene.lane_file()).unwrap();
    let name = std::ffi::CString::new(scene.lane_file().to_str().unwrap()).unwrap();
    // SAFETY: the name is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    assert_eq!(scene.peer().ask("insert 3"), "done");
    assert_eq!(scene.rows(), 12);
}

#[test]
fn the_lane_file_has_the_permissions_of_its_database() {
    let scene = Scene::new();
    for mode in [0o600, 0o664, 0o640] {
        fs::set_permissions(scene.database(), fs::Permissions::from_mode(mode)).unwrap();
        let _ = fs::remove_file(scene.lane_file());
        assert_eq!(scene.peer().ask("insert 1"), "done");
        assert_eq!(fs::metadata(scene.lane_file()).unwrap().mode() & 0o777, mode);
    }
}

#[test]
fn a_folder_that_may_not_be_written_costs_only_the_turns() {
    const NOBODY: u32 = 65534;
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not root: cannot become another user");
        return;
    }
    let scene = Scene::new();
    // Log and shared memory stay there, so that the other user can write the database but make no file.
    let keep = connect(&scene.database());
    keep.execute_batch("INSERT INTO t(x) VALUES (0)").unwrap();
    for name in ["app.db", "app.db-wal", "app.db-shm"] {
        fs::set_permissions(scene.folder.join(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    fs::set_permissions(&scene.folder, fs::Permissions::from_mode(0o555)).unwrap();
    let mut peer = Peer::start_as(&scene.database(), Some(NOBODY));
    assert_eq!(peer.ask("insert 5"), "done");
    assert_eq!(peer.ask("alone"), "5");
    assert!(!scene.lane_file().exists());
    assert_eq!(scene.rows(), 6);
}

#[test]
fn a_root_owned_lane_file_is_given_to_the_database_s_owner() {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not root: nothing to give away");
        return;
    }
    let scene = Scene::new();
    std::os::unix::fs::chown(scene.database(), Some(65534), Some(65534)).unwrap();
    assert_eq!(scene.peer().ask("insert 1"), "done");
    let meta = fs::metadata(scene.lane_file()).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 65534));
}

#[test]
fn a_child_of_a_fork_neither_ends_the_parent_s_turn_nor_hangs() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let mut other = scene.peer();
    let turn = front(&scene, &lane, &mut other);
    // SAFETY: the child uses the lane only, whose state the fork left behind, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(turn);
        drop(lane.try_enter("inherited"));
        let own = Lane::of(&scene.database());
        let kept_out = own.try_enter("child").is_none();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!kept_out)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, a valid pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child got into the parent's turn");
    assert_eq!(other.ask("enter 60"), "timed out");
    drop(turn);
    assert_eq!(other.ask("enter"), "in");
}

#[test]
fn the_holder_is_named_with_its_statement() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    assert_eq!(lane.holder(), Holder::Nobody);
    let mut peer = scene.peer();
    assert_eq!(peer.ask("enter"), "in");
    assert_eq!(peer.ask("sql BEGIN IMMEDIATE"), "done");
    assert_eq!(peer.ask("holding INSERT INTO t(x) VALUES (?)"), "said");
    let check = |is_stopped: bool| match lane.holder() {
        Holder::Process { pid, statement, command, held, stopped } => {
            assert_eq!((pid, stopped), (peer.pid(), is_stopped));
            assert_eq!(statement.as_deref(), Some("INSERT INTO t(x) VALUES (?)"));
            assert!(command.contains("another_process"), "{command}");
            assert!(held.unwrap() < AT_MOST);
        }
        other => panic!("{other:?}"),
    };
    check(false);
    peer.signal(libc::SIGSTOP);
    check(true);
    peer.signal(libc::SIGKILL);
    wait_until("the dead holder is forgotten", || lane.holder() == Holder::Nobody);
}

/// A process outside the lane, forked, that takes POSIX locks on the shared memory as a plain SQLite does.
struct Outsider {
    pid: i32,
    /// Never closed: that would drop other locks of this process.
    shared: std::mem::ManuallyDrop<fs::File>,
}

impl Outsider {
    /// Fork it. `act` gets a function that tries a lock of a kind on a byte.
    fn start(database: &Path, act: impl FnOnce(&dyn Fn(i32, i64) -> bool)) -> Self {
        let shared = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(beside(database, "-shm"))
            .unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&shared);
        // SAFETY: the child makes system calls only, until it exits or is killed.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            act(&|kind, byte| {
                // SAFETY: plain old data, an open descriptor, a valid pointer.
                unsafe {
                    let mut lock: libc::flock = std::mem::zeroed();
                    (lock.l_type, lock.l_start, lock.l_len) = (kind as libc::c_short, byte, 1);
                    libc::fcntl(descriptor, libc::F_SETLK, &raw mut lock) == 0
                }
            });
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Self { pid, shared: std::mem::ManuallyDrop::new(shared) }
    }

    /// Wait until it exits, and return its code.
    fn wait(&self) -> i32 {
        let mut status = -1;
        wait_until("the outsider exits", || {
            // SAFETY: a child of ours, a valid pointer.
            unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) == self.pid }
        });
        libc::WEXITSTATUS(status)
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        // SAFETY: a child of ours; where it was waited for already nothing happens but errors, as no other took its pid
        // among the children of this process.
        unsafe {
            if libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) == 0 {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
        assert!(self.shared.metadata().is_ok());
    }
}

#[test]
fn a_foreign_holder_is_named_by_the_kernel() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let db = connect(&scene.database());
    insert(&lane, &db, "INSERT").unwrap();
    let outsider = Outsider::start(&scene.database(), |lock| {
        lock(libc::F_RDLCK, 128);
        lock(libc::F_WRLCK, 120);
    });
    wait_until(
        "the foreign process is named",
        || matches!(lane.holder(), Holder::Process { pid, statement: None, held: None, .. } if pid == outsider.pid as u32),
    );
    let view = outside::look(&scene.database());
    assert_eq!(view.foreign, [outsider.pid as u32]);
    assert!(view.members.contains(&std::process::id()));
    drop(outsider);
    assert_eq!(lane.holder(), Holder::Nobody);
}

#[test]
fn who_holds_the_lock_itself_is_not_kept_waiting_for_it() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let db = connect(&scene.database());
    let mut turn = lane.enter("both", &for_ever()).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    // As a busy handler does that a truncating checkpoint asks about readers: the place between processes, then the lock.
    for _ in 0..2 {
        turn.wait_for_write_lock(&for_ever()).unwrap();
    }
    db.execute_batch("COMMIT").unwrap();
}

#[test]
fn a_turn_yields_when_somebody_waits_and_not_before_its_time() {
    let scene = Scene::new();
    let lane = Lane::of(&scene.database());
    let turn = lane.enter("long", &for_ever()).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!turn.should_yield(), "nobody waits");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lane.enter("waits", &for_ever()).map(drop));
        wait_until("the thread waits", || lane.stats().waiting == 1);
        assert!(turn.should_yield());
        drop(turn);
        waiter.join().unwrap().unwrap();
    });
}
