//! What is told at once: waits, holds and snapshots longer than somebody asked to hear of, a log that cannot shrink, and
//! checkpoints that fail.
//!
//! Whoever records an event only puts it into a bounded ring and rings a bell; a thread of the interpreter, which the
//! writer never enters, takes it from there.

use super::snapshots::OpenSnapshot;
use crate::checkpoint::Episode;
use crate::job::Account;
use crate::process::PerProcess;
use crate::ticket::Listener;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Events that wait to be fetched; of more the oldest are dropped and counted.
pub const EVENTS_MAX: usize = 4_096;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// A job waited, in the queue or for the lock.
    Wait,
    /// The lock was held.
    Hold,
    /// A reader keeps the log from shrinking, since some time.
    Pinned,
    /// The log can shrink again.
    Unpinned,
    /// A snapshot is open, since some time.
    Snapshot,
    /// A checkpoint failed, the first after one that did not.
    CheckpointFailed,
    /// One succeeded again.
    CheckpointRecovered,
}

/// One wait, hold or snapshot, or the beginning or the end of a time in which the log could not shrink or be copied.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it ended; of a pinned log and of a snapshot, when that was found.
    pub at: SystemTime,
    /// The database.
    pub path: Arc<Path>,
    /// The number of the database's [`super::Telemetry`].
    pub file: u64,
    /// What it is about.
    pub matter: Matter,
    /// The statement that waited, or that began the transaction that held the lock or the snapshot; of a pinned log, none.
    pub statement: Arc<str>,
    /// How long.
    pub time: Duration,
    /// How the job fared; of others, nothing.
    pub account: Account,
    /// The name of the error it ended with; of a failed checkpoint, its own.
    pub error: Option<&'static str>,
    /// The code location that began the transaction, where it is known.
    pub location: Option<Arc<str>>,
    /// What is known of the pinned log.
    pub episode: Option<Box<Episode>>,
    /// The snapshot, which knows where in the code it was begun.
    pub snapshot: Option<OpenSnapshot>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    dropped: u64,
    listener: Option<Arc<dyn Listener>>,
}

static RING: PerProcess<Mutex<Ring>> = PerProcess::new();

fn ring() -> MutexGuard<'static, Ring> {
    RING.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Put events into the ring and ring the bell. Without a listener they are dropped: nobody would ever fetch them.
pub fn publish(events: impl Iterator<Item = Event>) {
    let mut ring = ring();
    let Some(listener) = ring.listener.clone() else { return };
    for event in events {
        if ring.events.len() >= EVENTS_MAX {
            ring.events.pop_front();
            ring.dropped += 1;
        }
        ring.events.push_back(event);
    }
    drop(ring);
    listener.flush();
}

/// Have `listener`'s bell rung for every event from now on; `None`: for none.
pub fn listen(listener: Option<Arc<dyn Listener>>) {
    let mut ring = ring();
    if listener.is_none() {
        ring.events.clear();
    }
    let former = std::mem::replace(&mut ring.listener, listener);
    drop(ring);
    drop(former);
}

/// Take the events out, and how many were dropped since the last time.
pub fn fetch() -> (Vec<Event>, u64) {
    let mut ring = ring();
    let events = std::mem::take(&mut ring.events).into();
    (events, std::mem::take(&mut ring.dropped))
}
