//! How many jobs share one transaction, and for how long it may hold the lock.

use std::time::Duration;

/// The limits of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The most jobs. Past a few hundred, a job's share of the commit is lost in its own cost.
    pub jobs_max: usize,
    /// The longest the lock is held before the group commits, so that others get in between.
    pub hold_max: Duration,
    /// The longest for a group that has offered work in it: required work must not wait for it.
    pub offered_hold_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { jobs_max: 512, hold_max: Duration::from_millis(20), offered_hold_max: Duration::from_millis(5) }
    }
}

/// What the writer knows while a group runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Jobs that have run in this transaction.
    pub jobs: usize,
    /// How long the transaction has held the lock.
    pub held: Duration,
    /// Whether an offered job has run in it.
    pub has_offered: bool,
    /// Whether the job that would come next is offered work.
    pub next_is_offered: bool,
    /// Whether required work waits.
    pub required_waits: bool,
}

/// Say whether the next waiting job joins the group that is running.
pub fn takes_another(limits: &Limits, progress: &Progress) -> bool {
    if progress.jobs == 0 {
        return true;
    }
    if progress.jobs >= limits.jobs_max {
        return false;
    }
    // Offered work must not stretch the transaction of required work, nor the other way round.
    if progress.next_is_offered != progress.has_offered {
        return false;
    }
    let hold_max = if progress.has_offered { limits.offered_hold_max } else { limits.hold_max };
    progress.held < hold_max && !(progress.has_offered && progress.required_waits)
}

/// What the writer knows when the queue has run empty and a group could be committed, or a new one awaited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Company {
    /// Jobs in the groups before, smoothed.
    pub usual_jobs: f64,
    /// How long a commit takes, smoothed.
    pub commit: Duration,
    /// Jobs that wait now.
    pub waiting: usize,
    /// How long the writer has lingered for more.
    pub lingered: Duration,
}

/// The longest a group waits for the callers it has just answered to come back.
const LINGER_MAX: Duration = Duration::from_micros(250);

/// Say how much longer to wait for more jobs before a transaction begins; zero begins at once.
///
/// A lone caller never waits for company: only where groups have lately had several jobs, and a commit costs
/// more than the wait, is it worth to let the callers of the last group come back first.
pub fn linger(company: &Company) -> Duration {
    if company.usual_jobs < 1.5 || company.waiting as f64 >= company.usual_jobs {
        return Duration::ZERO;
    }
    let worth = (company.commit / 3).min(LINGER_MAX);
    worth.saturating_sub(company.lingered)
}

/// Smooth a series of counts: an eighth of the newest.
pub fn smooth(before: f64, newest: f64) -> f64 {
    before + (newest - before) / 8.0
}

/// Say whether a caller that finds the writer idle runs its job itself instead of waking the writer.
///
/// Alone, it saves two changes of thread. Among many, it would commit alone what the writer would group.
pub fn drive_yourself(usual_jobs: f64) -> bool {
    usual_jobs < 1.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress { jobs: 1, held: Duration::ZERO, has_offered: false, next_is_offered: false, required_waits: true }
    }

    #[test]
    fn a_group_is_bounded_in_jobs_and_in_time() {
        let limits = Limits::default();
        assert!(takes_another(&limits, &progress()));
        assert!(!takes_another(&limits, &Progress { jobs: limits.jobs_max, ..progress() }));
        assert!(!takes_another(&limits, &Progress { held: limits.hold_max, ..progress() }));
    }

    #[test]
    fn the_first_job_always_runs() {
        let limits = Limits { jobs_max: 0, hold_max: Duration::ZERO, offered_hold_max: Duration::ZERO };
        assert!(takes_another(&limits, &Progress { jobs: 0, held: Duration::MAX, ..progress() }));
    }

    #[test]
    fn offered_work_neither_stretches_required_work_nor_delays_it() {
        let limits = Limits::default();
        assert!(!takes_another(&limits, &Progress { next_is_offered: true, ..progress() }));
        let offered = Progress { has_offered: true, next_is_offered: true, required_waits: false, ..progress() };
        assert!(takes_another(&limits, &offered));
        assert!(!takes_another(&limits, &Progress { required_waits: true, ..offered }));
        assert!(!takes_another(&limits, &Progress { held: limits.offered_hold_max, ..offered }));
    }

    #[test]
    fn a_lone_job_does_not_wait_for_company() {
        let company =
            Company { usual_jobs: 1.0, commit: Duration::from_millis(5), waiting: 1, lingered: Duration::ZERO };
        assert_eq!(linger(&company), Duration::ZERO);
    }

    #[test]
    fn lingering_ends_when_the_usual_company_is_there_or_its_time_is_up() {
        let company =
            Company { usual_jobs: 8.0, commit: Duration::from_micros(300), waiting: 3, lingered: Duration::ZERO };
        assert_eq!(linger(&company), Duration::from_micros(100));
        assert_eq!(linger(&Company { lingered: Duration::from_micros(100), ..company }), Duration::ZERO);
        assert_eq!(linger(&Company { waiting: 8, ..company }), Duration::ZERO);
        assert!(linger(&Company { commit: Duration::from_secs(1), ..company }) <= LINGER_MAX);
    }
}
