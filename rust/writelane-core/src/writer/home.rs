//! Where the engine is when nobody uses it.

use super::engine::Engine;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The place of the engine. One party at a time has it: the writer thread, a caller that drives it itself, or an
/// interactive transaction.
#[derive(Default)]
pub struct Home {
    engine: Mutex<Option<Box<Engine>>>,
    returned: Condvar,
    /// Parties that wait in [`Home::take`]: they go before those who only try.
    waiting: AtomicUsize,
}

impl Home {
    /// Take the engine if it is at home.
    pub fn try_take(&self) -> Option<Box<Engine>> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return None;
        }
        self.engine.try_lock().ok()?.take()
    }

    /// Say whether nobody uses the engine.
    pub fn is_home(&self) -> bool {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Take the engine, waiting up to `time` for whoever has it.
    pub fn take(&self, time: Duration) -> Option<Box<Engine>> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.is_none() {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            engine = self
                .returned
                .wait_timeout_while(engine, time, |engine| engine.is_none())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        engine.take()
    }

    /// Bring the engine back.
    pub fn give(&self, engine: Box<Engine>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
        // Whoever waits said so with the lock held, so it is seen here or sees the engine.
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.returned.notify_all();
        }
    }
}
