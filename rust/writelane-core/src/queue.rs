//! The bounded queue between the callers and the writer.
//!
//! First come, first served within a class; required work before offered work. A job that finds the queue full is
//! parked in line outside it, so that callers who wait for room keep their order too; how long they wait is theirs
//! to say (they cancel their ticket). Offered work never waits: it pushes out older offered work, or is refused.

use crate::sync::{Arc, Condvar, Mutex, Timer, lock, wait};
use crate::ticket::{State as TicketState, Ticket};
use std::collections::VecDeque;
use std::time::Duration;

/// Whether the caller must know that it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It must be written or its caller told that it was not.
    Required,
    /// It may be dropped, and is counted then.
    Offered,
}

/// What the queue must know of what it holds.
pub trait Item {
    /// The answer its caller gets.
    type Answer;
    /// The claim on that answer.
    fn ticket(&self) -> &Arc<Ticket<Self::Answer>>;
    /// The memory it keeps, in bytes.
    fn bytes(&self) -> usize;
    /// Its class.
    fn class(&self) -> Class;
    /// An offered item with the same key replaces it in the queue.
    fn coalesce_key(&self) -> Option<&str> {
        None
    }
    /// Among offered work, it neither pushes others out nor is pushed out: it only marks a place.
    fn is_marker(&self) -> bool {
        false
    }
}

/// The bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most jobs of each class.
    pub jobs_max: usize,
    /// The most bytes of each class. A single larger job is let in when its class is empty.
    pub bytes_max: usize,
}

/// What became of a job that was pushed.
#[derive(Debug)]
pub enum Pushed<T> {
    /// It is in the queue.
    Queued,
    /// It is in line for a place in the queue.
    Parked,
    /// Offered work that took the place of older offered work, which is given back.
    Displaced(Vec<T>),
    /// Offered work that does not fit: given back.
    Full(T),
    /// The queue takes no more work: given back.
    Closed(T),
}

/// Where a job was that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In line for a place in the full queue.
    Parked,
    /// In the queue.
    Queued,
    /// In the writer's hand, waiting for the lock.
    Taken,
}

/// Why the writer woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is work.
    Work,
    /// The time was up.
    TimedOut,
    /// The queue is closed and empty.
    Finished,
    /// Somebody asked for attention ([`Queue::nudge`]).
    Nudged,
}

/// Counts since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Jobs in the queue now, of both classes.
    pub depth: usize,
    /// Bytes in the queue now.
    pub bytes: usize,
    /// Jobs in line for a place now.
    pub parked: usize,
    /// The most jobs there ever were.
    pub high_water: usize,
    /// Offered jobs refused at the door.
    pub refused: u64,
    /// Offered jobs pushed out by newer ones.
    pub displaced: u64,
    /// Offered jobs replaced by a newer one of the same key.
    pub coalesced: u64,
}

struct Shelf<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T: Item> Shelf<T> {
    fn new() -> Self {
        Self { items: VecDeque::new(), bytes: 0 }
    }

    fn has_room(&self, bounds: &Bounds, bytes: usize) -> bool {
        self.items.is_empty()
            || (self.jobs_below(bounds.jobs_max) && self.bytes.saturating_add(bytes) <= bounds.bytes_max)
    }

    /// Say whether so much has been taken that those in line may come all at once.
    fn is_low(&self, bounds: &Bounds) -> bool {
        self.items.len() <= bounds.jobs_max / 2 && self.bytes <= bounds.bytes_max / 2
    }

    fn jobs_below(&self, jobs_max: usize) -> bool {
        self.items.len() < jobs_max || self.items.iter().filter(|item| !item.is_marker()).count() < jobs_max
    }

    fn put(&mut self, item: T) {
        item.ticket().admit();
        self.bytes += item.bytes();
        self.items.push_back(item);
    }

    fn take(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some(item)
    }

    fn take_oldest(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.items.iter().position(wanted)?;
        let item = self.items.remove(place)?;
        self.bytes -= item.bytes();
        Some(item)
    }

    fn remove(&mut self, ticket: &Arc<Ticket<T::Answer>>) -> Option<T> {
        let place = self.items.iter().position(|item| Arc::ptr_eq(item.ticket(), ticket))?;
        let item = self.items.remove(place)?;
        self.bytes -= item.bytes();
        Some(item)
    }
}

struct State<T> {
    required: Shelf<T>,
    offered: Shelf<T>,
    parked: VecDeque<T>,
    closed: bool,
    asleep: bool,
    nudged: bool,
    /// The writer sleeps until it is woken, not until a time.
    sleeps_on: bool,
    high_water: usize,
    refused: u64,
    displaced: u64,
    coalesced: u64,
}

/// The queue.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    bounds: Bounds,
}

impl<T: Item> Queue<T> {
    /// Make an empty queue.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            state: Mutex::new(State {
                required: Shelf::new(),
                offered: Shelf::new(),
                parked: VecDeque::new(),
                closed: false,
                asleep: false,
                nudged: false,
                sleeps_on: false,
                high_water: 0,
                refused: 0,
                displaced: 0,
                coalesced: 0,
            }),
            arrived: Condvar::new(),
            bounds,
        }
    }

    /// Return the bounds.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Put a job in the queue, or in line for it.
    pub fn push(&self, item: T) -> Pushed<T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Pushed::Closed(item);
        }
        let pushed = match item.class() {
            Class::Offered => self.push_offered(&mut state, item),
            Class::Required if state.parked.is_empty() && state.required.has_room(&self.bounds, item.bytes()) => {
                state.required.put(item);
                Pushed::Queued
            }
            Class::Required => {
                state.parked.push_back(item);
                Pushed::Parked
            }
        };
        state.high_water = state.high_water.max(state.required.items.len() + state.offered.items.len());
        if state.asleep {
            self.arrived.notify_all();
        }
        pushed
    }

    fn push_offered(&self, state: &mut State<T>, item: T) -> Pushed<T> {
        if item.is_marker() {
            state.offered.put(item);
            return Pushed::Queued;
        }
        if item.bytes() > self.bounds.bytes_max {
            state.refused += 1;
            return Pushed::Full(item);
        }
        let mut displaced = Vec::new();
        if let Some(key) = item.coalesce_key()
            && let Some(place) = state.offered.items.iter().position(|other| other.coalesce_key() == Some(key))
            && let Some(old) = state.offered.items.remove(place)
        {
            state.offered.bytes -= old.bytes();
            state.coalesced += 1;
            displaced.push(old);
        }
        while !state.offered.has_room(&self.bounds, item.bytes()) {
            let Some(old) = state.offered.take_oldest(|item| !item.is_marker()) else { break };
            state.displaced += 1;
            displaced.push(old);
        }
        state.offered.put(item);
        if displaced.is_empty() { Pushed::Queued } else { Pushed::Displaced(displaced) }
    }

    fn admit_parked(&self, state: &mut State<T>) {
        while let Some(first) = state.parked.front() {
            if !state.required.has_room(&self.bounds, first.bytes()) {
                return;
            }
            let Some(item) = state.parked.pop_front() else { return };
            state.required.put(item);
            if let Some(item) = state.required.items.back() {
                item.ticket().wake();
            }
        }
    }

    /// Cancel a job that does not run, wherever it waits, and say where that was. `None`: it runs or is settled.
    pub fn cancel(&self, ticket: &Arc<Ticket<T::Answer>>) -> Option<Place> {
        let mut state = lock(&self.state);
        let (item, place) = match ticket.state() {
            TicketState::Parked => {
                let place = state.parked.iter().position(|item| Arc::ptr_eq(item.ticket(), ticket));
                (place.and_then(|place| state.parked.remove(place)), Place::Parked)
            }
            TicketState::Queued => match state.required.remove(ticket).or_else(|| state.offered.remove(ticket)) {
                None => (None, Place::Taken),
                found => (found, Place::Queued),
            },
            TicketState::Running | TicketState::Answered | TicketState::Cancelled | TicketState::Refused => {
                return None;
            }
        };
        self.admit_parked(&mut state);
        drop(state);
        let cancelled = ticket.cancel();
        drop(item);
        cancelled.then_some(place)
    }

    /// Take the next job if `wanted` says yes to it, told whether required work waits. It may still be cancelled
    /// until its ticket is started.
    pub fn take_if(&self, wanted: impl FnOnce(&T, bool) -> bool) -> Option<T> {
        let mut state = lock(&self.state);
        let required_waits = !state.required.items.is_empty();
        let shelf = if required_waits { &mut state.required } else { &mut state.offered };
        let next = shelf.items.front()?;
        if !wanted(next, required_waits) {
            return None;
        }
        let item = shelf.take()?;
        // Not for each place that falls free: who is woken for one place is in line again at once, and both threads
        // would spend their time on waking each other.
        if state.required.is_low(&self.bounds) {
            self.admit_parked(&mut state);
        }
        Some(item)
    }

    /// Give the places that are free to those in line. Whoever takes jobs calls it whenever it pauses.
    pub fn admit(&self) {
        self.admit_parked(&mut lock(&self.state));
    }

    /// Look at the next job.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let state = lock(&self.state);
        state.required.items.front().or_else(|| state.offered.items.front()).map(look)
    }

    /// Take out every waiting job that `expired` says yes to, parked ones too, each with whether it had a place.
    /// The caller answers them.
    pub fn take_expired(&self, mut expired: impl FnMut(&T) -> bool) -> Vec<(T, bool)> {
        let mut state = lock(&self.state);
        let mut taken = Vec::new();
        let state = &mut *state;
        for (items, queued) in
            [(&mut state.required.items, true), (&mut state.offered.items, true), (&mut state.parked, false)]
        {
            if items.iter().any(&mut expired) {
                for item in std::mem::take(items) {
                    if expired(&item) {
                        taken.push((item, queued));
                    } else {
                        items.push_back(item);
                    }
                }
            }
        }
        for (item, queued) in &taken {
            if *queued {
                match item.class() {
                    Class::Required => state.required.bytes -= item.bytes(),
                    Class::Offered => state.offered.bytes -= item.bytes(),
                }
            }
        }
        self.admit_parked(state);
        taken
    }

    /// Wait for work. `None` waits until there is some.
    pub fn wait(&self, time: Option<Duration>) -> Wake {
        let mut state = lock(&self.state);
        let timer = time.map(Timer::start);
        let mut timed_out = false;
        loop {
            if !state.required.items.is_empty() || !state.offered.items.is_empty() {
                return Wake::Work;
            }
            if state.closed {
                return Wake::Finished;
            }
            if std::mem::take(&mut state.nudged) {
                return Wake::Nudged;
            }
            if timed_out {
                return Wake::TimedOut;
            }
            state.asleep = true;
            state.sleeps_on = time.is_none();
            (state, timed_out) = match &timer {
                Some(timer) => timer.wait(&self.arrived, state, &self.state),
                None => (wait(&self.arrived, state), false),
            };
            state.asleep = false;
            state.sleeps_on = false;
        }
    }

    /// Wait for more jobs to arrive until there are `jobs` of them or the time is up.
    pub fn linger(&self, jobs: usize, time: Duration) {
        let mut state = lock(&self.state);
        let timer = Timer::start(time);
        let mut timed_out = false;
        while !timed_out && state.required.items.len() < jobs && !state.closed {
            state.asleep = true;
            (state, timed_out) = timer.wait(&self.arrived, state, &self.state);
            state.asleep = false;
        }
    }

    /// Wake the writer though there is no work.
    pub fn nudge(&self) {
        let mut state = lock(&self.state);
        state.nudged = true;
        self.arrived.notify_all();
    }

    /// Wake the writer if it sleeps until it is woken, so that it sets itself a time to look after things.
    pub fn nudge_from_sleep(&self) {
        let mut state = lock(&self.state);
        if state.sleeps_on {
            state.sleeps_on = false;
            state.nudged = true;
            self.arrived.notify_all();
        }
    }

    /// Say whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        state.required.items.is_empty() && state.offered.items.is_empty() && state.parked.is_empty()
    }

    /// Return how many required jobs wait.
    pub fn required(&self) -> usize {
        lock(&self.state).required.items.len()
    }

    /// Take no more work; what is there will still be done.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.arrived.notify_all();
    }

    /// Take no more work, and give back all that waits, to be answered.
    pub fn close_and_drain(&self) -> Vec<T> {
        self.close();
        self.take_expired(|_| true).into_iter().map(|(item, _)| item).collect()
    }

    /// Return the counts.
    pub fn stats(&self) -> QueueStats {
        let state = lock(&self.state);
        QueueStats {
            depth: state.required.items.len() + state.offered.items.len(),
            bytes: state.required.bytes + state.offered.bytes,
            parked: state.parked.len(),
            high_water: state.high_water,
            refused: state.refused,
            displaced: state.displaced,
            coalesced: state.coalesced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Call, Durability, Job, Parameters, Work};
    use std::time::Instant;

    fn job() -> Box<Job> {
        let call = Call { sql: "INSERT INTO t VALUES (1)".into(), parameters: Parameters::none() };
        Box::new(Job::new(Work::One(call), Durability::Normal, None, Instant::now()))
    }

    fn full(jobs_max: usize, in_line: usize) -> Queue<Box<Job>> {
        let queue = Queue::new(Bounds { jobs_max, bytes_max: usize::MAX });
        for _ in 0..jobs_max {
            assert!(matches!(queue.push(job()), Pushed::Queued));
        }
        for _ in 0..in_line {
            assert!(matches!(queue.push(job()), Pushed::Parked));
        }
        queue
    }

    #[test]
    fn those_in_line_are_let_in_together_when_half_of_the_places_are_free() {
        let queue = full(8, 2);
        for _ in 0..3 {
            queue.take_if(|_, _| true).unwrap();
            assert_eq!(queue.stats().parked, 2);
        }
        queue.take_if(|_, _| true).unwrap();
        assert_eq!((queue.stats().parked, queue.required()), (0, 6));
    }

    #[test]
    fn those_in_line_are_let_in_when_whoever_takes_jobs_pauses() {
        let queue = full(8, 3);
        queue.take_if(|_, _| true).unwrap();
        queue.admit();
        assert_eq!((queue.stats().parked, queue.required()), (2, 8));
    }

    #[test]
    fn a_queue_of_one_place_gives_it_at_once() {
        let queue = full(1, 2);
        queue.take_if(|_, _| true).unwrap();
        assert_eq!(queue.stats().parked, 1);
    }
}
