//! A lock that its holder may take again.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutual exclusion that the same thread may enter again, since a function called from inside SQL may use
/// the connection it runs on.
///
/// It gives out shared references only; what is in it brings its own cells, never borrowed across SQLite.
pub struct ReentrantLock<T> {
    gate: Mutex<()>,
    owner: AtomicUsize,
    value: T,
}

// SAFETY: `value` is only reached through `Held`, which one thread has at a time, so sending the lock's
// contents between threads is all that sharing it amounts to.
unsafe impl<T: Send> Sync for ReentrantLock<T> {}

/// The lock, held.
pub struct Held<'a, T> {
    lock: &'a ReentrantLock<T>,
    /// `None` where this thread held it already.
    gate: Option<MutexGuard<'a, ()>>,
}

thread_local! {
    static MARK: u8 = const { 0 };
}

/// Return a number that no other living thread has; never 0.
fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

impl<T> ReentrantLock<T> {
    /// Make a lock around `value`.
    pub fn new(value: T) -> Self {
        Self { gate: Mutex::new(()), owner: AtomicUsize::new(0), value }
    }

    /// Wait for the lock.
    pub fn lock(&self) -> Held<'_, T> {
        if self.is_mine() {
            return Held { lock: self, gate: None };
        }
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(this_thread(), Ordering::Relaxed);
        Held { lock: self, gate: Some(gate) }
    }

    /// Take the lock if that needs no waiting.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        if self.is_mine() {
            return Some(Held { lock: self, gate: None });
        }
        let gate = match self.gate.try_lock() {
            Ok(gate) => gate,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        self.owner.store(this_thread(), Ordering::Relaxed);
        Some(Held { lock: self, gate: Some(gate) })
    }

    /// Say whether this thread holds the lock.
    pub fn is_mine(&self) -> bool {
        // Only this thread ever stores its own mark, so a relaxed load cannot be wrong about it.
        self.owner.load(Ordering::Relaxed) == this_thread()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.lock.value
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if self.gate.is_some() {
            self.lock.owner.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;

    #[test]
    fn the_holder_enters_again_and_others_wait() {
        let lock = Arc::new(ReentrantLock::new(Cell::new(0)));
        let outer = lock.lock();
        lock.lock().set(1);
        let other = std::thread::spawn({
            let lock = Arc::clone(&lock);
            move || lock.try_lock().is_none()
        });
        assert!(other.join().unwrap());
        assert!(lock.is_mine());
        drop(outer);
        assert!(!lock.is_mine());
        let other = std::thread::spawn({
            let lock = Arc::clone(&lock);
            move || lock.lock().get()
        });
        assert_eq!(other.join().unwrap(), 1);
    }
}
