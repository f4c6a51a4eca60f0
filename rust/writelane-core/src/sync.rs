//! The locks of the queue protocol: the standard library's, or those of the model checker that explores it.

#[cfg(not(feature = "model"))]
pub use std::sync::atomic;
#[cfg(not(feature = "model"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(feature = "model")]
pub use shuttle::sync::atomic;
#[cfg(feature = "model")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;

/// Lock a mutex whose data is whole at every await of the lock, so that a panic elsewhere does not spoil it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait on a condition, or until the time is up.
pub fn wait_timeout<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    time: std::time::Duration,
) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
