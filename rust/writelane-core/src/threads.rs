//! Threads of our own.

use std::{io, thread};

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

/// Wait until this holds, which another thread brings about.
#[cfg(test)]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < until, "{what}");
        thread::yield_now();
    }
}

/// Return the kernel's number of the calling thread.
#[cfg(test)]
pub fn number() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Say whether the thread of this process with this number sleeps.
#[cfg(test)]
pub fn sleeps(number: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}
