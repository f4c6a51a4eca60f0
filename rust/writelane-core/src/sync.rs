//! The locks of the queue protocol: the standard library's, or those of the model checker that explores it.
//!
//! The model checker has no clock. A wait for a time may there end at any moment, as on a slow machine; a wait in
//! slices, which only exist to look for signals, must be ended by a notification, so that a lost one shows.

#[cfg(not(feature = "model"))]
pub use std::sync::atomic;
#[cfg(not(feature = "model"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(feature = "model")]
pub use shuttle::sync::atomic;
#[cfg(feature = "model")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;
use std::time::Duration;

/// Lock a mutex whose data is whole at every await of the lock, so that a panic elsewhere does not spoil it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait on a condition.
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Wait on a condition for one slice of a longer wait.
#[cfg(not(feature = "model"))]
pub fn wait_slice<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, slice: Duration) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, slice).unwrap_or_else(PoisonError::into_inner).0
}

/// Wait on a condition for one slice of a longer wait.
#[cfg(feature = "model")]
pub fn wait_slice<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, _slice: Duration) -> MutexGuard<'a, T> {
    wait(condition, guard)
}

/// A time that runs out.
#[cfg(not(feature = "model"))]
pub struct Timer {
    until: std::time::Instant,
}

#[cfg(not(feature = "model"))]
impl Timer {
    /// Start it.
    pub fn start(time: Duration) -> Self {
        Self { until: std::time::Instant::now() + time }
    }

    /// Wait on a condition until it is notified or the time is up, and say whether the time is up.
    pub fn wait<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        _mutex: &'a Mutex<T>,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = self.until.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return (guard, true);
        }
        (condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0, false)
    }
}

/// A time that runs out.
#[cfg(feature = "model")]
pub struct Timer;

#[cfg(feature = "model")]
impl Timer {
    /// Start it.
    pub fn start(_time: Duration) -> Self {
        Self
    }

    /// Let others run for a while, and say whether the time is up.
    pub fn wait<'a, T>(
        &self,
        _condition: &Condvar,
        guard: MutexGuard<'a, T>,
        mutex: &'a Mutex<T>,
    ) -> (MutexGuard<'a, T>, bool) {
        use shuttle::rand::Rng;
        drop(guard);
        shuttle::thread::yield_now();
        (lock(mutex), shuttle::rand::thread_rng().gen_bool(0.5))
    }
}
