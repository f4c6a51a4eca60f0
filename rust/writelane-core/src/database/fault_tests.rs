//! Every call into SQLite made to fail at its every occurrence in a scripted workload, with each result that matters.
//!
//! After each: no acknowledged job lost, none half done, none run twice, nobody left waiting, every caller told the
//! truth, and the database usable, or said to be dead and usable once opened again.

use super::{CallOptions, Database, Options, Pending};
use crate::error::Error;
use crate::job::{Answer, Call, Durability, Parameters, Work};
use crate::policy::checkpoint::Mode;
use crate::sqlite::faults::{Fault, Plan, Wish};
use crate::sqlite::{Handle, OpenFlags, Statement, Step, Value, code_name, ffi};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

const CALL: CallOptions = CallOptions { deadline: None, durable: false };
/// Nothing in the workload waits for anything but the machine: past this somebody is left waiting.
const LEFT_WAITING: Duration = Duration::from_secs(100);
/// Where every call fails from some point on, contention never ends either, and the deadline must.
const DEADLINE_FOR_EVER: Duration = Duration::from_millis(5);

/// What a caller was told of one job.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Done,
    Refused(Error),
    /// Its caller was unwound by a panic, and was told nothing.
    Unwound,
}

/// One job of the workload: the rows it writes, and what its caller was told.
struct Entry {
    job: i64,
    rows: i64,
    told: Told,
}

fn insert(job: i64, row: i64) -> (String, Parameters) {
    let values = [Value::Integer(job), Value::Integer(row)];
    ("INSERT INTO done(job, row) VALUES (?, ?)".to_owned(), Parameters::Positional(Box::new(values)))
}

fn call((sql, parameters): (String, Parameters)) -> Call {
    Call { sql: sql.into(), parameters }
}

fn told(answer: std::thread::Result<Answer>) -> Told {
    match answer {
        Ok(Ok(_)) => Told::Done,
        Ok(Err(failure)) => Told::Refused(failure.error),
        Err(_) => Told::Unwound,
    }
}

fn guarded(run: impl FnOnce() -> Answer) -> Told {
    told(catch_unwind(AssertUnwindSafe(run)))
}

fn await_ticket(ticket: &Pending) -> Answer {
    let never = || false;
    ticket.wait(&crate::wait::Patience { until: None, interrupted: &never }).unwrap();
    ticket.take().unwrap_or_else(|| Err(Box::new(Error::Cancelled.into())))
}

/// The jobs, one after another where they must be alone and together where they are to share a transaction.
fn workload(db: &Database, log: &mut Vec<Entry>) {
    let never = || false;
    let mut note = |job: i64, rows: i64, told: Told| log.push(Entry { job, rows, told });
    let execute = |sql: &str, parameters: Parameters| db.execute(sql, parameters, &CALL, &never);

    let (sql, parameters) = insert(1, 0);
    note(1, 1, guarded(|| execute(&sql, parameters)));

    // A transaction that holds everybody else up, so that what comes meanwhile is one group.
    let lease = catch_unwind(AssertUnwindSafe(|| db.transaction("hold", &CALL, &never)));
    let mut queued: Vec<(i64, i64, Result<Pending, Told>)> = Vec::new();
    let mut queue = |job: i64, rows: i64, work: &dyn Fn() -> Result<Work, Box<crate::job::Failure>>, durable: bool| {
        let options = CallOptions { durable, ..CALL };
        let ticket = catch_unwind(AssertUnwindSafe(|| work().and_then(|work| db.enqueue_at_once(work, &options))));
        let ticket = match ticket {
            Ok(Ok(ticket)) => Ok(ticket),
            Ok(Err(failure)) => Err(Told::Refused(failure.error)),
            Err(_) => Err(Told::Unwound),
        };
        queued.push((job, rows, ticket));
    };
    let one = |job: i64| {
        let (sql, parameters) = insert(job, 0);
        db.one(&sql, parameters)
    };
    queue(10, 1, &|| one(10), false);
    queue(11, 2, &|| db.batch(vec![insert(11, 0), insert(11, 1)]), false);
    queue(12, 0, &|| db.one("INSERT INTO done(job, row) VALUES (12, NULL)", Parameters::none()), false);
    let rows = |job: i64| (0..3).map(|row| insert(job, row).1).collect::<Vec<_>>();
    queue(13, 3, &|| db.many("INSERT INTO done(job, row) VALUES (?, ?)", rows(13)), false);
    queue(14, 1, &|| db.one("INSERT INTO done VALUES (14, 0) RETURNING job, row", Parameters::none()), false);
    // Half a batch that fails, and an error that takes the transaction of all with it.
    queue(
        15,
        0,
        &|| db.batch(vec![insert(15, 0), ("INSERT INTO done VALUES (15, NULL)".into(), Parameters::none())]),
        false,
    );
    queue(16, 0, &|| db.one("INSERT OR ROLLBACK INTO done VALUES (16, NULL)", Parameters::none()), false);
    // A violation that would only show at COMMIT.
    queue(17, 0, &|| db.one("INSERT INTO child VALUES (17)", Parameters::none()), false);
    queue(18, 1, &|| one(18), true);

    let told_of_lease = match lease {
        Err(_) => Told::Unwound,
        Ok(Err(failure)) => Told::Refused(failure.error),
        Ok(Ok(mut lease)) => guarded(|| {
            lease.run(&call(insert(2, 0)))?;
            let failed = lease.run_many(
                &"INSERT INTO done VALUES (?, ?)".into(),
                &[insert(2, 1).1, Parameters::Positional(Box::new([Value::Integer(2), Value::Null]))],
            );
            assert!(failed.is_err(), "a row that breaks a constraint");
            lease.run_many(&"INSERT INTO done VALUES (?, ?)".into(), &[insert(2, 1).1, insert(2, 2).1])?;
            let until = std::time::Instant::now().checked_add(db.options().deadline.unwrap());
            let account = lease.commit(&crate::wait::Patience { until, interrupted: &never })?;
            Ok(crate::job::Outcome { effects: Vec::new(), account })
        }),
    };
    note(2, 3, told_of_lease);
    for (job, rows, ticket) in queued {
        let told = ticket.map_or_else(|told| told, |ticket| told(Ok(await_ticket(&ticket))));
        note(job, rows, told);
    }

    let read = guarded(|| {
        let outcome = execute("SELECT count(*) FROM done WHERE job = 1", Parameters::none())?;
        assert!(matches!(*outcome.effects[0].rows[0], [Value::Integer(0 | 1)]));
        Ok(outcome)
    });
    note(3, 0, read);
    // A transaction that its caller drops.
    if let Ok(Ok(mut lease)) = catch_unwind(AssertUnwindSafe(|| db.transaction("drop", &CALL, &never))) {
        let _ = catch_unwind(AssertUnwindSafe(|| lease.run(&call(insert(4, 0))).map(drop)));
        drop(lease);
    }
    note(4, 0, Told::Refused(Error::Cancelled));
    let offered = || db.offer(db.one(&insert(5, 0).0, insert(5, 0).1)?, None);
    let _ = catch_unwind(AssertUnwindSafe(|| offered().map(drop)));
    let _ = catch_unwind(AssertUnwindSafe(|| db.flush(&CALL, &never).map(drop)));
    let _ = catch_unwind(AssertUnwindSafe(|| db.checkpoint(Mode::Truncate, &CALL, &never).map(drop)));
    let (sql, parameters) = insert(6, 0);
    note(6, 1, guarded(|| execute(&sql, parameters)));
    note(7, 0, guarded(|| execute("VACUUM", Parameters::none())));
    note(8, 0, guarded(|| execute("PRAGMA foreign_keys=ON", Parameters::none())));
}

fn rows_in(path: &Path) -> BTreeMap<i64, Vec<i64>> {
    let handle = Handle::open(path, OpenFlags::EXISTING).unwrap();
    let ask = |sql: &str| {
        let (statement, _) = Statement::prepare(&handle, sql.as_bytes(), 0).unwrap();
        let statement = statement.unwrap();
        let mut rows = Vec::new();
        while statement.step().unwrap() == Step::Row {
            rows.push(statement.row());
        }
        rows
    };
    assert_eq!(*ask("PRAGMA integrity_check")[0], [Value::from("ok")]);
    let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in ask("SELECT job, row FROM done ORDER BY job, row") {
        let [Value::Integer(job), Value::Integer(row)] = *row else { panic!("a row that nobody wrote: {row:?}") };
        found.entry(job).or_default().push(row);
    }
    found
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("writelane-faults-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Run the workload with one fault. Return the call that failed, `None` where there were not so many.
fn run_with(wish: Wish) -> Option<String> {
    let scratch = Scratch::new();
    let path = scratch.0.join("app.db");
    {
        let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
        handle
            .execute_batch(
                "PRAGMA journal_mode=WAL; CREATE TABLE done(job INTEGER NOT NULL, row INTEGER NOT NULL); \
                 CREATE TABLE parent(id INTEGER PRIMARY KEY); \
                 CREATE TABLE child(parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED);",
            )
            .unwrap();
    }
    let plan = Plan::of(&path);
    plan.arm(wish);
    let deadline = if wish.for_ever && wish.at > 0 { DEADLINE_FOR_EVER } else { LEFT_WAITING };
    let options = Options { deadline: Some(deadline), durability: Durability::Normal, ..Options::default() };
    let never = || false;
    let mut log = Vec::new();
    let opened = catch_unwind(AssertUnwindSafe(|| Database::open(&path, options.clone(), &never)));
    let opened = match opened {
        Ok(Ok(db)) => Some(db),
        Ok(Err(_)) | Err(_) => None,
    };
    if let Some(db) = &opened {
        // Not every run of the workload gets here: what sets the connection up may be what fails.
        let _ = guarded(|| db.execute("PRAGMA foreign_keys=ON", Parameters::none(), &CALL, &never));
        workload(db, &mut log);
    }
    let hit = plan.disarm();
    if let Some(db) = opened {
        check_usable(&db, &path, &options, &log);
        db.close(None, &never).unwrap();
    } else {
        Database::open(&path, options, &never).unwrap().close(None, &never).unwrap();
    }
    Plan::forget(&path);

    let found = rows_in(&path);
    for entry in &log {
        let whole: Vec<i64> = (0..entry.rows).collect();
        let there = found.get(&entry.job).cloned().unwrap_or_default();
        match &entry.told {
            Told::Done => assert_eq!(there, whole, "job {} was acknowledged", entry.job),
            Told::Refused(Error::CommitUncertain(_) | Error::Poisoned(_)) | Told::Unwound => {
                assert!(there.is_empty() || there == whole, "job {} is half there: {there:?}", entry.job);
            }
            Told::Refused(error) => assert_eq!(there, [0_i64; 0], "job {} was refused: {error}", entry.job),
        }
        if matches!(entry.job, 12 | 15 | 16 | 17) && wish.at == 0 {
            assert!(matches!(entry.told, Told::Refused(Error::Sqlite(_))), "job {}: {:?}", entry.job, entry.told);
        } else if wish.at == 0 && entry.job != 4 {
            assert_eq!(entry.told, Told::Done, "job {}", entry.job);
        }
        // An error that somebody else made is nobody's own.
        if let Told::Refused(Error::Sqlite(error)) = &entry.told
            && !matches!(entry.job, 12 | 15 | 16 | 17)
        {
            let injected =
                matches!(wish.fault, Fault::Code(code) | Fault::Gone(code) if code & 0xff == error.primary());
            assert!(injected, "job {} was told of {error}", entry.job);
        }
    }
    for (job, rows) in &found {
        let unique: std::collections::BTreeSet<_> = rows.iter().collect();
        assert_eq!(unique.len(), rows.len(), "job {job} ran twice");
    }
    hit
}

/// The fault is over: the database works again, or says that it is dead and works when it is opened anew.
fn check_usable(db: &Database, path: &Path, options: &Options, log: &[Entry]) {
    let never = || false;
    let options = Options { deadline: Some(LEFT_WAITING), ..options.clone() };
    let patient = CallOptions { deadline: Some(Some(LEFT_WAITING)), durable: false };
    let (sql, parameters) = insert(100, 0);
    match db.execute(&sql, parameters.clone(), &patient, &never) {
        Ok(_) => {}
        Err(failure) => {
            assert!(matches!(failure.error, Error::Poisoned(_)), "after the fault: {}", failure.error);
            let again = Database::open(path, options, &never).unwrap();
            again.execute(&sql, parameters, &patient, &never).unwrap();
            let rows = again.execute("SELECT * FROM done", Parameters::none(), &patient, &never).unwrap();
            assert!(!rows.effects[0].rows.is_empty());
            again.close(None, &never).unwrap();
            return;
        }
    }
    let rows = db.execute("SELECT job FROM done", Parameters::none(), &patient, &never).unwrap();
    let acknowledged = log.iter().filter(|entry| entry.told == Told::Done).map(|entry| entry.rows).sum::<i64>();
    assert!(rows.effects[0].rows.len() as i64 > acknowledged);
}

/// The sweep is over when so many runs in a row have ended before the call that was to fail.
const RUNS_WITHOUT_FAULT: u32 = 3;

/// Run the workload with each call failing in turn, each run under a watch.
fn sweep(fault: Fault, for_ever: bool) {
    let mut missed = 0;
    for at in 0.. {
        let wish = Wish { at, for_ever, fault };
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let ran = run_with(wish);
            let _ = sender.send(());
            ran
        });
        let waited = receiver.recv_timeout(LEFT_WAITING / 2);
        assert!(waited != Err(mpsc::RecvTimeoutError::Timeout), "{}: somebody is left waiting", describe(wish));
        match thread.join() {
            // Where more jobs happen to share a transaction, a run makes fewer calls than the next.
            Ok(None) if at > 0 => {
                missed += 1;
                if missed == RUNS_WITHOUT_FAULT {
                    assert!(at > 40, "the workload makes {at} calls only");
                    return;
                }
            }
            Ok(_) => missed = 0,
            Err(panic) => {
                let said = panic.downcast_ref::<String>().cloned();
                let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                panic!("{}: {}", describe(wish), said.unwrap_or_default());
            }
        }
    }
}

fn describe(wish: Wish) -> String {
    let how = match wish.fault {
        Fault::Code(code) => code_name(code).to_owned(),
        Fault::Gone(code) => format!("{} and the transaction gone", code_name(code)),
        Fault::Panic => "a panic".to_owned(),
    };
    format!("call {} {}gave {how}", wish.at, if wish.for_ever { "and all after it " } else { "" })
}

macro_rules! sweeps {
    ($($name:ident: $fault:expr, $for_ever:expr;)*) => {
        $(
            #[test]
            fn $name() {
                sweep($fault, $for_ever);
            }
        )*
    };
}

sweeps! {
    busy_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_BUSY), false;
    a_stale_snapshot_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_BUSY_SNAPSHOT), false;
    a_full_disk_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_FULL), false;
    a_full_disk_that_takes_the_transaction_loses_nothing: Fault::Gone(ffi::SQLITE_FULL), false;
    an_io_error_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_IOERR_WRITE), false;
    an_io_error_that_takes_the_transaction_loses_nothing: Fault::Gone(ffi::SQLITE_IOERR_WRITE), false;
    no_memory_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_NOMEM), false;
    no_memory_that_takes_the_transaction_loses_nothing: Fault::Gone(ffi::SQLITE_NOMEM), false;
    an_interrupt_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_INTERRUPT), false;
    an_interrupt_that_takes_the_transaction_loses_nothing: Fault::Gone(ffi::SQLITE_INTERRUPT), false;
    corruption_at_any_call_loses_nothing: Fault::Code(ffi::SQLITE_CORRUPT), false;
    an_io_error_that_stays_loses_nothing: Fault::Code(ffi::SQLITE_IOERR_WRITE), true;
    a_full_disk_that_stays_loses_nothing: Fault::Gone(ffi::SQLITE_FULL), true;
    no_memory_that_stays_loses_nothing: Fault::Gone(ffi::SQLITE_NOMEM), true;
    busy_that_stays_is_a_timeout: Fault::Code(ffi::SQLITE_BUSY), true;
    a_panic_at_any_call_leaves_nobody_waiting: Fault::Panic, false;
}
