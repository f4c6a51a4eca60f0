//! The counts of one file in this process.

use super::snapshot;
use crate::dbapi::Connection;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use writelane_core::policy::deadline;
use writelane_core::telemetry::Telemetry;

/// What this process has counted of one file, whoever used it: databases and connections alike.
#[pyclass(frozen, module = "writelane._native")]
pub struct FileTelemetry {
    inner: Arc<Telemetry>,
}

impl FileTelemetry {
    pub fn new(inner: &Arc<Telemetry>) -> Self {
        Self { inner: Arc::clone(inner) }
    }
}

fn distribution<'py>(py: Python<'py>, buckets: &[(Duration, u32)]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, buckets.iter().map(|(middle, count)| (middle.as_secs_f64(), *count)))
}

#[pymethods]
impl FileTelemetry {
    #[new]
    fn of(target: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(connection) = target.cast::<Connection>() {
            let core = connection.get().check_open(target.py())?;
            return match core.telemetry() {
                Some(telemetry) => Ok(Self::new(telemetry)),
                None => Err(PyValueError::new_err("a database in memory has no telemetry")),
            };
        }
        let path: PathBuf = target.extract()?;
        Ok(Self { inner: Telemetry::of(&path) })
    }

    /// Return the counts of every file of this process, in the order in which they were first opened. Of those that nobody
    /// has open, the latest few are known.
    #[staticmethod]
    fn all() -> Vec<Self> {
        Telemetry::all().into_iter().map(|inner| Self { inner }).collect()
    }

    /// The number that events of this file carry.
    #[getter]
    fn number(&self) -> u64 {
        self.inner.number()
    }

    /// The file, links resolved.
    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.path().to_owned()
    }

    /// Return the counts as nested dictionaries.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot::of_file(py, &self.inner)
    }

    /// Return how each statement's latencies are distributed: pairs of its text and of a list of (seconds, count).
    fn latencies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (sql, buckets) in py.detach(|| self.inner.latencies()) {
            list.append((&*sql, distribution(py, &buckets)?))?;
        }
        Ok(list)
    }

    /// Return how each phase's times are distributed over all statements: a mapping to lists of (seconds, count).
    fn phases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let phases = PyDict::new(py);
        for (name, buckets) in py.detach(|| self.inner.phases()) {
            phases.set_item(name, distribution(py, &buckets)?)?;
        }
        Ok(phases)
    }

    /// Start the counts again from nothing.
    fn reset(&self) {
        self.inner.reset();
    }

    /// Publish waits and holds of at least so many seconds to `Events`, and what befalls the log, also where they are
    /// infinite; `None`: nothing.
    fn publish_over(&self, seconds: Option<f64>) -> PyResult<()> {
        let over = match seconds {
            None => None,
            Some(seconds) => deadline::from_seconds(seconds)
                .map_err(|_| PyValueError::new_err("a threshold must be a number of seconds, not NaN"))?
                .or(Some(Duration::MAX)),
        };
        self.inner.publish_over(over);
        Ok(())
    }

    /// Publish to `Events` each snapshot that is open for so many seconds, once for each of these numbers.
    fn publish_snapshots_over(&self, seconds: Vec<f64>) -> PyResult<()> {
        let mut overs = Vec::new();
        for seconds in seconds {
            let over = deadline::from_seconds(seconds)
                .map_err(|_| PyValueError::new_err("a threshold must be a number of seconds, not NaN"))?;
            // Without end: never.
            overs.extend(over);
        }
        self.inner.publish_snapshots_over(overs);
        Ok(())
    }

    /// Whether anything is counted.
    #[getter]
    fn get_on(&self) -> bool {
        self.inner.is_on()
    }

    #[setter]
    fn set_on(&self, on: bool) {
        self.inner.set_on(on);
    }
}
