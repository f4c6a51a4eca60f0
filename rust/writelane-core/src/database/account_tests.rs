//! Failures are counted, once each, with their time where it went.

use super::claim::Claim;
use super::{CallOptions, Database, Options, Pending};
use crate::error::{Error, Phase};
use crate::job::{Account, Durability, Failure, Job, Parameters, Tried, Waited, Work};
use crate::policy::checkpoint::Mode;
use crate::sqlite::faults::{Fault, Plan, Wish};
use crate::sqlite::{Handle, OpenFlags, ffi};
use crate::telemetry::StatementStats;
use crate::ticket::State;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CALL: CallOptions = CallOptions { deadline: Some(None), durable: false };
const INSERT: &str = "INSERT INTO t VALUES (1)";
const NEVER: fn() -> bool = || false;

struct Scratch {
    folder: PathBuf,
    path: PathBuf,
    plan: Arc<Plan>,
    db: Database,
}

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("writelane-account-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("app.db");
        let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
        handle.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
        drop(handle);
        let plan = Plan::of(&path);
        let db = Database::open(&path, Options::default(), &NEVER).unwrap();
        Self { folder, path, plan, db }
    }

    /// Have the first call fail that `named` is in the name of: found by trying them one after another.
    fn fail_at(&self, named: &str, code: i32, mut run: impl FnMut() -> Option<Box<Failure>>) -> Box<Failure> {
        // More than once: a look at the idle log in between is counted too.
        for at in (1..50).cycle().take(500) {
            self.db.telemetry().reset();
            self.plan.arm(Wish { at, for_ever: false, fault: Fault::Code(code) });
            let failure = run();
            if let (Some(hit), Some(failure)) = (self.plan.disarm(), failure)
                && hit.contains(named)
            {
                return failure;
            }
        }
        panic!("no call is named {named}");
    }

    fn counted(&self, sql: &str) -> StatementStats {
        let all = self.db.telemetry().statements();
        all.into_iter().find(|stats| &*stats.sql == sql).unwrap()
    }

    /// Check that `sql` was counted once, with the error and the time that its caller was told of.
    fn check_counted(&self, sql: &str, name: &'static str, failure: &Failure) {
        let stats = self.counted(sql);
        let waited = failure.account.waited;
        assert_eq!((stats.count, &*stats.errors), (1, &[(name, 1)][..]));
        let sums = [stats.queue_wait.sum, stats.lock_wait.sum, stats.run.sum, stats.commit.sum];
        assert_eq!(sums, [waited.queue, waited.lock, waited.run, waited.commit]);
        assert_eq!(stats.held_by.iter().map(|(_, time)| *time).sum::<Duration>(), waited.lock);
    }

    fn insert(&self) -> Work {
        self.db.one(INSERT, Parameters::none()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.db.close(None, &NEVER);
        Plan::forget(&self.path);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn failure_of(ticket: &Pending) -> Option<Box<Failure>> {
    ticket.wait(&crate::wait::Patience { until: None, interrupted: &NEVER }).unwrap();
    ticket.take().unwrap().err()
}

#[test]
fn a_commit_that_fails_has_run_and_committed() {
    let scratch = Scratch::new();
    for by_the_writer in [true, false] {
        let called = Instant::now();
        let failure = scratch.fail_at("COMMIT", ffi::SQLITE_FULL, || {
            if by_the_writer {
                failure_of(&scratch.db.enqueue_at_once(scratch.insert(), &CALL).unwrap())
            } else {
                scratch.db.run(scratch.insert(), &CALL, Instant::now(), &NEVER).err()
            }
        });
        let waited = failure.account.waited;
        assert!(!waited.run.is_zero() && !waited.commit.is_zero(), "{waited:?}");
        assert!(waited.total() <= called.elapsed());
        scratch.check_counted(INSERT, "SQLITE_FULL", &failure);
    }
}

#[test]
fn a_begin_that_fails_has_only_waited() {
    let scratch = Scratch::new();
    for by_the_writer in [true, false] {
        let failure = scratch.fail_at("BEGIN", ffi::SQLITE_IOERR, || {
            if by_the_writer {
                failure_of(&scratch.db.enqueue_at_once(scratch.insert(), &CALL).unwrap())
            } else {
                scratch.db.run(scratch.insert(), &CALL, Instant::now(), &NEVER).err()
            }
        });
        let waited = failure.account.waited;
        assert!(!waited.lock.is_zero() && waited.run.is_zero() && waited.commit.is_zero(), "{waited:?}");
        scratch.check_counted(INSERT, "SQLITE_IOERR", &failure);
    }
}

#[test]
fn a_statement_that_fails_alone_and_a_checkpoint_that_fails_have_run() {
    let scratch = Scratch::new();
    let sql = format!("VACUUM INTO '{}'", scratch.path.display());
    let failure = scratch.db.execute(&sql, Parameters::none(), &CALL, &NEVER).unwrap_err();
    assert!(!failure.account.waited.run.is_zero());
    assert!(failure.account.waited.commit.is_zero());
    scratch.check_counted(&sql, "SQLITE_ERROR", &failure);

    let failure = scratch.fail_at("checkpoint", ffi::SQLITE_IOERR, || {
        scratch.db.run(Work::Checkpoint(Mode::Passive), &CALL, Instant::now(), &NEVER).err()
    });
    assert!(!failure.account.waited.run.is_zero());
    scratch.check_counted("PRAGMA wal_checkpoint", "SQLITE_IOERR", &failure);
}

#[test]
fn what_is_refused_when_the_writer_ends_or_dies_is_counted_with_its_wait() {
    for dies in [true, false] {
        let scratch = Scratch::new();
        let lease = scratch.db.transaction("hold", &CALL, &NEVER).unwrap();
        let ticket = scratch.db.enqueue_at_once(scratch.insert(), &CALL).unwrap();
        if dies {
            scratch.db.writer().unwrap().poison("a test");
        } else {
            // The transaction is this thread's, so that another one closes.
            std::thread::scope(|scope| {
                scope.spawn(|| scratch.db.close(Some(Duration::ZERO), &NEVER));
            });
        }
        let failure = failure_of(&ticket).unwrap();
        assert!(!failure.account.waited.total().is_zero());
        scratch.check_counted(INSERT, if dies { "POISONED" } else { "CLOSED" }, &failure);
        drop(lease);
    }
}

#[test]
fn a_caller_who_is_interrupted_is_counted_with_its_wait() {
    let scratch = Scratch::new();
    let lease = scratch.db.transaction("hold", &CALL, &NEVER).unwrap();
    let failure = std::thread::scope(|scope| {
        let run = || scratch.db.run(scratch.insert(), &CALL, Instant::now(), &|| true);
        scope.spawn(run).join().unwrap().unwrap_err()
    });
    assert_eq!(failure.error, Error::Interrupted);
    assert!(!failure.account.waited.total().is_zero());
    scratch.check_counted(INSERT, "INTERRUPTED", &failure);
    drop(lease);
}

#[test]
fn a_caller_who_waits_for_its_turn_and_then_for_sqlite_s_lock_waits_for_the_lock_all_the_time() {
    let scratch = Scratch::new();
    let lane = Arc::clone(scratch.db.lane().unwrap());
    // As a foreign process does: it takes no turn.
    let outsider = Handle::open(&scratch.path, OpenFlags::WRITER).unwrap();
    outsider.execute_batch("BEGIN IMMEDIATE").unwrap();
    let turn = lane.try_enter("somebody").unwrap();
    let (outcome, both) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| scratch.db.run(scratch.insert(), &CALL, Instant::now(), &NEVER));
        await_true(|| lane.stats().waiting == 1);
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(60));
        let mut both = since.elapsed();
        drop(turn);
        // It meets the outsider, and leaves the job to the writer thread.
        await_true(|| scratch.db.writer().unwrap().waits_for_lock());
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(60));
        both += since.elapsed();
        outsider.execute_batch("COMMIT").unwrap();
        (caller.join().unwrap().unwrap(), both)
    });
    assert!(outcome.account.waited.lock >= both, "{:?} of {both:?}", outcome.account);
    assert!(outcome.account.retries >= 1);
    let counted = scratch.counted(INSERT);
    assert_eq!((counted.count, counted.lock_wait.sum), (1, outcome.account.waited.lock));
    assert_eq!(counted.held_by.iter().map(|(_, time)| *time).sum::<Duration>(), outcome.account.waited.lock);
}

#[test]
fn who_gives_up_a_job_that_runs_is_told_what_it_waited_and_it_is_counted_when_it_has_run() {
    let scratch = Scratch::new();
    let long = "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000000) \
                SELECT count(*) FROM n";
    let lease = scratch.db.transaction("hold", &CALL, &NEVER).unwrap();
    let (shared, claim, _) = scratch.db.enqueue(scratch.db.one(long, Parameters::none()).unwrap(), &CALL).unwrap();
    let runs = || claim.ticket.state() == State::Running;
    let failure = std::thread::scope(|scope| {
        let caller = scope.spawn(|| claim.answer(shared, None, &runs));
        await_true(|| shared.waits_for_lock());
        std::thread::sleep(Duration::from_millis(120));
        drop(lease);
        caller.join().unwrap().unwrap_err()
    });
    assert_eq!(failure.error, Error::Interrupted);
    let waited = failure.account.waited;
    assert!(waited.queue + waited.lock >= Duration::from_millis(50) && !waited.run.is_zero(), "{waited:?}");
    await_true(|| scratch.db.telemetry().statements().iter().any(|stats| &*stats.sql == long));
    let counted = scratch.counted(long);
    assert_eq!((counted.count, &*counted.errors), (1, &[][..]));
}

#[test]
fn jobs_that_a_panic_loses_are_counted_once_each() {
    for by_the_writer in [true, false] {
        let scratch = Scratch::new();
        let lease = by_the_writer.then(|| scratch.db.transaction("hold", &CALL, &NEVER).unwrap());
        if by_the_writer {
            // Both in one group, and the second not begun.
            let tickets = [0, 1].map(|_| scratch.db.enqueue_at_once(scratch.insert(), &CALL).unwrap());
            scratch.db.telemetry().reset();
            scratch.plan.arm(Wish { at: 3, for_ever: true, fault: Fault::Panic });
            drop(lease);
            for ticket in tickets {
                let failure = failure_of(&ticket).unwrap();
                assert!(matches!(failure.error, Error::Poisoned(_)), "{:?}", failure.error);
                assert!(!failure.account.waited.total().is_zero());
            }
            await_true(|| scratch.db.writer().unwrap().is_poisoned());
        } else {
            let work = scratch.insert();
            scratch.plan.arm(Wish { at: 1, for_ever: false, fault: Fault::Panic });
            let run = || scratch.db.run(work, &CALL, Instant::now(), &NEVER);
            let Err(_) = catch_unwind(AssertUnwindSafe(run)) else { panic!("it was to panic") };
        }
        let jobs = if by_the_writer { 2 } else { 1 };
        let counted = scratch.counted(INSERT);
        assert_eq!((counted.count, &*counted.errors), (jobs, &[("POISONED", jobs)][..]));
        scratch.plan.disarm();
    }
}

#[test]
fn calls_that_are_refused_are_counted_as_they_are_told() {
    for state in ["closed", "poisoned"] {
        let scratch = Scratch::new();
        let work = scratch.insert();
        let many = scratch.db.many(INSERT, vec![Parameters::none()]).unwrap();
        match state {
            "closed" => scratch.db.close(None, &NEVER).unwrap(),
            _ => scratch.db.writer().unwrap().poison("a test"),
        }
        scratch.db.telemetry().reset();
        let failures = [
            scratch.db.execute(INSERT, Parameters::none(), &CALL, &NEVER).unwrap_err(),
            scratch.db.run(work, &CALL, Instant::now(), &NEVER).unwrap_err(),
            scratch.db.submit(many, &CALL, &NEVER).err().unwrap(),
        ];
        let name = if state == "closed" { "CLOSED" } else { "POISONED" };
        let counted = scratch.counted(INSERT);
        assert_eq!((counted.count, &*counted.errors), (3, &[(name, 3)][..]));
        let told = failures.iter().map(|failure| failure.account.waited.total()).sum::<Duration>();
        assert_eq!(counted.latency.sum, told);
        assert!(failures.iter().all(|failure| failure.statement.as_deref() == Some(INSERT)));
    }
}

#[test]
fn a_flush_is_nobody_s_statement() {
    let scratch = Scratch::new();
    let lease = scratch.db.transaction("hold", &CALL, &NEVER).unwrap();
    scratch.db.enqueue_at_once(scratch.insert(), &CALL).unwrap();
    let flushed = &scratch.db;
    std::thread::scope(|scope| {
        let late = CallOptions { deadline: Some(Some(Duration::from_millis(1))), durable: false };
        let flush = |call: CallOptions| scope.spawn(move || flushed.flush(&call, &NEVER));
        flush(late).join().unwrap().unwrap_err();
        let flush = flush(CALL);
        await_true(|| scratch.db.writer().unwrap().queue().stats().depth >= 2);
        drop(lease);
        flush.join().unwrap().unwrap();
    });
    let all = scratch.db.telemetry().statements();
    let mut counted: Vec<_> = all.iter().map(|stats| (&*stats.sql, stats.count)).collect();
    counted.sort_unstable();
    assert_eq!(counted, [(INSERT, 1), ("hold", 1)]);
    assert_eq!(scratch.db.telemetry().jobs(), 1);
}

/// Wait until it is so; the time limit of the run ends a wait that never does.
fn await_true(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

#[test]
fn a_job_that_the_writer_has_waits_for_the_lock_also_between_two_waits_of_the_writer() {
    let scratch = Scratch::new();
    let shared = scratch.db.shared().unwrap();
    let since = Duration::from_millis(300);
    for tried in [None, Some(Duration::from_micros(200))] {
        let called = Instant::now() - since;
        let mut job = Job::new(scratch.insert(), Durability::Normal, None, called);
        job.tried = tried.map(|lock| {
            let account = Account { waited: Waited { lock, ..Waited::default() }, ..Account::default() };
            Box::new(Tried { until: called + lock, account })
        });
        assert!(!shared.waits_for_lock());
        let waited = Claim::of(&job).timeout(shared, Phase::Lock).account.waited;
        assert_eq!(waited.queue, Duration::ZERO, "its caller had tried: {tried:?}");
        assert!(waited.lock >= since, "its caller had tried: {tried:?}");
    }
}
