//! The turn of a caller that is left for the log.

use crate::database::{CallOptions, Database, Options};
use crate::job::{Parameters, Work};
use crate::lane::Turn;
use crate::sqlite::{Handle, OpenFlags};
use crate::wait::Patience;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const NEVER: fn() -> bool = || false;
/// Nobody waits for anything but the machine.
const LEFT_WAITING: Duration = Duration::from_secs(100);

struct Scene {
    folder: PathBuf,
    db: Database,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("writelane-handed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("app.db");
        Handle::open(&path, OpenFlags::WRITER)
            .unwrap()
            .execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)")
            .unwrap();
        let db = Database::open(&path, Options::default(), &NEVER).unwrap();
        Self { folder, db }
    }

    /// Leave the turn of a caller to the writer thread, without a word to it.
    fn hand(&self, turn: Turn) {
        *self.db.shared().unwrap().handed.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    }

    fn insert(&self) -> Work {
        self.db.one("INSERT INTO t VALUES (1)", Parameters::none()).unwrap()
    }

    fn end(self) {
        self.db.close(None, &NEVER).unwrap();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const OPTIONS: CallOptions = CallOptions { deadline: Some(Some(LEFT_WAITING)), durable: false };

#[test]
fn a_turn_that_is_left_while_the_writer_waits_for_it_is_taken_up() {
    let scene = Scene::new("waits");
    let shared = scene.db.shared().unwrap();
    let lane = shared.lane().unwrap();
    let turn = lane.try_enter("a caller").unwrap();
    let queued = scene.db.submit(scene.insert(), &OPTIONS, &NEVER).unwrap();
    while lane.stats().waiting == 0 {
        std::thread::yield_now();
    }
    scene.hand(turn);
    shared.queue.nudge();
    queued.wait(&Patience { until: None, interrupted: &NEVER }).unwrap();
    assert!(queued.take().unwrap().is_ok());
    scene.end();
}

#[test]
fn a_caller_does_not_wait_for_a_turn_that_only_the_writer_ends() {
    let scene = Scene::new("caller");
    let turn = scene.db.shared().unwrap().lane().unwrap().try_enter("a caller").unwrap();
    scene.hand(turn);
    assert!(scene.db.run(scene.insert(), &OPTIONS, Instant::now(), &NEVER).is_ok());
    scene.end();
}
