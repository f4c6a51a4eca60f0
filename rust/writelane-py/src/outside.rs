//! A database as a bystander sees it, over `writelane_core::lane::outside`.

use crate::errors;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use writelane_core::lane::Holder;
use writelane_core::lane::outside::{self, Waiter};

/// Look at a database: who holds its write lock, who waits, who has it open. Opens neither it, nor its log, nor its
/// shared memory, and takes no lock. Some 200 us.
#[pyfunction]
#[pyo3(signature = (path, /))]
pub fn look(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let view = py.detach(|| outside::look(&path));
    let described = PyDict::new(py);
    described.set_item("holder", holder(py, &view.holder)?)?;
    described.set_item("locked", locked(&view.holder))?;
    let waiters = PyList::empty(py);
    for waiting in &view.waiters {
        waiters.append(waiter(py, waiting)?)?;
    }
    described.set_item("waiters", waiters)?;
    described.set_item("members", view.members)?;
    described.set_item("foreign", view.foreign)?;
    described.set_item("foreign_readers", view.foreign_readers)?;
    described.set_item("foreign_checkpoint", view.foreign_checkpoint)?;
    described.set_item("checkpointing", view.checkpointing)?;
    described.set_item("trouble", view.trouble)?;
    Ok(described)
}

/// Say whether the lock is held: true, false, or `None` where that cannot be told.
fn locked(holder: &Holder) -> Option<bool> {
    match holder {
        Holder::Nobody => Some(false),
        Holder::Process { .. } | Holder::Elsewhere { .. } => Some(true),
        Holder::Unknown => None,
    }
}

fn holder<'py>(py: Python<'py>, holder: &Holder) -> PyResult<Option<Bound<'py, PyDict>>> {
    if let Holder::Elsewhere { command, statement, held } = holder {
        let described = PyDict::new(py);
        described.set_item("pid", py.None())?;
        described.set_item("command", command)?;
        described.set_item("statement", statement)?;
        described.set_item("seconds", held.map(|held| held.as_secs_f64()))?;
        described.set_item("stopped", false)?;
        return Ok(Some(described));
    }
    errors::holder(py, holder)
}

fn waiter<'py>(py: Python<'py>, waiter: &Waiter) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    described.set_item("pid", waiter.pid)?;
    described.set_item("command", &waiter.command)?;
    described.set_item("statement", &waiter.statement)?;
    described.set_item("seconds", waiter.waited.as_secs_f64())?;
    described.set_item("threads", waiter.threads)?;
    described.set_item("in_front", waiter.in_front)?;
    described.set_item("stopped", waiter.stopped)?;
    Ok(described)
}
