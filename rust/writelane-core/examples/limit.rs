//! The limit of a workload: one thread, no Python, no queue, no lane, groups of a given size, each job in a savepoint.
//!
//! `cargo run --release --example limit -- DATABASE DURABILITY JOBS_PER_GROUP SECONDS BODY` inserts into the table
//! `rows(writer, body)` for that long and prints `JOBS SECONDS`. A fraction of a job is carried over to the next group.

use std::path::Path;
use std::time::{Duration, Instant};
use writelane_core::job::Durability;
use writelane_core::sqlite::{Handle, OpenFlags, SqliteError, Statement, ValueRef, ffi};
use writelane_core::writer::engine::Engine;

/// Pages at which the writer copies its log, see `policy/checkpoint.rs`.
const CHECKPOINT_PAGES: i32 = 900;

fn prepare(handle: &std::sync::Arc<Handle>, sql: &str) -> Result<Statement, SqliteError> {
    Statement::prepare(handle, sql.as_bytes(), ffi::SQLITE_PREPARE_PERSISTENT)?
        .0
        .ok_or_else(|| SqliteError::from_code(ffi::SQLITE_INTERNAL))
}

fn run(statement: &Statement) -> Result<(), SqliteError> {
    let result = statement.step();
    statement.reset();
    result.map(drop)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [database, durability, jobs, seconds, body] = args.as_slice() else {
        return Err("DATABASE DURABILITY JOBS_PER_GROUP SECONDS BODY".into());
    };
    let (jobs, seconds): (f64, f64) = (jobs.parse()?, seconds.parse()?);
    let durability = match durability.as_str() {
        "normal" => Durability::Normal,
        "full" => Durability::Full,
        other => return Err(format!("no such durability here: {other}").into()),
    };
    let handle = Handle::open(Path::new(database), OpenFlags::EXISTING)?;
    handle.wal_autocheckpoint(CHECKPOINT_PAGES);
    let mut engine = Engine::new(std::sync::Arc::clone(&handle))?;
    engine.set_durability(durability)?;
    let [savepoint, release] = [prepare(&handle, "SAVEPOINT job")?, prepare(&handle, "RELEASE job")?];
    let insert = prepare(&handle, "INSERT INTO rows(writer, body) VALUES (?, ?)")?;
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(seconds);
    let (mut done, mut owed) = (0_u64, 0.0_f64);
    while Instant::now() < end {
        owed += jobs.max(1.0);
        engine.begin_short()?;
        while owed >= 1.0 {
            run(&savepoint)?;
            insert.bind(1, ValueRef::Integer(0))?;
            insert.bind(2, ValueRef::Text(body.as_bytes()))?;
            run(&insert)?;
            run(&release)?;
            owed -= 1.0;
            done += 1;
        }
        engine.commit()?;
        if engine.owes_sync() {
            engine.sync()?;
        }
    }
    println!("{done} {}", started.elapsed().as_secs_f64());
    Ok(())
}
