//! One after the other, without the kernel's locks: the line of commits that wait for the disk.
//!
//! Such a turn is over in a few dozen microseconds, and the next one of the same process begins when the disk is done. The front
//! is too dear for that: who waits for it has a thread wait, which must be woken to wake the caller, and while anybody waits
//! nobody takes a turn without it. So commits line up here before they come to the lane: callers wait themselves, for a word of
//! memory that the processes share, and at the lane there is one of them at a time, as if it were alone.
//!
//! Nothing relies on it. Whoever is let through goes to the lane as everybody does, and to SQLite's own lock. One that is stuck
//! (its statement takes long, it is stopped or was killed) is gone past.

use crate::policy::gate::{LONG_WAIT, STUCK};
use crate::vfs::{SharedWords, Woken, Word};
use crate::wait::{GaveUp, Patience};
use std::sync::Arc;
use std::time::Instant;

/// Somebody is let through.
const TAKEN: u32 = 1;
/// Somebody waits.
const WAITING: u32 = 2;
/// Somebody waits who goes before the others.
const PRESSED: u32 = 4;
/// One that came through.
const ONE: u32 = 8;

/// Being let through; ends when it is dropped.
pub struct Passage {
    words: Arc<SharedWords>,
    number: u32,
}

impl Passage {
    /// Wait to be let through. `pressed`: before those who are not.
    ///
    /// # Errors
    /// Why the wait ended.
    pub fn enter(words: &Arc<SharedWords>, pressed: bool, patience: &Patience<'_>) -> Result<Self, GaveUp> {
        let number = pass(words.gate(), pressed, patience)?;
        Ok(Self { words: Arc::clone(words), number })
    }

    /// Be let through, if nobody is.
    pub fn try_enter(words: &Arc<SharedWords>) -> Option<Self> {
        let number = try_pass(words.gate())?;
        Some(Self { words: Arc::clone(words), number })
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        if !self.words.is_inherited() {
            leave(self.words.gate(), self.number);
        }
    }
}

fn try_pass(word: Word<'_>) -> Option<u32> {
    let seen = word.read();
    (seen & TAKEN == 0 && word.replace(seen, seen | TAKEN).is_ok()).then(|| number(seen))
}

/// Be let through, and return with which number.
fn pass(word: Word<'_>, mut pressed: bool, patience: &Patience<'_>) -> Result<u32, GaveUp> {
    let came = Instant::now();
    let mut slept = 0;
    let mut seen = word.read();
    // With which number somebody is let through, and since when it was not another.
    let mut inside = (number(seen), came);
    loop {
        if seen & TAKEN == 0 {
            // There may be more who wait like this one, and were not woken.
            match word.replace(seen, seen | TAKEN | slept) {
                Ok(()) => return Ok(number(seen)),
                Err(now) => seen = now,
            }
            continue;
        }
        let now = Instant::now();
        if inside.0 != number(seen) {
            inside = (number(seen), now);
        }
        let left = STUCK.saturating_sub(now.saturating_duration_since(inside.1));
        if left.is_zero() {
            let next = number(seen).wrapping_add(1).wrapping_mul(ONE);
            match word.replace(seen, next | seen & (ONE - 1)) {
                Ok(()) => return Ok(number(next)),
                Err(now) => seen = now,
            }
            continue;
        }
        let slice = match patience.next_slice() {
            Ok(slice) => slice.min(left),
            Err(gave_up) => {
                go_away(word, slept);
                return Err(gave_up);
            }
        };
        pressed |= now.saturating_duration_since(came) >= LONG_WAIT;
        let like_this = if pressed { PRESSED } else { WAITING };
        slept |= like_this;
        if seen & slept != slept
            && let Err(now) = word.replace(seen, seen | slept)
        {
            seen = now;
            continue;
        }
        if word.wait(seen | slept, group(like_this), slice) == Woken::Refused {
            // Whoever cannot wait goes on; nothing relies on it.
            inside.1 = now.checked_sub(STUCK).unwrap_or(inside.1);
        }
        seen = word.read();
    }
}

/// Go without having been let through: if this one was woken, another is to be.
fn go_away(word: Word<'_>, slept: u32) {
    if slept != 0 && word.change(|now| (now & TAKEN != 0).then_some(now | slept)).is_none() {
        wake_one(word, slept);
    }
}

fn wake_one(word: Word<'_>, waiting: u32) {
    if waiting & PRESSED == 0 || word.wake(group(PRESSED), 1) == 0 {
        word.wake(group(WAITING), 1);
    }
}

/// Let the next one through, unless somebody went past the one with this number.
fn leave(word: Word<'_>, this: u32) {
    let left = word.change(|now| {
        let kept = if now & PRESSED == 0 { 0 } else { now & WAITING };
        (now & TAKEN != 0 && number(now) == this).then_some(this.wrapping_add(1).wrapping_mul(ONE) | kept)
    });
    if let Some(before) = left.filter(|before| before & (PRESSED | WAITING) != 0) {
        wake_one(word, before);
    }
}

fn number(word: u32) -> u32 {
    word / ONE
}

fn group(waiting: u32) -> u32 {
    waiting.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{self, wait_until};
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    const LAST: u32 = u32::MAX / ONE;
    const FOR_EVER: Patience<'static> = Patience { until: None, interrupted: &|| false };

    #[test]
    fn one_is_let_through_at_a_time() {
        for first in [0, LAST] {
            let word = AtomicU32::new(first.wrapping_mul(ONE));
            let word = Word::at(&word);
            let this = try_pass(word).unwrap();
            assert_eq!(try_pass(word), None);
            leave(word, this);
            let next = try_pass(word).unwrap();
            assert_ne!(this, next);
            leave(word, next);
            assert_eq!(word.read() & (ONE - 1), 0);
        }
    }

    #[test]
    fn all_come_through_and_no_two_at_once() {
        let (word, inside, through) = (AtomicU32::new(LAST * ONE), AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for writer in 0..6 {
                let (word, inside, through) = (Word::at(&word), &inside, &through);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let this = pass(word, writer == 0, &FOR_EVER).unwrap();
                        // A machine that does not run this thread for as long as that lets another one past.
                        assert!(!inside.swap(true, Ordering::SeqCst) || number(word.read()) != this);
                        through.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        leave(word, this);
                    }
                });
            }
        });
        assert_eq!(through.into_inner(), 3000);
        assert_eq!(word.into_inner() & TAKEN, 0);
    }

    #[test]
    fn who_is_pressed_is_woken_first() {
        let word = AtomicU32::new(0);
        let word = Word::at(&word);
        let (told, order) = mpsc::channel();
        thread::scope(|scope| {
            let mut this = try_pass(word).unwrap();
            for pressed in [false, true] {
                let (told, (came, id)) = (told.clone(), mpsc::channel());
                scope.spawn(move || {
                    came.send(threads::number()).unwrap();
                    let this = pass(word, pressed, &FOR_EVER).unwrap();
                    told.send(pressed).unwrap();
                    leave(word, this);
                });
                let id = id.recv().unwrap();
                let bit = if pressed { PRESSED } else { WAITING };
                // Where the machine is slow it comes through by itself, and begins anew with the next wait.
                wait_until("it waits", || word.read() & bit != 0 && threads::sleeps(id));
                if number(word.read()) != this {
                    this = number(word.read());
                }
            }
            leave(word, this);
            assert_eq!([order.recv(), order.recv()], [Ok(true), Ok(false)]);
        });
    }

    #[test]
    fn who_was_woken_in_vain_after_a_long_wait_is_pressed() {
        let word = AtomicU32::new(0);
        let word = Word::at(&word);
        thread::scope(|scope| {
            let this = try_pass(word).unwrap();
            let waits = scope.spawn(move || pass(word, false, &FOR_EVER).map(|this| leave(word, this)));
            let came = Instant::now();
            wait_until("it waits", || word.read() & WAITING != 0);
            assert_eq!(word.read() & PRESSED, 0);
            wait_until("it has waited long", || came.elapsed() >= LONG_WAIT);
            wait_until("it is pressed", || {
                word.wake(group(WAITING), 1);
                word.read() & PRESSED != 0
            });
            leave(word, this);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn who_is_stuck_is_gone_past_and_lets_nobody_else_through_afterwards() {
        let word = AtomicU32::new(0);
        let word = Word::at(&word);
        let stuck = try_pass(word).unwrap();
        let came = Instant::now();
        let this = pass(word, false, &FOR_EVER).unwrap();
        assert!(came.elapsed() >= STUCK);
        leave(word, stuck);
        assert_eq!(try_pass(word), None);
        leave(word, this);
        assert!(try_pass(word).is_some());
    }

    #[test]
    fn a_wait_ends_with_the_patience() {
        let word = AtomicU32::new(TAKEN);
        let word = Word::at(&word);
        let interrupted = Patience { until: None, interrupted: &|| true };
        assert_eq!(pass(word, false, &interrupted), Err(GaveUp::Interrupted));
        let soon = Patience { until: Some(Instant::now() + STUCK / 4), interrupted: &|| false };
        assert_eq!(pass(word, false, &soon), Err(GaveUp::TimedOut));
        assert_eq!(word.read() & TAKEN, TAKEN);
    }

    #[test]
    fn garbage_costs_time_and_nothing_else() {
        for found in (0..ONE).chain([u32::MAX, u32::MAX - ONE + 1, 0x8000_0001]) {
            let word = AtomicU32::new(found);
            let word = Word::at(&word);
            for _ in 0..3 {
                let this = pass(word, false, &FOR_EVER).unwrap();
                leave(word, this);
            }
            assert_eq!(word.read() & TAKEN, 0);
        }
    }
}
