//! One caller's claim on the answer to one job.

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, Condvar, Mutex, lock, wait_slice};
use crate::wait::{GaveUp, Patience, SLICE};

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Outside a full queue, in line for a place in it.
    Parked = 0,
    /// In the queue, or taken by the writer and waiting for the lock.
    Queued = 1,
    /// The writer runs it: it can be cancelled no more.
    Running = 2,
    /// Answered.
    Answered = 3,
    /// Cancelled before it started: it will never run.
    Cancelled = 4,
    /// It got no place in the queue in time, and is about to be answered with that.
    Refused = 5,
}

impl State {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => State::Parked,
            1 => State::Queued,
            2 => State::Running,
            3 => State::Answered,
            5 => State::Refused,
            _ => State::Cancelled,
        }
    }
}

/// Told of answers by the thread that gives them. It must neither block nor call back into this crate.
pub trait Listener: Send + Sync {
    /// Note that the ticket known as `token` is answered or cancelled.
    fn completed(&self, token: u64);
    /// Wake whoever collects the notes; called once after a run of [`Listener::completed`].
    fn flush(&self);
}

struct Slot<T> {
    answer: Option<T>,
    listeners: Vec<(std::sync::Arc<dyn Listener>, u64)>,
    /// Callers that wait on the condition: without one, no system call is made to wake them.
    waiting: usize,
}

/// The place where an answer will be.
///
/// Exactly one of two things happens to it in the end: [`Ticket::answer`] or [`Ticket::cancel`]. Between
/// [`Ticket::start`] and then it cannot be cancelled.
pub struct Ticket<T> {
    state: AtomicU8,
    slot: Mutex<Slot<T>>,
    answered: Condvar,
}

impl<T> Ticket<T> {
    /// Make a ticket for a job that is not in the queue yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(State::Parked as u8),
            slot: Mutex::new(Slot { answer: None, listeners: Vec::new(), waiting: 0 }),
            answered: Condvar::new(),
        })
    }

    /// Return where the job is.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Say whether the job is answered or cancelled.
    pub fn is_settled(&self) -> bool {
        matches!(self.state(), State::Answered | State::Cancelled)
    }

    fn advance(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Note that the job got its place in the queue. False: it was cancelled meanwhile.
    pub fn admit(&self) -> bool {
        self.advance(State::Parked, State::Queued)
    }

    /// Make sure that nobody cancels the job any more. False: somebody has, or it is answered.
    pub(crate) fn claim(&self) -> bool {
        self.admit();
        self.start() || matches!(self.state(), State::Running | State::Refused)
    }

    /// Make sure that nobody cancels the job, which gets no place in the queue and is answered at once. False: it is settled,
    /// or has a place.
    pub(crate) fn refuse(&self) -> bool {
        self.advance(State::Parked, State::Refused)
    }

    /// Begin to run the job. False: it was cancelled meanwhile and must not run.
    pub fn start(&self) -> bool {
        self.advance(State::Queued, State::Running)
    }

    /// Note that what the job did so far is undone and it waits again; it may be cancelled again.
    pub fn requeue(&self) {
        self.advance(State::Running, State::Queued);
    }

    /// Cancel the job if it does not run. True: it will never run.
    ///
    /// Called by the queue, which takes the job out in the same breath.
    pub(crate) fn cancel(&self) -> bool {
        let cancelled = self.advance(State::Parked, State::Cancelled) || self.advance(State::Queued, State::Cancelled);
        if cancelled {
            let mut slot = lock(&self.slot);
            self.wake_waiting(&slot);
            let listeners = std::mem::take(&mut slot.listeners);
            drop(slot);
            for (listener, token) in listeners {
                listener.completed(token);
                listener.flush();
            }
        }
        cancelled
    }

    /// Answer the job. Returns the listeners to be flushed.
    ///
    /// A job that is cancelled or answered already stays so.
    pub fn answer(&self, answer: T) -> Vec<std::sync::Arc<dyn Listener>> {
        let mut slot = lock(&self.slot);
        loop {
            let state = self.state();
            if matches!(state, State::Answered | State::Cancelled) {
                return Vec::new();
            }
            if self.advance(state, State::Answered) {
                break;
            }
        }
        slot.answer = Some(answer);
        self.wake_waiting(&slot);
        let listeners = std::mem::take(&mut slot.listeners);
        drop(slot);
        listeners
            .into_iter()
            .map(|(listener, token)| {
                listener.completed(token);
                listener
            })
            .collect()
    }

    /// Have `listener` told of the answer, beside those who listen already; at once if it is already there.
    pub fn listen(&self, listener: std::sync::Arc<dyn Listener>, token: u64) {
        let mut slot = lock(&self.slot);
        if self.is_settled() {
            drop(slot);
            listener.completed(token);
            listener.flush();
        } else {
            slot.listeners.push((listener, token));
        }
    }

    /// Wait until the job is answered or cancelled.
    ///
    /// # Errors
    /// Why the wait ended before. The job goes on; whoever gives it up cancels it.
    pub fn wait(&self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        let mut slot = lock(&self.slot);
        loop {
            if self.is_settled() {
                return Ok(());
            }
            drop(slot);
            // Asked with no lock held: the caller may look for signals there.
            let slice = patience.next_slice()?;
            slot = lock(&self.slot);
            if self.is_settled() {
                return Ok(());
            }
            slot.waiting += 1;
            slot = wait_slice(&self.answered, slot, slice);
            slot.waiting -= 1;
        }
    }

    /// Wait until the job has a place in the queue, or is settled.
    ///
    /// # Errors
    /// Why the wait ended before. Not where the job is refused: the answer is there in a moment.
    pub fn wait_admitted(&self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        loop {
            let slice = patience.next_slice();
            let mut slot = lock(&self.slot);
            let slice = match self.state() {
                State::Parked => slice?,
                State::Refused => SLICE,
                _ => return Ok(()),
            };
            slot.waiting += 1;
            slot = wait_slice(&self.answered, slot, slice);
            slot.waiting -= 1;
        }
    }

    /// Wake those who wait for admission.
    pub fn wake(&self) {
        self.wake_waiting(&lock(&self.slot));
    }

    fn wake_waiting(&self, slot: &Slot<T>) {
        if slot.waiting > 0 {
            self.answered.notify_all();
        }
    }

    /// Take the answer out if it is of this kind.
    pub fn take_if(&self, is_wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        lock(&self.slot).answer.take_if(|answer| is_wanted(answer))
    }

    /// Take the answer out. `None`: there is none (yet, any more, or ever, for a cancelled job).
    pub fn take(&self) -> Option<T> {
        lock(&self.slot).answer.take()
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::threads::{self, wait_until};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn who_waits_for_a_place_waits_for_the_answer_of_a_refusal_also_past_its_deadline() {
        let ticket = Ticket::<u8>::new();
        assert!(ticket.refuse());
        assert!(!ticket.cancel(), "it is settled that it gets none");
        let (told, number) = mpsc::channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                told.send(threads::number()).unwrap();
                let over = Instant::now().checked_sub(Duration::from_millis(1));
                ticket.wait_admitted(&Patience { until: over, interrupted: &|| true })
            });
            let number = number.recv().unwrap();
            wait_until("it waits", || lock(&ticket.slot).waiting == 1 && threads::sleeps(number));
            ticket.answer(7);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert_eq!((ticket.take_if(|answer| *answer == 8), ticket.take_if(|answer| *answer == 7)), (None, Some(7)));
    }

    #[test]
    fn who_has_a_place_is_not_refused() {
        let ticket = Ticket::<u8>::new();
        assert!(ticket.admit());
        assert!(!ticket.refuse());
    }
}
