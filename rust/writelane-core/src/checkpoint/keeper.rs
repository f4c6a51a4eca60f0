//! Looks after idle logs of files that have no writer thread in this process: DB-API connections have none.
//!
//! One thread a process, which ends when it has nothing to look after. It opens a connection of its own for the moment
//! of a checkpoint, and never creates a file.

use super::{Checkpointer, LABEL};
use crate::process::PerProcess;
use crate::sqlite::{Handle, OpenFlags};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use std::{fs, io};

#[derive(Default)]
struct Keeper {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    files: Vec<Weak<Checkpointer>>,
    running: bool,
}

static KEEPER: PerProcess<Keeper> = PerProcess::new();

/// Have the idle log of this file looked after until it is copied.
pub fn keep(file: &Arc<Checkpointer>) {
    let keeper = KEEPER.get();
    let mut state = keeper.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.files.push(Arc::downgrade(file));
    if state.running {
        keeper.news.notify_one();
    } else {
        // Without a thread an idle log waits for the next commit, or for the last connection to close.
        state.running = std::thread::Builder::new().name("wl-keeper".into()).spawn(move || run(keeper)).is_ok();
    }
}

fn run(keeper: &Keeper) {
    loop {
        let mut state = keeper.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pause: Option<Duration> = None;
        let mut due = Vec::new();
        state.files.retain(|file| {
            let Some(file) = file.upgrade() else { return false };
            if file.has_writer.load(Ordering::Relaxed) {
                file.kept.store(false, Ordering::Relaxed);
                return false;
            }
            if file.is_due(0) {
                due.push(file);
                return true;
            }
            match file.next_look() {
                Some(time) => {
                    pause = Some(pause.map_or(time, |pause| pause.min(time)));
                    true
                }
                None => {
                    // The next commit brings it back; one that came just now is seen by the look after this.
                    file.kept.store(false, Ordering::Relaxed);
                    let again = file.next_look().is_some() && !file.kept.swap(true, Ordering::Relaxed);
                    if again {
                        pause = Some(file.pause());
                    }
                    again
                }
            }
        });
        if due.is_empty() {
            let Some(pause) = pause else {
                state.running = false;
                return;
            };
            drop(keeper.news.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
            continue;
        }
        drop(state);
        for file in &due {
            tend(file);
        }
        drop(due);
        let state = keeper.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever could not be tended now (a turn of somebody else's, a pinned log) is tried again after a pause.
        drop(keeper.news.wait_timeout(state, Duration::from_millis(100)).unwrap_or_else(PoisonError::into_inner));
    }
}

fn tend(file: &Arc<Checkpointer>) {
    // Somebody else's turn: they tend the log too.
    let Some(turn) = file.lane().try_enter(LABEL) else { return };
    // A handle knows of the log only when it has read.
    let opened = Handle::open(&file.path, OpenFlags::EXISTING)
        .and_then(|handle| handle.execute_batch("PRAGMA schema_version").map(|()| handle));
    match opened {
        Ok(handle) => file.act(&handle, 0),
        Err(error) => {
            file.note_failure(&error);
            // A file that is gone needs no tending. Anything else (no descriptor left, no memory) may pass.
            if fs::metadata(&file.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                file.pages.present.store(0, Ordering::Relaxed);
            }
        }
    }
    drop(turn);
}
