//! What a lane counts.

use super::state::Right;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What a lane of this process did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Turns given to threads of this process.
    pub turns: u64,
    /// Those of them that took no lock of the lane, since nobody else was there.
    pub fast_turns: u64,
    /// Turns that went past a process that was stopped, or did nothing with its turn.
    pub bypasses: u64,
    /// Turns without a lane file.
    pub alone: u64,
    /// Waits for a turn or, in a turn, for SQLite's write lock.
    pub waits: u64,
    /// All waits together.
    pub waited: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
    /// Threads of this process that wait for a turn right now.
    pub waiting: usize,
    /// Windows in which the turn was kept and SQLite's lock left free for writers outside the lane.
    pub windows: u64,
    /// Waits in the kernel for a place between processes.
    pub queued: u64,
}

impl LaneStats {
    /// Return these counts and those of a lane of the same file that is gone.
    pub fn and(&self, gone: &LaneStats) -> LaneStats {
        LaneStats {
            turns: self.turns + gone.turns,
            fast_turns: self.fast_turns + gone.fast_turns,
            bypasses: self.bypasses + gone.bypasses,
            alone: self.alone + gone.alone,
            waits: self.waits + gone.waits,
            waited: self.waited.saturating_add(gone.waited),
            longest_wait: self.longest_wait.max(gone.longest_wait),
            waiting: self.waiting,
            windows: self.windows + gone.windows,
            queued: self.queued + gone.queued,
        }
    }
}

/// The counters behind [`LaneStats`].
#[derive(Default)]
pub struct Counters {
    turns: AtomicU64,
    fast: AtomicU64,
    bypasses: AtomicU64,
    alone: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
    longest_ns: AtomicU64,
    queued: AtomicU64,
}

impl Counters {
    pub fn turn(&self, right: Right) {
        self.turns.fetch_add(1, Relaxed);
        match right {
            Right::Fast => self.fast.fetch_add(1, Relaxed),
            Right::Bypass => self.bypasses.fetch_add(1, Relaxed),
            Right::Alone => self.alone.fetch_add(1, Relaxed),
            Right::Front => 0,
        };
    }

    pub fn waited(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waits.fetch_add(1, Relaxed);
        self.waited_ns.fetch_add(ns, Relaxed);
        self.longest_ns.fetch_max(ns, Relaxed);
    }

    pub fn queued(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    pub fn snapshot(&self, waiting: usize, windows: u64) -> LaneStats {
        LaneStats {
            turns: self.turns.load(Relaxed),
            fast_turns: self.fast.load(Relaxed),
            bypasses: self.bypasses.load(Relaxed),
            alone: self.alone.load(Relaxed),
            waits: self.waits.load(Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Relaxed)),
            longest_wait: Duration::from_nanos(self.longest_ns.load(Relaxed)),
            waiting,
            windows,
            queued: self.queued.load(Relaxed),
        }
    }
}
