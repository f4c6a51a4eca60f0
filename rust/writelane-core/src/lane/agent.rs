//! The threads that wait in the kernel, so that a caller can have a deadline and be interrupted.

use super::file::{Blocker, FRONT, LaneFile, WAITING};
use super::state::Errand;
use super::{Lane, lock};
use crate::holder::process;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long an agent without work stays, so that a lane in use does not start a thread for every wait.
pub const IDLE: Duration = Duration::from_secs(2);

/// How often the front is asked for where the kernel refuses to wait for it.
const POLL: Duration = Duration::from_millis(1);

/// A lock that comes within this time was not waited for.
const AT_ONCE: Duration = Duration::from_micros(5);
/// How often a front that came at once is given back to those who wait.
const GIVEN_BACK_MAX: u32 = 3;

/// How often it is looked whether the one that the kernel has woken for the front has it.
const WAKING: Duration = Duration::from_micros(100);
/// How often at most: it may have been killed, or be stopped.
const WAKING_LOOKS: u32 = 20;

/// Do the lane's errands until there are none for a while.
pub fn run(lane: &Arc<Lane>) {
    let mut idle_since = None;
    let mut state = lock(&lane.state);
    loop {
        match state.errand(&lane.path) {
            Errand::Queue { file, pressed } => {
                idle_since = None;
                drop(state);
                let got = stand_in_line(&file, pressed);
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

/// Get the front, waiting as long as it takes.
fn stand_in_line(file: &LaneFile, pressed: bool) -> io::Result<()> {
    for _ in 0..GIVEN_BACK_MAX {
        let asked = enter_line(file, pressed)?;
        if asked.elapsed() >= AT_ONCE || !is_somebody_awake(file) {
            return Ok(());
        }
        // It was on its way to another. Who does not find it when it wakes goes to the end of the line, and all behind it
        // are woken to follow.
        file.unlock(FRONT);
    }
    enter_line(file, pressed).map(drop)
}

/// Go behind those who wait for the front, and return with it; when it was asked for.
fn enter_line(file: &LaneFile, pressed: bool) -> io::Result<Instant> {
    let_the_woken_go_first(file);
    // Without it, others may get before this process: no reason not to stand in line.
    let _ = file.announce(pressed);
    let asked = Instant::now();
    let front = wait_for_front(file);
    file.announce_end();
    front.map(|()| asked)
}

/// Wait a little where somebody was woken for the front and does not have it yet.
///
/// That takes long where there are many processes for few processors. Who comes in that time, as a rule the one that
/// just gave the front up, would get before all who wait. Those who are here have not announced themselves, or they
/// would wait for each other.
fn let_the_woken_go_first(file: &LaneFile) {
    for _ in 0..WAKING_LOOKS {
        if file.blocker(FRONT, 1).is_some() || !is_somebody_awake(file) {
            return;
        }
        thread::sleep(WAKING);
    }
}

/// Say whether another process waits for the front. A stopped one does not wake up when it gets it.
fn is_somebody_awake(file: &LaneFile) -> bool {
    match file.blocker(WAITING, 1) {
        Some(Blocker { pid: Some(pid) }) => !process::is_stopped(pid),
        Some(Blocker { pid: None }) => true,
        None => false,
    }
}

fn wait_for_front(file: &LaneFile) -> io::Result<()> {
    match file.lock(FRONT) {
        // Two processes, two lanes, each with a thread that waits for the other's: the kernel sees a circle, since it
        // sees processes, and not that the threads that hold go on.
        Err(error) if error.raw_os_error() == Some(libc::EDEADLK) => {
            while !file.try_lock(FRONT)? {
                thread::sleep(POLL);
            }
            Ok(())
        }
        other => other,
    }
}
