//! Answers on their way from the writer thread, which never attaches, to a thread of Python.

use pyo3::prelude::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use writelane_core::ticket::Listener;

struct Inbox {
    tokens: Mutex<Vec<u64>>,
    bell: File,
}

impl Listener for Inbox {
    fn completed(&self, token: u64) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }

    fn flush(&self) {
        // An eventfd refuses only when its counter would overflow, and then the reader is awake anyway.
        let _ = (&self.bell).write(&1_u64.to_ne_bytes());
    }
}

/// A file descriptor that becomes readable when jobs are answered, and the numbers of those jobs.
///
/// One wake-up serves a whole group of jobs.
#[pyclass(frozen, module = "writelane._native")]
pub struct Completions {
    inbox: Arc<Inbox>,
}

impl Completions {
    pub fn listener(&self) -> Arc<dyn Listener> {
        Arc::clone(&self.inbox) as Arc<dyn Listener>
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        // SAFETY: no pointers; the result is looked at.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a new descriptor that nobody else knows.
        let bell = unsafe { File::from_raw_fd(descriptor) };
        Ok(Self { inbox: Arc::new(Inbox { tokens: Mutex::default(), bell }) })
    }

    /// Return the descriptor, for `select` and its kin.
    fn fileno(&self) -> i32 {
        self.inbox.bell.as_raw_fd()
    }

    /// Make the descriptor readable though nothing was answered.
    fn wake(&self) {
        self.inbox.flush();
    }

    /// Return the numbers of the jobs answered since the last call.
    fn drain(&self) -> Vec<u64> {
        // First the bell, then the numbers: one that comes in between rings again.
        let mut counter = [0_u8; 8];
        let _ = (&self.inbox.bell).read(&mut counter);
        std::mem::take(&mut *self.inbox.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
