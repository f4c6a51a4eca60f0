//! Waiting in the kernel for SQLite's own write lock, on a thread of its own so that the caller can give up.

use super::{Lane, agent, file, lock};
use crate::vfs::{Probed, WriteLockProbe};
use crate::wait::{GaveUp, Patience};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The mean pause where there is nothing to wait on: a rollback journal has no shared memory, and its readers lock
/// writers out too. Constant, so that a long wait does not make a slower poller.
const POLL: Duration = Duration::from_millis(1);

/// The wait for the write lock. One thread of a process at most is in the kernel for it.
#[derive(Default)]
pub struct Prober {
    rounds: Mutex<Rounds>,
    called: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Rounds {
    thread: bool,
    wanted: bool,
    running: bool,
    finished: u64,
    /// Whether the last round could not wait at all.
    failed: bool,
}

impl Prober {
    /// Wait until the write lock was free for a moment, or for one pause where that cannot be waited for.
    pub fn wait(lane: &Arc<Lane>, dice: u64, patience: &Patience<'_>) -> Result<(), GaveUp> {
        let prober = &lane.prober;
        if file::identity(&lane.shared_memory()).is_none() {
            return pause(dice, patience);
        }
        let goal = {
            let mut rounds = lock(&prober.rounds);
            if !rounds.running {
                rounds.wanted = true;
                if !rounds.thread {
                    let own = Arc::clone(lane);
                    rounds.thread = agent::start("wl-probe", move || run(&own)).is_ok();
                }
                if !rounds.thread {
                    drop(rounds);
                    return pause(dice, patience);
                }
                prober.called.notify_one();
            }
            rounds.finished + 1
        };
        loop {
            let slice = patience.next_slice()?;
            let rounds = lock(&prober.rounds);
            let (rounds, _) = prober
                .done
                .wait_timeout_while(rounds, slice, |rounds| rounds.finished < goal)
                .unwrap_or_else(PoisonError::into_inner);
            if rounds.finished >= goal {
                let failed = rounds.failed;
                drop(rounds);
                return if failed { pause(dice, patience) } else { Ok(()) };
            }
        }
    }
}

/// Sleep for half to one and a half of [`POLL`].
pub fn pause(dice: u64, patience: &Patience<'_>) -> Result<(), GaveUp> {
    let slice = patience.next_slice()?;
    std::thread::sleep(slice.min(POLL / 2 + POLL.mul_f64((dice % 1024) as f64 / 1024.0)));
    Ok(())
}

fn run(lane: &Arc<Lane>) {
    let mut probe = None;
    let prober = &lane.prober;
    let mut rounds = lock(&prober.rounds);
    loop {
        let since = Instant::now();
        while !rounds.wanted {
            let left = agent::IDLE.saturating_sub(since.elapsed());
            if left.is_zero() {
                rounds.thread = false;
                return;
            }
            rounds = prober.called.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (rounds.wanted, rounds.running) = (false, true);
        drop(rounds);
        let free = round(&mut probe, lane);
        rounds = lock(&prober.rounds);
        (rounds.running, rounds.failed) = (false, !matches!(free, Ok(true)));
        rounds.finished += 1;
        prober.done.notify_all();
    }
}

/// Wait once. False: the shared memory was replaced meanwhile, so that the answer says nothing.
fn round(kept: &mut Option<WriteLockProbe>, lane: &Lane) -> io::Result<bool> {
    let probe = match kept.take() {
        Some(probe) if probe.is_current()? => probe,
        _ => WriteLockProbe::open(&lane.shared_memory())?,
    };
    let free = probe.wait()? == Probed::Free;
    *kept = Some(probe);
    Ok(free)
}
