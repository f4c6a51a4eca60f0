//! How long to wait for the flush of another process.

use std::time::Duration;

/// The least: long beside a change of threads on a busy machine.
const LEAST: Duration = Duration::from_millis(10);
/// The most, whatever the disk takes.
const MOST: Duration = Duration::from_secs(1);

/// Return how long a flush of another process may take before it is not waited for, but the log flushed once more: whoever
/// made it may be stopped, or killed. `usual` is how long a flush took of late.
pub fn patience(usual: Duration) -> Duration {
    (usual * 4).clamp(LEAST, MOST)
}

/// Return how long a flush takes of late, after one that took `last`; zero at first.
pub fn smooth(usual: Duration, last: Duration) -> Duration {
    if usual.is_zero() { last } else { (usual * 7 + last) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_gets_more_time_and_none_gets_without_end() {
        assert_eq!(patience(Duration::ZERO), LEAST);
        assert_eq!(patience(Duration::from_millis(20)), Duration::from_millis(80));
        assert_eq!(patience(Duration::from_secs(100)), MOST);
    }

    #[test]
    fn what_is_usual_follows_what_was() {
        let ms = Duration::from_millis;
        assert_eq!(smooth(Duration::ZERO, ms(8)), ms(8));
        assert_eq!(smooth(ms(8), ms(16)), ms(9));
        let long = (0..100).fold(ms(8), |usual, _| smooth(usual, ms(80)));
        assert!(long > ms(79));
    }
}
