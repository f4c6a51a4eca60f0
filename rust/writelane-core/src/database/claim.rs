//! What a caller knows of the job it waits for.

use super::{Interrupted, Pending};
use crate::error::{Error, Phase};
use crate::job::{Account, Answer, Failure, Job, Tried, Waited};
use crate::queue::Place;
use crate::sync::Arc as TicketArc;
use crate::ticket::State;
use crate::wait::{GaveUp, Patience, SLICE};
use crate::writer::Shared;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The claim on the answer to a job, with what is told of it where there is none.
pub(super) struct Claim {
    pub ticket: Pending,
    pub called: Instant,
    pub until: Option<Instant>,
    pub label: Arc<str>,
    tried: Option<Box<Tried>>,
}

impl Claim {
    pub(super) fn of(job: &Job) -> Self {
        Self {
            ticket: TicketArc::clone(&job.ticket),
            called: job.called,
            until: job.until,
            label: Arc::clone(job.work.label()),
            tried: job.tried.clone(),
        }
    }

    /// Wait for the answer, up to `until`, unless the job runs by then.
    pub(super) fn answer(&self, shared: &Shared, until: Option<Instant>, interrupted: Interrupted<'_>) -> Answer {
        let seen = RefCell::new(Account::default());
        let look = || {
            let now = Instant::now();
            // Not in the first moment, which is the last one of most waits.
            if now.saturating_duration_since(self.called) >= SLICE / 2
                && matches!(self.ticket.state(), State::Parked | State::Queued)
            {
                seen.replace(self.waited(shared, now));
            }
            interrupted()
        };
        let mut patience = Patience { until, interrupted: &look };
        while let Err(gave_up) = self.ticket.wait(&patience) {
            match (gave_up, shared.queue().cancel(&self.ticket)) {
                // It never runs.
                (GaveUp::Interrupted, Some(_)) => return Err(self.interrupted(shared)),
                (GaveUp::TimedOut, Some(Place::Parked)) => return Err(self.queue_full(shared)),
                (GaveUp::TimedOut, Some(Place::Queued)) => return Err(self.timeout(shared, Phase::Queue)),
                (GaveUp::TimedOut, Some(Place::Taken)) => return Err(self.timeout(shared, Phase::Lock)),
                // It runs, and its caller goes without its answer. It is counted when it has run.
                (GaveUp::Interrupted, None) => return Err(self.left_running(seen.take())),
                // It runs: its true result is given.
                (GaveUp::TimedOut, None) => patience.until = None,
            }
        }
        self.ticket.take().unwrap_or_else(|| Err(Box::new(Error::Cancelled.into())))
    }

    fn waited(&self, shared: &Shared, now: Instant) -> Account {
        shared.waited_until(self.called, self.tried.as_deref(), now)
    }

    pub(super) fn timeout(&self, shared: &Shared, phase: Phase) -> Box<Failure> {
        // The look takes a while, and is waited for too.
        let looked = shared.lock_holder();
        let now = Instant::now();
        let mut account = self.waited(shared, now);
        let tried = self.tried.as_ref().map_or(Duration::ZERO, |tried| tried.account.waited.lock);
        if phase == Phase::Lock && account.waited.lock == tried {
            // The writer has the job, and is between two waits for the lock.
            account.waited.lock += std::mem::take(&mut account.waited.queue);
        }
        account.holder = looked.or(account.holder);
        let after = now.saturating_duration_since(self.called);
        let error = Error::Timeout { phase, after, holder: account.holder.clone() };
        shared.failure(&self.label, error, account)
    }

    pub(super) fn interrupted(&self, shared: &Shared) -> Box<Failure> {
        shared.failure(&self.label, Error::Interrupted, self.waited(shared, Instant::now()))
    }

    pub(super) fn queue_full(&self, shared: &Shared) -> Box<Failure> {
        let bounds = shared.queue().bounds();
        let after = self.called.elapsed();
        let error = Error::QueueFull { after, jobs_max: bounds.jobs_max, bytes_max: bounds.bytes_max };
        let waited = Waited { queue: after, ..Waited::default() };
        shared.failure(&self.label, error, Account { waited, ..Account::default() })
    }

    /// Answer for a job that runs: it waited as it was last `seen` to, and has run since.
    fn left_running(&self, seen: Account) -> Box<Failure> {
        let mut account = seen;
        account.waited.run += self.called.elapsed().saturating_sub(account.waited.total());
        let statement = Some(Arc::clone(&self.label));
        Box::new(Failure { error: Error::Interrupted, statement, position: None, account })
    }
}
