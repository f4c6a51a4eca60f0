//! In which order commits that wait for the disk are let through, and when somebody in their way is gone past.

use std::time::Duration;

/// Who comes back later than this after its last turn does not write without end: it goes before those who do.
pub const AWAY: Duration = Duration::from_millis(1);

/// Who was woken in vain after it has waited this long goes before the others, too: those who come find the way free now
/// and then and take it, whoever was woken for it.
pub const LONG_WAIT: Duration = Duration::from_millis(2);

/// How long the others are kept back by one that waits for a turn in the lane: somebody has that who is not in this line, and
/// they are to stand in the lane's with it.
pub const KEPT_BACK: Duration = Duration::from_micros(500);

/// How long nobody may have come through before the one who is let through counts as stuck: its statement takes long, or it
/// is stopped, or was killed. Long beside a commit, and beside a change of threads on a busy machine.
pub const STUCK: Duration = Duration::from_millis(20);
