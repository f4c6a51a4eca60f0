//! What happens around a fork.

use super::descriptors::{self, State};
use rusqlite::ffi;
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// SQLite's static mutexes, outermost first.
///
/// The order is that in which SQLite 3.54 nests them, not that of their numbers: memory is allocated under nearly all
/// of them (MEM last); a temporary file's name is drawn (PRNG) under VFS1; the generator is seeded under PRNG, which
/// looks up a VFS (MAIN); a shared cache is opened under OPEN, which takes MAIN and opens files (VFS1). SQLite itself
/// uses none of APP1 to APP3, VFS2 and VFS3 on Unix; who uses them calls SQLite under them, so they come first.
const ORDER: [i32; 12] = [
    ffi::SQLITE_MUTEX_STATIC_APP1,
    ffi::SQLITE_MUTEX_STATIC_APP2,
    ffi::SQLITE_MUTEX_STATIC_APP3,
    ffi::SQLITE_MUTEX_STATIC_VFS3,
    ffi::SQLITE_MUTEX_STATIC_VFS2,
    ffi::SQLITE_MUTEX_STATIC_OPEN,
    ffi::SQLITE_MUTEX_STATIC_VFS1,
    ffi::SQLITE_MUTEX_STATIC_PRNG,
    ffi::SQLITE_MUTEX_STATIC_MAIN,
    ffi::SQLITE_MUTEX_STATIC_LRU,
    ffi::SQLITE_MUTEX_STATIC_PMEM,
    ffi::SQLITE_MUTEX_STATIC_MEM,
];

static MUTEXES: [AtomicPtr<ffi::sqlite3_mutex>; ORDER.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; ORDER.len()];
static READY: AtomicBool = AtomicBool::new(false);

/// Our own lock, held from before the fork until after it. It is the innermost: the hooks run under SQLite's mutexes.
struct Stash(UnsafeCell<Option<MutexGuard<'static, State>>>);

// SAFETY: only the thread that forks touches it, between taking the lock in `before` and dropping the guard: the lock
// itself keeps every other thread that forks out.
unsafe impl Sync for Stash {}

static STASH: Stash = Stash(UnsafeCell::new(None));

thread_local! {
    /// Whether this thread took everything in `before`. The child's thread is a copy of it, this cell included.
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// Look up SQLite's static mutexes. Return false where it cannot even be initialised.
pub(super) fn learn_mutexes() -> bool {
    // SAFETY: may be called any number of times, from any thread.
    if unsafe { ffi::sqlite3_initialize() } != ffi::SQLITE_OK {
        return false;
    }
    for (mutex, id) in MUTEXES.iter().zip(ORDER) {
        // SAFETY: SQLite is initialised and `id` is one of the static mutexes, which are never freed. Null where
        // SQLite was configured to run in one thread.
        mutex.store(unsafe { ffi::sqlite3_mutex_alloc(id) }, Ordering::Relaxed);
    }
    READY.store(true, Ordering::Release);
    true
}

/// Take every mutex that a child could find locked by a thread it does not have. The holders of them wait for nothing
/// but the kernel and each other in this order.
pub(super) fn before() {
    if !READY.load(Ordering::Acquire) {
        return;
    }
    for mutex in &MUTEXES {
        // SAFETY: null or a static mutex; a null one is ignored. No thread calls fork from inside SQLite.
        unsafe { ffi::sqlite3_mutex_enter(mutex.load(Ordering::Relaxed)) };
    }
    let state = descriptors::lock();
    // SAFETY: this thread holds the lock that guards the stash.
    unsafe { *STASH.0.get() = Some(state) };
    TAKEN.set(true);
}

pub(super) fn in_parent() {
    release();
}

/// Runs in a process that has one thread and may be the copy of one that was anywhere: no allocation, no lock but
/// those taken before the fork, system calls only.
pub(super) fn in_child() {
    if TAKEN.get() {
        // SAFETY: as in `before`; the child has no other thread.
        if let Some(state) = unsafe { (*STASH.0.get()).as_mut() } {
            state.abandon();
        }
    }
    release();
}

fn release() {
    if !TAKEN.replace(false) {
        return;
    }
    // SAFETY: this thread, or the one it is the copy of, put the guard there and still holds the lock.
    drop(unsafe { (*STASH.0.get()).take() });
    for mutex in MUTEXES.iter().rev() {
        // SAFETY: taken in `before` by this thread. They are plain (not recursive) mutexes, which a child may unlock.
        unsafe { ffi::sqlite3_mutex_leave(mutex.load(Ordering::Relaxed)) };
    }
}
