//! The writer: one native thread per process and file, and what it shares with the callers.

pub mod engine;
mod group;
#[cfg(test)]
mod handed_tests;
mod home;
mod home_file;
pub mod lease;
mod shared_flush;
mod spent;
mod thread;
mod waiting;

use crate::checkpoint::Checkpointer;
use crate::error::{Error, Phase};
use crate::job::{self, Account, Answer, Caught, Failure, Job, Tried, Waited};
use crate::lane::{Holder, Lane, Turn};
use crate::ownership::{Ownership, OwnershipError};
use crate::policy::{backoff, group as group_policy, retry};
use crate::process;
use crate::queue::{Bounds, Class, Pushed, Queue};
use crate::readers::Settings;
use crate::telemetry::{Blame, Telemetry, error_name};
use crate::ticket::Listener;
use crate::vfs::SharedWords;
use crate::wait::{GaveUp, Patience};
use engine::Engine;
use home::Home;
use shared_flush::By;
use spent::Spent;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use waiting::Waiting;

/// What the writer thread and its callers share.
pub struct Shared {
    path: PathBuf,
    queue: Queue<Box<Job>>,
    home: Home,
    lane: Option<Arc<Lane>>,
    telemetry: Arc<Telemetry>,
    limits: group_policy::Limits,
    checkpointer: Arc<Checkpointer>,
    generation: u64,
    poisoned: OnceLock<Arc<str>>,
    moved: AtomicBool,
    ownership: Option<Arc<Ownership>>,
    /// Jobs per transaction and seconds per commit, smoothed: bits of an f64.
    usual_jobs: AtomicU64,
    usual_commit: AtomicU64,
    /// What the writer waits for right now.
    lock_wait: Mutex<Option<LockWait>>,
    /// After this, work that is left is refused.
    stop_at: Mutex<Option<Instant>>,
    /// Before this, who holds the lock is not looked for again.
    look_due: Mutex<Option<Instant>>,
    /// An interactive transaction that nobody waits behind does not hold up the end: the process exits.
    exiting: AtomicBool,
    /// The settings that every reader is to have.
    settings: Arc<Settings>,
    /// Who has the engine for an interactive transaction.
    borrower: Mutex<Option<Borrower>>,
    /// The thread has jobs in hand that are not answered.
    serving: AtomicBool,
    /// The turn of a caller whose commit made the log long enough to be tended.
    handed: Mutex<Option<Turn>>,
    spent: Spent,
    /// Whether the thread has ended.
    ended: Mutex<bool>,
    at_end: Condvar,
}

/// Who began the interactive transaction that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// The thread.
    pub thread: ThreadId,
    /// The task of that thread, where it runs several; 0 where it runs none.
    pub task: u64,
}

/// A wait of the writer for its turn or the lock.
struct LockWait {
    since: Instant,
    blame: Blame,
}

/// The writer of one file in this process.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a writer is made of.
pub struct Setup {
    /// The file, for messages.
    pub path: PathBuf,
    /// The open handle.
    pub engine: Engine,
    /// The lane of the file; `None` for a database that no other connection can open.
    pub lane: Option<Arc<Lane>>,
    /// The bounds of the queue.
    pub bounds: Bounds,
    /// The bounds of a group.
    pub limits: group_policy::Limits,
    /// The log of the file.
    pub checkpointer: Arc<Checkpointer>,
    /// The ownership of the file, where it has one owner: asked before each commit.
    pub ownership: Option<Arc<Ownership>>,
    /// The settings that every reader is to have: the writer adds those that succeeded.
    pub settings: Arc<Settings>,
}

impl Writer {
    /// Start the writer thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(setup: Setup) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            telemetry: Telemetry::of(&setup.path),
            path: setup.path,
            queue: Queue::new(setup.bounds),
            home: Home::default(),
            lane: setup.lane,
            limits: setup.limits,
            checkpointer: setup.checkpointer,
            generation: process::generation(),
            poisoned: OnceLock::new(),
            moved: AtomicBool::new(false),
            ownership: setup.ownership,
            usual_jobs: AtomicU64::new(1.0_f64.to_bits()),
            usual_commit: AtomicU64::new(0),
            lock_wait: Mutex::new(None),
            stop_at: Mutex::new(None),
            look_due: Mutex::new(None),
            exiting: AtomicBool::new(false),
            settings: setup.settings,
            borrower: Mutex::new(None),
            serving: AtomicBool::new(false),
            handed: Mutex::new(None),
            spent: Spent::default(),
            ended: Mutex::new(false),
            at_end: Condvar::new(),
        });
        shared.home.give(Box::new(setup.engine));
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("wl-writer".into()).spawn(move || thread::main(&shared))?
        };
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Return what the writer shares with its callers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Take no more work; the thread does what is queued and ends by itself.
    pub fn stop_soon(&self) {
        if self.shared.generation == process::generation() {
            self.shared.queue.close();
        }
    }

    /// Say whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Take no more work, do what is queued, and stop the thread.
    ///
    /// Work that is not done `within` that time is refused, except a job that is already running.
    ///
    /// # Errors
    /// The wait was interrupted; the thread stops by itself all the same.
    pub fn stop(&self, within: Option<Duration>, interrupted: &dyn Fn() -> bool) -> Result<(), GaveUp> {
        if self.shared.generation != process::generation() {
            return Ok(());
        }
        *self.shared.stop_at.lock().unwrap_or_else(PoisonError::into_inner) =
            within.and_then(|within| Instant::now().checked_add(within));
        self.shared.queue.close();
        let patience = Patience { until: None, interrupted };
        let mut ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            drop(ended);
            let slice = patience.next_slice()?;
            ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
            if !*ended {
                ended = self.shared.at_end.wait_timeout(ended, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        drop(ended);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            self.shared.poison("it panicked while it stopped");
        }
        Ok(())
    }

    /// Have an interactive transaction that nobody waits behind not hold up [`Writer::stop`].
    pub fn abandon_leases(&self) {
        self.shared.exiting.store(true, Ordering::Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop_soon();
    }
}

/// When a transaction was committed.
#[derive(Clone, Copy, Debug)]
struct Committed {
    /// The write lock was free for others.
    free: Instant,
    /// It was as durable as was asked for.
    durable: Instant,
}

/// How a caller who drives the engine itself fared.
pub(crate) enum Driven {
    /// The job ran.
    Answered(Answer),
    /// Somebody else is at it: the job must be queued.
    NotNow(Box<Job>),
}

impl Shared {
    /// Return the file's path as it was first opened.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Return the queue.
    pub fn queue(&self) -> &Queue<Box<Job>> {
        &self.queue
    }

    /// Return the counts.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Return the lane.
    pub fn lane(&self) -> Option<&Arc<Lane>> {
        self.lane.as_ref()
    }

    /// Return the ownership of the file.
    pub fn ownership(&self) -> Option<&Arc<Ownership>> {
        self.ownership.as_ref()
    }

    /// Say whether nothing is queued and nobody uses the engine.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.home.is_home() && self.queue.is_empty()
    }

    /// Say whether other work is in the way of a job that comes now. A log that is tended after the answers is none.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.queue.is_empty() || self.serving.load(Ordering::Acquire) || self.borrower().is_some()
    }

    /// Note whether the writer thread has jobs in hand. Cleared before an answer, so that who has one finds it so.
    fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Release);
    }

    /// Say whether the writer died.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    /// Say who has the open interactive transaction.
    pub fn borrower(&self) -> Option<Borrower> {
        *self.borrower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_borrower(&self, borrower: Option<Borrower>) {
        *self.borrower.lock().unwrap_or_else(PoisonError::into_inner) = borrower;
    }

    /// Say who holds the write lock.
    pub fn lock_holder(&self) -> Option<Holder> {
        self.holder()
    }

    /// Return how a job fared that was called at `called` and has not started: it waits for the lock since the writer
    /// does, and was in the queue before, save what its caller tried itself.
    pub(crate) fn waited_until(&self, called: Instant, tried: Option<&Tried>, now: Instant) -> Account {
        let mut account = tried.map_or_else(Account::default, |tried| tried.account.clone());
        let came = tried.map_or(called, |tried| tried.until);
        if let Some(wait) = &*self.lock_wait.lock().unwrap_or_else(PoisonError::into_inner) {
            let lock = now.saturating_duration_since(wait.since.max(came));
            account.held = wait.blame.clone().end(now).behind(&account.held, lock);
            account.waited.lock += lock;
        }
        account.holder = account.held.main();
        account.waited.queue = now.saturating_duration_since(called).saturating_sub(account.waited.total());
        account
    }

    /// Say whether the writer thread waits for its turn or the lock.
    #[cfg(test)]
    pub(crate) fn waits_for_lock(&self) -> bool {
        self.lock_wait.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set_lock_wait(&self, wait: Option<LockWait>) {
        *self.lock_wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// Return the log of the file and what keeps it short.
    pub fn checkpointer(&self) -> &Arc<Checkpointer> {
        &self.checkpointer
    }

    /// Refuse a caller that can no longer be served.
    pub fn check(&self) -> Result<(), Error> {
        if self.generation != process::generation() {
            return Err(Error::Forked);
        }
        if let Some(why) = self.poisoned.get() {
            return Err(Error::Poisoned(Arc::clone(why)));
        }
        if self.moved.load(Ordering::Relaxed) {
            return Err(Error::Moved);
        }
        Ok(())
    }

    /// Queue a job. Its ticket tells how it fares.
    ///
    /// # Errors
    /// The database is closed, moved, poisoned, or its parent's.
    pub fn submit(&self, job: Box<Job>) -> Result<Pushed<Box<Job>>, Error> {
        self.spent.free();
        self.check()?;
        match self.queue.push(job) {
            Pushed::Closed(_) => Err(self.check().err().unwrap_or(Error::Closed)),
            pushed => Ok(pushed),
        }
    }

    /// Mark the writer as dead and answer everybody who waits.
    pub(crate) fn poison(&self, why: &str) {
        let why = self.poisoned.get_or_init(|| why.into());
        for job in self.queue.close_and_drain() {
            self.refuse(&job, Error::Poisoned(Arc::clone(why)));
        }
    }

    /// Count offered work that comes to nothing. Required work is not counted: its caller is told.
    pub(crate) fn count_drop(&self, job: &Job, error: &Error) {
        if job.class == Class::Offered {
            self.telemetry.dropped(job.work.label(), error_name(error));
        }
    }

    fn usual_jobs(&self) -> f64 {
        f64::from_bits(self.usual_jobs.load(Ordering::Relaxed))
    }

    fn usual_commit(&self) -> Duration {
        Duration::from_secs_f64(f64::from_bits(self.usual_commit.load(Ordering::Relaxed)))
    }

    fn note_group(&self, jobs: usize, commit: Duration) {
        let smoothed = group_policy::smooth(self.usual_jobs(), jobs as f64);
        self.usual_jobs.store(smoothed.to_bits(), Ordering::Relaxed);
        let before = f64::from_bits(self.usual_commit.load(Ordering::Relaxed));
        self.usual_commit.store(group_policy::smooth(before, commit.as_secs_f64()).to_bits(), Ordering::Relaxed);
    }

    fn must_stop(&self) -> bool {
        self.stop_at.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at <= Instant::now())
    }

    /// Run a job on the caller's own thread, if the writer is idle.
    ///
    /// It saves a lone caller two changes of thread, and the others in the lane the time of them: it waits for its turn
    /// itself. It does not wait for SQLite's lock: whoever finds that busy, or is to be tried once, is given back.
    pub(crate) fn drive(self: &Arc<Self>, job: Box<Job>, interrupted: &dyn Fn() -> bool) -> Driven {
        // A full log is the writer thread's to tend, so that no caller waits for it.
        let lone = group_policy::drive_yourself(self.usual_jobs()) && !self.checkpointer.is_full();
        if !job.work.is_driven() || !(job.at_once || lone) {
            return Driven::NotNow(job);
        }
        let Some(mut engine) = self.home.try_take() else { return Driven::NotNow(job) };
        // Looked at with the engine in hand: what was queued before goes first, and so does the writer thread where a caller
        // has just left its turn for a full log. It needs the engine for that, and this caller would wait for that turn.
        if !self.queue.is_empty() || self.has_handed() || self.check().is_err() {
            self.home.give(engine);
            return Driven::NotNow(job);
        }
        // A caller that finds the writer idle has been in no queue: it waits for its turn since it called.
        let waiting = Waiting::aside(self, job.called);
        let words = engine.shared_words().filter(|_| job.waits_for_disk());
        let mut turn = match self.lane.as_ref().map(|lane| self.enter_itself(lane, &job, &waiting, words, interrupted))
        {
            None => None,
            Some(Ok(Some(turn))) => Some(turn),
            Some(Ok(None)) => {
                self.home.give(engine);
                return Driven::NotNow(job);
            }
            Some(Err(gave_up)) => {
                self.home.give(engine);
                return Driven::Answered(Err(self.gave_up(&job, gave_up, waiting)));
            }
        };
        let driven = match job::catch(|| group::drive(self, &mut engine, &mut turn, job, waiting)) {
            Ok(driven) => driven,
            Err(Caught { panic, lost }) => {
                drop(engine);
                self.poison("a caller panicked in its place");
                self.refuse_lost(&lost);
                resume_unwind(panic);
            }
        };
        let ended = Instant::now();
        let usable = engine.autocommit();
        self.leave_log_to_writer(turn, usable.then_some(engine), ended);
        if !usable {
            self.poison("a transaction could not be rolled back");
        }
        driven
    }

    /// After a commit of a caller's: it has its answer, and the writer thread tends the log, with the same turn.
    ///
    /// The turn is left before the engine comes home: whoever takes that finds the turn too, and does not wait for it.
    pub(crate) fn leave_log_to_writer(&self, turn: Option<Turn>, engine: Option<Box<Engine>>, now: Instant) {
        let synced = engine.as_ref().is_some_and(|engine| engine.owes_sync());
        let full = self.checkpointer.note_commit_at(now, synced);
        if full {
            *self.handed.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        } else if let Some(turn) = turn {
            turn.leave_at(now);
        }
        if let Some(engine) = engine {
            self.home.give(engine);
        }
        if !full {
            return self.queue.nudge_from_sleep();
        }
        self.queue.nudge();
        // Nobody would take it up.
        if *self.ended.lock().unwrap_or_else(PoisonError::into_inner) {
            drop(self.take_handed());
        }
    }

    /// Say whether a caller has left its turn for the log: who waits for a turn would wait for that one.
    fn has_handed(&self) -> bool {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Take up the turn that a caller has left for the log.
    fn take_handed(&self) -> Option<Turn> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Take a turn for a caller who waits for it itself. `None`: the lane is not free, and the job is to be tried once.
    fn enter_itself(
        &self,
        lane: &Arc<Lane>,
        job: &Job,
        waiting: &Waiting<'_>,
        words: Option<Arc<SharedWords>>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Turn>, GaveUp> {
        if job.at_once || words.is_none() {
            let turn = lane.try_enter_at(job.work.label(), waiting.since());
            if job.at_once || turn.is_some() {
                return Ok(turn);
            }
        }
        let interrupted = || {
            waiting.look();
            self.must_stop() || interrupted()
        };
        enter(lane, job.work.label(), &Patience { until: job.until, interrupted: &interrupted }, words).map(Some)
    }

    /// Answer for a caller whose own wait for its turn ended without one.
    fn gave_up(&self, job: &Job, gave_up: GaveUp, waiting: Waiting<'_>) -> Box<Failure> {
        // The look takes a while, and is waited for too.
        let looked = self.holder();
        let now = Instant::now();
        let after = now.saturating_duration_since(job.called);
        let held = waiting.into_blame().end(now);
        let holder = looked.or_else(|| held.main());
        let error = match gave_up {
            GaveUp::TimedOut => Error::Timeout { phase: Phase::Lock, after, holder: holder.clone() },
            GaveUp::Interrupted if self.must_stop() => Error::Closed,
            GaveUp::Interrupted => Error::Interrupted,
        };
        let waited = Waited { lock: after, ..Waited::default() };
        self.failure(job.work.label(), error, Account { waited, holder, held, ..Account::default() })
    }

    /// Count work that failed as a whole, and make the answer of it.
    pub(crate) fn failure(&self, label: &Arc<str>, error: Error, account: Account) -> Box<Failure> {
        self.telemetry.record_one(label, &account, Some(&error));
        Box::new(Failure { error, statement: Some(Arc::clone(label)), position: None, account })
    }

    /// COMMIT, with waits where readers of a rollback-journal database are in the way. Rolls back what cannot commit.
    ///
    /// Where the disk is waited for after it, others have the turn meanwhile, unless it is kept for tending the log.
    fn commit(
        &self,
        engine: Option<&mut Engine>,
        turn: &mut Option<Turn>,
        patience: &Patience<'_>,
        started: Instant,
        account: &mut Account,
    ) -> Result<Committed, Error> {
        let Some(engine) = engine else { return Err(Error::Closed) };
        if self.has_moved(engine, started) {
            engine.rollback()?;
            return Err(Error::Moved);
        }
        if let Some(Err(error)) = self.ownership.as_ref().map(|ownership| ownership.still_mine()) {
            engine.rollback()?;
            return Err(match error {
                OwnershipError::Interrupted => Error::Interrupted,
                error => Error::OwnedElsewhere(error.to_string().into()),
            });
        }
        let mut attempt = 0;
        loop {
            let Err(error) = engine.commit() else { return self.make_durable(engine, turn) };
            if retry::remedy(error.code, retry::Point::Commit) == retry::Remedy::RetryStatement && !engine.autocommit()
            {
                account.retries += 1;
                match patience.next_slice() {
                    Ok(slice) => {
                        std::thread::sleep(backoff::sleep(attempt, engine::random_bits() as u32).min(slice));
                        attempt += 1;
                        continue;
                    }
                    Err(GaveUp::TimedOut) => {
                        engine.rollback()?;
                        return Err(Error::Timeout { phase: Phase::Commit, after: started.elapsed(), holder: None });
                    }
                    Err(GaveUp::Interrupted) => {
                        engine.rollback()?;
                        return Err(Error::Interrupted);
                    }
                }
            }
            let uncertain = retry::commit_is_uncertain(error.code);
            engine.rollback()?;
            return Err(if uncertain { Error::CommitUncertain(error) } else { Error::Sqlite(error) });
        }
    }

    /// Wait for the disk after a commit that did not.
    fn make_durable(&self, engine: &mut Engine, turn: &mut Option<Turn>) -> Result<Committed, Error> {
        let free = Instant::now();
        if !engine.owes_sync() {
            return Ok(Committed { free, durable: free });
        }
        if let Some(turn) = turn.take_if(|_| !self.checkpointer.is_full()) {
            turn.leave_for_disk(free);
        }
        if engine.sync().map_err(Error::CommitUncertain)? == By::Another {
            self.telemetry.flushed_elsewhere();
        }
        Ok(Committed { free, durable: Instant::now() })
    }

    /// Say whether the database file was deleted, replaced or renamed, and remember it.
    fn has_moved(&self, engine: &mut Engine, now: Instant) -> bool {
        let moved = self.lane.is_some() && engine.has_moved(now);
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        moved
    }

    fn holder(&self) -> Option<Holder> {
        self.lane.as_ref().map(|lane| lane.holder()).filter(|holder| *holder != Holder::Nobody)
    }
}

/// Take a turn; for commits that wait for the disk, behind others that do.
fn enter(
    lane: &Arc<Lane>,
    label: &str,
    patience: &Patience<'_>,
    words: Option<Arc<SharedWords>>,
) -> Result<Turn, GaveUp> {
    match words {
        Some(words) => lane.enter_for_disk(label, patience, &words),
        None => lane.enter(label, patience),
    }
}

/// Give a job its answer, and wake its listener.
pub(crate) fn answer_one(job: &Job, answer: Answer) {
    for listener in job.ticket.answer(answer) {
        listener.flush();
    }
}

/// Give many jobs their answers and wake each listener once. Returns the jobs.
#[expect(clippy::vec_box, reason = "jobs are boxed from their callers on, and are given back as they are")]
fn answer_all(answers: Vec<(Box<Job>, Answer)>) -> Vec<Box<Job>> {
    let mut listeners: Vec<Arc<dyn Listener>> = Vec::new();
    let answer_one = |(job, answer): (Box<Job>, Answer)| {
        for listener in job.ticket.answer(answer) {
            if !listeners.iter().any(|known| Arc::ptr_eq(known, &listener)) {
                listeners.push(listener);
            }
        }
        job
    };
    let jobs = answers.into_iter().map(answer_one).collect();
    for listener in listeners {
        listener.flush();
    }
    jobs
}
