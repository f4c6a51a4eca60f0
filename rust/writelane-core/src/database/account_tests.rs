//! Failures are counted, once each, with their time where it went.

use super::{CallOptions, Database, Options, Pending};
use crate::error::Error;
use crate::job::{Failure, Parameters, Work};
use crate::policy::checkpoint::Mode;
use crate::sqlite::faults::{Fault, Plan, Wish};
use crate::sqlite::{Handle, OpenFlags, ffi};
use crate::telemetry::StatementStats;
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
        for at in 1..100 {
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
