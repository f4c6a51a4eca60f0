//! The writer: one native thread per process and file, and what it shares with the callers.

pub mod engine;
mod group;
mod home;
pub mod lease;
mod thread;

use crate::error::{Error, Phase};
use crate::job::{Account, Answer, Job, Work};
use crate::lane::{Holder, Lane};
use crate::ownership::{Ownership, OwnershipError};
use crate::policy::{backoff, checkpoint, group as group_policy, retry};
use crate::process;
use crate::queue::{Bounds, Pushed, Queue};
use crate::sqlite::ffi;
use crate::telemetry::Telemetry;
use crate::ticket::Listener;
use crate::wait::{GaveUp, Patience};
use engine::Engine;
use home::Home;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the writer thread and its callers share.
pub struct Shared {
    path: PathBuf,
    queue: Queue<Box<Job>>,
    home: Home,
    lane: Option<Arc<Lane>>,
    telemetry: Telemetry,
    limits: group_policy::Limits,
    checkpoints: checkpoint::Thresholds,
    checkpoint_log: Mutex<CheckpointLog>,
    generation: u64,
    poisoned: OnceLock<Arc<str>>,
    moved: AtomicBool,
    ownership: Option<Arc<Ownership>>,
    /// Jobs per transaction and seconds per commit, smoothed: bits of an f64.
    usual_jobs: AtomicU64,
    usual_commit: AtomicU64,
    /// After this, work that is left is refused.
    stop_at: Mutex<Option<Instant>>,
}

/// What checkpoints did, and what is left to do.
#[derive(Clone, Debug, Default)]
pub struct CheckpointLog {
    /// Checkpoints run.
    pub count: u64,
    /// Of those, the failed ones.
    pub errors: u64,
    /// What the last failed one said.
    pub last_error: Option<String>,
    /// Pages in the log at the last one.
    pub log: i32,
    /// Of those, the pages copied to the database.
    pub copied: i32,
    /// How long the last one took.
    pub took: Duration,
    /// The sum over all.
    pub total: Duration,
    /// When the last one ended.
    pub last: Option<Instant>,
    /// When the last commit was.
    pub last_commit: Option<Instant>,
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
    /// When to checkpoint.
    pub checkpoints: checkpoint::Thresholds,
    /// The ownership of the file, where it has one owner: asked before each commit.
    pub ownership: Option<Arc<Ownership>>,
}

impl Writer {
    /// Start the writer thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(setup: Setup) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            path: setup.path,
            queue: Queue::new(setup.bounds),
            home: Home::default(),
            lane: setup.lane,
            telemetry: Telemetry::default(),
            limits: setup.limits,
            checkpoints: setup.checkpoints,
            checkpoint_log: Mutex::default(),
            generation: process::generation(),
            poisoned: OnceLock::new(),
            moved: AtomicBool::new(false),
            ownership: setup.ownership,
            usual_jobs: AtomicU64::new(1.0_f64.to_bits()),
            usual_commit: AtomicU64::new(0),
            stop_at: Mutex::new(None),
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
    pub fn stop(&self, within: Option<Duration>) {
        if self.shared.generation != process::generation() {
            return;
        }
        *self.shared.stop_at.lock().unwrap_or_else(PoisonError::into_inner) =
            within.and_then(|within| Instant::now().checked_add(within));
        self.shared.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            self.shared.poison("it panicked while it stopped");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop_soon();
    }
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
    pub fn telemetry(&self) -> &Telemetry {
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

    /// Say who holds the write lock.
    pub fn lock_holder(&self) -> Option<Holder> {
        self.holder()
    }

    /// Return what checkpoints did.
    pub fn checkpoint_log(&self) -> CheckpointLog {
        self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
            answer_one(&job, Err(Box::new(Error::Poisoned(Arc::clone(why)).into())));
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

    /// Run a job on the caller's own thread, if the writer is idle and nobody waits for the lock.
    ///
    /// It saves a lone caller two changes of thread. It never waits: on any contention the job is given back.
    pub(crate) fn drive(&self, job: Box<Job>, at_any_rate: bool) -> Driven {
        let fit = matches!(job.work, Work::One(_) | Work::Many { .. } | Work::Batch(_));
        if !fit || !(at_any_rate || group_policy::drive_yourself(self.usual_jobs())) {
            return Driven::NotNow(job);
        }
        let Some(mut engine) = self.home.try_take() else { return Driven::NotNow(job) };
        // Looked at with the engine in hand: what was queued before goes first.
        if !self.queue.is_empty() || self.check().is_err() {
            self.home.give(engine);
            return Driven::NotNow(job);
        }
        let turn = match &self.lane {
            None => None,
            Some(lane) => match lane.try_enter(job.work.label()) {
                Some(turn) => Some(turn),
                None => {
                    self.home.give(engine);
                    return Driven::NotNow(job);
                }
            },
        };
        let driven = group::drive(self, &mut engine, job);
        let due = self.checkpoint_due(&engine);
        drop(turn);
        if engine.autocommit() {
            self.home.give(engine);
        } else {
            self.poison("a transaction could not be rolled back");
        }
        if due {
            self.queue.nudge();
        }
        driven
    }

    /// COMMIT, with waits where readers of a rollback-journal database are in the way. Rolls back what cannot commit.
    fn commit(&self, engine: Option<&Engine>, patience: &Patience<'_>, account: &mut Account) -> Result<(), Error> {
        let Some(engine) = engine else { return Err(Error::Closed) };
        if self.has_moved(engine) {
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
        let started = Instant::now();
        let mut attempt = 0;
        loop {
            let Err(error) = engine.commit() else { return Ok(()) };
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

    /// Say whether the database file was deleted, replaced or renamed, and remember it.
    fn has_moved(&self, engine: &Engine) -> bool {
        // What cannot be told is not taken for moved: the commit itself will say what is wrong.
        let moved = self.lane.is_some() && engine.handle().has_moved().unwrap_or(false);
        if moved {
            self.moved.store(true, Ordering::Relaxed);
        }
        moved
    }

    fn holder(&self) -> Option<Holder> {
        self.lane.as_ref().map(|lane| lane.holder()).filter(|holder| *holder != Holder::Nobody)
    }

    fn checkpoint_due(&self, engine: &Engine) -> bool {
        let mut log = self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner);
        log.last_commit = Some(Instant::now());
        self.decide(&log, engine.log_pages()).is_some()
    }

    fn decide(&self, log: &CheckpointLog, pages: i32) -> Option<checkpoint::Mode> {
        let now = Instant::now();
        checkpoint::choose(
            &self.checkpoints,
            &checkpoint::Log {
                pages: u32::try_from(pages).unwrap_or(0),
                pinned: log.copied < log.log,
                since_last: log.last.map(|last| now.saturating_duration_since(last)),
                idle: log.last_commit.map_or(Duration::ZERO, |last| now.saturating_duration_since(last)),
                waiting_jobs: self.queue.required(),
            },
        )
    }

    /// Checkpoint if the policy says so. Called with the turn, after the answers are given.
    pub(crate) fn after_commit(&self, engine: &Engine) {
        let mut log = self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        log.last_commit = Some(Instant::now());
        let mode = self.decide(&log, engine.log_pages());
        *self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner) = log;
        if let Some(mode) = mode {
            self.checkpoint(engine, mode);
        }
    }

    /// Run a checkpoint and note what it did. Its errors fail nobody's write: they are counted, and it is run again.
    pub(crate) fn checkpoint(&self, engine: &Engine, mode: checkpoint::Mode) -> (Option<i32>, i32, i32) {
        let started = Instant::now();
        let (result, log_pages, copied) = engine.handle().checkpoint(match mode {
            checkpoint::Mode::Passive => ffi::SQLITE_CHECKPOINT_PASSIVE,
            checkpoint::Mode::Full => ffi::SQLITE_CHECKPOINT_FULL,
            checkpoint::Mode::Truncate => ffi::SQLITE_CHECKPOINT_TRUNCATE,
        });
        let took = started.elapsed();
        let mut log = self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner);
        log.count += 1;
        log.took = took;
        log.total += took;
        log.last = Some(Instant::now());
        let code = match result {
            Ok(()) => {
                log.log = log_pages;
                log.copied = copied;
                if log_pages <= copied {
                    engine.forget_log_pages();
                }
                None
            }
            Err(error) => {
                if error.primary() != ffi::SQLITE_BUSY {
                    log.errors += 1;
                    log.last_error = Some(error.to_string());
                }
                Some(error.code)
            }
        };
        (code, log_pages, copied)
    }

    /// Return when the writer should look after an idle log.
    fn idle_wait(&self) -> Option<Duration> {
        let log = self.checkpoint_log.lock().unwrap_or_else(PoisonError::into_inner);
        let dirty =
            log.last_commit.is_some_and(|commit| log.last.is_none_or(|last| last < commit)) || log.copied < log.log;
        dirty.then_some(self.checkpoints.idle)
    }
}

/// Give a job its answer, and wake its listener.
pub(crate) fn answer_one(job: &Job, answer: Answer) {
    if let Some(listener) = job.ticket.answer(answer) {
        listener.flush();
    }
}

/// Give many jobs their answers and wake each listener once.
fn answer_all(answers: impl Iterator<Item = (Box<Job>, Answer)>) {
    let mut listeners: Vec<Arc<dyn Listener>> = Vec::new();
    for (job, answer) in answers {
        if let Some(listener) = job.ticket.answer(answer)
            && !listeners.iter().any(|known| Arc::ptr_eq(known, &listener))
        {
            listeners.push(listener);
        }
    }
    for listener in listeners {
        listener.flush();
    }
}
