//! Waits, holds, snapshots and pinned logs on their way from whoever measured them to a thread of Python.

use crate::errors;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use writelane_core::telemetry::events::{self, Event, Matter};
use writelane_core::ticket::Listener;

struct Bell(File);

impl Listener for Bell {
    fn completed(&self, _token: u64) {}

    fn flush(&self) {
        // An eventfd refuses only when its counter would overflow, and then the reader is awake anyway.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

/// A file descriptor that becomes readable when something waited or held the lock for longer than somebody asked to
/// hear of, and what that was. One for a process: a new one takes the place of the last.
#[pyclass(frozen, module = "writelane._native")]
pub struct Events {
    bell: Arc<Bell>,
}

#[pymethods]
impl Events {
    #[new]
    fn new() -> PyResult<Self> {
        // SAFETY: no pointers; the result is looked at.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a new descriptor that nobody else knows.
        let bell = Arc::new(Bell(unsafe { File::from_raw_fd(descriptor) }));
        events::listen(Some(Arc::clone(&bell) as Arc<dyn Listener>));
        Ok(Self { bell })
    }

    /// Return the descriptor, for `select` and its kin.
    fn fileno(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    /// Make the descriptor readable though nothing happened.
    fn wake(&self) {
        self.bell.flush();
    }

    /// Take no more events.
    fn close(&self) {
        events::listen(None);
    }

    /// Return what happened since the last call, a list of mappings, and how many more were dropped.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, u64)> {
        // First the bell, then the events: one that comes in between rings again.
        let mut counter = [0_u8; 8];
        let _ = (&self.bell.0).read(&mut counter);
        let (events, dropped) = py.detach(events::fetch);
        let list = PyList::empty(py);
        for event in &events {
            list.append(described(py, event)?)?;
        }
        Ok((list, dropped))
    }
}

fn described<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let waited = &event.account.waited;
    let described = PyDict::new(py);
    let at = event.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    described.set_item("at", at.as_secs_f64())?;
    described.set_item("path", event.path.as_os_str())?;
    described.set_item("file", event.file)?;
    let kind = match event.matter {
        Matter::Wait => "wait",
        Matter::Hold => "hold",
        Matter::Pinned => "pinned",
        Matter::Unpinned => "unpinned",
        Matter::Snapshot => "snapshot",
        Matter::CheckpointFailed => "checkpoint_failed",
        Matter::CheckpointRecovered => "checkpoint_recovered",
    };
    described.set_item("kind", kind)?;
    described.set_item("sql", &*event.statement)?;
    described.set_item("seconds", event.time.as_secs_f64())?;
    let phase = match event.matter {
        Matter::Hold => "hold",
        Matter::Pinned | Matter::Unpinned | Matter::CheckpointFailed | Matter::CheckpointRecovered => "log",
        Matter::Snapshot => "snapshot",
        Matter::Wait if waited.lock >= waited.queue => "lock",
        Matter::Wait => "queue",
    };
    described.set_item("phase", phase)?;
    described.set_item("waited", errors::waited(py, waited)?)?;
    described.set_item("retries", event.account.retries)?;
    described.set_item("group", event.account.group)?;
    let holder = event.account.holder.as_ref().map(|holder| errors::holder(py, holder)).transpose()?.flatten();
    described.set_item("holder", holder)?;
    let held_by = PyList::empty(py);
    for (holder, time) in event.account.held_by() {
        held_by.append(super::snapshot::share(py, holder, time)?)?;
    }
    described.set_item("held_by", held_by)?;
    described.set_item("error", event.error)?;
    let location = match &event.snapshot {
        Some(open) => super::location::of_snapshot(py, open),
        None => event.location.clone(),
    };
    described.set_item("location", location.as_deref())?;
    let told = event.snapshot.as_ref().and_then(|open| open.told);
    described.set_item("told", told.map(|age| age.as_secs_f64()))?;
    let episode = event.episode.as_ref().map(|episode| {
        let pinned = super::snapshot::episode(py, episode)?;
        pinned.set_item("since", at.saturating_sub(event.time).as_secs_f64())?;
        Ok::<_, PyErr>(pinned)
    });
    described.set_item("pinned", episode.transpose()?)?;
    Ok(described)
}
