//! Whether anybody outside the lane is on the database, and writes.

use super::{Lane, lock};
use crate::holder::locks::{self, Owner};
use crate::holder::{self, process};
use crate::policy::courtesy::{Company, MEMORY};
use crate::vfs::{self, LockKind};
use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How often to look who has the database open. A look costs some 50 us.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A look costs more the more locks there are, and every process on the database looks: the next is made that many times
/// later than what the last one took of this thread's time, and never later than [`AT_LATEST`].
const SPARING: u32 = 4_000;
const AT_LATEST: Duration = Duration::from_secs(2);

/// What a process knows of writers outside the lane.
#[derive(Default)]
pub struct Watch {
    /// A thread looks from time to time.
    kept: bool,
    /// Somebody had a turn since the last look.
    used: bool,
    /// `None`: it cannot be told, or nobody has looked yet.
    present: Option<bool>,
    met: Option<Instant>,
}

impl Watch {
    /// Take note that SQLite was busy although the lane was ours. It may have been one of ours on the fast path.
    pub fn met(&mut self, now: Instant) {
        self.met = Some(now);
    }

    /// Take note of a turn. True: nobody looks, and the caller is to start a thread that [keeps watch](keep).
    pub fn begin(&mut self) -> bool {
        self.used = true;
        !std::mem::replace(&mut self.kept, true)
    }

    /// Take note of what was found. True: go on looking.
    fn looked(&mut self, present: Option<bool>) -> bool {
        self.present = present;
        self.kept = std::mem::take(&mut self.used);
        self.kept
    }

    /// Take note that there is no thread.
    pub fn end(&mut self) {
        self.kept = false;
    }

    /// Say what is known.
    pub fn company(&self, now: Instant) -> Company {
        let met = self.met.is_some_and(|met| now.saturating_duration_since(met) < MEMORY);
        match (self.present, met) {
            (Some(false), _) | (None, false) => Company::Nobody,
            (Some(true), false) => Company::Present,
            (_, true) => Company::Writing,
        }
    }
}

/// Look from time to time who has the database open, for as long as the lane is used.
///
/// In a thread of its own: the kernel lists locks only after every processor has passed a quiet moment, which takes up
/// to some 10 ms, and a turn would last that much longer.
pub fn keep(lane: &Weak<Lane>) {
    while let Some(lane) = lane.upgrade().filter(|lane| !lane.is_inherited()) {
        let before = process::thread_time();
        let present = present(&lane.path);
        let spent = process::thread_time().saturating_sub(before);
        let pause = LOOK_AGAIN.max(spent * SPARING).min(AT_LATEST);
        let goes_on = lock(&lane.state).watch.looked(present);
        drop(lane);
        if !goes_on {
            return;
        }
        std::thread::sleep(pause);
    }
}

/// Say whether a process outside the lane has the database open. All of ours lock by open file descriptions, so a lock
/// of a process is another program's, or of another copy of SQLite in one of ours.
fn present(database: &Path) -> Option<bool> {
    // With a rollback journal nobody locks anything between transactions; and where our own locks are the process's, or
    // a container hides the locks of those outside it, the list tells too little.
    if vfs::lock_kind() == LockKind::Process || !process::sees_all_pids() {
        return None;
    }
    let shared = holder::beside(database, "-shm");
    shared.exists().then_some(())?;
    let locks = locks::on_file(&shared).ok()?;
    Some(locks.iter().any(|lock| matches!(lock.owner, Owner::Process(_)) && lock.holds(locks::WAL_OPEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_keeps_watch_for_as_long_as_there_are_turns() {
        let mut watch = Watch::default();
        assert!(watch.begin());
        assert!(!watch.begin(), "one is enough");
        assert!(watch.looked(None));
        assert!(!watch.looked(None), "nobody had a turn since");
        assert!(watch.begin());
    }

    #[test]
    fn who_is_not_there_does_not_write() {
        let now = Instant::now();
        let watch = |present, met| Watch { present, met, ..Watch::default() };
        assert_eq!(watch(Some(false), Some(now)).company(now), Company::Nobody);
        assert_eq!(watch(Some(true), None).company(now), Company::Present);
        assert_eq!(watch(Some(true), Some(now)).company(now), Company::Writing);
        assert_eq!(watch(Some(true), Some(now)).company(now + MEMORY), Company::Present);
    }

    #[test]
    fn where_it_cannot_be_told_who_is_there_being_busy_counts() {
        let now = Instant::now();
        let watch = |met| Watch { met, ..Watch::default() };
        assert_eq!(watch(None).company(now), Company::Nobody);
        assert_eq!(watch(Some(now)).company(now), Company::Writing);
        assert_eq!(watch(Some(now)).company(now + MEMORY), Company::Nobody);
    }
}
