//! Who of this process is next, and whether the process has the turn between processes: one mutex, no waiting in it.

use super::board::Board;
use super::company::Watch;
use super::file::{self, FRONT, LaneFile};
use super::registry;
use super::slot::{Doing, Page};
use crate::holder::process;
use crate::policy::courtesy::{self, Company, Stage};
use crate::policy::gate::AWAY;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How often the lane file is compared with the one the path leads to, and a missing one is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A thread that waits: for its turn, or with its turn for the place between processes.
pub struct Ticket {
    pub statement: String,
    pub since: Instant,
    since_ns: u64,
    /// The right to go on with, once it is there; set under the state's mutex, before the thread is woken.
    right: AtomicU8,
    thread: Thread,
}

impl Ticket {
    pub fn new(statement: &str) -> Arc<Self> {
        Arc::new(Self {
            statement: statement.into(),
            since: Instant::now(),
            since_ns: process::monotonic_ns(),
            right: AtomicU8::new(0),
            thread: std::thread::current(),
        })
    }

    /// Return the right to go on with, if it is there. Needs no mutex, which who woke this thread may still have.
    pub fn served(&self) -> Option<Right> {
        match self.right.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Right::Fast),
            2 => Some(Right::Front),
            3 => Some(Right::Bypass),
            _ => Some(Right::Alone),
        }
    }

    pub fn is_served(&self) -> bool {
        self.served().is_some()
    }

    fn serve(&self, right: Right) {
        let right = match right {
            Right::Fast => 1,
            Right::Front => 2,
            Right::Bypass => 3,
            Right::Alone => 4,
        };
        self.right.store(right, Ordering::Release);
        self.thread.unpark();
    }
}

/// With what right a turn goes to SQLite's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Nobody waits anywhere: no lock of the lane is taken.
    Fast,
    /// This process has the lock on the front.
    Front,
    /// The one who has the front is stopped and cannot give it up, or does nothing with it.
    Bypass,
    /// There is no lane file.
    Alone,
}

/// The front lock, held by this process.
struct Front {
    since: Instant,
    /// Since when no outsider has kept it waiting.
    holding_since: Instant,
    /// When the agent gives it up, if nobody used it until then.
    until: Option<Instant>,
    /// Whether it is kept so that outsiders find SQLite's lock free: then nobody of this process may use it either.
    courtesy: bool,
}

impl Front {
    fn new(now: Instant) -> Self {
        Self { since: now, holding_since: now, until: None, courtesy: false }
    }
}

/// What the agent is to do next.
pub enum Errand {
    /// Wait in the kernel for the front of this file. A process that is `pressed` does not want to write
    /// without end.
    Queue { file: Arc<LaneFile>, pressed: bool },
    /// Sleep until then, or until called.
    Sleep(Option<Instant>),
}

/// The lane as this process sees it.
pub struct State {
    file: Option<Arc<LaneFile>>,
    slot: Option<usize>,
    page: Option<Page>,
    board: Option<Board>,
    looked: Option<Instant>,
    /// The turn that a thread of this process has.
    turn: Option<Right>,
    waiters: VecDeque<Arc<Ticket>>,
    /// Those who wait for others that commit to the disk, and then for a turn.
    at_gate: Vec<Arc<Ticket>>,
    /// A turn that SQLite sent back and that now takes its place between processes.
    joining: Option<Arc<Ticket>>,
    front: Option<Front>,
    /// Whether the agent waits in the kernel for the front. Nobody else touches it then.
    queueing: bool,
    /// Whether the agent's thread lives.
    pub agent: bool,
    /// When the agent wakes by itself.
    alarm: Option<Instant>,
    /// The stopped process that last blocked the lane.
    stopped: Option<u32>,
    /// When nobody was seen at the lane file, unless somebody was met since.
    nobody_at: Option<Instant>,
    /// When nobody was seen to be pressed.
    unpressed_at: Option<Instant>,
    /// The last time at the front was ended by the others' waiting, not by its owner's staying away.
    endless: bool,
    left: Option<Instant>,
    returns: courtesy::Returns,
    pub watch: Watch,
    /// One moment by both clocks, which go alike: ours, and the one that other processes read.
    origin: (Instant, u64),
    dice: u64,
    pub given: u64,
}

impl State {
    pub fn new() -> Self {
        Self {
            file: None,
            slot: None,
            page: None,
            board: None,
            looked: None,
            turn: None,
            waiters: VecDeque::new(),
            at_gate: Vec::new(),
            joining: None,
            front: None,
            queueing: false,
            agent: false,
            alarm: None,
            stopped: None,
            nobody_at: None,
            unpressed_at: None,
            endless: false,
            left: None,
            returns: courtesy::Returns::default(),
            watch: Watch::default(),
            origin: (Instant::now(), process::monotonic_ns()),
            dice: process::monotonic_ns() | 1,
            given: 0,
        }
    }

    /// Return the lane file, if there is one.
    pub fn file(&self) -> Option<Arc<LaneFile>> {
        self.file.clone()
    }

    /// Take a turn at once, if nobody is before the caller.
    pub fn try_take(&mut self, database: &Path, statement: &str, now: Instant) -> Option<Right> {
        if self.turn.is_some() || !self.waiters.is_empty() {
            return None;
        }
        self.look_again(database, now);
        if let Some(left) = self.left {
            let kept = self.front.as_ref().is_some_and(|front| !front.courtesy);
            self.returns.came(now.saturating_duration_since(left), kept);
        }
        self.turn = Some(self.right(now)?);
        self.publish_turn(Doing::Turn, now, statement);
        self.turn
    }

    /// Say with what right a turn could begin now, taking the front where that needs no wait.
    fn right(&mut self, now: Instant) -> Option<Right> {
        let Some(file) = self.file.clone() else { return Some(Right::Alone) };
        if let Some(since) = self.front.as_ref().map(|front| front.since) {
            if self.is_used_up(&file, since, now) {
                self.end_tenure(&file, now);
                return None;
            }
            let front = self.front.as_mut().filter(|front| !front.courtesy)?;
            if State::stage(since, now) == Stage::Over {
                (front.since, front.holding_since) = (now, now);
            }
            front.until = None;
            return Some(Right::Front);
        }
        if self.queueing {
            return self.is_blocked_by_stopped(&file).then_some(Right::Bypass);
        }
        if self.company(now) == Company::Nobody && self.is_deserted(&file, now) {
            return Some(Right::Fast);
        }
        self.try_front(&file, now).then_some(Right::Front)
    }

    /// Say whether nobody of another process is at the lane file, by a look that is not older than part of a quantum.
    fn is_deserted(&mut self, file: &LaneFile, now: Instant) -> bool {
        let fresh = |at: Instant| now.saturating_duration_since(at) < courtesy::LOOK_EVERY;
        if self.nobody_at.is_some_and(fresh) {
            return true;
        }
        self.nobody_at = (!file.is_contended()).then_some(now);
        self.nobody_at.is_some()
    }

    /// Say whether this process, which has had the front since then, must let others have it.
    fn is_used_up(&mut self, file: &LaneFile, since: Instant, now: Instant) -> bool {
        let used_up = match State::stage(since, now) {
            Stage::Young => false,
            _ if self.company(now) > Company::Nobody => true,
            Stage::Extended => self.is_pressed(file, now),
            Stage::Over => file.has_waiters(),
        };
        self.endless |= used_up;
        used_up
    }

    /// Say whether somebody waits who is pressed, by a look that is not older than part of a quantum.
    fn is_pressed(&mut self, file: &LaneFile, now: Instant) -> bool {
        let fresh = |at: Instant| now.saturating_duration_since(at) < courtesy::LOOK_EVERY;
        if self.unpressed_at.is_some_and(fresh) {
            return false;
        }
        self.unpressed_at = (!file.is_pressed()).then_some(now);
        self.unpressed_at.is_none()
    }

    /// Give the front up, at once or after a window for outsiders.
    fn end_tenure(&mut self, file: &LaneFile, now: Instant) {
        let Some(front) = self.front.as_ref().filter(|front| !front.courtesy) else { return };
        let window = self.window(now.saturating_duration_since(front.holding_since), now);
        match &mut self.front {
            Some(front) if !window.is_zero() => {
                (front.until, front.courtesy) = (Some(now + window), true);
                self.given += 1;
            }
            _ => self.give_front(file),
        }
    }

    /// Take the front if that needs no wait.
    fn try_front(&mut self, file: &LaneFile, now: Instant) -> bool {
        let got = file.try_front().unwrap_or(false);
        if got {
            self.front = Some(Front::new(now));
        }
        got
    }

    /// Stand in the queue of this process.
    pub fn push(&mut self, ticket: &Arc<Ticket>) {
        self.waiters.push_back(Arc::clone(ticket));
        self.publish_wait();
    }

    /// Note that this thread waits until it may come for a turn. Returns whether it is pressed.
    pub fn wait_at_gate(&mut self, ticket: &Arc<Ticket>) -> bool {
        self.at_gate.push(Arc::clone(ticket));
        self.publish_wait();
        self.left.is_none_or(|left| ticket.since.saturating_duration_since(left) >= AWAY)
    }

    /// Note that it does not any more.
    pub fn left_gate(&mut self, ticket: &Arc<Ticket>) {
        self.at_gate.retain(|other| !Arc::ptr_eq(other, ticket));
        self.publish_wait();
    }

    /// Leave the queue of this process.
    pub fn withdraw(&mut self, ticket: &Arc<Ticket>) {
        self.waiters.retain(|other| !Arc::ptr_eq(other, ticket));
        if self.joining.as_ref().is_some_and(|other| Arc::ptr_eq(other, ticket)) {
            self.joining = None;
        }
        self.publish_wait();
    }

    /// Give a turn without a place between processes one, or let the agent wait for it and then serve the ticket.
    pub fn join(&mut self, ticket: &Arc<Ticket>, now: Instant) -> Option<Right> {
        // Who sent this turn back may be on the fast path too: the next turn looks again.
        self.nobody_at = None;
        let Some(file) = self.file.clone() else { return Some(Right::Alone) };
        if self.front.is_some() || (!self.queueing && self.try_front(&file, now)) {
            self.turn = Some(Right::Front);
            return self.turn;
        }
        self.joining = Some(Arc::clone(ticket));
        None
    }

    /// Take the front for a turn that has none, if that needs no wait. True: there are others, who may have looked a
    /// moment before, and go on without looking again for as long as [`courtesy::LOOK_EVERY`].
    pub fn hold_others_up(&mut self, now: Instant) -> bool {
        let Some(file) = self.file.clone().filter(|_| self.front.is_none() && !self.queueing) else {
            return false;
        };
        let got = file.has_others() && self.try_front(&file, now);
        if got {
            self.turn = Some(Right::Front);
        }
        got
    }

    /// Say whether this ticket is next in this process, and waits for others.
    pub fn is_next(&self, ticket: &Arc<Ticket>) -> bool {
        let is_next = match &self.joining {
            Some(joining) => Arc::ptr_eq(joining, ticket),
            None => self.turn.is_none() && self.waiters.front().is_some_and(|first| Arc::ptr_eq(first, ticket)),
        };
        self.queueing && is_next
    }

    /// Let a ticket past a process that has the front and is stopped, or is `idle` in its turn. True: it has
    /// its turn.
    pub fn bypass(&mut self, ticket: &Arc<Ticket>, idle: bool) -> bool {
        if !self.is_next(ticket) {
            return false;
        }
        let Some(file) = self.file.clone() else { return false };
        self.stopped = stopped_ahead(&file);
        if self.stopped.is_none() && !idle {
            return false;
        }
        self.withdraw(ticket);
        if self.turn.replace(Right::Bypass).is_none() {
            self.publish_turn(Doing::Turn, Instant::now(), &ticket.statement);
        }
        true
    }

    fn is_blocked_by_stopped(&self, file: &LaneFile) -> bool {
        self.stopped.is_some() && stopped_ahead(file) == self.stopped
    }

    /// End the turn and let the next have it. True: the agent has something to do.
    pub fn release(&mut self, database: &Path, now: Instant, lingers: bool) -> bool {
        self.turn = None;
        self.left = Some(now);
        self.publish_doing(Doing::Nothing);
        if let (Some(since), Some(file)) = (self.front.as_ref().map(|front| front.since), self.file.clone()) {
            if self.is_used_up(&file, since, now) {
                self.end_tenure(&file, now);
            } else if self.waiters.is_empty() {
                match (self.returns.linger().filter(|_| lingers), &mut self.front) {
                    (Some(linger), Some(front)) if State::stage(since, now) < Stage::Over => {
                        let until = now + linger;
                        front.until = Some(until);
                        return self.alarm.is_none_or(|alarm| alarm > until + courtesy::LATE_LOOK);
                    }
                    _ => self.stay_away(&file, now),
                }
            }
            if self.front.as_ref().is_some_and(|front| front.courtesy) {
                return true;
            }
        }
        self.serve_next(database, now)
    }

    /// Give the turn to the first in the queue of this process, if it can begin. True: the agent has something to do.
    pub fn serve_next(&mut self, database: &Path, now: Instant) -> bool {
        if self.turn.is_some() || self.waiters.is_empty() {
            return false;
        }
        self.look_again(database, now);
        match self.right(now) {
            Some(right) => self.serve_first(right),
            None => return true,
        }
        false
    }

    fn serve_first(&mut self, right: Right) {
        if let Some(ticket) = self.waiters.pop_front() {
            self.turn = Some(right);
            self.set_wait();
            self.publish_turn(Doing::Turn, Instant::now(), &ticket.statement);
            ticket.serve(right);
        }
    }

    /// Give the front up though nobody has made this process do it.
    fn stay_away(&mut self, file: &LaneFile, now: Instant) {
        self.endless = false;
        if file.has_waiters() { self.end_tenure(file, now) } else { self.give_front(file) }
    }

    fn give_front(&mut self, file: &LaneFile) {
        file.unlock(FRONT);
        self.front = None;
    }

    /// Say what the agent is to do, doing on the way what needs no wait.
    pub fn errand(&mut self, database: &Path) -> Errand {
        let errand = self.next_errand(database, Instant::now());
        self.alarm = match &errand {
            Errand::Sleep(until) => *until,
            Errand::Queue { .. } => None,
        };
        errand
    }

    fn next_errand(&mut self, database: &Path, now: Instant) -> Errand {
        let Some(file) = self.file.clone() else {
            self.serve_joining();
            self.serve_next(database, now);
            return Errand::Sleep(None);
        };
        let rang = self.alarm.is_some_and(|alarm| alarm <= now);
        if self.front.is_some() && self.turn.is_some() && rang {
            // Somebody came back in time, and may do so for a while.
            return Errand::Sleep(Some(now + courtesy::LATE_LOOK));
        }
        if self.front.is_some() && self.turn.is_none() {
            if let Some(front) = self.front.as_ref()
                && let Some(until) = front.until.filter(|until| *until > now)
            {
                let late = rang && !front.courtesy;
                return Errand::Sleep(Some(if late { until.max(now + courtesy::LATE_LOOK) } else { until }));
            }
            self.time_is_up(&file, database, now);
            if let Some(until) = self.front.as_ref().and_then(|front| front.until) {
                return Errand::Sleep(Some(until));
            }
        }
        let wanted = self.joining.is_some() || (self.turn.is_none() && !self.waiters.is_empty());
        if self.front.is_none() && wanted {
            self.queueing = true;
            return Errand::Queue { file, pressed: !self.endless };
        }
        Errand::Sleep(None)
    }

    /// End what the front was kept for: a window for outsiders, or a thread that did not come back.
    fn time_is_up(&mut self, file: &LaneFile, database: &Path, now: Instant) {
        match &mut self.front {
            Some(front) if front.courtesy => {
                *front = Front::new(now);
                if file.has_waiters() || self.waiters.is_empty() {
                    self.give_front(file);
                } else {
                    self.serve_next(database, now);
                }
            }
            Some(_) if !self.waiters.is_empty() => {
                self.serve_next(database, now);
            }
            _ => {
                self.returns.lapsed();
                self.stay_away(file, now);
            }
        }
    }

    /// Take note that the agent came back from the kernel, with the front of `file` or without.
    pub fn queued(&mut self, file: &Arc<LaneFile>, database: &Path, got: bool) {
        let now = Instant::now();
        self.queueing = false;
        self.stopped = None;
        let current = self.file.as_ref().is_some_and(|own| Arc::ptr_eq(own, file));
        if got && current && file.is_intact() {
            self.front = Some(Front::new(now));
            if self.joining.is_some() || self.turn.is_some() {
                // The turn that joined, or one that went past a stopped process: it has its place from now on.
                self.turn = self.turn.and(Some(Right::Front));
                self.serve_joining();
            } else if self.waiters.is_empty() {
                self.give_front(file);
            } else {
                self.serve_first(Right::Front);
            }
            return;
        }
        if got {
            file.unlock(FRONT);
        }
        if current {
            self.drop_file(now);
            if got {
                self.looked = None;
            }
            self.look_again(database, now);
        }
        self.serve_joining();
    }

    fn serve_joining(&mut self) {
        if let Some(ticket) = self.joining.take() {
            ticket.serve(self.given_right());
        }
    }

    /// Say whether a turn that began at `since` has time left, whoever waits.
    pub fn is_young(since: Instant, now: Instant) -> bool {
        State::stage(since, now) == Stage::Young
    }

    fn stage(since: Instant, now: Instant) -> Stage {
        courtesy::stage(now.saturating_duration_since(since))
    }

    /// Say whether somebody waits for a turn that is no longer young.
    pub fn should_yield(&self) -> bool {
        let now = Instant::now();
        if !self.waiters.is_empty() || self.company(now) > Company::Nobody {
            return true;
        }
        match &self.file {
            None => false,
            Some(file) if self.front.is_some() => file.has_waiters(),
            Some(file) => file.is_contended(),
        }
    }

    /// Take note that an outsider had SQLite's lock until now: what it had is not ours to give windows for.
    pub fn was_blocked_until(&mut self, now: Instant) {
        if let Some(front) = self.front.as_mut().filter(|front| !front.courtesy) {
            front.holding_since = now;
        }
    }

    /// Take note that SQLite was busy although the lane was ours: somebody outside it writes.
    pub fn met_outsider(&mut self, now: Instant) {
        self.watch.met(now);
    }

    fn company(&self, now: Instant) -> Company {
        self.watch.company(now)
    }

    fn window(&mut self, hold: Duration, now: Instant) -> Duration {
        let dice = (self.dice() >> 11) as f64 / (1_u64 << 53) as f64;
        courtesy::window(hold, self.company(now), dice)
    }

    /// Return a number to spread pauses with (xorshift).
    pub fn dice(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice
    }

    /// Say with what right the turn that was just given goes on.
    pub fn given_right(&self) -> Right {
        self.turn.unwrap_or(Right::Alone)
    }

    /// Go on without a lane file, since nobody can wait for its locks.
    pub fn go_alone(&mut self, database: &Path) {
        let now = Instant::now();
        self.drop_file(now);
        self.serve_joining();
        self.serve_next(database, now);
    }

    /// Return the threads of this process that wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len() + self.at_gate.len()
    }

    /// Open the lane file, or follow where the path leads by now, unless a lock of ours is in the old one.
    fn look_again(&mut self, database: &Path, now: Instant) {
        let due = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_AGAIN);
        if !due || self.front.is_some() || self.queueing {
            return;
        }
        self.looked = Some(now);
        if let Some(file) = &self.file {
            if file::identity(&file::path_of(database)) == Some(file.identity()) && file.is_intact() {
                self.keep_slot();
                return;
            }
            self.drop_file(now);
        }
        self.file = registry::file(database);
        self.slot = self.file.as_ref().and_then(|file| file.claim_slot());
        self.keep_slot();
    }

    /// Put this process's record into the lane file, unless it is there.
    fn keep_slot(&mut self) {
        let (Some(file), Some(slot)) = (&self.file, self.slot) else { return };
        if self.page.is_none() {
            let pid = std::process::id();
            let started = process::Stat::of(pid).map_or(0, |stat| stat.started);
            let command = process::command(pid).unwrap_or_default();
            self.board = Board::new().ok();
            let board = self.board.as_ref().map_or(0, Board::descriptor);
            let page = Page::new(pid, started, process::namespace(), process::boot(), &command, board);
            self.page = Some(page);
        }
        if let Some(page) = self.page.as_mut().filter(|page| !file.has_slot(slot, page)) {
            file.write_slot(slot, page);
        }
        self.publish();
    }

    /// Go without a lane file, until the next look finds one.
    pub fn drop_file(&mut self, now: Instant) {
        self.nobody_at = None;
        if let Some(file) = self.file.take() {
            if self.front.take().is_some() {
                file.unlock(FRONT);
            }
            if let Some(slot) = self.slot.take() {
                file.give_slot(slot);
            }
        }
        self.looked = Some(now);
    }

    /// Publish that the turn holds the write lock, and with which statement, unless that is what everybody knows.
    pub fn publish_holding(&mut self, statement: &str) {
        if !self.page.as_ref().is_some_and(|page| page.is_holding(statement)) {
            self.publish_turn(Doing::Holding, Instant::now(), statement);
        }
    }

    /// Publish what the turn does.
    fn publish_turn(&mut self, doing: Doing, since: Instant, statement: &str) {
        let (origin, origin_ns) = self.origin;
        let after = since.saturating_duration_since(origin).as_nanos();
        if let Some(page) = &mut self.page {
            page.turn(doing, origin_ns + u64::try_from(after).unwrap_or(0), statement);
            self.publish();
        }
    }

    /// Publish what the turn does, with the statement it has.
    pub fn publish_doing(&mut self, doing: Doing) {
        if let Some(page) = &mut self.page {
            page.doing(doing);
            self.publish();
        }
    }

    fn set_wait(&mut self) {
        if let Some(page) = &mut self.page {
            match self.waiters.front().or(self.at_gate.first()) {
                Some(first) => page.wait(self.waiters.len() + self.at_gate.len(), first.since_ns, &first.statement),
                None => page.wait(0, 0, ""),
            }
        }
    }

    fn publish_wait(&mut self) {
        self.set_wait();
        self.publish();
    }

    fn publish(&mut self) {
        match (&mut self.page, &mut self.board, &self.file, self.slot) {
            (Some(page), Some(board), _, _) => board.write(page.seal()),
            (Some(page), None, Some(file), Some(slot)) => file.write_slot(slot, page),
            _ => {}
        }
    }
}

/// Return the process that has the front, if it is stopped.
fn stopped_ahead(file: &LaneFile) -> Option<u32> {
    file.blocker(FRONT, 1)?.pid.filter(|pid| process::is_stopped(*pid))
}

#[cfg(test)]
mod tests {
    use super::super::file::{PRESSED, WAITING};
    use super::super::other_process::OtherProcess;
    use super::super::scratch::Scratch;
    use super::*;
    use std::path::PathBuf;

    /// A database and its lane, as this process and another see them.
    struct Scene {
        database: PathBuf,
        state: State,
        other: Option<OtherProcess>,
        _scratch: Scratch,
    }

    impl Scene {
        fn new() -> Self {
            let scratch = Scratch::with_database();
            let database = scratch.database();
            let mut state = State::new();
            state.look_again(&database, Instant::now());
            assert!(state.file.is_some());
            Self { database, state, other: None, _scratch: scratch }
        }

        fn file(&self) -> Arc<LaneFile> {
            self.state.file.clone().unwrap()
        }

        /// Have another process hold a shared lock on these bytes of the lane file.
        fn other_process_locks(&mut self, from: i64, to: i64) {
            self.other = Some(OtherProcess::locking(&file::path_of(&self.database), &[(from, to)]));
        }

        /// Say whether a turn of this age is used up.
        fn is_used_up(&mut self, age: Duration) -> bool {
            self.state.unpressed_at = None;
            let now = Instant::now() + courtesy::LONG_QUANTUM;
            self.state.is_used_up(&self.file(), now.checked_sub(age).unwrap(), now)
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            self.state.drop_file(Instant::now());
        }
    }

    const BRIEF: Duration = Duration::from_micros(1);

    #[test]
    fn a_turn_lasts_for_as_long_as_nobody_waits() {
        let mut scene = Scene::new();
        assert!(!scene.is_used_up(courtesy::LONG_QUANTUM * 2));
    }

    #[test]
    fn who_writes_without_end_too_is_kept_waiting_longer() {
        let mut scene = Scene::new();
        scene.other_process_locks(WAITING, WAITING);
        assert!(!scene.is_used_up(courtesy::QUANTUM));
        assert!(!scene.is_used_up(courtesy::LONG_QUANTUM - BRIEF));
        assert!(scene.is_used_up(courtesy::LONG_QUANTUM));
    }

    #[test]
    fn who_is_pressed_is_not() {
        let mut scene = Scene::new();
        scene.other_process_locks(WAITING, PRESSED);
        assert!(!scene.is_used_up(courtesy::QUANTUM - BRIEF));
        assert!(scene.is_used_up(courtesy::QUANTUM));
    }

    #[test]
    fn a_process_is_pressed_unless_the_others_waiting_ended_its_last_time_at_the_front() {
        let mut scene = Scene::new();
        scene.other_process_locks(WAITING, FRONT);
        let pressed = |scene: &mut Scene| {
            scene.state.push(&Ticket::new("SELECT 1"));
            let errand = scene.state.errand(&scene.database.clone());
            (scene.state.queueing, scene.state.waiters) = (false, VecDeque::new());
            match errand {
                Errand::Queue { pressed, .. } => pressed,
                Errand::Sleep(_) => panic!("somebody waits"),
            }
        };
        assert!(pressed(&mut scene), "it is new");
        assert!(scene.is_used_up(courtesy::LONG_QUANTUM));
        assert!(!pressed(&mut scene));
        assert!(!pressed(&mut scene), "and until it has had the front again");
        scene.state.front = Some(Front::new(Instant::now()));
        scene.state.stay_away(&scene.file(), Instant::now());
        assert!(pressed(&mut scene), "it did not use its time");
    }
}
