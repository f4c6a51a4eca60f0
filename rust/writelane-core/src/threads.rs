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
