//! Where the engine is when nobody uses it.

use super::engine::Engine;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The place of the engine. One party at a time has it: the writer thread, a caller that drives it itself, or an
/// interactive transaction.
#[derive(Default)]
pub struct Home {
    engine: Mutex<Option<Box<Engine>>>,
    returned: Condvar,
}

impl Home {
    /// Take the engine if it is at home.
    pub fn try_take(&self) -> Option<Box<Engine>> {
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
            engine = self
                .returned
                .wait_timeout_while(engine, time, |engine| engine.is_none())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        engine.take()
    }

    /// Bring the engine back.
    pub fn give(&self, engine: Box<Engine>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
        self.returned.notify_all();
    }
}
