//! Transactions that were left open: rolled back for the sake of others, where their connection allows it.

use super::{Connection, Lost};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The connections that are watched, and the thread that does it.
#[derive(Default)]
struct Watch {
    generation: u64,
    running: bool,
    connections: Vec<Weak<Connection>>,
    /// Connections whose last owner was the watcher. Closing one may run functions of the application, which is not for
    /// a thread of ours; the next that registers a connection closes them.
    orphans: Vec<Connection>,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn watch() -> MutexGuard<'static, Option<Watch>> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// After a call: note since when a transaction is left alone, and have it watched.
    pub(super) fn note_idle(&self, open: bool) {
        let Some(limit) = self.options.idle_rollback else { return };
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = open.then(Instant::now);
        if !open || limit >= Duration::MAX || self.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let generation = crate::process::generation();
        let mut guard = watch();
        let list = guard.get_or_insert_with(Watch::default);
        if list.generation != generation {
            // What a parent watched is the parent's; its objects are left alone, not closed.
            std::mem::forget(std::mem::replace(list, Watch { generation, ..Watch::default() }));
        }
        list.connections.push(self.this.clone());
        let orphans = std::mem::take(&mut list.orphans);
        if !list.running {
            list.running = std::thread::Builder::new().name("wl-idle".into()).spawn(run).is_ok();
        }
        drop(guard);
        CHANGED.notify_one();
        drop(orphans);
    }

    /// Roll the transaction back if it has been left alone for too long; return when to look again, if at all.
    fn tend_idle(&self, limit: Duration) -> Option<Instant> {
        let now = Instant::now();
        // A call is running: then nothing is idle.
        let Some(state) = self.state.try_lock() else { return Some(now + limit) };
        let since = (*self.idle_since.lock().unwrap_or_else(PoisonError::into_inner))?;
        let due = since.checked_add(limit)?;
        if due > now {
            return Some(due);
        }
        let handle = state.handle.borrow().clone()?;
        // A trace would be told of the ROLLBACK on a thread that the application does not know.
        if handle.autocommit() || state.hooks.borrow().trace.is_some() {
            return None;
        }
        // What was read of the transaction is not given any more; the cursors find their rows gone.
        let cursors = state.cursors.take();
        drop(cursors);
        if handle.execute_batch("ROLLBACK").is_err() {
            return Some(now + limit);
        }
        let why = format!("it was left alone for more than {} s", limit.as_secs_f64());
        *state.lost.borrow_mut() = Some(Lost { why: why.into(), idle: true });
        self.settle(&state, &handle);
        None
    }
}

fn run() {
    let mut guard = watch();
    loop {
        let Some(list) = guard.as_mut() else { return };
        let connections = std::mem::take(&mut list.connections);
        drop(guard);
        let mut next: Option<Instant> = None;
        let (mut kept, mut orphans) = (Vec::new(), Vec::new());
        for weak in connections {
            let Some(connection) = weak.upgrade() else { continue };
            let look_again = connection.options.idle_rollback.and_then(|limit| connection.tend_idle(limit));
            match look_again {
                Some(at) => {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    kept.push(weak);
                }
                None => connection.watched.store(false, Ordering::Relaxed),
            }
            orphans.extend(Arc::into_inner(connection));
        }
        guard = watch();
        let Some(list) = guard.as_mut() else { return };
        list.connections.append(&mut kept);
        list.orphans.append(&mut orphans);
        if list.connections.is_empty() {
            list.running = false;
            return;
        }
        let pause = next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        guard = CHANGED.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}
