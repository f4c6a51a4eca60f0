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
}
