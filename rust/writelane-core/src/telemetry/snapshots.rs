//! The snapshots that are open in this process: since when, with which statement, begun where in the code.
//!
//! Whoever reads has a place here, made once, and stores a time there when a snapshot begins and takes it away when it
//! ends. Nobody is told of a short one. One thread looks for those that grow old, and sleeps while there are none.

use super::Telemetry;
use super::events::{self, Matter};
use super::statements::TEXT_BYTES_MAX;
use crate::process::{PerProcess, thread_ident};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two looks of the thread, however early somebody wants to be told.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// Times are kept as nanoseconds since then.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Return a time as a number that is never 0.
fn nanoseconds(time: Instant) -> u64 {
    u64::try_from(time.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}

/// A place where at most one snapshot is open: a connection, a reader, an interactive transaction.
#[derive(Default)]
pub struct Place {
    /// When the open one began; 0: none is open.
    since: AtomicU64,
    about: Mutex<About>,
}

#[derive(Default)]
struct About {
    statement: Vec<u8>,
    location: Option<Arc<str>>,
    /// The thread that is inside the call which began it, for as long as there is no location.
    thread: Option<u64>,
    /// At which age it was last told of.
    told: Option<Duration>,
}

/// Where in the code an open snapshot was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// File and line.
    Known(Arc<str>),
    /// The call that began it has not returned: this thread stands there.
    Inside(u64),
    /// Nobody knows, or it has ended.
    Unknown,
}

/// A snapshot that was open when somebody looked.
#[derive(Clone)]
pub struct OpenSnapshot {
    place: Arc<Place>,
    since: u64,
    /// The statement it began with.
    pub statement: Arc<str>,
    /// How long it had been open.
    pub age: Duration,
    /// At which age it was told of before.
    pub told: Option<Duration>,
}

impl std::fmt::Debug for OpenSnapshot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OpenSnapshot").field("statement", &self.statement).field("age", &self.age).finish()
    }
}

impl OpenSnapshot {
    /// Return where in the code it was begun, as far as it can be told now.
    pub fn origin(&self) -> Origin {
        let about = self.place.about();
        if self.place.since.load(Ordering::Acquire) != self.since {
            return Origin::Unknown;
        }
        match (&about.location, about.thread) {
            (Some(location), _) => Origin::Known(Arc::clone(location)),
            (None, Some(thread)) => Origin::Inside(thread),
            (None, None) => Origin::Unknown,
        }
    }
}

impl Place {
    fn about(&self) -> MutexGuard<'_, About> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Say whether a snapshot is open here.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Note that one begins now or has begun at that time, or may: with this statement, in a call of this thread.
    pub fn begin(&self, statement: &str, at: Instant) {
        self.begin_in(statement, at, Some(thread_ident()));
    }

    /// As [`Place::begin`], where the thread is not the one that will say where in the code that was.
    pub fn begin_elsewhere(&self, statement: &str, at: Instant) {
        self.begin_in(statement, at, None);
    }

    fn begin_in(&self, statement: &str, at: Instant, thread: Option<u64>) {
        let statement = statement.as_bytes();
        let mut about = self.about();
        about.statement.clear();
        about.statement.extend_from_slice(&statement[..statement.len().min(TEXT_BYTES_MAX)]);
        (about.location, about.thread, about.told) = (None, thread, None);
        self.since.store(nanoseconds(at), Ordering::SeqCst);
        drop(about);
        // Ordered after the store, as the watcher's last look is after its own: one of the two sees the other.
        if ASLEEP.load(Ordering::SeqCst) {
            wake();
        }
    }

    /// Say where in the code the open one was begun. What was said first holds.
    pub fn begun_at(&self, location: Arc<str>) {
        let mut about = self.about();
        if self.is_open() {
            about.location.get_or_insert(location);
        }
    }

    /// Note that it has ended, or that none has begun after all.
    #[inline]
    pub fn end(&self) {
        self.since.store(0, Ordering::Release);
    }

    fn look(self: &Arc<Self>) -> Option<(OpenSnapshot, MutexGuard<'_, About>)> {
        if !self.is_open() {
            return None;
        }
        let about = self.about();
        let since = self.since.load(Ordering::Acquire);
        (since != 0).then(|| {
            let open = OpenSnapshot {
                place: Arc::clone(self),
                since,
                statement: String::from_utf8_lossy(&about.statement).into(),
                age: Duration::from_nanos(nanoseconds(Instant::now()).saturating_sub(since)),
                told: about.told,
            };
            (open, about)
        })
    }
}

/// The places of one file, and from which ages on somebody wants to be told.
#[derive(Default)]
pub(super) struct Snapshots {
    places: Mutex<Vec<Weak<Place>>>,
    overs: Mutex<Vec<Duration>>,
}

impl Snapshots {
    fn places(&self) -> Vec<Arc<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    fn overs(&self) -> Vec<Duration> {
        self.overs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Telemetry {
    /// Make a place for snapshots of this file. It is forgotten when it is dropped.
    pub fn place(&self) -> Arc<Place> {
        let place = Arc::new(Place::default());
        let mut places = self.snapshots.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(&place));
        place
    }

    /// Return the snapshots that are open, the oldest first.
    pub fn snapshots(&self) -> Vec<OpenSnapshot> {
        let places = self.snapshots.places();
        let mut open: Vec<_> = places.iter().filter_map(|place| place.look().map(|(open, _)| open)).collect();
        open.sort_by_key(|open| open.since);
        open
    }

    /// Publish each snapshot that is open at these ages as an event, once for each age; none: publish none.
    pub fn publish_snapshots_over(self: &Arc<Self>, mut overs: Vec<Duration>) {
        overs.sort_unstable();
        overs.dedup();
        let watched = !overs.is_empty();
        *self.snapshots.overs.lock().unwrap_or_else(PoisonError::into_inner) = overs;
        if watched {
            watch(self);
        }
    }

    /// Publish what has grown old enough; return whether a snapshot is open, and when to look again.
    fn tell_snapshots(&self) -> (bool, Option<Duration>) {
        let overs = self.snapshots.overs();
        // A snapshot that begins now is not due before.
        let mut pause = overs.first().copied();
        let mut told = Vec::new();
        let mut any = false;
        for place in &self.snapshots.places() {
            let Some((open, mut about)) = place.look() else { continue };
            any = true;
            if let Some(due) = overs.iter().find(|over| **over > open.age) {
                pause = pause.map(|pause| pause.min(due.saturating_sub(open.age)));
            }
            let reached = overs.iter().rfind(|over| **over <= open.age);
            if reached.is_some_and(|reached| about.told.is_none_or(|told| told < *reached)) {
                about.told = Some(open.age);
                told.push(open.clone());
            }
        }
        if self.is_on() && !told.is_empty() {
            events::publish(told.into_iter().map(|open| {
                let event = self.event(Matter::Snapshot, &open.statement, open.age);
                events::Event { snapshot: Some(open), ..event }
            }));
        }
        (any, pause)
    }
}

/// The thread that looks for old snapshots of the files whose age somebody wants to be told of.
#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    files: Vec<Weak<Telemetry>>,
    running: bool,
    /// Somebody wants to be told of other files, or at other ages, than the last look knew of.
    changed: bool,
}

static WATCH: PerProcess<Watch> = PerProcess::new();

/// The thread waits for the next snapshot to begin, whoever begins it. True in a forked child too, where nobody waits.
static ASLEEP: AtomicBool = AtomicBool::new(false);

#[cold]
fn wake() {
    let watch = WATCH.get();
    let state = watch.state.lock().unwrap_or_else(PoisonError::into_inner);
    ASLEEP.store(false, Ordering::SeqCst);
    drop(state);
    watch.news.notify_one();
}

fn watch(file: &Arc<Telemetry>) {
    let watch = WATCH.get();
    let mut state = watch.state.lock().unwrap_or_else(PoisonError::into_inner);
    let known = state.files.iter().any(|known| known.as_ptr() == Arc::as_ptr(file));
    if !known {
        state.files.push(Arc::downgrade(file));
    }
    state.changed = true;
    ASLEEP.store(false, Ordering::SeqCst);
    if !state.running {
        // Without a thread, old snapshots are in the telemetry all the same.
        state.running = std::thread::Builder::new().name("wl-snapshots".into()).spawn(move || run(watch)).is_ok();
    }
    drop(state);
    watch.news.notify_one();
}

fn run(watch: &Watch) {
    let mut seen_lately = true;
    loop {
        let mut state = watch.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.changed = false;
        let mut files = Vec::new();
        state.files.retain(|file| {
            let Some(file) = file.upgrade() else { return false };
            let wanted = !file.snapshots.overs().is_empty();
            if wanted {
                files.push(file);
            }
            wanted
        });
        if files.is_empty() {
            state.running = false;
            return;
        }
        drop(state);
        let look = || {
            files
                .iter()
                .map(|file| file.tell_snapshots())
                .fold((false, None::<Duration>), |(any, least), (open, next)| {
                    (any || open, least.into_iter().chain(next).min())
                })
        };
        let (mut open, mut pause) = look();
        if !open && !seen_lately {
            ASLEEP.store(true, Ordering::SeqCst);
            (open, pause) = look();
        }
        drop(files);
        let state = watch.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.changed {
            open = true;
        } else if open || seen_lately {
            ASLEEP.store(false, Ordering::SeqCst);
            let pause = pause.unwrap_or(PAUSE_MIN).max(PAUSE_MIN);
            drop(watch.news.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
        } else {
            let asleep = |_: &mut State| ASLEEP.load(Ordering::SeqCst);
            drop(watch.news.wait_while(state, asleep).unwrap_or_else(PoisonError::into_inner));
            open = true;
        }
        seen_lately = open;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn told(telemetry: &Telemetry) -> Vec<(Arc<str>, Option<Duration>)> {
        let places = telemetry.snapshots.places();
        telemetry.tell_snapshots();
        places
            .iter()
            .filter_map(|place| place.look().map(|(open, about)| (open.statement, about.told)))
            .filter(|(_, told)| told.is_some())
            .collect()
    }

    #[test]
    fn a_snapshot_is_told_of_once_for_each_age_and_a_new_one_anew() {
        let telemetry = Telemetry::new(Path::new("app.db"));
        let overs = |overs: &[Duration]| *telemetry.snapshots.overs.lock().unwrap() = overs.to_vec();
        overs(&[Duration::ZERO]);
        let place = telemetry.place();
        assert!(told(&telemetry).is_empty());
        place.begin("SELECT 1", Instant::now());
        let first = told(&telemetry);
        assert_eq!(&*first[0].0, "SELECT 1");
        assert_eq!(told(&telemetry), first, "not a second time at the same age");
        let later = first[0].1.unwrap() + Duration::from_nanos(1);
        overs(&[Duration::ZERO, later]);
        while telemetry.snapshots()[0].age < later {}
        assert!(told(&telemetry)[0].1 >= Some(later), "the second age is another time");
        place.end();
        overs(&[Duration::ZERO]);
        place.begin("SELECT 2", Instant::now());
        let second = told(&telemetry);
        assert_eq!(&*second[0].0, "SELECT 2");
        assert_eq!(told(&telemetry), second);
    }

    #[test]
    fn the_origin_is_the_first_that_was_said_and_none_of_one_that_ended() {
        let telemetry = Telemetry::new(Path::new("app.db"));
        let place = telemetry.place();
        place.begin("SELECT 1", Instant::now());
        let open = telemetry.snapshots().remove(0);
        assert_eq!(open.origin(), Origin::Inside(thread_ident()));
        place.begun_at("app.py:1".into());
        place.begun_at("app.py:2".into());
        assert_eq!(open.origin(), Origin::Known("app.py:1".into()));
        place.end();
        assert_eq!(open.origin(), Origin::Unknown);
        place.begin("SELECT 2", Instant::now());
        assert_eq!(open.origin(), Origin::Unknown, "another one");
        drop((place, open));
        assert!(telemetry.snapshots().is_empty());
    }
}
