//! The claim on the answer of a submitted job.

use super::completions::Completions;
use super::failure;
use super::handle::patience;
use super::outcome::{Result_, list};
use crate::interpreter::detach;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use writelane_core::database::{Database, Pending};
use writelane_core::error::Error;
use writelane_core::job::Answer;
use writelane_core::ticket::State;

/// What the answer of a job is made into.
#[derive(Clone, Copy)]
pub enum Shape {
    /// One result.
    One,
    /// A list of results.
    List,
}

/// The claim on the answer of one submitted job.
#[pyclass(frozen, module = "writelane._native")]
pub struct Ticket {
    database: Arc<Database>,
    pending: Pending,
    shape: Shape,
    answer: Mutex<Option<Answer>>,
}

impl Ticket {
    pub fn new(database: Arc<Database>, pending: Pending, shape: Shape) -> Self {
        Self { database, pending, shape, answer: Mutex::new(None) }
    }

    /// In a forked child the answer never comes, and its mutex may be locked for ever.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.database.is_inherited() { Err(failure::raise(py, &Error::Forked.into())) } else { Ok(()) }
    }
}

#[pymethods]
impl Ticket {
    /// `"queued"`, `"running"`, `"answered"` or `"cancelled"`.
    #[getter]
    fn state(&self) -> &'static str {
        match self.pending.state() {
            State::Parked | State::Queued | State::Refused => "queued",
            State::Running => "running",
            State::Answered => "answered",
            State::Cancelled => "cancelled",
        }
    }

    /// Cancel the job if it has not started; `True` if it will never run.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.check(py)?;
        Ok(detach(py, || self.database.cancel(&self.pending)) || self.pending.state() == State::Cancelled)
    }

    /// Wait up to `timeout` seconds (`None`: without end) and return whether the job is answered or cancelled.
    ///
    /// Ctrl-C ends the wait, not the job.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.check(py)?;
        if !self.pending.is_settled() {
            self.database.refuse_own_transaction(None).map_err(|error| failure::raise(py, &error.into()))?;
        }
        match patience(py, timeout, |patience| self.pending.wait(patience))? {
            Ok(()) => Ok(true),
            Err(writelane_core::wait::GaveUp::TimedOut) => Ok(false),
            Err(writelane_core::wait::GaveUp::Interrupted) => Err(failure::raise(py, &Error::Interrupted.into())),
        }
    }

    /// Return the result of an answered job, or raise its error.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check(py)?;
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if answer.is_none() {
            *answer = self.pending.take();
        }
        let answer = match &*answer {
            Some(Ok(outcome)) => Ok(outcome.clone()),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(Box::new(Error::Cancelled.into())),
        };
        match (answer, self.shape) {
            (Ok(outcome), Shape::One) => Ok(Bound::new(py, Result_::of(outcome))?.into_any()),
            (Ok(outcome), Shape::List) => Ok(list(py, outcome)?.into_any()),
            (Err(failure), _) => Err(failure::raise(py, &failure)),
        }
    }

    /// Have `completions` told, under the number `token`, when the job is answered or cancelled.
    fn notify(&self, py: Python<'_>, completions: &Completions, token: u64) -> PyResult<()> {
        self.check(py)?;
        let listener = completions.listener();
        detach(py, || self.pending.listen(listener, token));
        Ok(())
    }
}
