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
    /// Pages not yet copied at which the log is copied. Under 1,000 on purpose: then a foreign process's automatic
    /// checkpoint never comes to act, and the WAL-reset bug of SQLite 3.7.0 to 3.51.2 lives in the checkpointer's
    /// version.
    pub pages: u32,
    /// How long without a commit until a log is copied though it is short.
    pub idle: Duration,
    /// How long to leave a log alone that a reader pins, or another process copies.
    pub pause: Duration,
    /// A log file over this is cut when nothing needs it. Below, it is kept: overwriting a log is twice as fast to
    /// flush as making it longer.
    pub keep_bytes: u64,
    /// A log file over this is cut even where readers must be waited for.
    pub hard_bytes: u64,
    /// How long that wait may be: everybody who writes waits too.
    pub hard_wait: Duration,
    /// How long to leave a log alone after a cut that did not come about.
    pub hard_pause: Duration,
    /// How long a log must have been pinned to be called so.
    pub pinned_after: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            pages: 900,
            idle: Duration::from_secs(1),
            pause: Duration::from_millis(100),
            keep_bytes: 6 << 20,
            hard_bytes: 24 << 20,
            hard_wait: Duration::from_millis(50),
            hard_pause: Duration::from_millis(250),
            pinned_after: Duration::from_secs(1),
        }
    }
}

/// The pages at which SQLite's automatic checkpoint, of whatever version, comes to act in others' connections.
const SQLITE_PAGES: u32 = 1_000;

/// A log file is not told to be kept up to more than SQLite can be told.
const KEEP_BYTES_MAX: u64 = i64::MAX as u64;

/// Each failure in a row doubles the pause, this often: a full disk is not written to all the time, and is noticed within
/// seconds when it has room again.
const DOUBLINGS_MAX: u32 = 5;

/// How long to leave the log alone after another's checkpoint was met: that one takes some such time.
const MEETING_PAUSE: Duration = Duration::from_millis(2);

impl Thresholds {
    fn pause_after(&self, failures: u32) -> Duration {
        self.pause.saturating_mul(1 << failures.saturating_sub(1).min(DOUBLINGS_MAX))
    }

    /// Return how long to leave a log alone that was tended to no avail.
    pub fn rest(&self, log: &Log) -> Duration {
        if log.met { MEETING_PAUSE } else { self.pause_after(log.failures) }
    }

    /// Return what is wrong with these thresholds; `None`: nothing.
    pub fn objection(&self) -> Option<&'static str> {
        if self.pages == 0 || self.pages >= SQLITE_PAGES {
            Some("pages must be 1 to 999, under the 1000 at which an older SQLite of others would checkpoint")
        } else if self.idle.is_zero() {
            Some("idle must be more than 0 seconds")
        } else if self.keep_bytes > KEEP_BYTES_MAX {
            Some("keep_bytes must be 0 to 2**63 - 1")
        } else if self.hard_bytes < self.keep_bytes {
            Some("limit_bytes must be at least keep_bytes")
        } else {
            None
        }
    }
}

/// What is known of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Pages in it, copied or not.
    pub pages: u32,
    /// Of those, the ones known to be in the database.
    pub copied: u32,
    /// The size of its file, as last seen.
    pub file_bytes: u64,
    /// The last checkpoint left something, because of a reader or of another checkpoint.
    pub hindered: bool,
    /// It met another checkpoint.
    pub met: bool,
    /// The last so many checkpoints failed, or could not even be begun.
    pub failures: u32,
    /// A reader keeps the checkpoints from the same page on, for more than a moment.
    pub pinned: bool,
    /// Since the last checkpoint; `None`: there was none.
    pub since_last: Option<Duration>,
    /// Since the last try to cut the file that failed.
    pub since_cut: Option<Duration>,
    /// Since the last commit.
    pub idle: Duration,
    /// Required jobs that wait.
    pub waiting_jobs: usize,
}

/// What to do about the log now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Copy what can be copied.
    Copy,
    /// Copy all and cut the file, waiting for readers at most this long.
    Cut(Duration),
}

/// Choose what to do about the log now, if anything.
pub fn choose(thresholds: &Thresholds, log: &Log) -> Option<Action> {
    let rested = |since: Option<Duration>, pause: Duration| since.is_none_or(|since| since >= pause);
    let uncopied = log.pages.saturating_sub(log.copied);
    // Also while pages are left, and other checkpoints run: a log that is always copied beside its writers, and never
    // wholly, never begins again.
    let may_be_cut = !log.pinned && log.since_last.is_some() && rested(log.since_cut, thresholds.hard_pause);
    if log.file_bytes > thresholds.hard_bytes && may_be_cut {
        return Some(Action::Cut(thresholds.hard_wait));
    }
    let is_idle = log.idle >= thresholds.idle && log.waiting_jobs == 0;
    if uncopied > 0 && (uncopied >= thresholds.pages || is_idle) {
        return (!log.hindered || rested(log.since_last, thresholds.rest(log))).then_some(Action::Copy);
    }
    if log.hindered || log.since_last.is_none() {
        return None;
    }
    if is_idle && log.file_bytes > thresholds.keep_bytes && rested(log.since_cut, thresholds.hard_pause) {
        return Some(Action::Cut(Duration::ZERO));
    }
    None
}

/// New pages of the log from which on it is worth a system call to have them written.
const AHEAD_PAGES: i32 = 128;

/// How many of them this process has written itself. Where many processes write a little each, the others ask for it too.
pub const AHEAD_OWN_PAGES: i32 = AHEAD_PAGES / 2;

/// What to do about pages of the log that nobody has asked the disk to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// There are few.
    Wait,
    /// Begin to write them.
    Write,
    /// The log has begun again from its beginning.
    BeganAnew,
}

/// Decide whether to begin to write the log, which had so many pages when that was begun last, and has so many now.
pub fn write_ahead(begun: i32, pages: i32) -> Ahead {
    if pages < begun {
        if pages < AHEAD_PAGES { Ahead::BeganAnew } else { Ahead::Write }
    } else if pages - begun < AHEAD_PAGES {
        Ahead::Wait
    } else {
        Ahead::Write
    }
}

/// Return how long an idle owner of the log may sleep before it looks again; `None`: until the next commit.
pub fn next_look(thresholds: &Thresholds, log: &Log) -> Option<Duration> {
    let uncopied = log.pages > log.copied;
    let too_large = log.since_last.is_some() && log.file_bytes > thresholds.keep_bytes;
    (uncopied || too_large).then(|| thresholds.idle.saturating_sub(log.idle).max(thresholds.pause_after(log.failures)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(pages: u32, copied: u32) -> Log {
        Log {
            pages,
            copied,
            file_bytes: u64::from(pages) * 4120,
            hindered: false,
            met: false,
            failures: 0,
            pinned: false,
            since_last: Some(Duration::from_secs(5)),
            since_cut: None,
            idle: Duration::ZERO,
            waiting_jobs: 3,
        }
    }

    #[test]
    fn a_full_log_is_copied_before_a_foreign_checkpoint_would_come() {
        let thresholds = Thresholds::default();
        assert!(thresholds.pages < 1000);
        assert_eq!(choose(&thresholds, &log(thresholds.pages, 0)), Some(Action::Copy));
        assert_eq!(choose(&thresholds, &log(thresholds.pages - 1, 0)), None);
    }

    #[test]
    fn thresholds_that_would_do_harm_are_refused() {
        let good = Thresholds::default();
        assert_eq!(good.objection(), None);
        assert_eq!(Thresholds { pages: 1, keep_bytes: 0, hard_bytes: 0, ..good }.objection(), None);
        for (bad, named) in [
            (Thresholds { pages: 0, ..good }, "pages"),
            (Thresholds { pages: 1_000, ..good }, "pages"),
            (Thresholds { idle: Duration::ZERO, ..good }, "idle"),
            (Thresholds { keep_bytes: u64::MAX, hard_bytes: u64::MAX, ..good }, "keep_bytes"),
            (Thresholds { hard_bytes: good.keep_bytes - 1, ..good }, "limit_bytes"),
        ] {
            assert!(bad.objection().is_some_and(|objection| objection.starts_with(named)), "{bad:?}");
        }
    }

    #[test]
    fn pages_that_are_copied_do_not_count_again() {
        let thresholds = Thresholds::default();
        assert_eq!(choose(&thresholds, &log(1_000, 1_000)), None);
        assert_eq!(choose(&thresholds, &log(1_000 + thresholds.pages, 1_000)), Some(Action::Copy));
    }

    #[test]
    fn an_idle_log_is_copied_however_short() {
        let thresholds = Thresholds::default();
        let idle = Log { idle: thresholds.idle, waiting_jobs: 0, ..log(1, 0) };
        assert_eq!(choose(&thresholds, &idle), Some(Action::Copy));
        assert_eq!(choose(&thresholds, &Log { pages: 0, ..idle }), None);
        assert_eq!(choose(&thresholds, &Log { waiting_jobs: 1, ..idle }), None);
        assert_eq!(next_look(&thresholds, &log(1, 0)), Some(thresholds.idle));
        assert_eq!(next_look(&thresholds, &log(1, 1)), None);
    }

    #[test]
    fn a_pinned_log_is_not_tried_all_the_time() {
        let thresholds = Thresholds::default();
        let pinned = Log { hindered: true, pinned: true, since_last: Some(Duration::ZERO), ..log(100_000, 5) };
        assert_eq!(choose(&thresholds, &pinned), None);
        let later = Log { since_last: Some(thresholds.pause), ..pinned };
        assert_eq!(choose(&thresholds, &later), Some(Action::Copy));
    }

    #[test]
    fn a_checkpoint_that_fails_again_and_again_is_tried_more_rarely_but_always_within_seconds() {
        let thresholds = Thresholds::default();
        let failed = |failures, since| Log {
            hindered: true,
            failures,
            since_last: Some(since),
            idle: thresholds.idle,
            waiting_jobs: 0,
            ..log(5, 0)
        };
        assert_eq!(choose(&thresholds, &failed(1, thresholds.pause)), Some(Action::Copy));
        assert_eq!(choose(&thresholds, &failed(2, thresholds.pause)), None);
        assert_eq!(next_look(&thresholds, &failed(2, thresholds.pause)), Some(thresholds.pause * 2));
        let longest = Duration::from_secs(4);
        assert_eq!(choose(&thresholds, &failed(u32::MAX, longest)), Some(Action::Copy));
        assert!(next_look(&thresholds, &failed(u32::MAX, longest)).is_some_and(|pause| pause <= longest));
    }

    #[test]
    fn the_log_is_written_ahead_in_pieces_and_anew_when_it_begins_anew() {
        let (mut begun, mut writes) = (0, 0);
        for pages in (1..900).chain(1..300) {
            match write_ahead(begun, pages) {
                Ahead::Wait => {}
                Ahead::Write => (begun, writes) = (pages, writes + 1),
                Ahead::BeganAnew => begun = 0,
            }
            assert!(pages - begun < AHEAD_PAGES);
        }
        assert_eq!(writes, 899 / AHEAD_PAGES + 299 / AHEAD_PAGES);
        assert_eq!(write_ahead(800, 2 * AHEAD_PAGES), Ahead::Write, "one commit of many pages after a new beginning");
    }

    #[test]
    fn another_s_checkpoint_is_waited_for_less_than_a_reader() {
        let thresholds = Thresholds::default();
        let after = |since| Log { hindered: true, since_last: Some(since), ..log(950, 0) };
        assert_eq!(choose(&thresholds, &after(MEETING_PAUSE)), None);
        assert_eq!(choose(&thresholds, &Log { met: true, ..after(MEETING_PAUSE) }), Some(Action::Copy));
        assert_eq!(choose(&thresholds, &Log { met: true, ..after(MEETING_PAUSE / 2) }), None);
    }

    #[test]
    fn a_log_of_ordinary_size_is_kept_for_reuse() {
        let thresholds = Thresholds::default();
        let idle = Log { idle: thresholds.idle, waiting_jobs: 0, ..log(900, 900) };
        assert!(idle.file_bytes <= thresholds.keep_bytes);
        assert_eq!(choose(&thresholds, &idle), None);
    }

    #[test]
    fn a_large_log_is_cut_when_idle_and_past_the_hard_limit_always_but_never_while_pinned() {
        let thresholds = Thresholds::default();
        let large = Log { file_bytes: thresholds.keep_bytes + 1, ..log(900, 900) };
        assert_eq!(choose(&thresholds, &large), None);
        let idle = Log { idle: thresholds.idle, waiting_jobs: 0, ..large };
        assert_eq!(choose(&thresholds, &idle), Some(Action::Cut(Duration::ZERO)));
        let huge = Log { file_bytes: thresholds.hard_bytes + 1, ..log(900, 900) };
        assert_eq!(choose(&thresholds, &huge), Some(Action::Cut(thresholds.hard_wait)));
        assert_eq!(choose(&thresholds, &Log { hindered: true, pinned: true, ..huge }), None);
        let beside = Log { hindered: true, since_last: Some(Duration::ZERO), copied: 5, ..huge };
        assert_eq!(choose(&thresholds, &beside), Some(Action::Cut(thresholds.hard_wait)));
        assert_eq!(choose(&thresholds, &Log { since_cut: Some(Duration::ZERO), ..huge }), None);
    }
}
