//! The threads that wait in the kernel, so that a caller can have a deadline and be interrupted.

use super::file::{FRONT, LaneFile, QUEUE};
use super::state::Errand;
use super::{Lane, lock};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long an agent without work stays, so that a lane in use does not start a thread for every wait.
pub const IDLE: Duration = Duration::from_secs(2);

/// How often the front is asked for where the kernel refuses to wait for it.
const POLL: Duration = Duration::from_millis(1);

/// How long a thread that the kernel gave a lock may take to wake up and have it.
const WAKING: Duration = Duration::from_micros(100);

/// Start a named thread that takes no signal of the process, so that every signal finds a thread that expects it.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are plain old data, filled by the calls; the mask of this thread is put back below.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = thread::Builder::new().name(name.into()).stack_size(128 * 1024).spawn(run);
    // SAFETY: the set is the one the thread had before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started.map(drop)
}

/// Do the lane's errands until there are none for a while.
pub fn run(lane: &Arc<Lane>) {
    let mut idle_since = None;
    let mut state = lock(&lane.state);
    loop {
        match state.errand(&lane.path) {
            Errand::Queue(file) => {
                idle_since = None;
                drop(state);
                let got = stand_in_line(&file);
                state = lock(&lane.state);
                lane.stats.queued();
                state.queued(&file, &lane.path, got.is_ok());
            }
            Errand::Sleep(until) => {
                let now = Instant::now();
                let since = *idle_since.get_or_insert(now);
                let wait = match until {
                    Some(until) => until.saturating_duration_since(now),
                    None if now.saturating_duration_since(since) >= IDLE => {
                        state.agent = false;
                        return;
                    }
                    None => IDLE,
                };
                let (back, ended) =
                    lane.errands.wait_timeout(state, wait).unwrap_or_else(std::sync::PoisonError::into_inner);
                state = back;
                if until.is_some() || !ended.timed_out() {
                    idle_since = None;
                }
            }
        }
    }
}

/// Go through the turnstile, waiting as long as it takes.
fn stand_in_line(file: &LaneFile) -> io::Result<()> {
    if file.try_turnstile()? {
        return Ok(());
    }
    // The queue's lock is free for the moment in which the first who waits for it wakes up. Who comes in that moment,
    // as a rule the one that just gave the front up, would get before all who wait: so it comes a little later.
    thread::sleep(WAKING);
    wait_for(file, QUEUE)?;
    let front = wait_for(file, FRONT);
    file.unlock(QUEUE);
    front
}

fn wait_for(file: &LaneFile, byte: i64) -> io::Result<()> {
    match file.lock(byte) {
        // Two processes, two lanes, each with a thread that waits for the other's: the kernel sees a circle, since it
        // sees processes, and not that the threads that hold go on.
        Err(error) if error.raw_os_error() == Some(libc::EDEADLK) => {
            while !file.try_lock(byte)? {
                thread::sleep(POLL);
            }
            Ok(())
        }
        other => other,
    }
}
