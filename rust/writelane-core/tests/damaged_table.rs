//! A table whose pages are damaged: who needs it is told so each time, and nobody else is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common;

use common::Scratch;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use writelane_core::database::{CallOptions, Database, Options};
use writelane_core::error::Error;
use writelane_core::job::{Call, Failure, Parameters, Work};
use writelane_core::sqlite::{Handle, OpenFlags, Statement, Step, Value};
use writelane_core::wait::Patience;

const CALL: CallOptions = CallOptions { deadline: None, durable: false };
const GOOD: &str = "INSERT INTO good VALUES (1)";
const BAD: &str = "INSERT INTO bad VALUES (1)";
const LEFT_WAITING: Duration = Duration::from_secs(100);

fn never() -> bool {
    false
}

fn integer(path: &Path, sql: &str) -> i64 {
    let handle = Handle::open(path, OpenFlags::EXISTING).unwrap();
    let (statement, _) = Statement::prepare(&handle, sql.as_bytes(), 0).unwrap();
    let statement = statement.unwrap();
    assert_eq!(statement.step().unwrap(), Step::Row);
    let [Value::Integer(number)] = *statement.row() else { panic!("{sql} gives one number") };
    number
}

/// Make a database with a table `good`, and a table `bad` whose root page is no page.
fn damaged(scratch: &Scratch) -> PathBuf {
    let path = scratch.file("app.db");
    {
        let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
        handle
            .execute_batch(
                "PRAGMA journal_mode=WAL; CREATE TABLE good(x); CREATE TABLE bad(x); PRAGMA wal_checkpoint(TRUNCATE)",
            )
            .unwrap();
    }
    let page = integer(&path, "SELECT rootpage FROM sqlite_schema WHERE name = 'bad'");
    let size = integer(&path, "PRAGMA page_size");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 64], u64::try_from((page - 1) * size).unwrap()).unwrap();
    path
}

fn open(path: &Path) -> Database {
    Database::open(path, Options { deadline: Some(LEFT_WAITING), ..Options::default() }, &never).unwrap()
}

fn run(db: &Database, sql: &str) -> Result<(), Box<Failure>> {
    db.execute(sql, Parameters::none(), &CALL, &never).map(drop)
}

fn assert_corrupt(answer: Result<(), Box<Failure>>, whose: &str) {
    let error = answer.expect_err(whose).error;
    assert!(matches!(&error, Error::Sqlite(error) if error.name() == "SQLITE_CORRUPT"), "{whose}: {error}");
}

#[test]
fn damage_that_one_job_meets_fails_no_neighbour_of_its_group() {
    let scratch = Scratch::new();
    let path = damaged(&scratch);
    let db = open(&path);
    let patience = Patience { until: None, interrupted: &never };
    let mut rows = 0;
    // Each way in which good and damaged can stand beside each other in a group of up to five.
    for jobs in 1..=5_u32 {
        for pattern in 0..1_u32 << jobs {
            let is_bad: Vec<bool> = (0..jobs).map(|job| pattern >> job & 1 == 1).collect();
            // Queued behind an interactive transaction, so that one group takes them all.
            let lease = db.transaction("hold", &CALL, &never).unwrap();
            let tickets: Vec<_> = is_bad
                .iter()
                .enumerate()
                .map(|(job, bad)| {
                    let sql = if *bad { BAD } else { GOOD };
                    let work: Work = if job % 2 == 0 {
                        db.one(sql, Parameters::none()).unwrap()
                    } else {
                        db.batch(vec![(sql.into(), Parameters::none())]).unwrap()
                    };
                    db.enqueue_at_once(work, &CALL).unwrap()
                })
                .collect();
            lease.commit(&patience).unwrap();
            for (job, (ticket, bad)) in tickets.into_iter().zip(&is_bad).enumerate() {
                ticket.wait(&patience).unwrap();
                let answer = ticket.take().expect("nobody cancels").map(drop);
                let which = format!("job {job} of {is_bad:?}");
                if *bad {
                    assert_corrupt(answer, &which);
                } else {
                    answer.unwrap_or_else(|failure| panic!("{which}: {}", failure.error));
                    rows += 1;
                }
            }
        }
    }
    db.close(None, &never).unwrap();
    assert_eq!(integer(&path, "SELECT count(*) FROM good"), rows);
}

#[test]
fn a_job_that_comes_into_an_open_group_after_damage_is_done() {
    let scratch = Scratch::new();
    let path = damaged(&scratch);
    let db = open(&path);
    // Both threads keep groups open for each other: who met no damage is never told of any.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_corrupt(run(&db, BAD), "the damaged table");
                }
            });
            scope.spawn(|| {
                for _ in 0..200 {
                    run(&db, GOOD).unwrap();
                }
            });
        }
    });
    db.close(None, &never).unwrap();
    assert_eq!(integer(&path, "SELECT count(*) FROM good"), 400);
}

#[test]
fn damage_in_an_interactive_transaction_ends_with_it() {
    let scratch = Scratch::new();
    let path = damaged(&scratch);
    let db = open(&path);
    let patience = Patience { until: None, interrupted: &never };
    let call = |sql: &str| Call { sql: sql.into(), parameters: Parameters::none() };
    for _ in 0..3 {
        let mut lease = db.transaction("both", &CALL, &never).unwrap();
        lease.run(&call(GOOD)).unwrap();
        assert_corrupt(lease.run(&call(BAD)).map(drop), "the damaged table");
        assert_corrupt(lease.commit(&patience).map(drop), "a commit after damage");
        run(&db, GOOD).unwrap();
    }
    db.close(None, &never).unwrap();
    assert_eq!(integer(&path, "SELECT count(*) FROM good"), 3);
}

#[test]
fn a_reader_that_met_damage_reads_on() {
    let scratch = Scratch::new();
    let path = damaged(&scratch);
    let db = Database::open(&path, Options { readers_max: 1, ..Options::default() }, &never).unwrap();
    for _ in 0..3 {
        assert_corrupt(run(&db, "SELECT * FROM bad"), "the damaged table");
        run(&db, "SELECT * FROM good").unwrap();
    }
    db.close(None, &never).unwrap();
}
