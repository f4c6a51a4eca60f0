//! How many processes of a crowd write by turns, and for how long.
//!
//! A commit that waits for the disk has a turn of its own. Where sixty processes write by turns, each finds on its turn
//! that the others have had the processors' caches since its last one, and the turn takes twice as long. So of a crowd a few
//! write by turns for a while, then others. Whoever is let in stays for [`TURNS`] and lets the next one in after
//! [`TURNS_ALONE`] of them, so that about `TURNS / TURNS_ALONE` write by turns, however fast they are; or as soon as nobody
//! is at the front, so that they are more where a disk takes its time.
//!
//! The price is paid by the slowest writes. Of 64 processes each waits for `63 * TURNS / 3` turns now and then, where it
//! waited for 63 at every write.

use std::time::Duration;

/// How many turns a process of a crowd has before it stands in line behind the others anew. With more the slowest writes wait
/// longer, and nothing is gained; with fewer being let in costs as much as it saves.
pub const TURNS: u32 = 6;

/// After how many of them it lets the next one in.
pub const TURNS_ALONE: u32 = 2;

/// How often it looks whether anybody is at the front. Longer than the turns and the flush of a quick disk, in which the
/// processors have work while nobody is there; short beside a flush that leaves them idle.
pub const LOOK_EVERY: Duration = Duration::from_micros(500);

/// When it lets the next one in, whoever is at the front: it may not come back for its turns.
pub const PATIENCE: Duration = Duration::from_millis(1);

/// Who has waited this long for the front is in a crowd, of some twenty processes. The others follow, and the crowd is one
/// until no more write than are let in together.
pub const CROWD: Duration = Duration::from_millis(2);

/// Who comes back later than this need not wait to be let in: it does not write without end, or its disk is a slow one, and
/// the processors are not what is short.
pub const AWAY: Duration = Duration::from_millis(1);

/// Say whether a turn of this length is so short that its place in the caches counts.
pub fn is_brief(turn: Duration) -> bool {
    turn < Duration::from_micros(250)
}
