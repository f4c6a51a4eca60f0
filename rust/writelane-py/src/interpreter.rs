//! Away from the interpreter and back, also while it goes down.
//!
//! A thread that comes back to an interpreter which is going down is ended by it: before 3.14 by an unwinding that
//! aborts the process when it meets frames of Rust. So from the start of the exit on, threads other than the main one
//! do not come back: they sleep until the process ends, as 3.14 itself has them do.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The databases are being closed for the exit.
static CLOSING: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);
/// Threads that have passed the gate and may still wait for the interpreter.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// How long the exit waits for threads that are on their way back.
const RETURN_MAX: Duration = Duration::from_secs(2);

thread_local! {
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Run `work` detached from the interpreter.
pub fn detach<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let result = py.detach(|| {
        let result = work();
        pass_gate();
        result
    });
    RETURNING.fetch_sub(1, Ordering::AcqRel);
    result
}

/// Announce that this thread will attach; sleep for ever if the interpreter is going down.
fn pass_gate() {
    RETURNING.fetch_add(1, Ordering::AcqRel);
    if EXITING.load(Ordering::Acquire) && !is_main_thread() {
        RETURNING.fetch_sub(1, Ordering::AcqRel);
        loop {
            std::thread::park();
        }
    }
}

/// During the exit, keep a daemon thread from raising that its database was closed: nobody could act on it, and the
/// traceback would be all that the program's last words are. The thread sleeps until the process ends.
pub fn rest_if_exiting(py: Python<'_>) {
    if CLOSING.load(Ordering::Acquire) && !is_main_thread() && !EXEMPT.get() {
        py.detach(|| {
            loop {
                std::thread::park();
            }
        });
    }
}

/// Say that the databases of this process are being closed because it exits.
#[pyfunction]
pub fn announce_exit() {
    CLOSING.store(true, Ordering::Release);
}

/// Let this thread of ours see errors also during the exit, which waits for it.
#[pyfunction]
pub fn stay_awake() {
    EXEMPT.set(true);
}

/// Say whether a signal handler raised, which [`raised`] then returns. Asked by a thread that waits, detached.
///
/// Only the main thread runs signal handlers.
pub fn signalled() -> bool {
    if !is_main_thread() {
        return false;
    }
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.with(|slot| *slot.borrow_mut() = Some(raised));
            true
        }
    })
    .unwrap_or(false)
}

/// Return what the signal handler of this thread's last wait raised.
pub fn raised() -> Option<PyErr> {
    RAISED.with(|slot| slot.borrow_mut().take())
}

fn is_main_thread() -> bool {
    // SAFETY: two calls without arguments that cannot fail. The main thread's id is the process's.
    unsafe { libc::gettid() == libc::getpid() }
}

/// From now on no other thread comes back to the interpreter; those on their way are waited for.
#[pyfunction]
pub fn begin_exit(py: Python<'_>) {
    EXITING.store(true, Ordering::Release);
    py.detach(|| {
        let until = Instant::now() + RETURN_MAX;
        while RETURNING.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    });
}

/// Undo [`begin_exit`] in a child that was forked during the exit of its parent.
#[pyfunction]
pub fn cancel_exit() {
    CLOSING.store(false, Ordering::Release);
    EXITING.store(false, Ordering::Release);
    RETURNING.store(0, Ordering::Release);
}
