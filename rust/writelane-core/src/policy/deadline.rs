//! From the seconds a caller gives to the instant its wait ends.

use std::time::{Duration, Instant};

/// Longer waits are waits without end. A century: nobody tells it from for ever, and no clock overflows.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Why a number of seconds is no deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADeadline;

/// Return the duration that `seconds` stands for; `None` waits without end.
///
/// Infinity and everything over [`LONGEST`] wait without end; zero and negative numbers do not wait at all, that
/// is, the job runs only if nothing is in its way.
///
/// # Errors
/// NaN is no deadline.
pub fn from_seconds(seconds: f64) -> Result<Option<Duration>, NotADeadline> {
    if seconds.is_nan() {
        Err(NotADeadline)
    } else if seconds <= 0.0 {
        Ok(Some(Duration::ZERO))
    } else if seconds >= LONGEST.as_secs_f64() {
        Ok(None)
    } else {
        Ok(Some(Duration::from_secs_f64(seconds)))
    }
}

/// Return the instant at which a wait that starts now ends.
pub fn until(now: Instant, wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| now.checked_add(wait))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_clamped_not_overflowed() {
        assert_eq!(from_seconds(f64::INFINITY), Ok(None));
        assert_eq!(from_seconds(1e300), Ok(None));
        assert_eq!(from_seconds(86_400.0 * 30.0), Ok(Some(Duration::from_secs(86_400 * 30))));
        assert_eq!(from_seconds(0.0), Ok(Some(Duration::ZERO)));
        assert_eq!(from_seconds(-0.0), Ok(Some(Duration::ZERO)));
        assert_eq!(from_seconds(-1.0), Ok(Some(Duration::ZERO)));
        assert_eq!(from_seconds(f64::NEG_INFINITY), Ok(Some(Duration::ZERO)));
        assert_eq!(from_seconds(f64::NAN), Err(NotADeadline));
        assert_eq!(from_seconds(1e-320), Ok(Some(Duration::ZERO)));
    }

    #[test]
    fn no_wait_ends_now_and_no_deadline_never() {
        let now = Instant::now();
        assert_eq!(until(now, Some(Duration::ZERO)), Some(now));
        assert_eq!(until(now, None), None);
    }
}
