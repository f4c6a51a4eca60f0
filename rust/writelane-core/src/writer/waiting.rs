//! What the writer does while it waits for the lock.

use super::{LockWait, Shared};
use crate::holder::process;
use crate::lane::Holder;
use crate::policy::backoff;
use crate::telemetry::Blame;
use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

impl Shared {
    /// Say who holds the lock, unless the last look was a short time ago for what it took.
    fn look_for_holder(&self, now: Instant) -> Option<Holder> {
        let mut due = self.look_due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.is_some_and(|due| now < due) {
            return None;
        }
        // The thread's own time: what a look costs, and not how long this thread had to wait for a processor in it.
        let before = process::thread_time();
        let holder = self.holder().unwrap_or(Holder::Nobody);
        let spent = process::thread_time().saturating_sub(before);
        *due = Some(Instant::now() + backoff::next_look(spent));
        Some(holder)
    }
}

/// What the writer looks after while it waits for the lock.
pub(super) struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    since: Instant,
    blame: RefCell<Blame>,
    /// It is the wait of the writer, so of all that is queued.
    of_writer: bool,
}

/// Waits shorter than this are not worth asking the kernel who holds the lock.
const ASK_AFTER: Duration = Duration::from_millis(5);

impl<'a> Waiting<'a> {
    /// Begin to wait, or go on: `blame` is what is known of the wait until now.
    pub(super) fn new(shared: &'a Arc<Shared>, since: Instant, blame: Blame) -> Self {
        shared.set_lock_wait(Some(LockWait { since, blame: blame.clone() }));
        Self { shared, since, blame: RefCell::new(blame), of_writer: true }
    }

    /// Begin the wait of a caller who has the engine itself: nobody else's.
    pub(super) fn aside(shared: &'a Arc<Shared>, since: Instant) -> Self {
        Self { shared, since, blame: RefCell::default(), of_writer: false }
    }

    /// Answer queued jobs that are too late, note who holds the lock, and say whether the wait must end.
    pub(super) fn keep_house(&self) -> bool {
        self.look();
        self.shared.refuse_late(Instant::now());
        self.shared.must_stop()
    }

    /// Note who holds the lock, if the wait is long enough to ask.
    pub(super) fn look(&self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.since) >= ASK_AFTER
            && let Some(holder) = self.shared.look_for_holder(now)
        {
            let mut blame = self.blame.borrow_mut();
            blame.look(Instant::now(), holder);
            if self.of_writer {
                self.shared.set_lock_wait(Some(LockWait { since: self.since, blame: blame.clone() }));
            }
        }
    }

    /// Return since when it waits.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn into_blame(self) -> Blame {
        self.blame.take()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.of_writer {
            self.shared.set_lock_wait(None);
        }
    }
}
