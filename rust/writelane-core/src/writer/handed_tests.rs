//! The turn of a caller that is left for the log.

use crate::database::{CallOptions, Database, Options};
use crate::job::Parameters;
use crate::sqlite::{Handle, OpenFlags};
use crate::wait::Patience;
use std::sync::PoisonError;
use std::time::Duration;

const NEVER: fn() -> bool = || false;
/// Nobody waits for anything but the machine.
const LEFT_WAITING: Duration = Duration::from_secs(100);

#[test]
fn a_turn_that_is_left_while_the_writer_waits_for_it_is_taken_up() {
    let folder = std::env::temp_dir().join(format!("writelane-handed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("app.db");
    Handle::open(&path, OpenFlags::WRITER)
        .unwrap()
        .execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)")
        .unwrap();
    let db = Database::open(&path, Options::default(), &NEVER).unwrap();
    let shared = db.shared().unwrap();
    let lane = shared.lane().unwrap();
    let turn = lane.try_enter("a caller").unwrap();
    let options = CallOptions { deadline: Some(Some(LEFT_WAITING)), durable: false };
    let job = db.one("INSERT INTO t VALUES (1)", Parameters::none()).unwrap();
    let queued = db.submit(job, &options, &NEVER).unwrap();
    while lane.stats().waiting == 0 {
        std::thread::yield_now();
    }
    *shared.handed.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    shared.queue.nudge();
    queued.wait(&Patience { until: None, interrupted: &NEVER }).unwrap();
    assert!(queued.take().unwrap().is_ok());
    db.close(None, &NEVER).unwrap();
    let _ = std::fs::remove_dir_all(&folder);
}
