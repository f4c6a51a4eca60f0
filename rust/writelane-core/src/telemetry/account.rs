//! The counts of one file in this process.

use super::durations::{Distribution, Durations, PhaseStats};
use super::events::{self, Event, Matter};
use super::snapshots::Snapshots;
use super::statements::{Entries, StatementStats, error_name, shorten};
use crate::checkpoint::{CheckpointStats, Checkpointer, Episode};
use crate::error::Error;
use crate::job::Account;
use crate::lane::{Holder, Lane, LaneStats};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Classes of group sizes: up to 1, 2, 4 ... jobs.
const SIZES: usize = 16;

/// A transaction that held the lock longer than this is kept with the place in the code that began it, also where
/// nobody asked to be told at once.
const LONG_HOLD: Duration = Duration::from_secs(1);

/// Places in the code that are kept; of more, those that held the lock longest.
const LOCATIONS_MAX: usize = 64;

/// Nobody wants to hear.
const NEVER: u64 = u64::MAX;

/// Why a transaction was run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rerun {
    /// The error of one job took the whole transaction with it.
    JobError,
    /// Another writer had committed: the transaction could not write on what it had read.
    Snapshot,
    /// The commit failed, and each job was run alone to find out whose fault it was.
    Commit,
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
    /// Transactions that a flush of another process brought to the disk.
    pub shared_flushes: u64,
    /// How many had up to 1, 2, 4 ... jobs.
    pub sizes: [u64; SIZES],
    /// How long they held the lock.
    pub hold: PhaseStats,
    /// Transactions run again because an error of one job took them with it.
    pub reruns_job_error: u64,
    /// Transactions run again because another writer had committed.
    pub reruns_snapshot: u64,
    /// Transactions run again job by job because their commit failed.
    pub reruns_commit: u64,
}

impl GroupStats {
    /// Return how many transactions were run again.
    pub fn reruns(&self) -> u64 {
        self.reruns_job_error + self.reruns_snapshot + self.reruns_commit
    }
}

/// A place in the code that began transactions which held the lock long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongTransaction {
    /// File and line; `None` where the writer's own groups did.
    pub location: Option<Arc<str>>,
    /// The first statement, or the label.
    pub statement: Arc<str>,
    /// How many.
    pub count: u64,
    /// How long all of them held the lock.
    pub sum: Duration,
    /// The longest.
    pub max: Duration,
}

#[derive(Default)]
struct Inner {
    texts: Entries,
    groups: GroupStats,
    hold: Durations,
    long: Vec<LongTransaction>,
    /// Of those who used the file and are gone.
    lane: Option<LaneStats>,
    checkpoints: Option<CheckpointStats>,
}

/// The counts of one file in this process.
pub struct Telemetry {
    inner: Mutex<Inner>,
    since: Mutex<Instant>,
    path: Arc<Path>,
    number: u64,
    on: AtomicBool,
    /// Waits and holds from this many nanoseconds on are events.
    over: AtomicU64,
    pub(super) snapshots: Snapshots,
}

/// The counts, locked, so that a group is recorded in one go. Events go out when it is dropped.
pub struct Recorder<'a> {
    telemetry: &'a Telemetry,
    inner: Option<MutexGuard<'a, Inner>>,
    events: Vec<Event>,
}

impl Default for Telemetry {
    /// Make counts of no file.
    fn default() -> Self {
        Self::new(Path::new(""))
    }
}

impl Telemetry {
    pub(super) fn new(path: &Path) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self {
            inner: Mutex::default(),
            since: Mutex::new(Instant::now()),
            path: path.into(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            on: AtomicBool::new(true),
            over: AtomicU64::new(NEVER),
            snapshots: Snapshots::default(),
        }
    }

    /// Return the number that events of this file carry.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Return the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Count from now on, or no more.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Say whether anything is counted.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Publish waits and holds of at least this long as events, and what befalls the log; `None`: nothing.
    pub fn publish_over(&self, over: Option<Duration>) {
        let nanoseconds = over.map_or(NEVER, |over| u64::try_from(over.as_nanos()).unwrap_or(NEVER).min(NEVER - 1));
        self.over.store(nanoseconds, Ordering::Relaxed);
    }

    fn is_over(&self, time: Duration) -> bool {
        let over = self.over.load(Ordering::Relaxed);
        over != NEVER && time.as_nanos() >= u128::from(over)
    }

    /// Say whether a hold of the lock is to be kept with what it was for.
    pub(crate) fn is_long(&self, hold: Duration) -> bool {
        hold >= LONG_HOLD || self.is_over(hold)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock the counts to record a group.
    pub fn recorder(&self) -> Recorder<'_> {
        Recorder { telemetry: self, inner: self.is_on().then(|| self.lock()), events: Vec::new() }
    }

    /// Count one job.
    pub fn record_one(&self, text: &str, account: &Account, error: Option<&Error>) {
        self.recorder().job(text, account, error);
    }

    /// Count a transaction that is run again.
    pub fn rerun(&self, cause: Rerun) {
        if let Some(inner) = &mut self.recorder().inner {
            match cause {
                Rerun::JobError => inner.groups.reruns_job_error += 1,
                Rerun::Snapshot => inner.groups.reruns_snapshot += 1,
                Rerun::Commit => inner.groups.reruns_commit += 1,
            }
        }
    }

    /// Count a transaction that a flush of another process brought to the disk.
    pub fn flushed_elsewhere(&self) {
        if let Some(inner) = &mut self.recorder().inner {
            inner.groups.shared_flushes += 1;
        }
    }

    /// Tell whoever listens that an episode of a pinned log has begun, or ended, whatever the time they set for waits.
    pub fn log_pinned(&self, matter: Matter, episode: Episode) {
        if self.is_on() && self.over.load(Ordering::Relaxed) != NEVER {
            let time = episode.lasted.unwrap_or_else(|| episode.since.elapsed());
            let event = Event { episode: Some(Box::new(episode)), ..self.event(matter, "", time) };
            events::publish(std::iter::once(event));
        }
    }

    /// Tell whoever listens that checkpoints have begun to fail, or to meet another's (whose is said), or have ceased to
    /// after this time, whatever the time they set for waits.
    pub fn log_checkpoint(&self, matter: Matter, time: Duration, error: Option<&'static str>, holder: Option<Holder>) {
        if self.is_on() && self.over.load(Ordering::Relaxed) != NEVER {
            let account = Account { holder, ..Account::default() };
            events::publish(std::iter::once(Event { error, account, ..self.event(matter, "", time) }));
        }
    }

    /// Count a best-effort job that came to nothing.
    pub fn dropped(&self, text: &str, reason: &'static str) {
        if let Some(inner) = &mut self.recorder().inner
            && !text.is_empty()
        {
            inner.texts.of(text).drop(reason);
        }
    }

    /// Return what is known of each text, the one that waited longest first.
    pub fn statements(&self) -> Vec<StatementStats> {
        let inner = self.lock();
        let mut all: Vec<_> = inner.texts.iter().map(|(sql, entry)| entry.stats(sql)).collect();
        drop(inner);
        all.sort_by_key(|stats| std::cmp::Reverse(stats.lock_wait.sum + stats.queue_wait.sum));
        all
    }

    /// Return the distribution of each text's latency: the middle of each bucket and its count.
    pub fn latencies(&self) -> Vec<(Arc<str>, Distribution)> {
        let inner = self.lock();
        inner.texts.iter().map(|(sql, entry)| (Arc::clone(sql), entry.latency().buckets().collect())).collect()
    }

    /// Return the distribution of each phase over all texts: the middle of each bucket and its count.
    pub fn phases(&self) -> Vec<(&'static str, Distribution)> {
        let inner = self.lock();
        let mut all: Vec<(&'static str, Distribution)> = Vec::new();
        for (_, entry) in inner.texts.iter() {
            for (name, durations) in entry.phases() {
                let buckets = durations.buckets();
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => sum.extend(buckets),
                    None => all.push((name, buckets.collect())),
                }
            }
        }
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

    /// Return the places in the code whose transactions held the lock long, the worst first.
    pub fn long_transactions(&self) -> Vec<LongTransaction> {
        let mut long = self.lock().long.clone();
        long.sort_by_key(|long| std::cmp::Reverse(long.sum));
        long
    }

    /// Add what a lane counted that is gone.
    pub(crate) fn keep_lane(&self, gone: &LaneStats) {
        let lane = &mut self.lock().lane;
        *lane = Some(lane.unwrap_or_default().and(gone));
    }

    /// Add what a checkpointer counted that is gone.
    pub(crate) fn keep_checkpoints(&self, gone: &CheckpointStats) {
        let checkpoints = &mut self.lock().checkpoints;
        *checkpoints = Some(checkpoints.as_ref().map_or_else(|| gone.clone(), |before| gone.and(before)));
    }

    /// Return how turns were taken; `None`: nobody has used the file to write.
    pub fn lane(&self) -> Option<LaneStats> {
        let live = Lane::known(&self.path).map(|lane| lane.stats());
        match (live, self.lock().lane) {
            (Some(live), Some(gone)) => Some(live.and(&gone)),
            (live, gone) => live.or(gone),
        }
    }

    /// Return what checkpoints did; `None` as for [`Telemetry::lane`].
    pub fn checkpoints(&self) -> Option<CheckpointStats> {
        let live = Checkpointer::known(&self.path).map(|live| live.stats());
        match (live, &self.lock().checkpoints) {
            (Some(live), Some(gone)) => Some(live.and(gone)),
            (live, gone) => live.or_else(|| gone.clone()),
        }
    }

    /// Return how long these counts have been kept.
    pub fn age(&self) -> Duration {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Start again from nothing. What is open now stays open.
    pub fn reset(&self) {
        *self.lock() = Inner::default();
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Recorder<'_> {
    /// Count one job.
    pub fn job(&mut self, text: &str, account: &Account, error: Option<&Error>) {
        self.statement(text, account, error.map(error_name));
    }

    /// Count one statement, with the name of its error.
    pub fn statement(&mut self, text: &str, account: &Account, error: Option<&'static str>) {
        let Some(inner) = &mut self.inner else { return };
        // A mark in the queue, or a text with nothing in it: nobody's statement.
        if text.is_empty() {
            return;
        }
        inner.texts.of(text).record(account, error);
        let waited = account.waited.queue.saturating_add(account.waited.lock);
        if self.telemetry.is_over(waited) {
            self.events.push(Event {
                account: account.clone(),
                error,
                ..self.telemetry.event(Matter::Wait, text, waited)
            });
        }
    }

    /// Count one transaction of the writer.
    pub fn group(&mut self, jobs: usize, hold: Duration, first: &str) {
        let Some(inner) = &mut self.inner else { return };
        let groups = &mut inner.groups;
        groups.count += 1;
        groups.jobs += jobs as u64;
        groups.jobs_max = groups.jobs_max.max(jobs as u64);
        let class = jobs.max(1).next_power_of_two().trailing_zeros() as usize;
        groups.sizes[class.min(SIZES - 1)] += 1;
        inner.hold.record(hold);
        self.held(first, hold, None);
    }

    /// Note that a transaction held the lock, with the place in the code that began it.
    pub fn held(&mut self, statement: &str, hold: Duration, location: Option<&Arc<str>>) {
        let Some(inner) = &mut self.inner else { return };
        if !self.telemetry.is_long(hold) {
            return;
        }
        let over = self.telemetry.is_over(hold);
        inner.note_long(statement, hold, location);
        if over {
            let location = location.cloned();
            self.events.push(Event { location, ..self.telemetry.event(Matter::Hold, statement, hold) });
        }
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        drop(self.inner.take());
        if !self.events.is_empty() {
            events::publish(self.events.drain(..));
        }
    }
}

impl Inner {
    fn note_long(&mut self, statement: &str, hold: Duration, location: Option<&Arc<str>>) {
        let known = self.long.iter_mut().find(|long| match (&long.location, location) {
            (Some(known), Some(location)) => known == location,
            (None, None) => *long.statement == *statement,
            _ => false,
        });
        if let Some(long) = known {
            long.count += 1;
            long.sum += hold;
            long.max = long.max.max(hold);
            return;
        }
        let fresh = LongTransaction {
            location: location.cloned(),
            statement: shorten(statement).into(),
            count: 1,
            sum: hold,
            max: hold,
        };
        if self.long.len() < LOCATIONS_MAX {
            self.long.push(fresh);
        } else if let Some(least) = self.long.iter_mut().min_by_key(|long| long.sum)
            && least.sum < hold
        {
            *least = fresh;
        }
    }
}

impl Telemetry {
    pub(super) fn event(&self, matter: Matter, statement: &str, time: Duration) -> Event {
        Event {
            at: SystemTime::now(),
            path: Arc::clone(&self.path),
            file: self.number,
            matter,
            statement: shorten(statement).into(),
            time,
            account: Account::default(),
            error: None,
            location: None,
            episode: None,
            snapshot: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OTHER, TEXTS_MAX};
    use super::*;
    use crate::job::Waited;

    fn account(lock: Duration) -> Account {
        Account { waited: Waited { lock, ..Waited::default() }, ..Account::default() }
    }

    fn telemetry() -> Telemetry {
        Telemetry::new(Path::new("app.db"))
    }

    #[test]
    fn texts_are_bounded_and_none_is_lost() {
        let telemetry = telemetry();
        for number in 0..TEXTS_MAX + 50 {
            telemetry.record_one(&format!("SELECT {number}"), &account(Duration::from_micros(5)), None);
        }
        let all = telemetry.statements();
        assert_eq!(all.len(), TEXTS_MAX + 1);
        assert_eq!(all.iter().map(|stats| stats.count).sum::<u64>(), (TEXTS_MAX + 50) as u64);
        assert_eq!(all.iter().find(|stats| &*stats.sql == OTHER).map(|stats| stats.count), Some(50));
    }

    #[test]
    fn what_is_off_counts_nothing_and_reset_begins_anew() {
        let telemetry = telemetry();
        telemetry.set_on(false);
        telemetry.record_one("SELECT 1", &Account::default(), None);
        telemetry.rerun(Rerun::Commit);
        assert!(telemetry.statements().is_empty());
        telemetry.set_on(true);
        telemetry.recorder().group(3, Duration::from_millis(1), "INSERT");
        telemetry.recorder().group(4, Duration::from_secs(2), "INSERT");
        telemetry.rerun(Rerun::Snapshot);
        let groups = telemetry.groups();
        assert_eq!((groups.count, groups.jobs, groups.jobs_max, groups.reruns()), (2, 7, 4, 1));
        assert_eq!(groups.sizes[2], 2);
        assert_eq!(telemetry.long_transactions().len(), 1);
        telemetry.reset();
        assert_eq!(telemetry.groups(), GroupStats::default());
    }

    #[test]
    fn only_the_worst_places_are_kept() {
        let telemetry = telemetry();
        for number in 0..LOCATIONS_MAX as u64 + 10 {
            let location: Arc<str> = format!("app.py:{number}").into();
            telemetry.recorder().held("BEGIN", Duration::from_secs(1 + number), Some(&location));
        }
        let long = telemetry.long_transactions();
        assert_eq!(long.len(), LOCATIONS_MAX);
        assert_eq!(long[0].location.as_deref(), Some(&*format!("app.py:{}", LOCATIONS_MAX + 9)));
    }

    #[test]
    fn events_are_bounded_and_the_lost_are_counted() {
        struct Bell;
        impl crate::ticket::Listener for Bell {
            fn completed(&self, _token: u64) {}
            fn flush(&self) {}
        }
        let telemetry = telemetry();
        let ours = || {
            let (all, dropped) = events::fetch();
            (all.into_iter().filter(|event| event.file == telemetry.number()).count(), dropped)
        };
        telemetry.publish_over(Some(Duration::from_millis(10)));
        telemetry.record_one("INSERT", &account(Duration::from_secs(1)), None);
        assert_eq!(ours(), (0, 0), "nobody listens");
        events::listen(Some(Arc::new(Bell)));
        telemetry.record_one("INSERT", &account(Duration::from_millis(9)), None);
        telemetry.record_one("INSERT", &account(Duration::from_millis(10)), None);
        assert_eq!(ours().0, 1);
        for _ in 0..events::EVENTS_MAX + 7 {
            telemetry.record_one("INSERT", &account(Duration::from_secs(1)), None);
        }
        assert_eq!(ours(), (events::EVENTS_MAX, 7));
        events::listen(None);
    }
}
