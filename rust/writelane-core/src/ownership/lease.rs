//! The terms of a lease: who may act, and who may take over. Times in, decisions out.
//!
//! No clocks of two hosts are compared. An owner counts from the moment *before* its last renewal and stops at
//! three quarters of the lease; a claimant counts from the moment *after* it first saw that renewal and begins at
//! five quarters. Between the two lies half a lease, for clocks that run at different rates and writes on their way.

use std::time::Duration;

/// How long an owner's word is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    lease: Duration,
}

impl Terms {
    /// Half a minute: longer than a network filesystem's usual retransmissions, short enough to wait out once.
    pub const DEFAULT: Self = Self { lease: Duration::from_secs(30) };
    /// No owner is taken for dead sooner than this, whatever its record says.
    pub const LEASE_MIN: Duration = Duration::from_secs(1);
    /// No claimant waits on a record's word longer than this (a damaged record could name any time).
    pub const LEASE_MAX: Duration = Duration::from_secs(600);

    /// Make terms; the lease is held within the limits.
    pub fn new(lease: Duration) -> Self {
        Self { lease: lease.clamp(Self::LEASE_MIN, Self::LEASE_MAX) }
    }

    /// Return the lease.
    pub fn lease(self) -> Duration {
        self.lease
    }

    /// Return the time between two heart-beats: five may fail before the owner has to stop.
    pub fn beat_every(self) -> Duration {
        self.lease / 8
    }

    /// Say whether an owner that began its last good renewal at `renewed` may still commit at `now`.
    pub fn may_commit(self, renewed: Duration, now: Duration) -> bool {
        now.saturating_sub(renewed) < self.lease * 3 / 4
    }

    /// Say whether an owner should renew before it goes on, so that a beat that is late costs no work.
    pub fn should_renew(self, renewed: Duration, now: Duration) -> bool {
        now.saturating_sub(renewed) >= self.lease / 4
    }

    /// Return how long a claimant has yet to watch a record that it has seen unchanged since `since`.
    pub fn left_to_watch(self, since: Duration, now: Duration) -> Duration {
        (self.lease * 5 / 4).saturating_sub(now.saturating_sub(since))
    }
}

/// What a claimant knows of another's record.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    seen: Option<(Vec<u8>, Duration)>,
}

/// What a look at another's record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It changed while it was watched.
    Alive,
    /// It has not changed so far; watch this much longer.
    Silent(Duration),
    /// It has not changed for as long as its lease and more.
    Dead,
}

impl Watch {
    /// Take note of the record's bytes at `now` and say what they tell.
    pub fn look(&mut self, bytes: &[u8], terms: Terms, now: Duration) -> Sign {
        match &self.seen {
            Some((seen, since)) if seen == bytes => match terms.left_to_watch(*since, now) {
                Duration::ZERO => Sign::Dead,
                left => Sign::Silent(left),
            },
            Some(_) => {
                self.seen = Some((bytes.to_vec(), now));
                Sign::Alive
            }
            None => {
                self.seen = Some((bytes.to_vec(), now));
                Sign::Silent(terms.left_to_watch(now, now))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn an_owner_stops_half_a_lease_before_anyone_may_take_over() {
        let terms = Terms::new(S(40));
        for tenths in 0..2000 {
            let now = Duration::from_millis(tenths * 100);
            // The claimant saw the renewal at the earliest moment it could: when it was begun.
            let taken = terms.left_to_watch(Duration::ZERO, now).is_zero();
            assert!(!(terms.may_commit(Duration::ZERO, now) && taken), "both at {now:?}");
            assert!(!(terms.may_commit(Duration::ZERO, now) && now >= S(30)));
            assert!(!(taken && now < S(50)));
        }
    }

    #[test]
    fn beats_are_many_to_a_lease() {
        let terms = Terms::DEFAULT;
        assert!(terms.beat_every() * 5 < terms.lease() * 3 / 4);
        assert!(terms.should_renew(S(0), terms.lease() / 4) && !terms.should_renew(S(0), terms.beat_every()));
    }

    #[test]
    fn a_changing_record_is_never_dead_however_late_it_is_looked_at() {
        let (terms, mut watch) = (Terms::new(S(4)), Watch::default());
        assert_eq!(watch.look(b"1", terms, S(0)), Sign::Silent(S(5)));
        assert_eq!(watch.look(b"1", terms, S(3)), Sign::Silent(S(2)));
        assert_eq!(watch.look(b"2", terms, S(1000)), Sign::Alive);
        assert_eq!(watch.look(b"2", terms, S(1001)), Sign::Silent(S(4)));
        assert_eq!(watch.look(b"2", terms, S(1005)), Sign::Dead);
    }

    #[test]
    fn a_lease_stays_within_its_limits() {
        assert_eq!(Terms::new(Duration::ZERO).lease(), Terms::LEASE_MIN);
        assert_eq!(Terms::new(Duration::MAX).lease(), Terms::LEASE_MAX);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_panic_nor_kill() {
        let (terms, mut watch) = (Terms::new(S(4)), Watch::default());
        watch.look(b"1", terms, S(100));
        assert_eq!(watch.look(b"1", terms, S(1)), Sign::Silent(S(5)));
        assert!(terms.may_commit(S(100), S(1)));
    }
}
