//! Who held the lock while a job waited for it, and how long each.

use crate::lane::Holder;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stretches of one wait that are kept; of a longer history the oldest goes.
const STRETCHES_MAX: usize = 64;

/// One stretch of a wait: who held the lock, and how long.
pub type Stretch = (Holder, Duration);

/// A wait while it goes on, looked at now and then.
#[derive(Clone, Default)]
pub struct Blame {
    stretches: Vec<Stretch>,
    looked: Option<Instant>,
}

/// Who held the lock during a wait that is over. Cheap to clone, so that all jobs of a group can carry it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held(Option<Arc<[Stretch]>>);

impl Blame {
    /// Say whether it is time to look again.
    pub fn is_due(&self, now: Instant, every: Duration) -> bool {
        self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= every)
    }

    /// Note who holds the lock now: the time since the last look is put down to whoever held it then.
    pub fn look(&mut self, now: Instant, holder: Holder) {
        self.pass(now);
        self.looked = Some(now);
        match self.stretches.last_mut() {
            // The later sighting knows how long the lock has been held by now.
            Some((last, _)) if last.is_same(&holder) => *last = holder,
            _ => {
                if self.stretches.len() >= STRETCHES_MAX {
                    self.stretches.remove(0);
                }
                self.stretches.push((holder, Duration::ZERO));
            }
        }
    }

    /// End the stretch that goes on.
    pub fn pass(&mut self, now: Instant) {
        if let (Some(looked), Some((_, time))) = (self.looked.take(), self.stretches.last_mut()) {
            *time += now.saturating_duration_since(looked);
        }
    }

    /// End the stretch that goes on, and give the history away.
    pub fn end(mut self, now: Instant) -> Held {
        self.pass(now);
        self.take()
    }

    /// Return who is to be named: who held the lock longest, and rather one that is known than one that is not.
    pub fn main(&self) -> Option<Holder> {
        main(&self.stretches)
    }

    /// Return the history until now.
    pub fn peek(&self) -> Held {
        Held((!self.stretches.is_empty()).then(|| self.stretches.as_slice().into()))
    }

    /// Give the history away and begin anew.
    pub fn take(&mut self) -> Held {
        let stretches = std::mem::take(&mut self.stretches);
        Held((!stretches.is_empty()).then(|| stretches.into()))
    }
}

fn main(stretches: &[Stretch]) -> Option<Holder> {
    let longest = stretches
        .iter()
        .filter(|(holder, _)| *holder != Holder::Nobody)
        .max_by_key(|(holder, time)| (!matches!(holder, Holder::Unknown), *time));
    longest.map(|(holder, _)| holder.clone())
}

impl Held {
    /// Return who is to be named.
    pub fn main(&self) -> Option<Holder> {
        main(self.0.as_deref().unwrap_or_default())
    }

    /// Return the history of a wait that began with `earlier`, and whose last part, of length `last`, is this one.
    pub(crate) fn behind(&self, earlier: &Held, last: Duration) -> Held {
        let Some(first) = &earlier.0 else { return self.clone() };
        let (mut left, mut stretches) = (last, Vec::new());
        for (holder, time) in self.0.as_deref().unwrap_or_default().iter().rev() {
            let share = left.min(*time);
            left -= share;
            stretches.push((holder.clone(), share));
        }
        stretches.reverse();
        Held(Some(first.iter().cloned().chain(stretches).collect()))
    }

    /// Split a wait that ended with this history: the job may have come after its beginning. The shares add up to the
    /// wait. What nobody was seen to hold, because no look was made or the lock was changing hands, is put down to
    /// nobody known; a wait of which there is no history, to `named`.
    pub(crate) fn split<'a>(
        &'a self,
        wait: Duration,
        named: Option<&'a Holder>,
    ) -> impl Iterator<Item = (&'a Holder, Duration)> {
        static UNKNOWN: Holder = Holder::Unknown;
        let told: Duration = self.shares(wait).map(|(_, time)| time).sum();
        let rest = wait.saturating_sub(told);
        let whose = named.filter(|_| told.is_zero()).unwrap_or(&UNKNOWN);
        self.shares(wait).chain((!rest.is_zero()).then_some((whose, rest)))
    }

    fn shares(&self, wait: Duration) -> impl Iterator<Item = (&Holder, Duration)> {
        let mut left = wait;
        self.0.as_deref().unwrap_or_default().iter().rev().filter_map(move |(holder, time)| {
            let share = left.min(*time);
            left -= share;
            (!share.is_zero() && *holder != Holder::Nobody).then_some((holder, share))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Holder {
        Holder::Process { pid, command: "agent".into(), statement: None, held: None, stopped: false }
    }

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    #[test]
    fn each_holder_carries_its_own_share_of_a_wait() {
        let start = Instant::now();
        let mut blame = Blame::default();
        blame.look(start, process(1));
        blame.look(after(start, 30), process(1));
        blame.look(after(start, 100), process(2));
        blame.look(after(start, 110), Holder::Nobody);
        blame.pass(after(start, 115));
        assert_eq!(blame.main(), Some(process(1)));
        let held = blame.take();
        let split: Vec<_> =
            held.split(Duration::from_secs(1), None).map(|(holder, time)| (holder.clone(), time)).collect();
        let shares = [(process(2), 10), (process(1), 100), (Holder::Unknown, 890)];
        assert_eq!(split, shares.map(|(holder, milliseconds)| (holder, Duration::from_millis(milliseconds))));
    }

    #[test]
    fn a_job_that_came_late_blames_only_those_it_waited_for() {
        let start = Instant::now();
        let mut blame = Blame::default();
        blame.look(start, process(1));
        blame.look(after(start, 100), process(2));
        blame.pass(after(start, 150));
        let held = blame.take();
        let split: Vec<_> = held.split(Duration::from_millis(60), None).map(|(_, time)| time).collect();
        assert_eq!(split, [Duration::from_millis(50), Duration::from_millis(10)]);
    }

    #[test]
    fn a_wait_in_two_parts_blames_those_of_each_and_of_the_second_only_its_end() {
        let start = Instant::now();
        let held = |pid: u32, milliseconds: u64| {
            let mut blame = Blame::default();
            blame.look(start, process(pid));
            blame.end(after(start, milliseconds))
        };
        let (first, second) = (held(1, 30), held(2, 100));
        let both = second.behind(&first, Duration::from_millis(40));
        let split: Vec<_> =
            both.split(Duration::from_millis(75), None).map(|(holder, time)| (holder.clone(), time)).collect();
        let shares = [(process(2), 40), (process(1), 30), (Holder::Unknown, 5)];
        assert_eq!(split, shares.map(|(holder, milliseconds)| (holder, Duration::from_millis(milliseconds))));
        assert_eq!(second.behind(&Held::default(), Duration::from_millis(40)), second);
    }

    #[test]
    fn who_is_known_is_named_before_who_is_not() {
        let start = Instant::now();
        let mut blame = Blame::default();
        blame.look(start, Holder::Unknown);
        blame.look(after(start, 100), process(2));
        blame.pass(after(start, 101));
        assert_eq!(blame.main(), Some(process(2)));
        assert_eq!(Blame::default().main(), None);
    }

    #[test]
    fn the_history_of_a_wait_is_bounded() {
        let start = Instant::now();
        let mut blame = Blame::default();
        for step in 0..1_000_u32 {
            blame.look(after(start, u64::from(step)), process(step));
        }
        assert!(blame.stretches.len() <= STRETCHES_MAX);
    }
}
