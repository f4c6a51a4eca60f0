//! Counts and histograms of SQL texts, in bounded memory.

use super::durations::{Durations, PhaseStats};
use crate::error::Error;
use crate::job::Account;
use crate::lane::Holder;
use crate::sqlite::{code_name, ffi};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// SQL texts kept apart; the rest is one entry. A text costs some 10 kB, at most 60 kB, beside itself.
pub const TEXTS_MAX: usize = 500;

/// The bytes of a text that are kept and told apart.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// The entry of all texts past [`TEXTS_MAX`].
pub const OTHER: &str = "(other statements)";

/// Texts that are compared before one is looked up.
const RECENT_MAX: usize = 4;

/// A wait for the lock that is worth telling. Shorter ones are those for a turn that somebody is about to end.
const NOTICEABLE: Duration = Duration::from_millis(1);

/// Holders kept apart for one statement; the rest is one entry.
pub const HOLDERS_MAX: usize = 32;

/// What is known of one SQL text.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementStats {
    /// The text. Parameter values are never kept.
    pub sql: Arc<str>,
    /// Jobs that were answered.
    pub count: u64,
    /// Of those, the failed ones by name of the result code.
    pub errors: Vec<(&'static str, u64)>,
    /// How often SQLite said BUSY, or a transaction was run again.
    pub retries: u64,
    /// In the queue.
    pub queue_wait: PhaseStats,
    /// For the turn and the lock.
    pub lock_wait: PhaseStats,
    /// How many waited for them noticeably: for a millisecond or longer.
    pub lock_waits: u64,
    /// Running.
    pub run: PhaseStats,
    /// Committing.
    pub commit: PhaseStats,
    /// All phases together.
    pub latency: PhaseStats,
    /// The lock waits by who held the lock, longest first. They add up to the sum of `lock_wait`.
    pub held_by: Vec<(Holder, Duration)>,
    /// Best-effort jobs that came to nothing, by reason: `displaced` by newer ones, `coalesced`, `full`, or the name of
    /// the result code.
    pub dropped: Vec<(&'static str, u64)>,
}

/// What is counted of one text.
#[derive(Default)]
pub(super) struct Entry {
    count: u64,
    errors: Vec<(&'static str, u64)>,
    retries: u64,
    queue_wait: Durations,
    lock_wait: Durations,
    run: Durations,
    commit: Durations,
    latency: Durations,
    held_by: Vec<(Holder, Duration)>,
    dropped: Vec<(&'static str, u64)>,
}

fn count(counts: &mut Vec<(&'static str, u64)>, name: &'static str) {
    match counts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, count)) => *count += 1,
        None => counts.push((name, 1)),
    }
}

impl Entry {
    pub(super) fn record(&mut self, account: &Account, error: Option<&'static str>) {
        self.count += 1;
        self.retries += u64::from(account.retries);
        self.queue_wait.record(account.waited.queue);
        self.lock_wait.record(account.waited.lock);
        self.run.record(account.waited.run);
        self.commit.record(account.waited.commit);
        self.latency.record(account.waited.total());
        if let Some(error) = error {
            count(&mut self.errors, error);
        }
        for (holder, time) in account.held_by() {
            self.blame(holder, time);
        }
    }

    pub(super) fn drop(&mut self, reason: &'static str) {
        count(&mut self.dropped, reason);
    }

    fn blame(&mut self, holder: &Holder, time: Duration) {
        let full = self.held_by.len() >= HOLDERS_MAX;
        let known = self.held_by.iter().position(|(known, _)| known.is_same(holder));
        let known = known.or_else(|| full.then(|| self.held_by.iter().position(|(h, _)| *h == Holder::Unknown))?);
        match known {
            Some(place) => {
                let (known, sum) = &mut self.held_by[place];
                *sum += time;
                if known.is_same(holder) {
                    // The later sighting says whether it is stopped by now.
                    known.clone_from(holder);
                }
            }
            None => self.held_by.push((if full { Holder::Unknown } else { holder.clone() }, time)),
        }
    }

    pub(super) fn stats(&self, sql: &Arc<str>) -> StatementStats {
        let mut errors = self.errors.clone();
        errors.sort_unstable();
        let mut held_by = self.held_by.clone();
        held_by.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        StatementStats {
            sql: Arc::clone(sql),
            count: self.count,
            errors,
            retries: self.retries,
            queue_wait: self.queue_wait.stats(),
            lock_wait: self.lock_wait.stats(),
            lock_waits: self.lock_wait.at_least(NOTICEABLE),
            run: self.run.stats(),
            commit: self.commit.stats(),
            latency: self.latency.stats(),
            held_by,
            dropped: self.dropped.clone(),
        }
    }

    pub(super) fn latency(&self) -> &Durations {
        &self.latency
    }

    pub(super) fn phases(&self) -> [(&'static str, &Durations); 4] {
        [("queue_wait", &self.queue_wait), ("lock_wait", &self.lock_wait), ("run", &self.run), ("commit", &self.commit)]
    }
}

/// The entries of all texts.
#[derive(Default)]
pub(super) struct Entries {
    all: Vec<(Arc<str>, Entry)>,
    by_text: HashMap<Arc<str>, usize>,
    /// The entries last used, the latest first: the jobs of a group are often the same statement, and a transaction is
    /// often one and its COMMIT.
    recent: Vec<usize>,
}

impl Entries {
    /// Return the entry of a text. Makes no memory for a text that is known.
    pub(super) fn of(&mut self, text: &str) -> &mut Entry {
        let text = shorten(text);
        let place = match self.recent.iter().position(|place| *self.all[*place].0 == *text) {
            Some(0) => self.recent[0],
            Some(place) => {
                self.recent.swap(0, place);
                self.recent[0]
            }
            None => self.look_up(text),
        };
        &mut self.all[place].1
    }

    fn look_up(&mut self, text: &str) -> usize {
        let place = match self.by_text.get(text) {
            Some(place) => *place,
            None if self.all.len() >= TEXTS_MAX => match self.by_text.get(OTHER) {
                Some(place) => return *place,
                None => return self.add(OTHER),
            },
            None => self.add(text),
        };
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop();
        }
        self.recent.insert(0, place);
        place
    }

    fn add(&mut self, text: &str) -> usize {
        let text: Arc<str> = text.into();
        self.all.push((Arc::clone(&text), Entry::default()));
        self.by_text.insert(text, self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Arc<str>, Entry)> {
        self.all.iter()
    }
}

/// Cut a text to what is kept of it.
pub(super) fn shorten(text: &str) -> &str {
    let mut length = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    &text[..length]
}

/// Return the name that errors are counted under: SQLite's for its own codes.
pub fn error_name(error: &Error) -> &'static str {
    match error {
        Error::Sqlite(error) => code_name(error.code),
        Error::Timeout { .. } => code_name(ffi::SQLITE_BUSY),
        Error::CommitUncertain(error) => code_name(error.code),
        Error::QueueFull { .. } => "QUEUE_FULL",
        Error::Closed => "CLOSED",
        Error::Forked => "FORKED",
        Error::Poisoned(_) => "POISONED",
        Error::Cancelled => "CANCELLED",
        Error::Interrupted => "INTERRUPTED",
        Error::Usage(_) | Error::Parameters(_) => code_name(ffi::SQLITE_MISUSE),
        Error::Moved => code_name(ffi::SQLITE_READONLY_DBMOVED),
        Error::UnsafeFilesystem(_) => "UNSAFE_FILESYSTEM",
        Error::OwnedElsewhere(_) => "OWNED_ELSEWHERE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Waited;
    use crate::telemetry::Blame;
    use std::time::Instant;

    fn process(pid: u32) -> Holder {
        Holder::Process { pid, command: "agent".into(), statement: None, held: None, stopped: false }
    }

    #[test]
    fn holders_are_bounded_and_no_second_is_lost() {
        let mut entry = Entry::default();
        let many = HOLDERS_MAX as u32 + 20;
        for pid in 0..many {
            entry.blame(&process(pid), Duration::from_secs(1));
            entry.blame(&process(pid), Duration::from_secs(1));
        }
        let stats = entry.stats(&"x".into());
        assert!(stats.held_by.len() <= HOLDERS_MAX + 1);
        let seconds: u64 = stats.held_by.iter().map(|(_, time)| time.as_secs()).sum();
        assert_eq!(seconds, 2 * u64::from(many));
        let unknown = stats.held_by.iter().find(|(holder, _)| *holder == Holder::Unknown);
        assert_eq!(unknown.map(|(_, time)| time.as_secs()), Some(40));
    }

    /// Numbers that look random and are the same each time.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn whatever_was_seen_of_a_wait_the_shares_of_its_holders_add_up_to_it() {
        let mut number = numbers();
        let mut entry = Entry::default();
        for _ in 0..2_000 {
            let (mut blame, mut now) = (Blame::default(), Instant::now());
            let start = now;
            for _ in 0..number(100) {
                now += Duration::from_nanos(number(50_000_000));
                match number(5) {
                    0 => blame.look(now, Holder::Nobody),
                    1 => blame.look(now, Holder::Unknown),
                    2 => blame.pass(now),
                    _ => blame.look(now, process(number(60) as u32)),
                }
            }
            let end = now + Duration::from_nanos(number(1_000_000));
            let held = if number(2) == 0 { blame.end(end) } else { blame.take() };
            // Before the first look, with it, or in the middle of what was seen.
            let lock = match number(3) {
                0 => end.duration_since(start) + Duration::from_nanos(number(5_000_000)),
                1 => end.duration_since(start),
                _ => end.duration_since(start) / (1 + number(9) as u32),
            };
            let holder = if number(2) == 0 { held.main() } else { Some(process(7)) };
            let waited = Waited { lock, ..Waited::default() };
            let account = Account { waited, holder, held, ..Account::default() };
            assert_eq!(account.held_by().map(|(_, time)| time).sum::<Duration>(), lock);
            entry.record(&account, None);
        }
        let stats = entry.stats(&"x".into());
        assert!(stats.held_by.len() <= HOLDERS_MAX + 1);
        let sum: Duration = stats.held_by.iter().map(|(_, time)| *time).sum();
        assert!(sum.abs_diff(stats.lock_wait.sum) < Duration::from_micros(1), "{sum:?}, {:?}", stats.lock_wait.sum);
    }

    #[test]
    fn a_holder_seen_only_when_the_time_was_up_is_blamed_for_the_whole_wait() {
        let mut entry = Entry::default();
        let waited = Waited { lock: Duration::from_secs(2), ..Waited::default() };
        entry.record(&Account { waited, holder: Some(process(7)), ..Account::default() }, Some("SQLITE_BUSY"));
        assert_eq!(entry.stats(&"x".into()).held_by, [(process(7), Duration::from_secs(2))]);
    }

    #[test]
    fn each_text_is_counted_by_itself_in_whatever_order_they_come() {
        let mut entries = Entries::default();
        let mut number = numbers();
        let mut expected = [0; 10];
        for _ in 0..2_000 {
            let text = number(10);
            expected[text as usize] += 1;
            entries.of(&format!("SELECT {text}")).record(&Account::default(), None);
        }
        for (text, entry) in entries.iter() {
            let number: usize = text["SELECT ".len()..].parse().unwrap();
            assert_eq!(entry.count, expected[number]);
        }
        assert_eq!(entries.iter().count(), 10);
    }

    #[test]
    fn only_noticeable_waits_are_told_of() {
        let mut entry = Entry::default();
        for microseconds in [0, 900, 1_100, 2_000_000] {
            let waited = Waited { lock: Duration::from_micros(microseconds), ..Waited::default() };
            entry.record(&Account { waited, ..Account::default() }, None);
        }
        assert_eq!(entry.stats(&"x".into()).lock_waits, 2);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut entries = Entries::default();
        let long = format!("SELECT '{}'", "ü".repeat(TEXT_BYTES_MAX));
        entries.of(&long).record(&Account::default(), None);
        entries.of(&long).record(&Account::default(), None);
        let all: Vec<_> = entries.iter().collect();
        assert_eq!(all.len(), 1);
        assert!(all[0].0.len() <= TEXT_BYTES_MAX);
        assert_eq!(all[0].1.count, 2);
    }
}
