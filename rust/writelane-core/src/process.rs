//! This process: which one it is, also after a fork.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCH: ForkOnce = ForkOnce::new();

/// Return a number that a forked child finds raised: what was made under another number was inherited.
#[inline]
pub fn generation() -> u64 {
    watch_forks();
    GENERATION.load(Ordering::Relaxed)
}

/// Register the one set of fork handlers of this crate, if that has not happened yet.
///
/// One set and not one for each module: the number is raised and SQLite's files look new (see [`crate::vfs`]) in the
/// same step, or a child could see one without the other.
#[inline]
pub(crate) fn watch_forks() {
    WATCH.call(|| {
        // SAFETY: the handlers are functions of this crate, which is never unloaded (it registers thread locals and
        // these very handlers); what they do in the child is said where they are defined.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

unsafe extern "C" fn before() {
    crate::vfs::before_fork();
}

unsafe extern "C" fn in_parent() {
    crate::vfs::after_fork_in_parent();
}

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::vfs::after_fork_in_child();
}

/// Runs something once in a process, also where the process was forked while another thread was running it.
///
/// `std::sync::Once` would wait for ever in such a child, for a thread that is not there.
pub(crate) struct ForkOnce {
    /// 0: not run; `DONE`; else the process in which it is being run.
    state: AtomicU32,
}

const DONE: u32 = u32::MAX;

impl ForkOnce {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn call(&self, action: impl FnOnce()) {
        if self.state.load(Ordering::Acquire) != DONE {
            self.call_slowly(action);
        }
    }

    #[cold]
    fn call_slowly(&self, action: impl FnOnce()) {
        let me = std::process::id();
        loop {
            match self.state.load(Ordering::Acquire) {
                DONE => return,
                running if running == me => std::thread::yield_now(),
                other => {
                    if self.state.compare_exchange(other, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        action();
                        self.state.store(DONE, Ordering::Release);
                        return;
                    }
                }
            }
        }
    }

    /// Wait until no thread of this process is inside the action; say whether it has been run.
    pub(crate) fn settle(&self) -> bool {
        let me = std::process::id();
        while self.state.load(Ordering::Acquire) == me {
            std::thread::yield_now();
        }
        self.state.load(Ordering::Acquire) == DONE
    }
}

/// Return the number that Python calls this thread's identifier.
#[inline]
pub fn thread_ident() -> u64 {
    // SAFETY: no arguments, no state.
    unsafe { libc::pthread_self() as u64 }
}

/// A value that a forked child makes anew, so that it never meets a lock that a thread of its parent held.
pub struct PerProcess<T> {
    current: AtomicPtr<(u64, T)>,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// Make an empty one.
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Return this process's value. The parent's, in a child, is leaked: it may be locked for ever.
    pub fn get(&self) -> &'static T {
        let generation = generation();
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: what was stored came from `Box::leak` and is never freed.
            if let Some((made, value)) = unsafe { current.as_ref() }
                && *made == generation
            {
                return value;
            }
            let fresh: *mut (u64, T) = Box::leak(Box::new((generation, T::default())));
            match self.current.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => current = fresh,
                Err(winner) => {
                    // SAFETY: `fresh` lost the race, so nobody else knows it.
                    drop(unsafe { Box::from_raw(fresh) });
                    current = winner;
                }
            }
        }
    }
}

impl<T: Default + Send + Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}
