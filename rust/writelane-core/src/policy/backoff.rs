//! How long to sleep between tries where the kernel cannot wake us.

use std::time::Duration;

/// The first sleep. Shorter than the shortest transaction that syncs, so a free lock is found soon.
const FIRST: Duration = Duration::from_micros(200);
/// The longest sleep. A constant, short one: a waiter with age must not poll more slowly than a newcomer, which is
/// what starves it under SQLite's own back-off.
const LONGEST: Duration = Duration::from_millis(2);

/// Return the sleep before try `attempt` (from 0); `random` is any 32 bits, and spreads it over half to all of it,
/// so that waiters which were woken together do not collide again.
pub fn sleep(attempt: u32, random: u32) -> Duration {
    let full = FIRST.saturating_mul(1 << attempt.min(8)).min(LONGEST);
    let half = full / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// How many times as long as a look took it is until the next. A look who holds the lock takes longer the more processes
/// there are, and all that wait look.
const LOOK_SPARINGLY: u32 = 500;
/// A look that takes longer than this is one of many: each is made rarer still by as much.
const SHORT_LOOK: Duration = Duration::from_micros(100);
/// The longest until the next look.
const LOOK_AT_LATEST: Duration = Duration::from_secs(5);

/// Return how long not to look again who holds the lock, after a look that took `spent`.
pub fn next_look(spent: Duration) -> Duration {
    let crowd = (spent.as_secs_f64() / SHORT_LOOK.as_secs_f64()).max(1.0);
    (spent * LOOK_SPARINGLY).min(LOOK_AT_LATEST).mul_f64(crowd).min(LOOK_AT_LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_waiters_poll_as_often_as_young_ones() {
        assert_eq!(sleep(4, u32::MAX), LONGEST);
        assert_eq!(sleep(4, u32::MAX), sleep(4_000_000, u32::MAX));
    }

    #[test]
    fn the_jitter_spreads_over_half_of_the_sleep() {
        assert_eq!(sleep(0, 0), FIRST / 2);
        assert_eq!(sleep(0, u32::MAX), FIRST);
        assert!(sleep(9, 0) >= LONGEST / 2);
    }

    #[test]
    fn many_who_wait_do_not_use_up_the_processors_by_looking() {
        // A look goes through the records of all, so it costs the same for each of them.
        for waiting in [1_u32, 8, 64, 128] {
            let look = Duration::from_micros(150) * waiting;
            let share = f64::from(waiting) * look.as_secs_f64() / next_look(look).as_secs_f64();
            assert!(share < 0.5, "{waiting} that wait use {share} of a processor");
        }
    }

    #[test]
    fn a_look_comes_in_time_for_a_short_deadline() {
        assert!(next_look(Duration::from_micros(100)) <= Duration::from_millis(50));
        assert_eq!(next_look(Duration::from_secs(1)), LOOK_AT_LATEST);
    }
}
