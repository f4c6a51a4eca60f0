//! One transaction for many jobs, each of which succeeds or fails alone.

use super::engine::Engine;
use super::lease::Lease;
use super::waiting::Waiting;
use super::{Driven, Shared, answer_all, answer_one};
use crate::error::{Error, Phase};
use crate::job::{Account, Answer, Effect, Failure, Job, Outcome, Tried, Waited, Work};
use crate::lane::Turn;
use crate::policy::{backoff, checkpoint, group as policy, retry};
use crate::queue::Class;
use crate::sqlite::{SqliteError, Value, ffi};
use crate::telemetry::{Blame, Held, Rerun};
use crate::wait::{GaveUp, Patience};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A job in the group, with what is known of it so far.
struct Member {
    job: Box<Job>,
    retries: u32,
    /// Its waits for the lock that are over, its statements and its commits, those that came to nothing too.
    lock: Duration,
    run: Duration,
    commit: Duration,
    /// When its statements ended, where they have run in the transaction that is open.
    ended: Option<Instant>,
    effects: Vec<Effect>,
}

impl Member {
    fn new(mut job: Box<Job>) -> Self {
        let effects = std::mem::take(&mut job.effects);
        let (retries, before) =
            job.tried.as_ref().map_or_else(Default::default, |tried| (tried.account.retries, tried.account.waited));
        let Waited { lock, run, commit, .. } = before;
        Self { job, retries, lock, run, commit, ended: None, effects }
    }

    /// Note that the lock was waited for from `waiting` until `begun`.
    fn waited_for_lock(&mut self, waiting: Instant, begun: Instant) {
        self.lock += begun.saturating_duration_since(waiting.max(self.job.came()));
    }

    /// Return who held the lock while it waited, `held` being the history of the group's wait.
    fn held(&self, held: &Held) -> Held {
        match &self.job.tried {
            _ if self.lock.is_zero() => Held::default(),
            Some(tried) => held.behind(&tried.account.held, self.lock.saturating_sub(tried.account.waited.lock)),
            None => held.clone(),
        }
    }

    /// Give up, for now, to run it on the caller's thread: the writer is to do it. It has waited with this history.
    fn leave_to_writer(mut self, held: Held) -> Driven {
        let until = Instant::now();
        let waited = Waited { queue: Duration::ZERO, ..waited(&self, until) };
        let account = Account { waited, retries: self.retries + 1, held, ..Account::default() };
        self.job.tried = Some(Box::new(Tried { until, account }));
        Driven::NotNow(self.job)
    }

    /// Note that its statements have run since `started`.
    fn ran(&mut self, started: Instant) -> Instant {
        let ended = Instant::now();
        self.run += ended.saturating_duration_since(started);
        self.ended = Some(ended);
        ended
    }

    /// Note that a commit came to nothing.
    fn failed_to_commit(&mut self, now: Instant) {
        self.commit += self.ended.take().map_or(Duration::ZERO, |ended| now.saturating_duration_since(ended));
    }

    /// Say whether it is too late to start.
    fn is_late(&self, now: Instant) -> bool {
        self.job.is_late(now) && !(self.job.at_once && self.retries == 0)
    }

    /// Note that what it did is undone and it waits again.
    fn requeue(&mut self) {
        self.retries += 1;
        self.ended = None;
        self.effects.clear();
        self.job.ticket.requeue();
    }
}

/// How one job inside the transaction ended.
enum Ran {
    /// It ran; its changes are in the transaction.
    Well,
    /// It failed and its changes are undone; the transaction lives.
    Failed(Box<Failure>),
    /// It failed and took the whole transaction with it.
    TookAll(Box<Failure>),
    /// The transaction must be run again from its start.
    Again,
}

/// Everything a group needs while it runs.
pub(super) struct Group<'a> {
    shared: &'a Arc<Shared>,
    engine: &'a mut Engine,
    turn: &'a mut Option<Turn>,
    waiting: Instant,
    blame: Blame,
}

/// What is left after a job was served.
pub(super) enum Served {
    /// The engine is here.
    Here,
    /// The job asked for the engine, and may have it now: it holds an open transaction.
    Lend(Box<Job>, Account),
    /// The engine holds a transaction that cannot be rolled back.
    Broken,
}

impl<'a> Group<'a> {
    /// Make the runner of one group. `waiting`: since when its first job waits for the lock.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        engine: &'a mut Engine,
        turn: &'a mut Option<Turn>,
        waiting: Instant,
        blame: Blame,
    ) -> Self {
        Self { shared, engine, turn, waiting, blame }
    }

    /// Serve `first`, with as much company as the policy allows.
    pub(super) fn serve(mut self, first: Box<Job>) -> Served {
        match first.work {
            Work::Alone(_) | Work::Setting(_) => self.serve_alone(first),
            Work::Checkpoint(mode) => self.serve_checkpoint(first, mode),
            Work::Lend(_) => self.serve_lend(first),
            Work::One(_) | Work::Many { .. } | Work::Batch(_) => self.serve_group(first),
        }
    }

    fn serve_group(&mut self, first: Box<Job>) -> Served {
        let class = first.class;
        let mut members = vec![Member::new(first)];
        let mut open = true;
        let mut attempt = 0;
        loop {
            let Some(begun) = self.begin(&mut members) else { return self.state() };
            let contended = match self.run_members(&mut members, begun, class, &mut open) {
                Attempt::Commit => match self.commit(&mut members, begun) {
                    Ok(()) => return self.state(),
                    Err(error @ Error::Timeout { .. }) if self.engine.autocommit() => {
                        // Only those whose own deadline it was: the others wait on, for theirs.
                        self.answer_late(&mut members, &error);
                        true
                    }
                    Err(error) => return self.after_failed_commit(members, error),
                },
                Attempt::Again { contended } => contended,
                Attempt::Nothing => {
                    return if self.engine.rollback().is_err() { Served::Broken } else { Served::Here };
                }
                Attempt::Broken => {
                    self.answer_broken(members);
                    return Served::Broken;
                }
            };
            if self.engine.rollback().is_err() {
                self.answer_broken(members);
                return Served::Broken;
            }
            if members.is_empty() {
                return self.state();
            }
            self.shared.telemetry.rerun(if contended { Rerun::Snapshot } else { Rerun::JobError });
            self.requeue(&mut members, contended, &mut attempt);
            // What failed before may fail again: no more company for this group.
            open = false;
        }
    }

    /// Have members whose transaction was undone wait again; somebody who was in the way gets a moment to leave.
    fn requeue(&mut self, members: &mut [Member], contended: bool, attempt: &mut u32) {
        for member in members.iter_mut() {
            member.requeue();
        }
        self.waiting = Instant::now();
        if contended {
            std::thread::sleep(backoff::sleep(*attempt, super::engine::random_bits() as u32));
            *attempt += 1;
        }
    }

    fn state(&self) -> Served {
        if self.engine.autocommit() { Served::Here } else { Served::Broken }
    }

    /// Begin the transaction, waiting for the lock as long as any member may still start.
    fn begin(&mut self, members: &mut Vec<Member>) -> Option<Instant> {
        let mut attempt = 0;
        loop {
            self.drop_gone(members);
            let durability = members.iter().map(|member| member.job.durability).max()?;
            // Setting the durability reads the schema, for which a lock can be in the way too.
            let Err(error) = self.engine.set_durability(durability).and_then(|()| self.engine.begin()) else {
                if let (Some(turn), Some(first)) = (self.turn.as_mut(), members.first()) {
                    turn.holding(first.job.work.label());
                }
                let begun = Instant::now();
                self.blame.pass(begun);
                for member in members.iter_mut() {
                    member.waited_for_lock(self.waiting, begun);
                }
                return Some(begun);
            };
            if retry::remedy(error.code, retry::Point::Begin) == retry::Remedy::Report {
                self.answer_waiting(std::mem::take(members), error.into());
                return None;
            }
            for member in members.iter_mut() {
                member.retries += 1;
            }
            let until = members.iter().filter_map(|member| member.job.until).min();
            let tickets: Vec<_> = members.iter().map(|member| Arc::clone(&member.job.ticket)).collect();
            let cancelled = || tickets.iter().any(|ticket| ticket.is_settled());
            if self.wait_for_lock(until, attempt, &cancelled) == Err(GaveUp::Interrupted) && self.shared.must_stop() {
                self.answer_waiting(std::mem::take(members), Error::Closed);
                return None;
            }
            attempt += 1;
        }
    }

    fn wait_for_lock(
        &mut self,
        until: Option<Instant>,
        attempt: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), GaveUp> {
        let waiting = Waiting::new(self.shared, self.waiting, std::mem::take(&mut self.blame));
        let interrupted = || waiting.keep_house() || cancelled();
        let patience = Patience { until, interrupted: &interrupted };
        let result = match self.turn.as_mut() {
            Some(turn) => turn.wait_for_write_lock(&patience),
            None => patience.next_slice().map(|slice| {
                std::thread::sleep(backoff::sleep(attempt, super::engine::random_bits() as u32).min(slice))
            }),
        };
        self.blame = waiting.into_blame();
        result
    }

    fn answer_late(&mut self, members: &mut Vec<Member>, error: &Error) {
        let now = Instant::now();
        let (late, rest): (Vec<_>, Vec<_>) = members.drain(..).partition(|member| member.job.is_late(now));
        *members = rest;
        self.answer_error(late, error.clone());
    }

    /// Forget the members that were cancelled and answer those that are too late to start.
    fn drop_gone(&mut self, members: &mut Vec<Member>) {
        let now = Instant::now();
        members.retain(|member| !member.job.ticket.is_settled());
        if !members.iter().any(|member| member.is_late(now)) {
            return;
        }
        let (late, rest): (Vec<_>, Vec<_>) = members.drain(..).partition(|member| member.is_late(now));
        *members = rest;
        // Looks are made sparingly, but who is told that time is up is told for whom.
        if self.blame.main().is_none()
            && let Some(holder) = self.shared.holder()
        {
            self.blame.look(now, holder);
        }
        let (holder, now) = (self.blame.main(), Instant::now());
        for member in late {
            let after = now.saturating_duration_since(member.job.called);
            let error = Error::Timeout { phase: Phase::Lock, after, holder: holder.clone() };
            self.answer_waiting(vec![member], error);
        }
    }

    fn run_members(&mut self, members: &mut Vec<Member>, begun: Instant, class: Class, open: &mut bool) -> Attempt {
        let mut next = 0;
        loop {
            if next == members.len() {
                let newcomer = if *open { self.newcomer(next, begun, class) } else { None };
                match newcomer {
                    Some(job) => {
                        let mut member = Member::new(job);
                        member.waited_for_lock(self.waiting, begun);
                        members.push(member);
                    }
                    None => return if members.is_empty() { Attempt::Nothing } else { Attempt::Commit },
                }
            }
            // Durability was set for those who began the transaction; a newcomer that asks for more waits for the next.
            let member = &mut members[next];
            let started = Instant::now();
            if member.is_late(started) {
                let member = members.remove(next);
                let after = started.saturating_duration_since(member.job.called);
                let error = Error::Timeout { phase: Phase::Queue, after, holder: self.blame.main() };
                self.answer_error(vec![member], error);
                continue;
            }
            if !member.job.ticket.start() {
                members.remove(next);
                continue;
            }
            let ran = run_member(self.engine, member);
            member.ran(started);
            match ran {
                Ran::Well => next += 1,
                Ran::Failed(failure) => {
                    let member = members.remove(next);
                    self.answer_failure(member, failure);
                }
                Ran::TookAll(failure) => {
                    let member = members.remove(next);
                    self.answer_failure(member, failure);
                    return if self.engine.autocommit() {
                        Attempt::Again { contended: false }
                    } else {
                        Attempt::Broken
                    };
                }
                Ran::Again => return Attempt::Again { contended: true },
            }
        }
    }

    fn newcomer(&self, jobs: usize, begun: Instant, class: Class) -> Option<Box<Job>> {
        let held = begun.elapsed();
        self.shared.queue.take_if(|job, required_waits| {
            matches!(job.work, Work::One(_) | Work::Many { .. } | Work::Batch(_))
                && self.engine.durability().is_some_and(|durability| job.durability <= durability)
                && policy::takes_another(
                    &self.shared.limits,
                    &policy::Progress {
                        jobs,
                        held,
                        has_offered: class == Class::Offered,
                        next_is_offered: job.class == Class::Offered,
                        required_waits,
                    },
                )
        })
    }

    fn commit(&mut self, members: &mut Vec<Member>, begun: Instant) -> Result<(), Error> {
        let until = members.iter().filter_map(|member| member.job.until).min();
        let waiting = Waiting::new(self.shared, Instant::now(), Blame::default());
        let interrupted = || waiting.keep_house();
        let patience = Patience { until, interrupted: &interrupted };
        let started = Instant::now();
        let mut account = Account::default();
        let committed = match self.shared.commit(Some(self.engine), self.turn, &patience, started, &mut account) {
            Ok(committed) => committed,
            Err(error) => {
                let now = Instant::now();
                members.iter_mut().for_each(|member| member.failed_to_commit(now));
                // An interrupt is nobody's signal: the time to stop has come.
                return Err(if error == Error::Interrupted { Error::Closed } else { error });
            }
        };
        let jobs = members.len();
        self.shared.note_group(jobs, committed.durable.saturating_duration_since(started));
        let mut recorder = self.shared.telemetry.recorder();
        let mut labels = members.iter().map(|member| member.job.work.label()).filter(|label| !label.is_empty());
        if let Some(first) = labels.next() {
            recorder.group(1 + labels.count(), committed.free.saturating_duration_since(begun), first);
        }
        let held = self.blame.take();
        let answers: Vec<(Box<Job>, Answer)> = members
            .drain(..)
            .map(|member| {
                let held = member.held(&held);
                let account = Account {
                    waited: waited(&member, committed.durable),
                    retries: member.retries + account.retries,
                    group: u32::try_from(jobs).unwrap_or(u32::MAX),
                    holder: held.main(),
                    held,
                };
                recorder.job(member.job.work.label(), &account, None);
                (member.job, Ok(Outcome { effects: member.effects, account }))
            })
            .collect();
        drop(recorder);
        self.shared.set_serving(false);
        self.shared.spent.leave(answer_all(answers));
        Ok(())
    }

    /// The transaction is gone. What only showed at COMMIT is the fault of one job: run each alone.
    fn after_failed_commit(&mut self, members: Vec<Member>, error: Error) -> Served {
        if !self.engine.autocommit() {
            self.answer_broken(members);
            return Served::Broken;
        }
        let alone = matches!(error, Error::Sqlite(_)) && members.len() > 1;
        if !alone {
            self.answer_error(members, error);
            return Served::Here;
        }
        self.shared.telemetry.rerun(Rerun::Commit);
        let mut rest = VecDeque::from(members);
        while let Some(mut member) = rest.pop_front() {
            member.requeue();
            let mut single = vec![member];
            if self.serve_single(&mut single).is_err() || !self.engine.autocommit() {
                single.extend(rest);
                self.answer_broken(single);
                return Served::Broken;
            }
        }
        self.state()
    }

    /// Run one job as a transaction of its own. An error: the transaction cannot be rolled back.
    fn serve_single(&mut self, single: &mut Vec<Member>) -> Result<(), SqliteError> {
        let mut attempt = 0;
        while let Some(begun) = self.begin(single) {
            match self.run_members(single, begun, Class::Required, &mut false) {
                Attempt::Commit => {
                    if let Err(error) = self.commit(single, begun) {
                        self.answer_error(std::mem::take(single), error);
                    }
                    break;
                }
                Attempt::Again { contended } => {
                    self.engine.rollback()?;
                    self.requeue(single, contended, &mut attempt);
                }
                Attempt::Nothing | Attempt::Broken => break,
            }
        }
        self.engine.rollback()
    }

    fn serve_alone(&mut self, job: Box<Job>) -> Served {
        let mut members = vec![Member::new(job)];
        let mut attempt = 0;
        loop {
            self.drop_gone(&mut members);
            let Some(member) = members.first_mut() else { return self.state() };
            let (Work::Alone(call) | Work::Setting(call)) = &member.job.work else { return self.state() };
            if !member.job.ticket.start() {
                return self.state();
            }
            let started = Instant::now();
            let result = self
                .engine
                .set_durability(member.job.durability)
                .map_err(Error::from)
                .and_then(|()| self.engine.run_alone(call));
            let ended = Instant::now();
            match result {
                Ok(effect) => {
                    if matches!(member.job.work, Work::Setting(_)) {
                        self.shared.settings.add(Arc::clone(&call.sql));
                    }
                    member.effects.push(effect);
                    member.waited_for_lock(self.waiting, started);
                    member.run = ended.saturating_duration_since(started);
                    let account = account(&mut self.blame, member, ended, 0);
                    self.shared.telemetry.record_one(member.job.work.label(), &account, None);
                    let effects = std::mem::take(&mut member.effects);
                    self.shared.set_serving(false);
                    answer_one(&member.job, Ok(Outcome { effects, account }));
                    return self.state();
                }
                Err(Error::Sqlite(error))
                    if retry::remedy(error.code, retry::Point::Begin) != retry::Remedy::Report
                        && self.engine.autocommit() =>
                {
                    member.requeue();
                    let until = member.job.until;
                    let ticket = Arc::clone(&member.job.ticket);
                    let cancelled = || ticket.is_settled();
                    if self.wait_for_lock(until, attempt, &cancelled) == Err(GaveUp::Interrupted)
                        && self.shared.must_stop()
                    {
                        self.answer_waiting(std::mem::take(&mut members), Error::Closed);
                        return self.state();
                    }
                    attempt += 1;
                }
                Err(error) => {
                    member.waited_for_lock(self.waiting, started);
                    let broken = self.engine.rollback().is_err();
                    // Undoing it is a part of it: it has no commit.
                    member.run = started.elapsed();
                    self.answer_error(std::mem::take(&mut members), error);
                    return if broken { Served::Broken } else { self.state() };
                }
            }
        }
    }

    /// Run a checkpoint at a caller's request. Who is in the way is waited for up to the deadline, then said.
    fn serve_checkpoint(&mut self, job: Box<Job>, mode: checkpoint::Mode) -> Served {
        let started = Instant::now();
        let mut member = Member::new(job);
        if !member.job.ticket.start() {
            return self.state();
        }
        member.waited_for_lock(self.waiting, started);
        let before = member.lock;
        let mut attempt = 0;
        let report = loop {
            let report = self.shared.checkpointer.run(self.engine.handle(), mode);
            let ran = Instant::now();
            if !report.busy || mode == checkpoint::Mode::Passive || member.job.is_late(ran) {
                break report;
            }
            let waited = self.wait_for_lock(member.job.until, attempt, &|| false);
            member.waited_for_lock(ran, Instant::now());
            if waited == Err(GaveUp::Interrupted) && self.shared.must_stop() {
                break report;
            }
            member.retries += 1;
            attempt += 1;
        };
        let ended = Instant::now();
        member.run = ended.saturating_duration_since(started).saturating_sub(member.lock.saturating_sub(before));
        match report.error {
            Some(error) => self.answer_error(vec![member], error.into()),
            None => {
                let row = [i64::from(report.busy), i64::from(report.log), i64::from(report.copied)];
                let row = row.map(Value::Integer);
                let effect = Effect { rows: vec![Box::new(row)], rowcount: -1, ..Effect::default() };
                let account = account(&mut self.blame, &member, ended, 0);
                self.shared.telemetry.record_one(member.job.work.label(), &account, None);
                self.answer(&member.job, Ok(Outcome { effects: vec![effect], account }));
            }
        }
        self.state()
    }

    fn serve_lend(&mut self, job: Box<Job>) -> Served {
        let mut members = vec![Member::new(job)];
        let Some(begun) = self.begin(&mut members) else { return self.state() };
        let Some(member) = members.pop() else { return self.state() };
        if !member.job.ticket.start() {
            return if self.engine.rollback().is_err() { Served::Broken } else { self.state() };
        }
        let account = account(&mut self.blame, &member, begun, 1);
        Served::Lend(member.job, account)
    }

    fn answer(&self, job: &Job, answer: Answer) {
        self.shared.set_serving(false);
        answer_one(job, answer);
    }

    fn answer_failure(&mut self, mut member: Member, mut failure: Box<Failure>) {
        let ended = member.ended.take().unwrap_or_else(Instant::now);
        failure.account = account(&mut self.blame, &member, ended, 0);
        self.shared.telemetry.record_one(member.job.work.label(), &failure.account, Some(&failure.error));
        self.shared.count_drop(&member.job, &failure.error);
        self.answer(&member.job, Err(failure));
    }

    /// Answer members who still wait for the lock with one error.
    fn answer_waiting(&mut self, mut members: Vec<Member>, error: Error) {
        let now = Instant::now();
        for member in &mut members {
            member.waited_for_lock(self.waiting, now);
        }
        self.answer_error(members, error);
    }

    /// Answer members that did not run, or whose run came to nothing, with one error.
    fn answer_error(&mut self, members: Vec<Member>, error: Error) {
        let now = Instant::now();
        for member in members {
            if !member.job.ticket.claim() {
                // Its caller has just given up, and has counted it.
                continue;
            }
            let account = account(&mut self.blame, &member, now, 0);
            self.shared.count_drop(&member.job, &error);
            let failure = self.shared.failure(member.job.work.label(), error.clone(), account);
            self.answer(&member.job, Err(failure));
        }
    }

    fn answer_broken(&mut self, members: Vec<Member>) {
        self.answer_error(members, Error::Poisoned("a transaction could not be rolled back".into()));
    }
}

/// What to do after the members have run.
enum Attempt {
    /// COMMIT.
    Commit,
    /// ROLLBACK what is left and run those that are left again; somebody was in the way, or one of them was.
    Again { contended: bool },
    /// Nobody is left to commit for.
    Nothing,
    /// An undo failed and the transaction is still open.
    Broken,
}

/// Run one job inside its own savepoint.
fn run_member(engine: &mut Engine, member: &mut Member) -> Ran {
    member.effects.clear();
    let failed = |error: Error, position: Option<usize>, statement: &Arc<str>| {
        Box::new(Failure { error, statement: Some(Arc::clone(statement)), position, account: Account::default() })
    };
    let label = Arc::clone(member.job.work.label());
    if let Err(error) = engine.savepoint() {
        // Nothing of it ran. Those before it are run again in a transaction that it has no part in; a rollback that
        // fails shows as an open transaction.
        let _ = engine.rollback();
        return Ran::TookAll(failed(error.into(), None, &label));
    }
    let failure = match run_work(engine, &member.job.work, &mut member.effects) {
        Ok(()) if engine.handle().deferred_violations() => {
            // It would only show at COMMIT, and there it would fail the neighbours too.
            let error = SqliteError {
                code: ffi::SQLITE_CONSTRAINT_FOREIGNKEY,
                message: "FOREIGN KEY constraint failed".into(),
                offset: None,
            };
            failed(error.into(), None, &label)
        }
        Ok(()) => match engine.release() {
            Ok(()) => return Ran::Well,
            Err(error) => failed(error.into(), None, &label),
        },
        Err(failure) => failure,
    };
    if engine.autocommit() {
        return Ran::TookAll(failure);
    }
    if let Error::Sqlite(error) = &failure.error
        && retry::remedy(error.code, retry::Point::Inside) == retry::Remedy::RetryTransaction
    {
        return Ran::Again;
    }
    let doomed = matches!(&failure.error, Error::Sqlite(error) if retry::dooms_transaction(error.code));
    if !doomed && engine.undo().is_ok() {
        return Ran::Failed(failure);
    }
    // Without its savepoint the job's changes can only be undone with all others; and a doomed transaction would fail
    // the neighbours.
    let _ = engine.rollback();
    Ran::TookAll(failure)
}

fn run_work(engine: &mut Engine, work: &Work, effects: &mut Vec<Effect>) -> Result<(), Box<Failure>> {
    let failed = |error: Error, position: Option<usize>, statement: &Arc<str>| {
        Box::new(Failure { error, statement: Some(Arc::clone(statement)), position, account: Account::default() })
    };
    match work {
        Work::One(call) | Work::Alone(call) | Work::Setting(call) => {
            effects.push(engine.run(call).map_err(|error| failed(error, None, &call.sql))?);
        }
        Work::Many { sql, rows } => {
            effects.push(engine.run_many(sql, rows).map_err(|(error, row)| failed(error, Some(row), sql))?);
        }
        Work::Batch(calls) => {
            for (position, call) in calls.iter().enumerate() {
                let linked = call.linked(effects).map_err(|error| failed(error, Some(position), &call.sql))?;
                let call = linked.as_ref().unwrap_or(call);
                effects.push(engine.run(call).map_err(|error| failed(error, Some(position), &call.sql))?);
                if engine.autocommit() {
                    // An error that SQLite did not report as one cannot end a transaction; be sure of it.
                    return Err(failed(
                        Error::Usage("the statement ended the transaction of its batch".into()),
                        Some(position),
                        &call.sql,
                    ));
                }
            }
        }
        Work::Checkpoint(_) | Work::Lend(_) => {}
    }
    Ok(())
}

/// Split the time of a job into its phases, so that they add up to its latency.
fn waited(member: &Member, answered: Instant) -> Waited {
    let total = answered.saturating_duration_since(member.job.called);
    let commit = member.ended.map_or(Duration::ZERO, |ended| answered.saturating_duration_since(ended));
    let (lock, run, commit) = (member.lock, member.run, member.commit + commit);
    Waited { queue: total.saturating_sub(lock).saturating_sub(run).saturating_sub(commit), lock, run, commit }
}

/// Return how a job fared that is answered now, whoever it waited for included.
fn account(blame: &mut Blame, member: &Member, answered: Instant, group: u32) -> Account {
    blame.pass(Instant::now());
    let held = if member.lock.is_zero() { Held::default() } else { member.held(&blame.peek()) };
    Account { waited: waited(member, answered), retries: member.retries, group, holder: held.main(), held }
}

/// Run a job as a transaction of its own, at once or not at all, after its caller's own wait for its turn.
pub(super) fn drive(
    shared: &Shared,
    engine: &mut Engine,
    turn: &mut Option<Turn>,
    job: Box<Job>,
    waiting: Waiting<'_>,
) -> Driven {
    let waiting_since = waiting.since();
    let mut blame = waiting.into_blame();
    let mut member = Member::new(job);
    if let Err(error) = engine.set_durability(member.job.durability).and_then(|()| engine.begin_short()) {
        return match retry::remedy(error.code, retry::Point::Begin) {
            retry::Remedy::Report => {
                let now = Instant::now();
                member.waited_for_lock(waiting_since, now);
                let held = blame.end(now);
                let account = Account { waited: waited(&member, now), holder: held.main(), held, ..Account::default() };
                Driven::Answered(Err(shared.failure(member.job.work.label(), error.into(), account)))
            }
            _ => {
                let now = Instant::now();
                member.waited_for_lock(waiting_since, now);
                member.leave_to_writer(blame.end(now))
            }
        };
    }
    let begun = Instant::now();
    member.waited_for_lock(waiting_since, begun);
    blame.pass(begun);
    let held = blame.take();
    let result = run_work(engine, &member.job.work, &mut member.effects);
    let ended = member.ran(begun);
    let mut failure = match result {
        Ok(()) => {
            let never = || false;
            // Without a wait: a reader in the way of COMMIT is waited for by the writer, who runs the job again.
            let patience = Patience { until: Some(begun), interrupted: &never };
            let mut account = Account::default();
            match shared.commit(Some(engine), turn, &patience, ended, &mut account) {
                Ok(committed) => {
                    // A log that is to be tended now is tended in this turn.
                    if let Some(turn) = turn.take_if(|_| !shared.checkpointer.is_full()) {
                        turn.leave_at(committed.free);
                    }
                    let waited = waited(&member, committed.durable);
                    shared.note_group(1, waited.commit);
                    let account = Account { waited, group: 1, holder: held.main(), held, ..account };
                    let mut recorder = shared.telemetry.recorder();
                    recorder.group(1, committed.free.saturating_duration_since(begun), member.job.work.label());
                    recorder.job(member.job.work.label(), &account, None);
                    return Driven::Answered(Ok(Outcome { effects: member.effects, account }));
                }
                Err(Error::Timeout { .. }) => return member.leave_to_writer(held),
                Err(error) => {
                    let statement = Some(Arc::clone(member.job.work.label()));
                    Box::new(Failure { error, statement, position: None, account })
                }
            }
        }
        Err(failure) => {
            let again = matches!(&failure.error, Error::Sqlite(error)
                if retry::remedy(error.code, retry::Point::Inside) == retry::Remedy::RetryTransaction);
            // A failed rollback shows as an open transaction, which the caller of this function looks for.
            let _ = engine.rollback();
            if again && engine.autocommit() {
                return member.leave_to_writer(held);
            }
            failure
        }
    };
    failure.account.waited = waited(&member, Instant::now());
    (failure.account.holder, failure.account.held) = (held.main(), held);
    shared.telemetry.record_one(member.job.work.label(), &failure.account, Some(&failure.error));
    Driven::Answered(Err(failure))
}

/// Put the engine on the desk of the caller who asked for it.
pub(super) fn lend(shared: &Arc<Shared>, engine: Box<Engine>, turn: Option<Turn>, job: &Job, account: Account) {
    let Work::Lend(desk) = &job.work else { return shared.home.give(engine) };
    let lease = Lease::new(engine, turn, Arc::clone(shared), Arc::clone(&desk.label), account.clone());
    // A lease that nobody takes is rolled back and the engine comes home when it is dropped.
    drop(desk.put(lease));
    answer_one(job, Ok(Outcome { effects: Vec::new(), account }));
}
