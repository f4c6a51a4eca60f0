//! How long, and how willingly, a caller waits.

use std::time::{Duration, Instant};

/// The longest a wait goes on without asking whether it was interrupted (Ctrl-C works within 100 ms).
pub const SLICE: Duration = Duration::from_millis(50);

/// Until when a caller waits, and what else ends its wait.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// The deadline; `None` waits without end.
    pub until: Option<Instant>,
    /// Asked at least every [`SLICE`], with no lock of ours held: `true` ends the wait.
    pub interrupted: &'a (dyn Fn() -> bool + 'a),
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The deadline passed.
    TimedOut,
    /// The caller was interrupted.
    Interrupted,
}

impl Patience<'_> {
    /// Return how long the next slice of the wait may last.
    ///
    /// # Errors
    /// Why the wait is over.
    pub fn next_slice(&self) -> Result<Duration, GaveUp> {
        if (self.interrupted)() {
            return Err(GaveUp::Interrupted);
        }
        match self.until {
            None => Ok(SLICE),
            Some(until) => match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Ok(left.min(SLICE)),
                _ => Err(GaveUp::TimedOut),
            },
        }
    }
}
