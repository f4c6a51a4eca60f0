//! How one call on a connection waits for a lock, and what ends its wait.

use crate::lane::{Holder, Lane, Turn};
use crate::policy::backoff;
use crate::policy::deadline::LONGEST;
use crate::telemetry::{Blame, Held};
use crate::wait::{GaveUp, Patience};
use crate::writer::engine::random_bits;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A wait for the write lock that returns sooner than this did not wait; it is backed off like any other.
const NO_WAIT: Duration = Duration::from_micros(200);

/// Millisecond count that stands for no end.
const NO_END: u64 = u64::MAX;

/// The waiting of one connection.
pub struct Waits {
    timeout_us: AtomicU64,
    interrupts: AtomicU64,
    signalled: fn() -> bool,
    lane: Option<Arc<Lane>>,
    /// The shared memory of the write-ahead log. It is there exactly while there is a log that others may hold the
    /// write lock of, and can be looked for without a statement, which the application would be told of.
    shared_memory: Option<PathBuf>,
    call: Mutex<Call>,
    /// The interrupts there had been when a read began for which nothing has been noted since; another number: something
    /// has. So the many fetches of one statement need not begin anew each.
    fresh_at: AtomicU64,
}

/// A number of interrupts that is never reached.
const NOT_FRESH: u64 = u64::MAX;

#[derive(Default)]
struct Call {
    seen_interrupts: u64,
    until: Option<Option<Instant>>,
    waited: Duration,
    attempts: u32,
    blame: Blame,
    gave_up: Option<Ended>,
    turn: Option<Turn>,
    for_write_lock: bool,
    signalled: bool,
}

impl Call {
    fn begin(&mut self, interrupts: u64) {
        self.seen_interrupts = interrupts;
        self.until = None;
        self.waited = Duration::ZERO;
        self.attempts = 0;
        self.blame = Blame::default();
        self.gave_up = None;
        self.signalled = false;
    }
}

/// Waits shorter than this are not worth asking the kernel who holds the lock.
const ASK_AFTER: Duration = Duration::from_millis(5);
/// How often it is asked in a longer one; it takes some 100 us.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time-out.
    TimedOut,
    /// A signal of the caller's.
    Signalled,
    /// Another thread's call of interrupt.
    Interrupted,
}

impl Waits {
    /// `signalled` is asked at least every 50 ms of a wait, with the connection's lock held but no other.
    pub fn new(timeout: Duration, signalled: fn() -> bool, database: Option<&Path>, lane: Option<Arc<Lane>>) -> Self {
        let waits = Self {
            timeout_us: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            signalled,
            lane,
            shared_memory: database.map(|database| beside(database, "-shm")),
            call: Mutex::new(Call::default()),
            fresh_at: AtomicU64::new(NOT_FRESH),
        };
        waits.set_timeout(timeout);
        waits
    }

    fn call(&self) -> MutexGuard<'_, Call> {
        self.fresh_at.store(NOT_FRESH, Ordering::Relaxed);
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set how long a call waits.
    pub fn set_timeout(&self, timeout: Duration) {
        let microseconds =
            if timeout >= LONGEST { NO_END } else { u64::try_from(timeout.as_micros()).unwrap_or(NO_END) };
        self.timeout_us.store(microseconds, Ordering::Relaxed);
    }

    /// Return how long a call waits; `None`: without end.
    pub fn timeout(&self) -> Option<Duration> {
        match self.timeout_us.load(Ordering::Relaxed) {
            NO_END => None,
            microseconds => Some(Duration::from_micros(microseconds)),
        }
    }

    /// End the wait that is going on, if one is.
    pub fn interrupt(&self) {
        self.interrupts.fetch_add(1, Ordering::SeqCst);
    }

    /// Begin a call: forget how the last one waited.
    pub fn begin(&self) {
        self.call().begin(self.interrupts.load(Ordering::SeqCst));
    }

    /// Begin a call that only reads, as [`Waits::begin`].
    pub fn begin_read(&self) {
        let interrupts = self.interrupts.load(Ordering::SeqCst);
        // One call at a time is between this and its end, with the connection's lock held.
        if self.fresh_at.load(Ordering::Relaxed) == interrupts {
            return;
        }
        let mut call = self.call();
        call.begin(interrupts);
        call.for_write_lock = false;
        drop(call);
        self.fresh_at.store(interrupts, Ordering::Relaxed);
    }

    /// Say that a statement writes, in a transaction that has the write lock already or not; return whether it must take
    /// a turn in the lane first.
    pub fn wants_turn(&self, has_write_lock: bool) -> bool {
        let mut call = self.call();
        call.for_write_lock = !has_write_lock;
        !has_write_lock && call.turn.is_none()
    }

    /// Say whether the next waits are for the write lock, which the kernel can wait for where there is a log.
    pub fn set_for_write_lock(&self, for_write_lock: bool) {
        self.call().for_write_lock = for_write_lock;
    }

    /// Say whether the database has a write-ahead log in use.
    pub fn has_log(&self) -> bool {
        self.shared_memory.as_ref().is_some_and(|path| path.exists())
    }

    /// Return how long this call has waited.
    pub fn waited(&self) -> Duration {
        self.call().waited
    }

    /// Return who held the lock that this call waited for, where it waited long enough to be told.
    pub fn holder(&self) -> Option<Holder> {
        self.call().blame.main()
    }

    /// Return how long this call has waited until now, how often it met a lock, and who held it meanwhile.
    pub fn account(&self, now: Instant) -> (Duration, u32, Held) {
        let mut call = self.call();
        call.blame.pass(now);
        (call.waited, call.attempts, call.blame.peek())
    }

    /// Return what ended this call's wait, if anything has.
    pub fn ended(&self) -> Option<Ended> {
        self.call().gave_up
    }

    /// Say whether a turn in the lane is held.
    pub fn has_turn(&self) -> bool {
        self.call().turn.is_some()
    }

    /// Publish that the write lock is held.
    pub fn holding(&self, sql: &str) {
        if let Some(turn) = self.call().turn.as_mut() {
            turn.holding(sql);
        }
    }

    /// Return the turn in the lane, to be ended by the caller.
    pub fn give_turn(&self) -> Option<Turn> {
        self.call().turn.take()
    }

    /// Give the turn in the lane up.
    pub fn give_up_turn(&self) {
        // Dropped after the lock: whoever is next may be woken by it.
        drop(self.give_turn());
    }

    /// Take a turn in the lane, for `sql`.
    pub fn enter(&self, lane: &Arc<Lane>, sql: &str, now: Instant) -> Result<(), Ended> {
        let turn = match lane.try_enter_at(sql, now) {
            Some(turn) => turn,
            None => self.patiently(|patience| lane.enter(sql, patience))?,
        };
        self.call().turn = Some(turn);
        Ok(())
    }

    /// Wait a little after try number `attempt` (from 0) met a lock; `false`: the wait is over.
    pub fn wait(&self, attempt: u32) -> bool {
        let turn = {
            let mut call = self.call();
            if call.gave_up.is_some() {
                return false;
            }
            call.attempts += 1;
            if call.for_write_lock && self.has_log() { call.turn.take() } else { None }
        };
        let Some(mut turn) = turn else {
            return self.patiently(|patience| back_off(patience, attempt)).is_ok();
        };
        let began = Instant::now();
        let mut result = self.patiently(|patience| turn.wait_for_write_lock(patience));
        if result.is_ok() && attempt > 2 && began.elapsed() < NO_WAIT {
            result = self.patiently(|patience| back_off(patience, attempt));
        }
        self.call().turn = Some(turn);
        result.is_ok()
    }

    /// Pause after try number `attempt` (from 0) for something that is no lock of SQLite's to wait for.
    pub fn pause(&self, attempt: u32) -> Result<(), Ended> {
        self.call().attempts += 1;
        self.patiently(|patience| back_off(patience, attempt))
    }

    fn patiently<T>(&self, wait: impl FnOnce(&Patience<'_>) -> Result<T, GaveUp>) -> Result<T, Ended> {
        let began = Instant::now();
        let (until, seen) = {
            let mut call = self.call();
            let until =
                *call.until.get_or_insert_with(|| self.timeout().and_then(|timeout| began.checked_add(timeout)));
            (until, call.seen_interrupts)
        };
        let interrupted = || {
            self.look(began);
            if self.interrupts.load(Ordering::SeqCst) != seen {
                return true;
            }
            let signalled = (self.signalled)();
            if signalled {
                self.call().signalled = true;
            }
            signalled
        };
        let result = wait(&Patience { until, interrupted: &interrupted });
        let mut call = self.call();
        call.waited += began.elapsed();
        result.map_err(|gave_up| {
            let ended = match gave_up {
                GaveUp::TimedOut => Ended::TimedOut,
                GaveUp::Interrupted if call.signalled => Ended::Signalled,
                GaveUp::Interrupted => Ended::Interrupted,
            };
            call.gave_up = Some(ended);
            ended
        })
    }
}

impl Waits {
    /// Note who holds the lock, if this call has waited long enough. A wait comes in many pieces.
    fn look(&self, began: Instant) {
        let now = Instant::now();
        let is_due = {
            let call = self.call();
            call.waited + now.saturating_duration_since(began) >= ASK_AFTER && call.blame.is_due(now, ASK_EVERY)
        };
        if is_due && let Some(lane) = &self.lane {
            // Asked with no lock held: it takes some 100 us.
            let holder = lane.holder();
            self.call().blame.look(Instant::now(), holder);
        }
    }
}

/// Return the name of a file that SQLite puts beside a database.
fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn back_off(patience: &Patience<'_>, attempt: u32) -> Result<(), GaveUp> {
    let slice = patience.next_slice()?;
    std::thread::sleep(backoff::sleep(attempt, random_bits() as u32).min(slice));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_of_ages_has_no_end() {
        let waits = Waits::new(Duration::from_secs(86_400 * 30), || false, None, None);
        assert_eq!(waits.timeout(), Some(Duration::from_secs(86_400 * 30)));
        waits.set_timeout(Duration::MAX);
        assert_eq!(waits.timeout(), None);
    }

    #[test]
    fn an_interrupt_before_the_call_does_not_end_its_wait() {
        let waits = Waits::new(Duration::from_secs(60), || false, None, None);
        waits.interrupt();
        waits.begin();
        assert!(waits.wait(0));
        waits.interrupt();
        assert!(!waits.wait(0));
        assert_eq!(waits.ended(), Some(Ended::Interrupted));
    }

    #[test]
    fn a_signal_and_a_timeout_are_told_apart() {
        let waits = Waits::new(Duration::from_secs(60), || true, None, None);
        waits.begin();
        assert!(!waits.wait(0));
        assert_eq!(waits.ended(), Some(Ended::Signalled));
        let waits = Waits::new(Duration::ZERO, || false, None, None);
        waits.begin();
        assert!(!waits.wait(0));
        assert_eq!(waits.ended(), Some(Ended::TimedOut));
    }
}
