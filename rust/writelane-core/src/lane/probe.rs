//! Waiting in the kernel for SQLite's own write lock, on a thread of its own so that the caller can give up.

use super::{Lane, agent, file, lock};
use crate::threads;
use crate::vfs::{self, LockKind, Probed, WriteLockProbe};
use crate::wait::{GaveUp, Patience};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The mean pause where there is nothing to wait on: a rollback journal has no shared memory, and its readers lock
/// writers out too. Constant, so that a long wait does not make a slower poller.
const POLL: Duration = Duration::from_millis(1);

/// How long the lock is kept for the caller that waited for it. It needs some 50 us to wake up; a caller that the
/// scheduler keeps longer must not keep everybody.
const KEPT: Duration = Duration::from_millis(5);

/// The wait for the write lock. One thread of a process at most is in the kernel for it.
#[derive(Default)]
pub struct Prober {
    rounds: Mutex<Rounds>,
    /// Wakes the thread when somebody waits.
    called: Condvar,
    /// Wakes who waits.
    done: Condvar,
    /// Wakes the thread when the caller has taken what was kept for it.
    taken: Condvar,
    /// For looks that do not wait.
    look: Mutex<Option<WriteLockProbe>>,
}

#[derive(Default)]
struct Rounds {
    thread: bool,
    /// Callers that wait, at most one as long as they keep to their turns.
    callers: usize,
    finished: u64,
    /// Whether the last round could not wait at all.
    failed: bool,
    /// The probe that keeps the lock for a caller.
    kept: Option<Arc<WriteLockProbe>>,
}

/// SQLite's write lock, kept from everybody until this is dropped: the moment before the caller takes it itself.
pub struct Kept(Option<Arc<WriteLockProbe>>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(probe) = &self.0 {
            probe.release();
        }
    }
}

impl Prober {
    /// Wait until the write lock is free, for one slice at most, or for one pause where that cannot be waited for.
    ///
    /// For one slice only, since the lock may be one that the caller's own handle holds (a checkpoint that truncates
    /// asks its busy handler about readers): then the wait could not end before the caller goes on. The thread stays
    /// in the kernel's queue meanwhile.
    pub fn wait(lane: &Arc<Lane>, dice: u64, patience: &Patience<'_>) -> Result<Kept, GaveUp> {
        let prober = &lane.prober;
        if file::identity(&lane.shared_memory()).is_none() {
            return pause(dice, patience);
        }
        let goal = {
            let mut rounds = lock(&prober.rounds);
            if !rounds.thread {
                let own = Arc::clone(lane);
                rounds.thread = threads::start("wl-probe", move || run(&own)).is_ok();
                if !rounds.thread {
                    drop(rounds);
                    return pause(dice, patience);
                }
            }
            rounds.callers += 1;
            prober.called.notify_one();
            rounds.finished + 1
        };
        let slice = patience.next_slice();
        let (failed, kept) = {
            let mut rounds = lock(&prober.rounds);
            if let Ok(slice) = slice {
                let waiting = |rounds: &mut Rounds| rounds.finished < goal;
                let waited = prober.done.wait_timeout_while(rounds, slice, waiting);
                rounds = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            rounds.callers -= 1;
            prober.taken.notify_one();
            (rounds.finished >= goal && rounds.failed, Kept(rounds.kept.take()))
        };
        slice?;
        if failed { pause(dice, patience) } else { Ok(kept) }
    }
}

impl Prober {
    /// Say whether the write lock is free right now; `None` where that cannot be told.
    pub fn is_free(&self, shared_memory: &Path) -> Option<bool> {
        Some(self.look(shared_memory, WriteLockProbe::try_wait)? == Probed::Free)
    }

    /// Say whose the write lock is right now; `None` where that cannot be told.
    ///
    /// The kernel is asked about this one lock. Its list of all locks tells the same, but holds everybody up who locks any
    /// file on the machine, and where many wait and all look, they wait for nothing else.
    pub fn owner(&self, shared_memory: &Path) -> Option<Probed> {
        if vfs::lock_kind() != LockKind::Description {
            // This process's own locks would not be seen.
            return None;
        }
        self.look(shared_memory, |probe| {
            let found = probe.try_wait()?;
            // With a rollback journal the lock is another one.
            Ok(if found == Probed::Free && !probe.is_log_open()? { Probed::Replaced } else { found })
        })
    }

    fn look(&self, shared_memory: &Path, ask: impl FnOnce(&WriteLockProbe) -> io::Result<Probed>) -> Option<Probed> {
        let mut look = lock(&self.look);
        let probe = match look.take() {
            Some(probe) if probe.is_current().ok()? => probe,
            _ => WriteLockProbe::open(shared_memory).ok()?,
        };
        ask(look.insert(probe)).ok().filter(|found| *found != Probed::Replaced)
    }
}

/// Sleep for half to one and a half of [`POLL`].
pub fn pause(dice: u64, patience: &Patience<'_>) -> Result<Kept, GaveUp> {
    let slice = patience.next_slice()?;
    std::thread::sleep(slice.min(POLL / 2 + POLL.mul_f64((dice % 1024) as f64 / 1024.0)));
    Ok(Kept(None))
}

fn run(lane: &Arc<Lane>) {
    let mut probe = None;
    let prober = &lane.prober;
    let mut rounds = lock(&prober.rounds);
    loop {
        let since = Instant::now();
        while rounds.callers == 0 {
            let left = agent::IDLE.saturating_sub(since.elapsed());
            if left.is_zero() {
                rounds.thread = false;
                return;
            }
            rounds = prober.called.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(rounds);
        let free = round(&mut probe, &lane.shared_memory());
        rounds = lock(&prober.rounds);
        rounds.failed = !matches!(free, Ok(true));
        rounds.finished += 1;
        if let (Some(probe), false) = (&probe, rounds.failed) {
            if rounds.callers == 0 {
                probe.release();
            } else {
                rounds.kept = Some(Arc::clone(probe));
            }
        }
        prober.done.notify_all();
        // The caller takes the lock over; a caller that does not come in time finds it free or held by another.
        rounds = prober
            .taken
            .wait_timeout_while(rounds, KEPT, |rounds| rounds.kept.is_some() || (rounds.failed && rounds.callers > 0))
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if let Some(probe) = rounds.kept.take() {
            probe.release();
        }
    }
}

/// Wait once, and keep the lock. False: the shared memory was replaced meanwhile, so that nothing is kept.
fn round(kept: &mut Option<Arc<WriteLockProbe>>, shared_memory: &Path) -> io::Result<bool> {
    let probe = match kept.take() {
        Some(probe) if probe.is_current()? => probe,
        _ => Arc::new(WriteLockProbe::open(shared_memory)?),
    };
    let free = probe.hold()? == Probed::Free;
    *kept = Some(probe);
    Ok(free)
}
