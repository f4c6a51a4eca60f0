//! One caller's claim on the answer to one job.

use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::sync::{Arc, Condvar, Mutex, lock, wait_timeout};
use crate::wait::{GaveUp, Patience};

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Outside a full queue, in line for a place in it.
    Parked = 0,
    /// In the queue.
    Queued = 1,
    /// Taken by the writer: it will be answered, and can be cancelled no more.
    Running = 2,
    /// Answered.
    Answered = 3,
    /// Cancelled before it started: it will never run.
    Cancelled = 4,
}

impl State {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => State::Parked,
            1 => State::Queued,
            2 => State::Running,
            3 => State::Answered,
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
    listener: Option<(std::sync::Arc<dyn Listener>, u64)>,
}

/// The place where an answer will be.
///
/// Exactly one of three things happens to it: [`Ticket::start`] and then [`Ticket::answer`]; [`Ticket::refuse`]; or
/// [`Ticket::cancel`].
pub struct Ticket<T> {
    state: AtomicU8,
    asked_to_cancel: AtomicBool,
    slot: Mutex<Slot<T>>,
    answered: Condvar,
}

impl<T> Ticket<T> {
    /// Make a ticket for a job that is not in the queue yet.
    pub fn new(listener: Option<(std::sync::Arc<dyn Listener>, u64)>) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(State::Parked as u8),
            asked_to_cancel: AtomicBool::new(false),
            slot: Mutex::new(Slot { answer: None, listener }),
            answered: Condvar::new(),
        })
    }

    /// Return where the job is.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    fn advance(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Note that the job got its place in the queue. False: it was cancelled meanwhile.
    pub fn admit(&self) -> bool {
        self.advance(State::Parked, State::Queued)
    }

    /// Take the job to run it. False: it was cancelled meanwhile and must not run.
    pub fn start(&self) -> bool {
        self.advance(State::Queued, State::Running)
    }

    /// Cancel the job if it has not started. True: it will never run.
    ///
    /// Called by the queue alone, which takes the job out in the same breath.
    pub(crate) fn cancel(&self) -> bool {
        let cancelled = self.advance(State::Parked, State::Cancelled) || self.advance(State::Queued, State::Cancelled);
        if cancelled {
            let mut slot = lock(&self.slot);
            self.answered.notify_all();
            let listener = slot.listener.take();
            drop(slot);
            if let Some((listener, token)) = listener {
                listener.completed(token);
                listener.flush();
            }
        }
        cancelled
    }

    /// Ask whoever started the job to cancel it if it still only waits for the lock.
    pub fn ask_to_cancel(&self) {
        self.asked_to_cancel.store(true, Ordering::Release);
    }

    /// Say whether the caller has gone and the job need not run.
    pub fn is_asked_to_cancel(&self) -> bool {
        self.asked_to_cancel.load(Ordering::Acquire)
    }

    /// Answer a job that was started. Returns the listener to be flushed, if there is one.
    ///
    /// Answering twice keeps the first answer.
    pub fn answer(&self, answer: T) -> Option<std::sync::Arc<dyn Listener>> {
        let mut slot = lock(&self.slot);
        if slot.answer.is_some() || self.state() == State::Answered {
            return None;
        }
        slot.answer = Some(answer);
        self.state.store(State::Answered as u8, Ordering::Release);
        self.answered.notify_all();
        let listener = slot.listener.take();
        drop(slot);
        listener.map(|(listener, token)| {
            listener.completed(token);
            listener
        })
    }

    /// Answer a job that has not started and now never will. False: it started or was cancelled.
    pub fn refuse(&self, answer: T) -> bool {
        let taken = self.advance(State::Queued, State::Running) || self.advance(State::Parked, State::Running);
        if taken && let Some(listener) = self.answer(answer) {
            listener.flush();
        }
        taken
    }

    /// Have `listener` told of the answer; at once if it is already there.
    pub fn listen(&self, listener: std::sync::Arc<dyn Listener>, token: u64) {
        let mut slot = lock(&self.slot);
        if matches!(self.state(), State::Answered | State::Cancelled) {
            drop(slot);
            listener.completed(token);
            listener.flush();
        } else {
            slot.listener = Some((listener, token));
        }
    }

    /// Wait until the job is answered or cancelled.
    ///
    /// # Errors
    /// Why the wait ended before. The job goes on; whoever gives it up cancels it.
    pub fn wait(&self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        let mut slot = lock(&self.slot);
        loop {
            if matches!(self.state(), State::Answered | State::Cancelled) {
                return Ok(());
            }
            drop(slot);
            // Asked with no lock held: the caller may look for signals there.
            let slice = patience.next_slice()?;
            slot = lock(&self.slot);
            if matches!(self.state(), State::Answered | State::Cancelled) {
                return Ok(());
            }
            slot = wait_timeout(&self.answered, slot, slice);
        }
    }

    /// Wait until the job has a place in the queue, or has left it.
    ///
    /// # Errors
    /// Why the wait ended before.
    pub fn wait_admitted(&self, patience: &Patience<'_>) -> Result<(), GaveUp> {
        loop {
            let slice = patience.next_slice();
            let slot = lock(&self.slot);
            if self.state() != State::Parked {
                return Ok(());
            }
            drop(wait_timeout(&self.answered, slot, slice?));
        }
    }

    /// Wake those who wait for admission.
    pub fn wake(&self) {
        let _slot = lock(&self.slot);
        self.answered.notify_all();
    }

    /// Take the answer out. `None`: there is none (yet, any more, or ever, for a cancelled job).
    pub fn take(&self) -> Option<T> {
        lock(&self.slot).answer.take()
    }
}
