//! Counts and histograms by SQL text, in bounded memory.

use crate::error::Error;
use crate::job::Account;
use crate::lane::Holder;
use crate::sqlite::{code_name, ffi};
use hdrhistogram::Histogram;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// SQL texts kept apart; the rest is one entry. A text costs up to 80 kB of histograms.
pub const TEXTS_MAX: usize = 500;

/// The entry of all texts past [`TEXTS_MAX`].
pub const OTHER: &str = "(other statements)";

/// Holders kept apart for one statement; the rest is one entry.
pub const HOLDERS_MAX: usize = 32;

/// Two significant digits: an error of at most 1 %.
const DIGITS: u8 = 2;

/// A histogram of durations, in nanoseconds.
#[derive(Clone)]
struct Durations {
    histogram: Histogram<u64>,
    sum: Duration,
    max: Duration,
}

impl Durations {
    fn new() -> Self {
        let Ok(histogram) = Histogram::new(DIGITS) else { unreachable!("two digits are within the crate's bounds") };
        Self { histogram, sum: Duration::ZERO, max: Duration::ZERO }
    }

    fn record(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2).clamp(1, u64::MAX / 2);
        // The histogram grows as it needs; where it cannot, its last bucket takes what is beyond.
        if self.histogram.record(nanoseconds).is_err() {
            self.histogram.saturating_record(nanoseconds);
        }
        self.sum += duration;
        self.max = self.max.max(duration);
    }

    fn stats(&self) -> PhaseStats {
        let quantile = |q: f64| Duration::from_nanos(self.histogram.value_at_quantile(q)).min(self.max);
        let empty = self.histogram.is_empty();
        let at = |q: f64| if empty { Duration::ZERO } else { quantile(q) };
        PhaseStats {
            count: self.histogram.len(),
            sum: self.sum,
            max: self.max,
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// One phase of one statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseStats {
    /// Jobs counted.
    pub count: u64,
    /// The sum over them.
    pub sum: Duration,
    /// The longest.
    pub max: Duration,
    /// Quantiles, with an error of at most 1 %.
    pub p50: Duration,
    /// See `p50`.
    pub p90: Duration,
    /// See `p50`.
    pub p99: Duration,
    /// See `p50`.
    pub p999: Duration,
}

/// What is known of one SQL text.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementStats {
    /// The text. Parameter values are never kept.
    pub sql: Arc<str>,
    /// Jobs that were answered.
    pub count: u64,
    /// Of those, the failed ones by name of the result code.
    pub errors: Vec<(Box<str>, u64)>,
    /// Best-effort jobs that came to nothing, by reason: `displaced` by newer ones, `coalesced`, `full`, or the name of
    /// the result code.
    pub dropped: Vec<(Box<str>, u64)>,
    /// How often SQLite said BUSY, or a transaction was run again.
    pub retries: u64,
    /// In the queue.
    pub queue_wait: PhaseStats,
    /// For the turn and the lock.
    pub lock_wait: PhaseStats,
    /// Running.
    pub run: PhaseStats,
    /// Committing.
    pub commit: PhaseStats,
    /// The lock waits whose holder is known: process, command, statement, seconds.
    pub held_by: Vec<(Holder, Duration)>,
}

struct Entry {
    count: u64,
    errors: HashMap<Box<str>, u64>,
    dropped: HashMap<&'static str, u64>,
    retries: u64,
    queue_wait: Durations,
    lock_wait: Durations,
    run: Durations,
    commit: Durations,
    held_by: HashMap<(u32, Option<String>), (Holder, Duration)>,
}

impl Entry {
    fn new() -> Self {
        Self {
            count: 0,
            errors: HashMap::new(),
            dropped: HashMap::new(),
            retries: 0,
            queue_wait: Durations::new(),
            lock_wait: Durations::new(),
            run: Durations::new(),
            commit: Durations::new(),
            held_by: HashMap::new(),
        }
    }

    fn record(&mut self, account: &Account, error: Option<&Error>) {
        self.count += 1;
        self.retries += u64::from(account.retries);
        self.queue_wait.record(account.waited.queue);
        self.lock_wait.record(account.waited.lock);
        self.run.record(account.waited.run);
        self.commit.record(account.waited.commit);
        if let Some(error) = error {
            *self.errors.entry(error_name(error).into()).or_default() += 1;
        }
        if let Some(holder @ Holder::Process { pid, statement, .. }) = &account.holder {
            let mut key = (*pid, statement.clone());
            if self.held_by.len() >= HOLDERS_MAX && !self.held_by.contains_key(&key) {
                key = (0, None);
            }
            let (_, sum) = self.held_by.entry(key).or_insert_with(|| (holder.clone(), Duration::ZERO));
            *sum += account.waited.lock;
        }
    }

    fn stats(&self, sql: &Arc<str>) -> StatementStats {
        let mut errors: Vec<_> = self.errors.iter().map(|(name, count)| (name.clone(), *count)).collect();
        errors.sort();
        let mut dropped: Vec<_> = self.dropped.iter().map(|(reason, count)| ((*reason).into(), *count)).collect();
        dropped.sort();
        let mut held_by: Vec<_> = self.held_by.values().cloned().collect();
        held_by.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        StatementStats {
            sql: Arc::clone(sql),
            count: self.count,
            errors,
            dropped,
            retries: self.retries,
            queue_wait: self.queue_wait.stats(),
            lock_wait: self.lock_wait.stats(),
            run: self.run.stats(),
            commit: self.commit.stats(),
            held_by,
        }
    }
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

/// Transactions and the jobs in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Transactions committed.
    pub count: u64,
    /// Jobs answered from them.
    pub jobs: u64,
    /// The most jobs in one.
    pub jobs_max: u64,
    /// How long they held the lock.
    pub hold: PhaseStats,
    /// Transactions run again because of an error of one job.
    pub reruns: u64,
}

struct Inner {
    texts: HashMap<Arc<str>, Entry>,
    groups: GroupStats,
    hold: Durations,
    since: Instant,
}

/// The counts of one writer.
pub struct Telemetry {
    inner: Mutex<Inner>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                texts: HashMap::new(),
                groups: GroupStats::default(),
                hold: Durations::new(),
                since: Instant::now(),
            }),
        }
    }
}

/// The counts, locked, so that a group is recorded in one go.
pub struct Recorder<'a> {
    inner: MutexGuard<'a, Inner>,
}

impl Recorder<'_> {
    /// Count one job.
    pub fn job(&mut self, label: &Arc<str>, account: &Account, error: Option<&Error>) {
        self.entry(label).record(account, error);
    }

    /// Count a best-effort job that came to nothing.
    pub fn dropped(&mut self, label: &Arc<str>, reason: &'static str) {
        *self.entry(label).dropped.entry(reason).or_default() += 1;
    }

    fn entry(&mut self, label: &Arc<str>) -> &mut Entry {
        let full = self.inner.texts.len() >= TEXTS_MAX;
        let label = if full && !self.inner.texts.contains_key(label) { &Arc::from(OTHER) } else { label };
        self.inner.texts.entry(Arc::clone(label)).or_insert_with(Entry::new)
    }

    /// Count one transaction.
    pub fn group(&mut self, jobs: usize, hold: Duration) {
        self.inner.groups.count += 1;
        self.inner.groups.jobs += jobs as u64;
        self.inner.groups.jobs_max = self.inner.groups.jobs_max.max(jobs as u64);
        self.inner.hold.record(hold);
    }
}

impl Telemetry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock the counts to record a group.
    pub fn recorder(&self) -> Recorder<'_> {
        Recorder { inner: self.lock() }
    }

    /// Count one job.
    pub fn record_one(&self, label: &Arc<str>, account: &Account, error: Option<&Error>) {
        self.recorder().job(label, account, error);
    }

    /// Count a best-effort job that came to nothing.
    pub fn dropped(&self, label: &Arc<str>, reason: &'static str) {
        self.recorder().dropped(label, reason);
    }

    /// Count a transaction that is run again.
    pub fn rerun(&self) {
        self.lock().groups.reruns += 1;
    }

    /// Return what is known of each text, the one that waited longest for the lock first.
    pub fn statements(&self) -> Vec<StatementStats> {
        let inner = self.lock();
        let mut all: Vec<_> = inner.texts.iter().map(|(sql, entry)| entry.stats(sql)).collect();
        all.sort_by_key(|stats| std::cmp::Reverse(stats.lock_wait.sum + stats.queue_wait.sum));
        all
    }

    /// Return how many jobs were answered from committed transactions.
    pub fn jobs(&self) -> u64 {
        self.lock().groups.jobs
    }

    /// Return the counts of transactions.
    pub fn groups(&self) -> GroupStats {
        let inner = self.lock();
        GroupStats { hold: inner.hold.stats(), ..inner.groups }
    }

    /// Return how long these counts have been kept.
    pub fn age(&self) -> Duration {
        self.lock().since.elapsed()
    }

    /// Start again from nothing.
    pub fn reset(&self) {
        let mut inner = self.lock();
        inner.texts.clear();
        inner.groups = GroupStats::default();
        inner.hold = Durations::new();
        inner.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Waited;

    fn account(lock: Duration) -> Account {
        Account { waited: Waited { lock, ..Waited::default() }, ..Account::default() }
    }

    #[test]
    fn quantiles_err_by_at_most_one_percent() {
        let mut durations = Durations::new();
        for microseconds in 1..=10_000_u64 {
            durations.record(Duration::from_micros(microseconds));
        }
        let stats = durations.stats();
        for (got, want) in [(stats.p50, 5_000.0), (stats.p90, 9_000.0), (stats.p99, 9_900.0), (stats.p999, 9_990.0)] {
            let got = got.as_secs_f64() * 1e6;
            assert!((got - want).abs() <= want * 0.01, "{got} for {want}");
        }
        assert_eq!(stats.max, Duration::from_millis(10));
        assert_eq!(stats.count, 10_000);
    }

    #[test]
    fn texts_are_bounded_and_none_is_lost() {
        let telemetry = Telemetry::default();
        for number in 0..TEXTS_MAX + 50 {
            let sql: Arc<str> = format!("SELECT {number}").into();
            telemetry.record_one(&sql, &account(Duration::from_micros(5)), None);
        }
        let all = telemetry.statements();
        assert_eq!(all.len(), TEXTS_MAX + 1);
        assert_eq!(all.iter().map(|stats| stats.count).sum::<u64>(), (TEXTS_MAX + 50) as u64);
        assert_eq!(all.iter().find(|stats| &*stats.sql == OTHER).map(|stats| stats.count), Some(50));
    }

    #[test]
    fn an_extreme_duration_is_counted_not_lost() {
        let mut durations = Durations::new();
        durations.record(Duration::MAX / 4);
        durations.record(Duration::ZERO);
        assert_eq!(durations.stats().count, 2);
    }
}
