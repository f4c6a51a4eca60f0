//! Whose turn it is to write: first come, first served, in this process and between processes.
//!
//! The lane is an optimisation of turn-taking, never of correctness: SQLite's own locks are taken inside it, and
//! whatever is wrong with the lane file (missing, unwritable, deleted, truncated, full of garbage, another version's)
//! costs fairness and nothing else.
//!
//! In the process, threads stand in a queue. Between processes, the lane file beside the database has a record lock, the
//! *front*, which the kernel gives to those who wait for it in the order they came. Whoever gives it up, or comes anew,
//! looks first whether others wait, and then goes behind them, so that at most one process competes for SQLite's lock.
//! While nobody waits, a turn takes no lock of the lane at all; two that do so at once meet at SQLite's lock, and the one
//! that finds it busy stands in line.
//!
//! Commits that wait for the disk have turns of microseconds, and their own line before all that (`gate.rs`).
//!
//! No caller waits for the kernel's locks: an agent thread does, so that callers have deadlines and can be interrupted.

mod agent;
mod board;
mod company;
mod file;
mod gate;
#[cfg(test)]
mod other_process;
pub mod outside;
mod probe;
mod registry;
#[cfg(test)]
mod scratch;
mod slot;
mod state;
mod stats;

use crate::holder;
use crate::holder::locks::Owner;
use crate::policy::courtesy;
use crate::policy::gate::KEPT_BACK;
use crate::telemetry::Telemetry;
use crate::threads;
use crate::vfs::{Probed, SharedWords};
use crate::wait::{GaveUp, Patience};
use gate::Passage;
use probe::{Kept, Prober};
use state::{Right, State, Ticket};
use stats::Counters;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use crate::holder::Holder;
pub use slot::{Doing, Record};
pub use stats::LaneStats;

/// How often the wait for SQLite's lock may come back at once before it pauses: the lock is free, and something else busy.
const QUICK_ROUNDS: u32 = 3;
/// How many slices of a wait in a row may find SQLite's lock free before whoever has the turn counts as idle: frozen by
/// its container, or at something else. In a turn that is used the lock is held most of the time.
const IDLE_SLICES: u32 = 20;
/// What "at once" means.
const QUICK: Duration = Duration::from_micros(200);

/// The lane of one database file. One per process and file.
pub struct Lane {
    /// The database, under the name that its first user gave, links resolved.
    path: PathBuf,
    generation: u64,
    state: Mutex<State>,
    /// Wakes the agent.
    errands: Condvar,
    prober: Prober,
    stats: Counters,
}

/// A turn in the lane: while it lives, no other writer of ours competes for SQLite's write lock.
pub struct Turn {
    lane: Arc<Lane>,
    right: Right,
    since: Instant,
    /// When it ended, where that is known.
    left: Option<Instant>,
    /// It may be kept for its owner, who may come back at once.
    lingers: bool,
    quick: u32,
    /// Others of its kind wait until it is over. Dropped after it has ended.
    passage: Option<Passage>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    /// Return the lane of the database at `path` (an existing file): the same for every name of the same file.
    ///
    /// Opens nothing: the lane file is opened, and made where there is none, by the first that enters.
    pub fn of(path: &Path) -> Arc<Self> {
        registry::lane(path, || Self {
            path: std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            generation: crate::process::generation(),
            state: Mutex::new(State::new()),
            errands: Condvar::new(),
            prober: Prober::default(),
            stats: Counters::default(),
        })
    }

    /// Wait for a turn. `statement` is what others are told the caller waits for, and then holds the lane with.
    ///
    /// Takes a free lane also when the deadline has passed. Blocks while others are before the caller: in slices, with
    /// `patience` asked at least every 50 ms.
    ///
    /// # Errors
    /// Why the wait ended without a turn.
    pub fn enter(self: &Arc<Self>, statement: &str, patience: &Patience<'_>) -> Result<Turn, GaveUp> {
        self.enter_through(statement, patience, None, None)
    }

    /// As [`Lane::enter`], with a passage that keeps others back who come for a turn of that kind, and since when that was
    /// waited for.
    fn enter_through(
        self: &Arc<Self>,
        statement: &str,
        patience: &Patience<'_>,
        mut passage: Option<Passage>,
        came: Option<Instant>,
    ) -> Result<Turn, GaveUp> {
        if let Some(turn) = self.try_enter(statement) {
            if let Some(came) = came {
                self.stats.waited(came.elapsed());
            }
            return Ok(turn.with(passage));
        }
        if passage.is_none() {
            patience.next_slice()?;
        }
        let ticket = Ticket::new(statement);
        {
            let mut state = lock(&self.state);
            state.push(&ticket);
            if state.serve_next(&self.path, ticket.since) {
                self.call_agent(state);
            }
        }
        if passage.is_some() && !ticket.is_served() {
            // Its owner is asked nothing while others are kept back.
            std::thread::park_timeout(KEPT_BACK);
            passage = passage.filter(|_| ticket.is_served());
        }
        let right = self.await_service(&ticket, patience);
        self.stats.waited(came.unwrap_or(ticket.since).elapsed());
        if right.is_err() && ticket.is_served() {
            let now = Instant::now();
            self.end_turn(now, true);
        }
        Ok(self.turn(right?, Instant::now()).with(passage))
    }

    /// As [`Lane::enter`], for a turn that ends before a wait for the disk: behind others of that kind, who leave word for each
    /// other in `words`.
    ///
    /// # Errors
    /// Why the wait ended without a turn.
    pub fn enter_for_disk(
        self: &Arc<Self>,
        statement: &str,
        patience: &Patience<'_>,
        words: &Arc<SharedWords>,
    ) -> Result<Turn, GaveUp> {
        if self.is_inherited() {
            return self.enter(statement, patience);
        }
        if let Some(passage) = Passage::try_enter(words) {
            return self.enter_through(statement, patience, Some(passage), None);
        }
        let came = Instant::now();
        match self.wait_at_gate(statement, patience, words) {
            Ok(passage) => self.enter_through(statement, patience, Some(passage), Some(came)),
            // It may be kept by one that was killed: who has no time to find that out may find the lane free.
            Err(GaveUp::TimedOut) => self.try_enter(statement).ok_or(GaveUp::TimedOut),
            Err(gave_up) => Err(gave_up),
        }
    }

    fn wait_at_gate(
        &self,
        statement: &str,
        patience: &Patience<'_>,
        words: &Arc<SharedWords>,
    ) -> Result<Passage, GaveUp> {
        let ticket = Ticket::new(statement);
        let pressed = lock(&self.state).wait_at_gate(&ticket);
        let passage = Passage::enter(words, pressed, patience);
        lock(&self.state).left_gate(&ticket);
        if passage.is_err() {
            self.stats.waited(ticket.since.elapsed());
        }
        passage
    }

    /// Return the lane of the database at `path`, if somebody of this process uses it.
    pub fn known(path: &Path) -> Option<Arc<Self>> {
        registry::known(path)
    }

    /// Take a turn if nobody waits for one or has one.
    pub fn try_enter(self: &Arc<Self>, statement: &str) -> Option<Turn> {
        self.try_enter_at(statement, Instant::now())
    }

    /// As [`Lane::try_enter`], for a caller that has just read the clock.
    pub fn try_enter_at(self: &Arc<Self>, statement: &str, now: Instant) -> Option<Turn> {
        if self.is_inherited() {
            return Some(self.turn(Right::Alone, now));
        }
        let mut state = lock(&self.state);
        let right = state.try_take(&self.path, statement, now);
        let unwatched = state.watch.begin();
        drop(state);
        if unwatched {
            self.keep_watch();
        }
        right.map(|right| self.turn(right, now))
    }

    /// Say who holds the database's write lock right now. Some 50 us.
    pub fn holder(&self) -> Holder {
        let records = || registry::records(&self.path).unwrap_or_default();
        match self.prober.owner(&self.shared_memory()) {
            Some(Probed::Free) => Holder::Nobody,
            Some(Probed::Held(Some(Owner::Description))) => {
                holder::of_lock(Owner::Description, &self.front_record().map_or_else(records, |front| vec![front]))
            }
            Some(Probed::Held(Some(owner))) => holder::of_lock(owner, &records()),
            Some(Probed::Held(None)) => Holder::Unknown,
            Some(Probed::Replaced) | None => holder::of_write_lock(&self.path, &records()),
        }
    }

    /// Return the record of the other process that has the front, if that says that it holds the write lock.
    fn front_record(&self) -> Option<Record> {
        let file = lock(&self.state).file()?;
        let front = file.blocker(file::FRONT, 1)?.pid?;
        file.record_of(front).filter(|record| record.doing == Doing::Holding)
    }

    /// Return what has been counted since the lane was made.
    pub fn stats(&self) -> LaneStats {
        let (waiting, windows) = if self.is_inherited() {
            (0, 0)
        } else {
            let state = lock(&self.state);
            (state.waiting(), state.given)
        };
        self.stats.snapshot(waiting, windows)
    }

    fn turn(self: &Arc<Self>, right: Right, since: Instant) -> Turn {
        self.stats.turn(right);
        Turn { lane: Arc::clone(self), right, since, left: None, lingers: true, quick: 0, passage: None }
    }

    /// Wait until a ticket is served, or may go past a stopped process.
    fn await_service(self: &Arc<Self>, ticket: &Arc<Ticket>, patience: &Patience<'_>) -> Result<Right, GaveUp> {
        let mut idle = 0;
        loop {
            let slice = patience.next_slice();
            let Ok(slice) = slice else {
                let over = slice.map(drop);
                let mut state = lock(&self.state);
                // Served at the last moment: a deadline may still be kept, an interruption is an interruption.
                return match ticket.served() {
                    Some(right) if over != Err(GaveUp::Interrupted) => Ok(right),
                    Some(right) => over.map(|()| right),
                    None => {
                        state.withdraw(ticket);
                        over.map(|()| Right::Alone)
                    }
                };
            };
            if !ticket.is_served() {
                std::thread::park_timeout(slice);
            }
            if let Some(right) = ticket.served() {
                return Ok(right);
            }
            let mut state = lock(&self.state);
            if let Some(right) = ticket.served() {
                return Ok(right);
            }
            if state.bypass(ticket, idle >= IDLE_SLICES) {
                return Ok(Right::Bypass);
            }
            let next = state.is_next(ticket);
            drop(state);
            idle = if next && self.is_write_lock_free() { idle + 1 } else { 0 };
        }
    }

    fn is_write_lock_free(&self) -> bool {
        self.prober.is_free(&self.shared_memory()).unwrap_or_else(|| self.holder() == Holder::Nobody)
    }

    fn call_agent(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.agent {
            // Or the agent would wake up to wait for the state.
            drop(state);
            self.errands.notify_one();
            return;
        }
        let lane = Arc::clone(self);
        state.agent = threads::start("wl-lane", move || agent::run(&lane)).is_ok();
        if !state.agent {
            // No thread to be had: then without taking turns between processes.
            state.go_alone(&self.path);
        }
    }

    fn keep_watch(self: &Arc<Self>) {
        let lane = Arc::downgrade(self);
        if threads::start("wl-look", move || company::keep(&lane)).is_err() {
            lock(&self.state).watch.end();
        }
    }

    fn end_turn(self: &Arc<Self>, now: Instant, lingers: bool) {
        let mut state = lock(&self.state);
        if state.release(&self.path, now, lingers) {
            self.call_agent(state);
        }
    }

    fn is_inherited(&self) -> bool {
        self.generation != crate::process::generation()
    }

    /// Return the name of the database's shared memory, which SQLite puts beside the real file.
    fn shared_memory(&self) -> PathBuf {
        holder::beside(&self.path, "-shm")
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The file itself stays open until the registry closes it; its locks are given up here.
        if !self.is_inherited() {
            self.state.get_mut().unwrap_or_else(PoisonError::into_inner).drop_file(Instant::now());
            // What it counted lives on.
            let counted = LaneStats { waiting: 0, ..self.stats() };
            Telemetry::of(&self.path).keep_lane(&counted);
        }
    }
}

impl Turn {
    fn with(mut self, passage: Option<Passage>) -> Self {
        self.passage = passage;
        self
    }

    /// After SQLite said BUSY: wait until its write lock may be free, in the kernel and not by polling.
    ///
    /// Comes back also when only the place between processes was waited for, and after 50 ms in any case: try again,
    /// and call again if it is still busy. A database with a rollback journal is asked about every millisecond.
    ///
    /// # Errors
    /// Why the wait ended. The turn goes on.
    pub fn wait_for_write_lock(&mut self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        // Others are to stand in line with whoever is met there.
        self.passage = None;
        patience.next_slice()?;
        if self.lane.is_inherited() {
            return probe::pause(0, patience).map(drop);
        }
        let begun = Instant::now();
        let result = self.wait_outside(begun, patience);
        self.lane.stats.waited(begun.elapsed());
        {
            let mut state = lock(&self.lane.state);
            self.right = state.given_right();
            state.was_blocked_until(Instant::now());
            state.publish_doing(Doing::Turn);
        }
        // Only now is the lock let go, for the caller to take it.
        result.map(drop)
    }

    fn wait_outside(&mut self, begun: Instant, patience: &Patience<'_>) -> Result<Option<Kept>, GaveUp> {
        let dice = {
            let mut state = lock(&self.lane.state);
            let ticket = Ticket::new("");
            let joins = match self.right {
                Right::Fast => state.join(&ticket, begun).is_none(),
                Right::Front => {
                    state.met_outsider(begun);
                    false
                }
                Right::Bypass | Right::Alone => false,
            };
            state.publish_doing(Doing::Blocked);
            if joins {
                self.lane.call_agent(state);
                return self.lane.await_service(&ticket, patience).map(|_| None);
            }
            state.dice()
        };
        let kept = Prober::wait(&self.lane, dice, patience)?;
        self.quick = if begun.elapsed() < QUICK { self.quick + 1 } else { 0 };
        if self.quick < QUICK_ROUNDS {
            return Ok(Some(kept));
        }
        drop(kept);
        probe::pause(dice, patience).map(Some)
    }

    /// Publish that the write lock is held, and with which statement.
    pub fn holding(&mut self, statement: &str) {
        if !self.lane.is_inherited() {
            self.quick = 0;
            lock(&self.lane.state).publish_holding(statement);
        }
    }

    /// Say whether somebody waits and the time of this turn is used up, so that its owner should end it.
    ///
    /// Cheap enough to be asked after every commit.
    pub fn should_yield(&self) -> bool {
        let now = Instant::now();
        !State::is_young(self.since, now) && !self.lane.is_inherited() && lock(&self.lane.state).should_yield()
    }

    /// End the turn. Dropping it does the same.
    pub fn leave(self) {}

    /// As [`Turn::leave`], for a caller that has just read the clock.
    pub fn leave_at(mut self, now: Instant) {
        self.left = Some(now);
    }

    /// End the turn before a wait for the disk: it is not kept, however soon its owner will be back.
    pub fn leave_for_disk(mut self, now: Instant) {
        (self.left, self.lingers) = (Some(now), false);
    }

    /// Have no other process on the fast path for as long as the turn lasts, if that needs no wait: for what is to be
    /// done while nobody writes, and not only while somebody has SQLite's lock.
    pub fn hold_others_up(&mut self) {
        if self.right != Right::Fast || self.lane.is_inherited() {
            return;
        }
        let mut state = lock(&self.lane.state);
        let seen_late = state.hold_others_up(Instant::now());
        self.right = state.given_right();
        drop(state);
        if seen_late {
            std::thread::sleep(courtesy::LOOK_EVERY);
        }
    }

    /// Say whether commits of processes outside the lane were seen since the last turn, so that they get their share.
    pub fn foreign_commits_seen(&mut self, seen: bool) {
        if seen && !self.lane.is_inherited() {
            lock(&self.lane.state).met_outsider(Instant::now());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In a forked child the turn is the parent's, and the mutex may be locked for ever.
        if !self.lane.is_inherited() {
            self.lane.end_turn(self.left.unwrap_or_else(Instant::now), self.lingers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::other_process::OtherProcess;
    use super::scratch::Scratch;
    use super::*;
    use crate::holder::locks;
    use crate::sqlite::{Handle, OpenFlags};
    use crate::threads::wait_until;

    struct Scene {
        lane: Arc<Lane>,
        _scratch: Scratch,
    }

    impl Scene {
        fn new() -> Self {
            let scratch = Scratch::new();
            let database = scratch.database();
            let db = Handle::open(&database, OpenFlags::WRITER).unwrap();
            db.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
            let lane = Lane::of(&database);
            drop(lane.try_enter("INSERT").unwrap());
            Self { lane, _scratch: scratch }
        }
    }

    const FOR_EVER: Patience<'static> = Patience { until: None, interrupted: &|| false };

    impl Scene {
        /// Return another connection, and the words of its log.
        fn connection(&self) -> (Arc<Handle>, Arc<SharedWords>) {
            let db = Handle::open(&self.lane.path, OpenFlags::WRITER).unwrap();
            db.execute_batch("SELECT * FROM t").unwrap();
            let words = Arc::new(db.shared_words().unwrap());
            (db, words)
        }
    }

    #[test]
    fn commits_that_wait_for_the_disk_come_to_the_lane_one_after_the_other() {
        let scene = Scene::new();
        let (_db, words) = scene.connection();
        let turn = scene.lane.enter_for_disk("INSERT", &FOR_EVER, &words).unwrap();
        std::thread::scope(|scope| {
            let (lane, words) = (&scene.lane, &words);
            let waits = scope.spawn(move || lane.enter_for_disk("UPDATE", &FOR_EVER, words).map(drop));
            wait_until("it is told of as waiting", || lane.stats().waiting == 1);
            assert!(lane.try_enter("DELETE").is_none());
            turn.leave_for_disk(Instant::now());
            waits.join().unwrap().unwrap();
        });
        let stats = scene.lane.stats();
        assert_eq!((stats.waiting, stats.waits), (0, 1), "it waited once, wherever");
        assert!(Passage::try_enter(&words).is_some(), "nobody is let through for ever");
    }

    #[test]
    fn who_waits_in_the_lane_keeps_others_back_for_a_moment_only() {
        let scene = Scene::new();
        let (_db, words) = scene.connection();
        let front = OtherProcess::locking(&file::path_of(&scene.lane.path), &[(file::FRONT, file::FRONT)]);
        std::thread::scope(|scope| {
            let (lane, words) = (&scene.lane, &words);
            let waits = scope.spawn(move || lane.enter_for_disk("INSERT", &FOR_EVER, words).map(drop));
            wait_until("it waits in the lane", || lane.stats().waiting == 1);
            wait_until("the next may come", || Passage::try_enter(words).is_some());
            assert!(!waits.is_finished());
            drop(front);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn who_has_no_time_finds_the_lane_free_though_one_was_killed_on_its_way_to_it() {
        let scene = Scene::new();
        let (_db, words) = scene.connection();
        std::mem::forget(Passage::try_enter(&words).unwrap());
        let over = || Patience { until: Some(Instant::now()), interrupted: &|| false };
        assert!(scene.lane.enter_for_disk("INSERT", &over(), &words).is_ok());
        let _turn = scene.lane.enter("INSERT", &FOR_EVER).unwrap();
        assert_eq!(scene.lane.enter_for_disk("INSERT", &over(), &words).err(), Some(GaveUp::TimedOut));
    }

    #[test]
    fn who_waits_for_sqlite_s_lock_keeps_nobody_back() {
        let scene = Scene::new();
        let (db, words) = scene.connection();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut turn = scene.lane.enter_for_disk("INSERT", &FOR_EVER, &words).unwrap();
        assert!(Passage::try_enter(&words).is_none());
        let soon = Patience { until: Some(Instant::now() + Duration::from_millis(5)), interrupted: &|| false };
        // It comes back in any case, and must be asked again.
        let _ = turn.wait_for_write_lock(&soon);
        assert!(Passage::try_enter(&words).is_some());
    }

    #[test]
    fn who_holds_the_lock_is_told_without_the_kernel_s_list() {
        let scene = Scene::new();
        let db = Handle::open(&scene.lane.path, OpenFlags::WRITER).unwrap();
        db.execute_batch("SELECT * FROM t").unwrap();
        let read = locks::readings();
        assert_eq!(scene.lane.holder(), Holder::Nobody);
        let mut turn = scene.lane.try_enter("INSERT").unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        turn.holding("INSERT");
        match scene.lane.holder() {
            Holder::Process { pid, statement, .. } => {
                assert_eq!((pid, statement.as_deref()), (std::process::id(), Some("INSERT")));
            }
            other => panic!("{other}"),
        }
        assert_eq!(locks::readings(), read);
        drop(turn);
        db.execute_batch("ROLLBACK; PRAGMA journal_mode=DELETE; BEGIN IMMEDIATE").unwrap();
        scene.lane.holder();
        assert!(locks::readings() > read, "with a rollback journal there is no other way");
    }
}
