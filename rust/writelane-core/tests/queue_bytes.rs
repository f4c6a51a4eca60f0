//! What the queue counts for a job is what the job takes, so that its bound in bytes bounds the memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod allocator;

use allocator::TAKEN;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use writelane_core::job::{Call, Durability, Job, Parameters, Work};
use writelane_core::queue::{Bounds, Item, Pushed, Queue};
use writelane_core::sqlite::Value;

fn text(length: usize) -> Value {
    Value::Text(vec![b'x'; length].into())
}

fn call(sql: &Arc<str>, values: Vec<Value>) -> Call {
    Call { sql: Arc::clone(sql), parameters: Parameters::Positional(values.into()) }
}

#[test]
fn the_bytes_counted_for_jobs_are_those_they_take() {
    const JOBS: usize = 5000;
    let sql: Arc<str> = "INSERT INTO t VALUES (?, ?)".into();
    let kinds: [(&str, &dyn Fn() -> Work); 6] = [
        ("no parameters", &|| Work::One(call(&sql, vec![]))),
        ("small", &|| Work::One(call(&sql, vec![Value::Integer(1), text(20)]))),
        ("large", &|| Work::One(call(&sql, vec![text(10_000)]))),
        ("named", &|| {
            let named = vec![("first".into(), Value::Integer(1)), ("second".into(), text(20))];
            Work::One(Call { sql: Arc::clone(&sql), parameters: Parameters::Named(named.into()) })
        }),
        ("many", &|| {
            let rows = (0..10).map(|_| Parameters::Positional(vec![text(5), text(5)].into())).collect();
            Work::Many { sql: Arc::clone(&sql), rows }
        }),
        ("batch", &|| Work::Batch((0..5).map(|_| call(&sql, vec![text(5)])).collect())),
    ];
    for (kind, work) in kinds {
        let queue: Queue<Box<Job>> = Queue::new(Bounds { jobs_max: JOBS, bytes_max: usize::MAX });
        let before = TAKEN.load(Ordering::Relaxed);
        let mut counted = 0;
        for _ in 0..JOBS {
            let until = Instant::now().checked_add(Duration::from_secs(1));
            let job = Box::new(Job::new(work(), Durability::Normal, until, Instant::now()));
            counted += job.bytes();
            assert!(matches!(queue.push(job), Pushed::Queued));
        }
        let taken = TAKEN.load(Ordering::Relaxed) - before;
        let ratio = taken as f64 / counted as f64;
        assert!((0.75..=1.05).contains(&ratio), "{kind}: {taken} bytes taken, {counted} counted");
    }
}
