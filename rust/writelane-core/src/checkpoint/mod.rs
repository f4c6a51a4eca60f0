//! The log of one file: how long it is, who copies it into the database, and what keeps it from shrinking.
//!
//! SQLite's automatic checkpoints are off on our handles. Whoever gives the lane up after a commit tends the log first,
//! after its callers have their answers: so nobody waits for a checkpoint inside COMMIT, and the log starts again from
//! its beginning because no writer of ours is at it. An idle log is looked after by the writer thread, or where there
//! is none by a thread of this module.

mod ahead;
mod keeper;
mod marks;
mod readers;

use crate::holder::{self, beside};
use crate::lane::{self, Lane};
use crate::policy::checkpoint::{Action, Log, Mode, Thresholds, choose, next_look};
use crate::process;
use crate::registry::ByFile;
use crate::sqlite::{Handle, LogPages, SqliteError, code_name, ffi};
use crate::telemetry::Telemetry;
use crate::telemetry::events::Matter;
use ahead::WriteAhead;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use readers::Reader;

/// How often to try again within the wait for a cut.
const CUT_PAUSE: Duration = Duration::from_millis(1);

/// What one checkpoint did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Another checkpoint was running, or a reader was in the way of more than copying.
    pub busy: bool,
    /// Pages in the log; -1 where there is no log.
    pub log: i32,
    /// Pages copied to the database so far; -1 where there is no log.
    pub copied: i32,
    /// What went wrong otherwise.
    pub error: Option<SqliteError>,
}

/// A time during which the log could not shrink.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// When it was first seen.
    pub since: Instant,
    /// How long it lasted; `None` while it lasts.
    pub lasted: Option<Duration>,
    /// The most pages that were kept from being reused.
    pub pages: u32,
    /// The page of the log behind which the oldest snapshot ends: no page after it could be copied.
    pub after: u32,
    /// The read marks of the log that were held, 1 to 4.
    pub marks: Vec<u8>,
    /// Who reads the log.
    pub readers: Vec<Reader>,
}

/// What checkpoints of this process did to one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointStats {
    /// Checkpoints run.
    pub count: u64,
    /// Of those, the ones that met another's.
    pub busy: u64,
    /// Of those, the failed ones.
    pub errors: u64,
    /// What the last failed one said.
    pub last_error: Option<String>,
    /// Times the log file was cut.
    pub cuts: u64,
    /// Times the log was written ahead of a checkpoint.
    pub ahead: u64,
    /// Pages in the log at the last one.
    pub log: i32,
    /// Of those, the pages copied to the database.
    pub copied: i32,
    /// How long the last one took.
    pub took: Duration,
    /// The sum over all.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// The size of the log file when it was last looked at, in bytes.
    pub file_bytes: u64,
    /// Times the log was pinned by a reader.
    pub episodes: u64,
    /// The one that lasts, or the last one.
    pub episode: Option<Episode>,
}

impl CheckpointStats {
    /// Return these counts and those of a checkpointer of the same file that is gone.
    pub fn and(&self, gone: &CheckpointStats) -> CheckpointStats {
        let last = if self.count + self.errors > 0 { self } else { gone };
        CheckpointStats {
            count: self.count + gone.count,
            busy: self.busy + gone.busy,
            errors: self.errors + gone.errors,
            last_error: self.last_error.clone().or_else(|| gone.last_error.clone()),
            cuts: self.cuts + gone.cuts,
            ahead: self.ahead + gone.ahead,
            total: self.total.saturating_add(gone.total),
            longest: self.longest.max(gone.longest),
            episodes: self.episodes + gone.episodes,
            episode: self.episode.clone().or_else(|| gone.episode.clone()),
            ..last.clone()
        }
    }

    /// End the episode that lasts, if one does, and return it.
    fn end_episode(&mut self) -> Option<(Matter, Episode)> {
        let episode = self.episode.as_mut().filter(|episode| episode.lasted.is_none())?;
        episode.lasted = Some(episode.since.elapsed());
        Some((Matter::Unpinned, episode.clone()))
    }
}

#[derive(Default)]
struct State {
    thresholds: Thresholds,
    /// They have been others, which handles that were adopted then go by.
    decided_anew: bool,
    stats: CheckpointStats,
    last: Option<Instant>,
    last_cut: Option<Instant>,
    hindered: bool,
    /// Checkpoints in a row that failed, or could not even be begun.
    failures: u32,
    /// When the first of them did, or the first that was told of as met by another's.
    failing: Option<Instant>,
    /// Since when each checkpoint has met another's, and the log was the same.
    met: Option<(Instant, Option<Salts>)>,
    /// Since when each checkpoint has left the same pages, and which.
    stuck: Option<(Instant, i32)>,
}

/// What tells a log from the next one that begins in the same file.
type Salts = [u8; 8];

/// Where they are in the log file. Source: <https://www.sqlite.org/walformat.html>, 1.1.
const SALTS_AT: u64 = 16;

/// Read the salts of the log of the database at `path`; `None` where there is none. SQLite locks nothing in the log file, so
/// that closing it drops no lock.
fn log_salts(path: &Path) -> Option<Salts> {
    let mut salts = Salts::default();
    fs::File::open(beside(path, "-wal")).ok()?.read_exact_at(&mut salts, SALTS_AT).ok()?;
    Some(salts)
}

/// That checkpoints have begun to fail, and with which error, or have ceased to, after which time.
type Health = (Matter, Duration, Option<&'static str>);

impl State {
    fn fail(&mut self, error: &SqliteError) -> Option<Health> {
        self.stats.errors += 1;
        self.stats.last_error = Some(error.to_string());
        self.failures = self.failures.saturating_add(1);
        let known = self.failing.is_some();
        self.failing.get_or_insert_with(Instant::now);
        (!known).then(|| (Matter::CheckpointFailed, Duration::ZERO, Some(code_name(error.code))))
    }

    /// Another checkpoint runs. One that does so for as long as a reader may pin the log is told of, like a failure; not
    /// one of many, whose log has begun anew since the last that was met.
    fn meet(&mut self, log: Option<Salts>) -> Option<Health> {
        let Some((since, _)) = self.met.filter(|(_, met)| *met == log) else {
            self.met = Some((Instant::now(), log));
            return self.end_failing();
        };
        if since.elapsed() < self.thresholds.pinned_after || self.failing.is_some() {
            return None;
        }
        self.failing = Some(since);
        Some((Matter::CheckpointFailed, since.elapsed(), Some(code_name(ffi::SQLITE_BUSY))))
    }

    fn recover(&mut self) -> Option<Health> {
        self.failures = 0;
        self.met = None;
        self.end_failing()
    }

    fn end_failing(&mut self) -> Option<Health> {
        let since = self.failing.take()?;
        Some((Matter::CheckpointRecovered, since.elapsed(), None))
    }
}

/// The log of one file, tended by all of this process who write to it.
pub struct Checkpointer {
    path: PathBuf,
    generation: u64,
    epoch: Instant,
    /// The pages of the thresholds, which every commit asks for.
    pages_due: AtomicU32,
    /// Pages in the log after the last commit of ours; all our handles count them here.
    pages: Arc<LogPages>,
    copied: AtomicI32,
    ahead: WriteAhead,
    /// The log file is past the hard limit, and no reader pins it: it must be tended though all may be copied.
    too_long: AtomicBool,
    /// Milliseconds from `epoch` to the last commit of ours.
    last_commit_ms: AtomicU64,
    /// Until when a log that could not be copied wholly is left alone, in milliseconds from `epoch`.
    rests_until_ms: AtomicU64,
    /// The writer thread looks after the idle log.
    has_writer: AtomicBool,
    /// The keeper has been told of this file.
    kept: AtomicBool,
    state: Mutex<State>,
}

static CHECKPOINTERS: ByFile<Checkpointer> = ByFile::new();

impl Checkpointer {
    /// Return the checkpointer of the file at `path`. The first call decides the thresholds, until somebody else
    /// [decides](Self::decide).
    pub fn of(path: &Path, thresholds: Thresholds) -> Arc<Self> {
        CHECKPOINTERS.get_or_make(path, || Self {
            path: fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            generation: process::generation(),
            epoch: Instant::now(),
            pages_due: AtomicU32::new(thresholds.pages),
            pages: Arc::default(),
            copied: AtomicI32::new(0),
            ahead: WriteAhead::default(),
            too_long: AtomicBool::new(false),
            last_commit_ms: AtomicU64::new(0),
            rests_until_ms: AtomicU64::new(0),
            has_writer: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            state: Mutex::new(State { thresholds, ..State::default() }),
        })
    }

    /// Return the checkpointer of the file at `path`, if somebody of this process writes to it.
    pub fn known(path: &Path) -> Option<Arc<Self>> {
        CHECKPOINTERS.get(path)
    }

    /// Go by these thresholds from now on, whoever writes.
    pub fn decide(&self, thresholds: Thresholds) {
        let mut state = self.lock();
        state.decided_anew |= state.thresholds != thresholds;
        state.thresholds = thresholds;
        self.pages_due.store(thresholds.pages, Ordering::Relaxed);
    }

    /// Take over the checkpoints of a handle that writes.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn adopt(&self, handle: &Handle) -> Result<(), SqliteError> {
        handle.watch_log(Arc::clone(&self.pages));
        // A log that was long once is cut by SQLite itself when it starts again from its beginning.
        self.limit(handle)
    }

    fn limit(&self, handle: &Handle) -> Result<(), SqliteError> {
        let keep_bytes = self.lock().thresholds.keep_bytes;
        handle.execute_batch(&format!("PRAGMA journal_size_limit={keep_bytes}"))
    }

    /// Say that a writer thread looks after the idle log, so that nobody else need.
    pub fn set_has_writer(&self, has_writer: bool) {
        self.has_writer.store(has_writer, Ordering::Relaxed);
    }

    /// Note that there was a commit, with the log `synced` or not; say whether the log is now so long that it must be
    /// tended. Costs a few loads.
    pub fn note_commit_at(self: &Arc<Self>, now: Instant, synced: bool) -> bool {
        let now = now.saturating_duration_since(self.epoch);
        self.last_commit_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if !self.has_writer.load(Ordering::Relaxed) && !self.kept.swap(true, Ordering::Relaxed) {
            keeper::keep(self);
        }
        let full = self.is_full();
        if !full {
            ahead::note(self, synced);
        }
        full
    }

    /// Say whether the log is so long that it must be tended before it grows further, and was not tended a moment ago to
    /// no avail: while a reader pins it, commits are what they are with a short one.
    pub fn is_full(&self) -> bool {
        self.is_long() && self.last_commit_ms.load(Ordering::Relaxed) >= self.rests_until_ms.load(Ordering::Relaxed)
    }

    fn is_long(&self) -> bool {
        self.uncopied() >= i64::from(self.pages_due.load(Ordering::Relaxed)) || self.too_long.load(Ordering::Relaxed)
    }

    /// Return the pages of the log that are not known to be in the database.
    pub fn uncopied(&self) -> i64 {
        i64::from(self.pages.present.load(Ordering::Relaxed)) - i64::from(self.copied())
    }

    /// See how long the log is by now, where somebody else may have begun it anew, or copied all of it. Only for a handle
    /// that has one.
    pub fn refresh(&self, handle: &Handle) {
        let Some((frames, copied)) = handle.log_frames() else { return };
        let frames = i32::try_from(frames).unwrap_or(i32::MAX);
        self.pages.present.store(frames, Ordering::Relaxed);
        if i32::try_from(copied) == Ok(frames) {
            self.copied.store(frames, Ordering::Relaxed);
        }
    }

    /// Do what the policy says, with the turn in the lane.
    pub fn act(&self, handle: &Handle, waiting_jobs: usize) {
        let (due, decided_anew) = {
            let state = self.lock();
            (choose(&state.thresholds, &self.log(&state, waiting_jobs)), state.decided_anew)
        };
        if due.is_some()
            && decided_anew
            && let Err(error) = self.limit(handle)
        {
            self.note_failure(&error);
        }
        match due {
            None => {}
            Some(Action::Copy) => drop(self.run(handle, Mode::Passive)),
            Some(Action::Cut(wait)) => self.cut(handle, wait),
        }
        // A log just copied may be one that is to be cut.
        let mut next = self.next_action(waiting_jobs);
        if let (Some(Action::Copy), Some(Action::Cut(wait))) = (due, next) {
            self.cut(handle, wait);
            next = self.next_action(waiting_jobs);
        }
        if next.is_none() && self.is_long() {
            self.rest(waiting_jobs);
        }
    }

    fn next_action(&self, waiting_jobs: usize) -> Option<Action> {
        let state = self.lock();
        choose(&state.thresholds, &self.log(&state, waiting_jobs))
    }

    /// Have nobody come to a log for which there is nothing to do before there is.
    fn rest(&self, waiting_jobs: usize) {
        let state = self.lock();
        let log = self.log(&state, waiting_jobs);
        let rest = state.thresholds.rest(&log).saturating_sub(log.since_last.unwrap_or_default());
        let until = (self.epoch.elapsed() + rest).as_millis();
        self.rests_until_ms.store(u64::try_from(until).unwrap_or(u64::MAX).saturating_add(1), Ordering::Relaxed);
    }

    fn cut(&self, handle: &Handle, wait: Duration) {
        let until = Instant::now() + wait;
        let mut report = self.run(handle, Mode::Truncate);
        while report.busy && Instant::now() < until {
            std::thread::sleep(CUT_PAUSE);
            report = self.run(handle, Mode::Truncate);
        }
        // Only a cut that did not come about is rested from.
        self.lock().last_cut = (report.busy || report.error.is_some()).then(Instant::now);
    }

    /// Say whether the log needs tending though nobody commits.
    pub fn is_due(&self, waiting_jobs: usize) -> bool {
        self.next_action(waiting_jobs).is_some()
    }

    /// Return how long an idle log may be left alone; `None`: until the next commit.
    pub fn next_look(&self) -> Option<Duration> {
        let state = self.lock();
        next_look(&state.thresholds, &self.log(&state, 0))
    }

    /// Run one checkpoint and note what it did.
    pub fn run(&self, handle: &Handle, mode: Mode) -> Report {
        let started = Instant::now();
        let (result, log, copied) = handle.checkpoint(match mode {
            Mode::Passive => ffi::SQLITE_CHECKPOINT_PASSIVE,
            Mode::Full => ffi::SQLITE_CHECKPOINT_FULL,
            Mode::Truncate => ffi::SQLITE_CHECKPOINT_TRUNCATE,
        });
        let took = started.elapsed();
        let file_bytes = fs::metadata(beside(&self.path, "-wal")).map_or(0, |found| found.len());
        let (busy, error) = match result {
            Ok(()) => (false, None),
            Err(error) if error.primary() == ffi::SQLITE_BUSY => (true, None),
            Err(error) => (false, Some(error)),
        };
        let mut state = self.lock();
        let health = match &error {
            Some(error) => state.fail(error),
            // A reader makes the others busy too.
            None if busy && mode == Mode::Passive => state.meet(log_salts(&self.path)),
            None if busy => None,
            None => state.recover(),
        };
        let stats = &mut state.stats;
        stats.count += 1;
        stats.busy += u64::from(busy);
        stats.took = took;
        stats.total += took;
        stats.longest = stats.longest.max(took);
        stats.file_bytes = file_bytes;
        if error.is_none() {
            if mode == Mode::Truncate && !busy {
                stats.cuts += 1;
            }
            if log >= 0 && copied >= 0 {
                (stats.log, stats.copied) = (log, copied);
                self.copied.store(copied, Ordering::Relaxed);
                self.pages.present.store(log, Ordering::Relaxed);
            }
        }
        state.last = Some(Instant::now());
        state.hindered = busy || error.is_some() || copied < log;
        let told = self.note_episode(&mut state, busy, log, copied);
        self.too_long.store(file_bytes > state.thresholds.hard_bytes && !self.is_pinned(&state), Ordering::Relaxed);
        drop(state);
        if let Some((matter, episode)) = told {
            Telemetry::of(&self.path).log_pinned(matter, episode);
        }
        self.tell(health);
        Report { busy, log, copied, error }
    }

    /// Note that a checkpoint could not even be begun.
    fn note_failure(&self, error: &SqliteError) {
        let mut state = self.lock();
        // Somebody in the way is no fault of the disk's.
        let health = if error.primary() == ffi::SQLITE_BUSY {
            state.stats.busy += 1;
            None
        } else {
            state.fail(error)
        };
        state.last = Some(Instant::now());
        state.hindered = true;
        drop(state);
        self.tell(health);
    }

    fn tell(&self, health: Option<Health>) {
        if let Some((matter, time, error)) = health {
            let holder = (error == Some(code_name(ffi::SQLITE_BUSY))).then(|| {
                let members = lane::outside::look(&self.path).members;
                holder::of_checkpoint(&self.path, members)
            });
            Telemetry::of(&self.path).log_checkpoint(matter, time, error, holder);
        }
    }

    /// Return what was counted.
    pub fn stats(&self) -> CheckpointStats {
        CheckpointStats { ahead: self.ahead.count(), ..self.lock().stats.clone() }
    }

    /// See whether a reader keeps the log from shrinking: the same pages left by checkpoints some time apart, none of
    /// which met another checkpoint. Returns what there is to tell.
    fn note_episode(&self, state: &mut State, busy: bool, log: i32, copied: i32) -> Option<(Matter, Episode)> {
        if log >= 0 && copied >= log {
            state.stuck = None;
            return state.stats.end_episode();
        }
        if busy || copied < 0 {
            return None;
        }
        let left = u32::try_from(log - copied).unwrap_or(0);
        match state.stuck {
            Some((since, stuck_at)) if stuck_at == copied => {
                if let Some(episode) = state.stats.episode.as_mut().filter(|episode| episode.lasted.is_none()) {
                    episode.pages = episode.pages.max(left);
                    None
                } else if since.elapsed() >= state.thresholds.pinned_after {
                    state.stats.episodes += 1;
                    let episode = Episode {
                        since,
                        lasted: None,
                        pages: left,
                        after: u32::try_from(copied).unwrap_or(0),
                        marks: marks::held(&self.path),
                        readers: readers::of_log(&self.path),
                    };
                    state.stats.episode = Some(episode.clone());
                    Some((Matter::Pinned, episode))
                } else {
                    None
                }
            }
            _ => {
                state.stuck = Some((Instant::now(), copied));
                // The reader that held the log has gone, and another holds it further on.
                state.stats.end_episode()
            }
        }
    }

    fn log(&self, state: &State, waiting_jobs: usize) -> Log {
        let now = Instant::now();
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        let last_commit = Duration::from_millis(self.last_commit_ms.load(Ordering::Relaxed));
        Log {
            pages: u32::try_from(self.pages.present.load(Ordering::Relaxed)).unwrap_or(0),
            copied: u32::try_from(self.copied()).unwrap_or(0),
            file_bytes: state.stats.file_bytes,
            hindered: state.hindered,
            met: state.met.is_some(),
            failures: state.failures,
            pinned: self.is_pinned(state),
            since_last: since(state.last),
            since_cut: since(state.last_cut),
            idle: now.saturating_duration_since(self.epoch).saturating_sub(last_commit),
            waiting_jobs,
        }
    }

    fn is_pinned(&self, state: &State) -> bool {
        state.stuck.is_some_and(|(since, _)| since.elapsed() >= state.thresholds.pause)
    }

    /// Return the pages known to be copied: none of a log that has started again since.
    fn copied(&self) -> i32 {
        let (pages, copied) = (self.pages.present.load(Ordering::Relaxed), self.copied.load(Ordering::Relaxed));
        if pages < copied {
            self.copied.store(0, Ordering::Relaxed);
            return 0;
        }
        copied
    }

    fn pause(&self) -> Duration {
        self.lock().thresholds.pause
    }

    fn lane(&self) -> Arc<Lane> {
        Lane::of(&self.path)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Checkpointer {
    /// What it counted lives on.
    fn drop(&mut self) {
        if self.generation != process::generation() {
            // The state may have been locked at the fork.
            return;
        }
        let mut counted = self.stats();
        if counted.count + counted.errors > 0 {
            // Nobody is left to see the end of a time in which the log could not shrink.
            counted.end_episode();
            Telemetry::of(&self.path).keep_checkpoints(&counted);
        }
    }
}

/// What the lane is told a checkpoint is.
pub const LABEL: &str = "PRAGMA wal_checkpoint";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::OpenFlags;

    #[test]
    fn what_others_wrote_and_copied_is_seen() {
        let folder = std::env::temp_dir().join(format!("writelane-refresh-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("app.db");
        let ours = Handle::open(&path, OpenFlags::WRITER).unwrap();
        ours.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
        let checkpointer = Checkpointer::of(&path, Thresholds::default());
        checkpointer.adopt(&ours).unwrap();
        ours.execute_batch("INSERT INTO t VALUES (1)").unwrap();

        let other = Handle::open(&path, OpenFlags::WRITER).unwrap();
        other.execute_batch("PRAGMA wal_autocheckpoint=0").unwrap();
        for _ in 0..20 {
            other.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        }
        let before = checkpointer.uncopied();
        checkpointer.refresh(&ours);
        assert_eq!(checkpointer.uncopied(), before + 20);

        let (result, frames, copied) = other.checkpoint(ffi::SQLITE_CHECKPOINT_PASSIVE);
        assert_eq!((result, frames), (Ok(()), copied));
        checkpointer.refresh(&ours);
        assert_eq!(checkpointer.uncopied(), 0, "the other has copied it");

        other.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        checkpointer.refresh(&ours);
        assert_eq!(checkpointer.uncopied(), 1, "and begun it anew");
        drop((ours, other));
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_log_that_was_tended_to_no_avail_is_left_alone_for_a_moment() {
        let folder = std::env::temp_dir().join(format!("writelane-rest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("app.db");
        let thresholds = Thresholds { pages: 10, ..Thresholds::default() };
        let checkpointer = Checkpointer::of(&path, thresholds);
        let ours = Handle::open(&path, OpenFlags::WRITER).unwrap();
        checkpointer.adopt(&ours).unwrap();
        checkpointer.set_has_writer(true);
        ours.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
        let reader = Handle::open(&path, OpenFlags::WRITER).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        let write = |after: Duration| {
            ours.execute_batch("INSERT INTO t VALUES (2)").unwrap();
            checkpointer.note_commit_at(Instant::now() + after, false)
        };
        let full = (0..20).position(|_| write(Duration::ZERO)).unwrap();
        assert!((5..12).contains(&full), "{full}");
        // What the reader does not need is copied first.
        checkpointer.act(&ours, 0);
        while checkpointer.uncopied() < 10 {
            write(Duration::ZERO);
        }
        assert!(checkpointer.is_full());
        checkpointer.act(&ours, 0);
        assert!(!checkpointer.is_full(), "the reader is still there");
        assert!(!write(Duration::ZERO));
        assert!(write(Duration::from_secs(60)), "it is looked again");
        reader.execute_batch("COMMIT").unwrap();
        std::thread::sleep(thresholds.pause);
        checkpointer.act(&ours, 0);
        assert_eq!(checkpointer.uncopied(), 0);
        drop((ours, reader));
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn meeting_others_is_told_of_only_while_none_of_them_gets_on_with_the_log() {
        let mut state = State {
            thresholds: Thresholds { pinned_after: Duration::ZERO, ..Thresholds::default() },
            ..State::default()
        };
        let told = |health: Option<Health>| health.map(|(matter, ..)| matter);
        assert_eq!(told(state.meet(Some([1; 8]))), None, "it was met for the first time");
        assert_eq!(told(state.meet(Some([2; 8]))), None, "the log was begun anew meanwhile");
        assert_eq!(told(state.meet(Some([2; 8]))), Some(Matter::CheckpointFailed));
        assert_eq!(told(state.meet(Some([2; 8]))), None, "it is known");
        assert_eq!(told(state.meet(Some([3; 8]))), Some(Matter::CheckpointRecovered));
        assert_eq!(told(state.meet(Some([3; 8]))), Some(Matter::CheckpointFailed));
        assert_eq!(told(state.recover()), Some(Matter::CheckpointRecovered));
    }

    #[test]
    fn a_log_has_other_salts_when_it_begins_anew() {
        let folder = std::env::temp_dir().join(format!("writelane-salts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("app.db");
        let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
        assert_eq!(log_salts(&path), None);
        handle.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
        let salts = log_salts(&path);
        assert!(salts.is_some());
        handle.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(log_salts(&path), salts);
        assert_eq!(handle.checkpoint(ffi::SQLITE_CHECKPOINT_PASSIVE).0, Ok(()));
        handle.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        assert_ne!(log_salts(&path), salts);
        drop(handle);
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn somebody_in_the_way_is_not_taken_for_a_failure() {
        let checkpointer = Checkpointer::of(Path::new("/nowhere/app.db"), Thresholds::default());
        checkpointer.note_failure(&SqliteError::from_code(ffi::SQLITE_BUSY_RECOVERY));
        let stats = checkpointer.stats();
        assert_eq!((stats.busy, stats.errors, stats.last_error), (1, 0, None));
        checkpointer.note_failure(&SqliteError::from_code(ffi::SQLITE_FULL));
        assert_eq!(checkpointer.stats().errors, 1);
    }
}
