//! Jobs that are answered, on their way back to those who made them.
//!
//! Memory is best freed by the thread that allocates it: an allocator keeps it at hand for that thread, and two that
//! allocate and free in each other's share wait for each other at each job. A caller that streams jobs frees those before.

#![expect(clippy::vec_box, reason = "jobs are boxed from their callers on, and are given back as they are")]

use crate::job::Job;
use crate::queue::Item;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A job with more memory is freed where it is.
const BYTES_MAX: usize = 2048;

/// The jobs of one group at most, until the next caller comes.
#[derive(Default)]
pub(super) struct Spent {
    jobs: Mutex<Vec<Box<Job>>>,
    any: AtomicBool,
}

impl Spent {
    /// Leave answered jobs for the next caller. Those that are there still are enough.
    pub(super) fn leave(&self, mut jobs: Vec<Box<Job>>) {
        if !self.any.load(Ordering::Acquire) {
            jobs.retain(|job| job.bytes() <= BYTES_MAX);
            *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
            self.any.store(true, Ordering::Release);
        }
    }

    /// Free what is there.
    #[inline]
    pub(super) fn free(&self) {
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::AcqRel) {
            let jobs = std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner));
            drop(jobs);
        }
    }
}
