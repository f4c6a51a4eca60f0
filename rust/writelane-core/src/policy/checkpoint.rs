//! When to copy the log into the database, and how.

use std::time::Duration;

/// How a checkpoint treats others. RESTART is not here: it stalls writers for nothing that PASSIVE does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copies what it can without waiting for anybody.
    Passive,
    /// Waits for readers of old snapshots. Only at a caller's own request.
    Full,
    /// Waits likewise and cuts the log file to nothing.
    Truncate,
}

/// The thresholds of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Pages in the log at which it is copied. Under 1,000 on purpose: then a foreign process's automatic checkpoint
    /// never comes to act, and the WAL-reset bug of SQLite 3.7.0 to 3.51.2 lives in the checkpointer's version.
    pub pages: u32,
    /// How long without a commit until a log is copied though it is short.
    pub idle: Duration,
    /// How long to leave a pinned log alone between tries.
    pub pinned_pause: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { pages: 900, idle: Duration::from_secs(1), pinned_pause: Duration::from_millis(100) }
    }
}

/// What is known of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Pages in it that may not be in the database yet.
    pub pages: u32,
    /// The last checkpoint could not copy all of it.
    pub pinned: bool,
    /// Since the last checkpoint.
    pub since_last: Option<Duration>,
    /// Since the last commit.
    pub idle: Duration,
    /// Required jobs that wait.
    pub waiting_jobs: usize,
}

/// Choose the checkpoint to run now, if any.
pub fn choose(thresholds: &Thresholds, log: &Log) -> Option<Mode> {
    if log.pages == 0 {
        return None;
    }
    if log.pinned && log.since_last.is_some_and(|since| since < thresholds.pinned_pause) {
        return None;
    }
    if log.pages >= thresholds.pages || (log.idle >= thresholds.idle && log.waiting_jobs == 0) {
        return Some(Mode::Passive);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(pages: u32) -> Log {
        Log { pages, pinned: false, since_last: None, idle: Duration::ZERO, waiting_jobs: 3 }
    }

    #[test]
    fn a_full_log_is_copied_before_a_foreign_checkpoint_would_come() {
        let thresholds = Thresholds::default();
        assert!(thresholds.pages < 1000);
        assert_eq!(choose(&thresholds, &log(thresholds.pages)), Some(Mode::Passive));
        assert_eq!(choose(&thresholds, &log(thresholds.pages - 1)), None);
    }

    #[test]
    fn an_idle_log_is_copied_however_short() {
        let thresholds = Thresholds::default();
        let idle = Log { idle: thresholds.idle, waiting_jobs: 0, ..log(1) };
        assert_eq!(choose(&thresholds, &idle), Some(Mode::Passive));
        assert_eq!(choose(&thresholds, &Log { pages: 0, ..idle }), None);
    }

    #[test]
    fn a_pinned_log_is_not_tried_all_the_time() {
        let thresholds = Thresholds::default();
        let pinned = Log { pinned: true, since_last: Some(Duration::ZERO), ..log(100_000) };
        assert_eq!(choose(&thresholds, &pinned), None);
        let later = Log { since_last: Some(thresholds.pinned_pause), ..pinned };
        assert_eq!(choose(&thresholds, &later), Some(Mode::Passive));
    }
}
