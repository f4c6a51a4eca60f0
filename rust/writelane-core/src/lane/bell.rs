//! How the process that gives the front up wakes the one that is next, without a thread of the kernel's choice between.
//!
//! The word lies on the board of the one who waits. It wakes and says nothing: whoever is woken looks at the locks. So a
//! ring that is lost, or one too many, costs time and nothing else.

use super::board::{self, Memory};
use super::slot::Record;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the bell of another process is taken for its own: its board may be another by then. A look for it costs as
/// much as some turns.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// The bell of a process: this one's, or another's.
#[derive(Clone)]
pub struct Bell(Arc<Memory>);

impl Bell {
    /// Make the bell that lies in this memory.
    pub fn on(memory: &Arc<Memory>) -> Self {
        Self(Arc::clone(memory))
    }

    fn word(&self) -> &AtomicU32 {
        self.0.bell()
    }

    /// Return how often it was rung, to be read before one looks for what one would be woken for.
    pub fn heard(&self) -> u32 {
        self.word().load(Ordering::SeqCst)
    }

    /// Wake who waits.
    pub fn ring(&self) {
        self.word().fetch_add(1, Ordering::SeqCst);
        self.futex(libc::FUTEX_WAKE, 1, None);
    }

    /// Wait until it is rung, unless it was since `heard`, for at most `time`. May come back early.
    pub fn wait(&self, heard: u32, time: Duration) {
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
        };
        self.futex(libc::FUTEX_WAIT, heard, Some(&time));
    }

    /// Call the kernel; what it says is of no use, since whoever comes back looks at the locks anyway.
    fn futex(&self, command: i32, value: u32, time: Option<&libc::timespec>) {
        let time = time.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word lies in memory that is mapped for as long as `self` lives, and the time outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, self.word().as_ptr(), command, value, time) };
    }
}

/// The bells of other processes.
#[derive(Default)]
pub struct Bells {
    known: HashMap<u32, (Instant, Option<Bell>)>,
}

impl Bells {
    /// Wake the process `pid`, if it has a bell that this one can reach. `records` reads what the lane file says.
    pub fn ring(&mut self, pid: u32, now: Instant, records: impl FnOnce() -> Vec<Record>) {
        let fresh = |since: &Instant| now.saturating_duration_since(*since) < KNOWN_FOR;
        if !self.known.get(&pid).is_some_and(|(since, _)| fresh(since)) {
            self.known.retain(|_, (since, _)| fresh(since));
            let record = records().into_iter().find(|record| record.pid == pid);
            let bell = record.and_then(|record| board::share(&record)).map(|memory| Bell(Arc::new(memory)));
            self.known.insert(pid, (now, bell));
        }
        if let Some((_, Some(bell))) = self.known.get(&pid) {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Board;
    use super::*;

    #[test]
    fn who_waits_is_woken() {
        let board = Board::new().unwrap();
        let bell = Bell::on(board.memory());
        let heard = bell.heard();
        let waiter = std::thread::spawn({
            let bell = bell.clone();
            move || {
                while bell.heard() == heard {
                    bell.wait(heard, Duration::from_secs(60));
                }
            }
        });
        bell.ring();
        waiter.join().unwrap();
    }

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let board = Board::new().unwrap();
        let bell = Bell::on(board.memory());
        let heard = bell.heard();
        bell.ring();
        // Would not come back within the time of the test otherwise.
        bell.wait(heard, Duration::from_secs(3600));
        assert_ne!(bell.heard(), heard);
    }
}
