//! When to wait for the flush of another process, and how long.

use std::time::Duration;

/// A flush up to this long takes the processors about as long as it takes the disk, and is worth being shared. Of longer ones
/// a disk makes several at once, or the kernel makes one of them, and whoever waited for another's first would wait longer.
const QUICK: Duration = Duration::from_micros(400);

/// How long a flush of another process may take before it is not waited for, but the log flushed once more: whoever made it
/// may be stopped, or killed. Long beside a quick flush, and beside a change of threads on a busy machine.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// Say whether flushes are to be shared, where one takes so long as a rule; zero where that is not known.
pub fn is_shared(usual: Duration) -> bool {
    usual <= QUICK
}

/// Return how long a flush takes as a rule, after one that took `last`; zero at first. Those that were quick say what the disk
/// can do; the others may have waited for a processor, or for each other.
pub fn smooth(usual: Duration, last: Duration) -> Duration {
    if usual.is_zero() {
        last
    } else if last < usual {
        usual - (usual - last) / 2
    } else {
        usual + (last - usual) / 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn what_is_usual_follows_the_quick_ones() {
        assert_eq!(smooth(Duration::ZERO, US(800)), US(800));
        assert_eq!(smooth(US(800), US(200)), US(500));
        assert_eq!(smooth(US(100), US(740)), US(110));
        let slow = (0..1000).fold(US(100), |usual, _| smooth(usual, US(2_000)));
        assert!(!is_shared(slow), "a disk that became slow");
    }

    #[test]
    fn flushes_of_a_quick_disk_are_shared_also_where_some_wait_for_a_processor() {
        assert!(is_shared(Duration::ZERO));
        let often_late =
            (0..1000).fold(US(100), |usual, flush| smooth(usual, US(if flush % 4 == 0 { 120 } else { 900 })));
        assert!(is_shared(often_late), "{often_late:?}");
        let slow = (0..1000).fold(US(100), |usual, flush| smooth(usual, US(if flush % 4 == 0 { 600 } else { 900 })));
        assert!(!is_shared(slow), "{slow:?}");
    }
}
