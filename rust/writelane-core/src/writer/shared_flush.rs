//! One flush of the log for the commits of several processes.
//!
//! The log is one file, and a flush that begins after a commit was written brings that to the disk, whoever makes it. So who
//! finds the flush of another process under way waits for the next one, which one of those who wait makes as soon as the
//! first has ended. With many processes each flush serves several, and while it lasts the next ones write.
//!
//! The word that they share counts the flushes that have ended, and says whether the next is under way. Whoever came
//! while number *n* was under way is served when *n + 1* has ended, since that began after it came. One more may flush apart
//! from it meanwhile: of two processes neither would gain anything by waiting for the other.
//!
//! Nobody waits for ever. A flush that takes too long is made once more, by one who waits for it, and then counts as ended:
//! the second began after the first, so it serves all whom that would have. A flush that fails is not counted: those who
//! waited for it begin anew, and ask their own descriptor what it has to say of what they wrote.

use crate::vfs::{Woken, Word};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The next flush is under way.
const UNDER_WAY: u32 = 1;
/// Somebody else flushes apart from it.
const APART: u32 = 2;
/// Somebody waits for its end.
const AWAITED: u32 = 4;
/// Somebody waits for the end of the one after it.
const NEXT_AWAITED: u32 = 8;
/// It took too long, and somebody flushes in its place.
const TAKEN_OVER: u32 = 16;
/// One flush that has ended.
const ONE: u32 = 32;

/// How far the number goes back when a flush fails: whoever ends it late, or in its place, must not end the next that would
/// have its number, since that began later and others came before it. They are far fewer by then than so many flushes.
const BACK: u32 = 1 << 12;

/// Who made the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The caller.
    Itself,
    /// Another process, after this one called.
    Another,
}

/// Return once a flush has ended well that began after the call: another's, or one by `flush`.
///
/// Another's is waited for in steps of `patience`, in each of which a flush must end.
///
/// # Errors
/// Those of `flush`.
pub fn share<E>(word: Word<'_>, patience: Duration, flush: impl Fn() -> Result<(), E>) -> Result<By, E> {
    // What was written before is there for whoever begins to flush after what is read from here on was written.
    fence(Ordering::SeqCst);
    let mut goal = None;
    let mut seen = word.read();
    let mut step = Step::begin(seen);
    loop {
        if goal.is_some_and(|goal| has_come(number(seen), goal)) {
            return Ok(By::Another);
        }
        // One has failed since.
        goal = goal.filter(|goal| less(*goal, number(seen)) <= 2);
        if seen & UNDER_WAY == 0 {
            goal.get_or_insert(plus(number(seen), 1));
            match word.replace(seen, seen & !(APART | TAKEN_OVER) | UNDER_WAY) {
                Ok(()) => return lead(word, number(seen), flush).map(|()| By::Itself),
                Err(now) => seen = now,
            }
            continue;
        }
        if goal.is_none() && seen & APART == 0 {
            match word.replace(seen, seen | APART) {
                Ok(()) => return flush().map(|()| By::Itself),
                Err(now) => seen = now,
            }
            continue;
        }
        if step.is_over(seen, patience) {
            if seen & TAKEN_OVER == 0 || step.second {
                match word.replace(seen, seen | TAKEN_OVER) {
                    Ok(()) => return take_over(word, number(seen), flush),
                    Err(now) => seen = now,
                }
                continue;
            }
            step.once_more();
        }
        let this = less(*goal.get_or_insert(plus(number(seen), 2)), 1);
        let awaited = if is_under_way(seen, this) { AWAITED } else { NEXT_AWAITED };
        if seen & awaited == 0
            && let Err(now) = word.replace(seen, seen | awaited)
        {
            seen = now;
            continue;
        }
        if word.wait(seen | awaited, group(this), step.left(patience)) == Woken::Refused {
            return take_over(word, number(seen), flush);
        }
        seen = word.read();
    }
}

/// A part of a wait in which a flush must end.
struct Step {
    number: u32,
    since: Instant,
    /// Somebody flushes in place of another by now.
    second: bool,
}

impl Step {
    fn begin(seen: u32) -> Self {
        Self { number: number(seen), since: Instant::now(), second: false }
    }

    /// Say whether none has ended for as long as `patience`.
    fn is_over(&mut self, seen: u32, patience: Duration) -> bool {
        if self.number != number(seen) {
            *self = Self::begin(seen);
        }
        self.left(patience).is_zero()
    }

    fn left(&self, patience: Duration) -> Duration {
        patience.saturating_sub(self.since.elapsed())
    }

    fn once_more(&mut self) {
        (self.since, self.second) = (Instant::now(), true);
    }
}

/// Make the flush with this number, which was begun.
fn lead<E>(word: Word<'_>, this: u32, flush: impl Fn() -> Result<(), E>) -> Result<(), E> {
    fence(Ordering::SeqCst);
    let result = flush();
    if result.is_ok() {
        end(word, this);
    } else {
        let failed = word.change(|now| is_under_way(now, this).then_some(less(this, BACK) * ONE));
        if failed.is_some_and(|before| before & (AWAITED | NEXT_AWAITED) != 0) {
            wake_all(word, this);
            wake_all(word, plus(this, 1));
        }
    }
    result
}

/// Flush in place of the one who makes the flush with this number.
fn take_over<E>(word: Word<'_>, this: u32, flush: impl Fn() -> Result<(), E>) -> Result<By, E> {
    fence(Ordering::SeqCst);
    flush()?;
    end(word, this);
    Ok(By::Itself)
}

/// Have the flush with this number ended, if it is not: wake whom it served, and one for the next.
fn end(word: Word<'_>, this: u32) {
    let next = plus(this, 1);
    let ended = word.change(|now| {
        let awaited = if now & NEXT_AWAITED == 0 { 0 } else { AWAITED };
        is_under_way(now, this).then_some((next * ONE) | awaited)
    });
    let Some(before) = ended else { return };
    if before & NEXT_AWAITED != 0 {
        // First the one that the disk waits for.
        word.wake(group(next), 1);
    }
    if before & AWAITED != 0 {
        wake_all(word, this);
    }
}

fn wake_all(word: Word<'_>, flush: u32) {
    word.wake(group(flush), u32::MAX);
}

fn is_under_way(word: u32, this: u32) -> bool {
    word & UNDER_WAY != 0 && number(word) == this
}

/// Return how many flushes have ended. The number begins anew after 2^27, which is hours of flushes without a pause.
fn number(word: u32) -> u32 {
    word / ONE
}

fn plus(number: u32, more: u32) -> u32 {
    number.wrapping_add(more) % (u32::MAX / ONE + 1)
}

fn less(number: u32, fewer: u32) -> u32 {
    number.wrapping_sub(fewer) % (u32::MAX / ONE + 1)
}

/// Say whether so many have ended, or a few more.
fn has_come(number: u32, goal: u32) -> bool {
    (number.wrapping_sub(goal).wrapping_mul(ONE)).cast_signed() >= 0
}

/// Return the group of those whom the flush with this number serves. Two that follow each other are never the same.
fn group(flush: u32) -> u32 {
    flush % 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{self, wait_until};
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    use std::sync::{Barrier, Mutex, mpsc};
    use std::thread;

    const PATIENT: Duration = Duration::from_secs(60);
    const IMPATIENT: Duration = Duration::from_millis(20);
    const LAST: u32 = u32::MAX / ONE;

    /// A disk whose flushes take until it is told to go on, and then fail or not.
    #[derive(Default)]
    struct Disk {
        begun: AtomicUsize,
        allowed: AtomicUsize,
        broken: AtomicBool,
    }

    impl Disk {
        fn flush(&self) -> Result<(), usize> {
            let this = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            wait_until("the disk is told to go on", || self.allowed.load(Ordering::SeqCst) >= this);
            if self.broken.load(Ordering::SeqCst) { Err(this) } else { Ok(()) }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        fn allow(&self, flushes: usize) {
            self.allowed.store(flushes, Ordering::SeqCst);
        }
    }

    /// Some who commit, each in a thread, with what came of it.
    struct Scene<'scope, 'env> {
        scope: &'scope thread::Scope<'scope, 'env>,
        word: &'env AtomicU32,
        disk: &'env Disk,
    }

    impl<'scope, 'env> Scene<'scope, 'env> {
        fn commit(&self, patience: Duration) -> thread::ScopedJoinHandle<'scope, Result<By, usize>> {
            let (word, disk) = (Word::at(self.word), self.disk);
            self.scope.spawn(move || share(word, patience, || disk.flush()))
        }

        /// One whose flush is under way, one who flushes apart, and `count` who wait for the one after the first.
        fn with_waiting(
            &self,
            count: usize,
            patience: Duration,
        ) -> Vec<thread::ScopedJoinHandle<'scope, Result<By, usize>>> {
            let mut all = Vec::new();
            for begun in 1..=2 {
                all.push(self.commit(PATIENT));
                wait_until("it flushes", || self.disk.begun() == begun);
            }
            for _ in 0..count {
                let (word, disk, (came, number)) = (Word::at(self.word), self.disk, mpsc::channel());
                all.push(self.scope.spawn(move || {
                    came.send(threads::number()).unwrap();
                    share(word, patience, || disk.flush())
                }));
                let number = number.recv().unwrap();
                // One that is impatient may be past that.
                wait_until("it waits", || self.disk.begun() > 2 || self.is_next_awaited() && threads::sleeps(number));
            }
            all
        }

        fn is_next_awaited(&self) -> bool {
            self.word.load(Ordering::SeqCst) & NEXT_AWAITED != 0
        }
    }

    fn scene<T>(word: u32, run: impl FnOnce(&Scene<'_, '_>) -> T) -> T {
        let (word, disk) = (AtomicU32::new(word), Disk::default());
        thread::scope(|scope| run(&Scene { scope, word: &word, disk: &disk }))
    }

    #[test]
    fn who_is_alone_flushes_for_itself() {
        for first in [0, LAST - 1] {
            scene(first * ONE, |scene| {
                for flushes in 1..=3 {
                    scene.disk.allow(flushes);
                    assert_eq!(scene.commit(PATIENT).join().unwrap(), Ok(By::Itself));
                    assert_eq!(scene.disk.begun(), flushes);
                }
            });
        }
    }

    #[test]
    fn one_flush_serves_all_who_came_before_it_began() {
        for first in [0, LAST - 1, LAST] {
            scene(first.wrapping_mul(ONE), |scene| {
                let all = scene.with_waiting(5, PATIENT);
                scene.disk.allow(2);
                wait_until("one of those who wait flushes", || scene.disk.begun() == 3);
                assert!(
                    !all[2..].iter().any(thread::ScopedJoinHandle::is_finished),
                    "nobody is served by an older flush"
                );
                scene.disk.allow(3);
                let by: Vec<_> = all.into_iter().map(|one| one.join().unwrap().unwrap()).collect();
                assert_eq!(by.iter().filter(|by| **by == By::Another).count(), 4, "{by:?}");
                assert_eq!(scene.disk.begun(), 3);
            });
        }
    }

    #[test]
    fn who_is_stuck_is_flushed_for_and_stops_nobody() {
        scene(0, |scene| {
            let all = scene.with_waiting(1, IMPATIENT);
            wait_until("it does not wait for ever", || scene.disk.begun() == 3);
            scene.disk.allow(3);
            for one in all {
                assert_eq!(one.join().unwrap(), Ok(By::Itself));
            }
            let ended = scene.word.load(Ordering::SeqCst);
            assert_eq!((number(ended), ended & UNDER_WAY), (1, 0), "it is counted once");
            scene.disk.allow(4);
            assert_eq!(scene.commit(PATIENT).join().unwrap(), Ok(By::Itself));
        });
    }

    #[test]
    fn one_of_those_who_wait_flushes_in_place_of_one_who_is_stuck() {
        scene(0, |scene| {
            let all = scene.with_waiting(5, IMPATIENT);
            wait_until("one does not wait for ever", || scene.disk.begun() >= 3);
            let third = scene.word.load(Ordering::SeqCst);
            assert_eq!(third & (UNDER_WAY | TAKEN_OVER), UNDER_WAY | TAKEN_OVER);
            scene.disk.allow(usize::MAX);
            let by: Vec<_> = all.into_iter().map(|one| one.join().unwrap().unwrap()).collect();
            // The others wait as long again; where the machine is slow that is over, too.
            assert!(scene.disk.begun() >= 4 && by.contains(&By::Another) || scene.disk.begun() == 7, "{by:?}");
        });
    }

    #[test]
    fn a_flush_that_fails_serves_nobody() {
        scene(0, |scene| {
            let all = scene.with_waiting(4, PATIENT);
            scene.disk.broken.store(true, Ordering::SeqCst);
            scene.disk.allow(usize::MAX);
            let told: Vec<_> = all.into_iter().map(|one| one.join().unwrap().unwrap_err()).collect();
            assert_eq!(told.len(), 6);
            assert_eq!(scene.disk.begun(), 6, "each flushed itself");
        });
    }

    #[test]
    fn a_flush_in_place_of_one_that_failed_since_ends_no_other_flush() {
        // Steps as of four processes: one flushes, one takes over and is slow, the first fails, and two come after that.
        let word = AtomicU32::new(UNDER_WAY | TAKEN_OVER);
        let word = Word::at(&word);
        let (go, told) = (AtomicUsize::new(0), mpsc::channel());
        thread::scope(|scope| {
            let go = &go;
            let wait_for = move |step| {
                wait_until("the next step", || go.load(Ordering::SeqCst) >= step);
                Ok::<(), ()>(())
            };
            let over = scope.spawn(move || take_over(word, 0, || wait_for(1)));
            assert_eq!(lead(word, 0, || Err(())), Err(()));
            let leads = scope.spawn(move || share(word, PATIENT, || wait_for(2)));
            wait_until("it flushes", || word.read() & UNDER_WAY != 0);
            word.replace(word.read(), word.read() | APART).unwrap();
            let (came, number) = told;
            let waits = scope.spawn(move || {
                came.send(threads::number()).unwrap();
                share(word, PATIENT, || Ok::<(), ()>(()))
            });
            let number = number.recv().unwrap();
            wait_until("it waits", || word.read() & NEXT_AWAITED != 0 && threads::sleeps(number));
            let before = word.read();
            go.store(1, Ordering::SeqCst);
            assert_eq!(over.join().unwrap(), Ok(By::Itself));
            assert_eq!(word.read(), before, "the flush that is under way goes on");
            assert!(!waits.is_finished());
            go.store(2, Ordering::SeqCst);
            assert_eq!(leads.join().unwrap(), Ok(By::Itself));
            assert_eq!(waits.join().unwrap(), Ok(By::Itself), "the next flush is its own");
        });
    }

    #[test]
    fn garbage_costs_time_and_nothing_else() {
        let found = (0..ONE).chain([u32::MAX, u32::MAX - 1, 0x8000_0001, 0x8000_0000]);
        for word in found {
            scene(word, |scene| {
                scene.disk.allow(usize::MAX);
                let all = [(); 4].map(|()| scene.commit(IMPATIENT));
                for one in all {
                    assert!(one.join().unwrap().is_ok());
                }
                assert!(scene.disk.begun() >= 1);
            });
        }
    }

    #[test]
    fn whoever_returns_was_served_by_a_flush_that_began_after_it_came() {
        const WRITERS: usize = 6;
        const COMMITS: usize = 300;
        let (word, clock, start) = (AtomicU32::new(LAST * ONE), AtomicU64::new(0), Barrier::new(WRITERS));
        // The times at which good flushes began and ended.
        let good = Mutex::new(Vec::new());
        let now = || clock.fetch_add(1, Ordering::SeqCst);
        let made = AtomicUsize::new(0);
        let commits = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (word, start, good, made, now) = (&word, &start, &good, &made, &now);
                    scope.spawn(move || {
                        let mut commits = Vec::new();
                        start.wait();
                        for commit in 0..COMMITS {
                            let came = now();
                            // Some take too long for those who wait, some fail.
                            let dice = (commit * 31 + writer * 17) % 40;
                            let flush = || {
                                made.fetch_add(1, Ordering::SeqCst);
                                let began = now();
                                thread::sleep(if dice < 2 { IMPATIENT } else { Duration::from_micros(50) });
                                if dice == 1 || dice == 2 {
                                    return Err(());
                                }
                                good.lock().unwrap().push((began, now()));
                                Ok(())
                            };
                            if share(Word::at(word), IMPATIENT / 4, flush).is_ok() {
                                commits.push((came, now()));
                            }
                        }
                        commits
                    })
                })
                .collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let good = good.into_inner().unwrap();
        for (came, returned) in &commits {
            assert!(good.iter().any(|(began, ended)| began > came && ended < returned), "{came} to {returned}");
        }
        assert!(made.into_inner() < WRITERS * COMMITS, "some were shared");
    }
}
