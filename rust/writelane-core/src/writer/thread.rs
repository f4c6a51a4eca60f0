//! The loop of the writer thread.

use super::engine::Engine;
use super::group::{self, Group, Served};
use super::waiting::Waiting;
use super::{Shared, answer_one};
use crate::checkpoint::LABEL;
use crate::error::{Error, Phase};
use crate::job::{self, Caught, Job};
use crate::lane::Turn;
use crate::policy::checkpoint::Mode;
use crate::policy::group as policy;
use crate::queue::Wake;
use crate::telemetry::Blame;
use crate::wait::{GaveUp, Patience, SLICE};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Serve the queue until it is closed and empty. A panic poisons the writer and answers everybody.
pub(super) fn main(shared: &Arc<Shared>) {
    if let Err(Caught { panic, lost }) = job::catch(|| run(shared)) {
        let why = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "it panicked".to_owned());
        shared.poison(&why);
        shared.refuse_lost(&lost);
    }
    *shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    drop(shared.take_handed());
    shared.at_end.notify_all();
}

fn run(shared: &Arc<Shared>) {
    loop {
        match shared.queue.wait(shared.checkpointer.next_look()) {
            Wake::Work => {
                linger(shared);
                serve_turn(shared);
            }
            Wake::TimedOut | Wake::Nudged => look_after_log(shared),
            Wake::Finished => break,
        }
        if shared.is_poisoned() {
            break;
        }
    }
    // Whatever came in between is answered, not left waiting.
    for job in shared.queue.close_and_drain() {
        shared.refuse(&job, shared.check().err().unwrap_or(Error::Closed));
    }
    close(shared);
}

/// Let the callers of the last group come back before the next begins, where that pays.
fn linger(shared: &Shared) {
    let company = policy::Company {
        usual_jobs: shared.usual_jobs(),
        commit: shared.usual_commit(),
        waiting: shared.queue.required(),
        lingered: Duration::ZERO,
    };
    let time = policy::linger(&company);
    if !time.is_zero() {
        shared.queue.linger(company.usual_jobs.ceil() as usize, time);
    }
}

/// Take the engine and the turn, and serve groups until the queue is empty or the turn is over.
fn serve_turn(shared: &Arc<Shared>) {
    let waiting_since = Instant::now();
    let waiting = Waiting::new(shared, waiting_since, Blame::default());
    let mut engine = loop {
        if let Some(engine) = shared.home.take(SLICE) {
            break engine;
        }
        if shared.is_poisoned() {
            return;
        }
        if waiting.keep_house() {
            return refuse_all(shared);
        }
    };
    let mut turn = shared.take_handed();
    if let Some(lane) = shared.lane.as_ref().filter(|_| turn.is_none()) {
        let interrupted = || waiting.keep_house() || shared.queue.is_empty() || shared.has_handed();
        let (label, waits_for_disk) = shared.first_in_line();
        let words = engine.shared_words().filter(|_| waits_for_disk);
        match super::enter(lane, &label, &Patience { until: None, interrupted: &interrupted }, words) {
            Ok(entered) => turn = Some(entered),
            Err(GaveUp::TimedOut | GaveUp::Interrupted) => {
                shared.home.give(engine);
                if shared.must_stop() {
                    refuse_all(shared);
                }
                return;
            }
        }
    }
    let mut blame = waiting.into_blame();
    blame.pass(Instant::now());
    let mut since = waiting_since;
    // Callers who had the engine themselves leave a full log to this thread, which may not have come to it since.
    if shared.checkpointer.is_full() {
        shared.tend_log(&engine, turn.as_mut());
    }
    while let Some(job) = shared.queue.take_if(|_, _| true) {
        shared.set_serving(true);
        let served = Group::new(shared, &mut engine, &mut turn, since, std::mem::take(&mut blame)).serve(job);
        shared.set_serving(false);
        match served {
            Served::Here => {}
            Served::Lend(job, account) => return group::lend(shared, engine, turn, &job, account),
            Served::Broken => {
                drop(turn);
                drop(engine);
                return shared.poison("a transaction could not be rolled back");
            }
        }
        shared.queue.admit();
        if shared.checkpointer.note_commit_at(Instant::now(), engine.owes_sync()) {
            shared.tend_log(&engine, turn.as_mut());
        }
        // Given up already, where others could have it while the disk was waited for.
        let over = turn.as_ref().map_or(shared.lane.is_some(), Turn::should_yield);
        if over {
            break;
        }
        since = Instant::now();
    }
    drop(turn);
    shared.home.give(engine);
}

/// Tend the log though nobody commits, or because a caller who drove the engine found it full.
fn look_after_log(shared: &Arc<Shared>) {
    let handed = shared.take_handed();
    if !shared.checkpointer.is_due(shared.queue.required()) {
        return;
    }
    let Some(engine) = shared.home.take(SLICE) else { return };
    let mut turn = handed.map(Some).or_else(|| shared.lane.as_ref().map(|lane| lane.try_enter(LABEL)));
    // Somebody else's turn: they tend the log too, or we come again.
    if !matches!(turn, Some(None)) {
        shared.tend_log(&engine, turn.as_mut().and_then(Option::as_mut));
    }
    drop(turn);
    shared.home.give(engine);
}

impl Shared {
    /// Do what is due about the log, with the turn in the lane, unless somebody else has done it since. What goes wrong
    /// fails nobody's write: it is counted, and tried again.
    fn tend_log(&self, engine: &Engine, turn: Option<&mut Turn>) {
        if engine.has_log() {
            self.checkpointer.refresh(engine.handle());
        }
        // Or the log never begins anew: somebody commits while it is copied.
        if let Some(turn) = turn.filter(|_| self.checkpointer.is_full()) {
            turn.hold_others_up();
        }
        self.checkpointer.act(engine.handle(), self.queue.required());
    }
}

fn refuse_all(shared: &Shared) {
    for job in shared.queue.close_and_drain() {
        shared.refuse(&job, Error::Closed);
    }
}

/// Fold the log in and close the engine. An interactive transaction that is still open keeps it until it ends.
fn close(shared: &Arc<Shared>) {
    let stop_at = *shared.stop_at.lock().unwrap_or_else(PoisonError::into_inner);
    let mut engine = loop {
        if let Some(engine) = shared.home.take(SLICE) {
            break engine;
        }
        let over = || stop_at.is_some_and(|at| at <= Instant::now());
        if shared.is_poisoned() || shared.exiting.load(Ordering::Acquire) || over() {
            return;
        }
    };
    if shared.lane.is_some()
        && shared.checkpointer.next_look().is_some()
        && !shared.has_moved(&mut engine, Instant::now())
    {
        let turn = shared.lane.as_ref().and_then(|lane| lane.try_enter(LABEL));
        shared.checkpointer.run(engine.handle(), Mode::Passive);
        drop(turn);
    }
    shared.checkpointer.set_has_writer(false);
    drop(engine);
}

impl Shared {
    /// Answer the queued jobs whose deadline has passed.
    pub(super) fn refuse_late(&self, now: Instant) {
        let bounds = self.queue.bounds();
        let late = self.queue.take_expired(|job| job.is_late(now));
        // Looks are made sparingly, but who is told that time is up is told for whom.
        let looked = if late.is_empty() { None } else { self.lock_holder() };
        let now = if looked.is_some() { Instant::now() } else { now };
        for (job, queued) in late {
            let is_ours = if queued { job.ticket.claim() } else { job.ticket.refuse() };
            if !is_ours {
                continue;
            }
            let after = now.saturating_duration_since(job.called);
            let mut account = self.waited_until(job.called, job.tried.as_deref(), now);
            account.holder = account.holder.take().or_else(|| looked.clone());
            let error = if queued {
                Error::Timeout { phase: Phase::Queue, after, holder: account.holder.clone() }
            } else {
                Error::QueueFull { after, jobs_max: bounds.jobs_max, bytes_max: bounds.bytes_max }
            };
            answer_one(&job, Err(self.failure(job.work.label(), error, account)));
        }
    }

    /// Answer a queued job that will never run, and count it with what it waited.
    pub(super) fn refuse(&self, job: &Job, error: Error) {
        if !job.ticket.claim() {
            // Its caller has just given up, and has counted it.
            return;
        }
        let account = self.waited_until(job.called, job.tried.as_deref(), Instant::now());
        self.count_drop(job, &error);
        answer_one(job, Err(self.failure(job.work.label(), error, account)));
    }

    /// Answer the jobs that a panic lost, now that the writer is poisoned.
    pub(super) fn refuse_lost(&self, lost: &[Job]) {
        for job in lost {
            self.refuse(job, self.check().err().unwrap_or(Error::Closed));
        }
    }

    /// Return the statement of the job that is next, and whether its turn ends for the disk.
    fn first_in_line(&self) -> (Arc<str>, bool) {
        let first = self.queue.peek(|job| (Arc::clone(job.work.label()), job.waits_for_disk()));
        first.unwrap_or_else(|| ("".into(), false))
    }
}
