//! An interactive transaction.

use super::failure;
use super::handle::patience;
use super::outcome::Result_;
use super::parameters;
use crate::interpreter::detach;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, OnceLock, PoisonError};
use writelane_core::error::Error;
use writelane_core::job::{Account, Call, Parameters};
use writelane_core::writer::lease::Lease;

/// An open write transaction: it holds the lane and the lock until it is committed or rolled back.
#[pyclass(frozen, module = "writelane")]
pub struct Transaction {
    lease: Mutex<Option<Box<Lease>>>,
    deadline: Option<f64>,
    /// How it fared, once it has ended.
    account: OnceLock<Account>,
}

impl Transaction {
    pub fn new(lease: Box<Lease>, deadline: Option<f64>) -> Self {
        Self { lease: Mutex::new(Some(lease)), deadline, account: OnceLock::new() }
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Lease) -> Result<T, Box<writelane_core::job::Failure>> + Send,
    ) -> PyResult<T> {
        detach(py, || {
            let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
            match lease.as_deref_mut() {
                Some(lease) => run(lease),
                None => Err(ended()),
            }
        })
        .map_err(|failure| failure::raise(py, &failure))
    }

    fn take(&self) -> Option<Box<Lease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn ended() -> Box<writelane_core::job::Failure> {
    Box::new(Error::Usage("the transaction has ended".into()).into())
}

#[pymethods]
impl Transaction {
    /// Run one statement inside the transaction and return its result. Reads see the transaction's own writes.
    #[pyo3(signature = (sql, parameters=None, /))]
    fn execute(&self, py: Python<'_>, sql: &str, parameters: Option<&Bound<'_, PyAny>>) -> PyResult<Result_> {
        let call = Call { sql: sql.into(), parameters: parameters::from_python(parameters)? };
        let (effect, account) = self.with(py, move |lease| lease.run(&call))?;
        Ok(Result_::new(effect, account))
    }

    /// Run one statement for every row of parameters, all or none, and return its result.
    #[pyo3(signature = (sql, rows, /))]
    fn executemany(&self, py: Python<'_>, sql: &str, rows: &Bound<'_, PyAny>) -> PyResult<Result_> {
        let rows =
            rows.try_iter()?.map(|row| parameters::from_python(Some(&row?))).collect::<PyResult<Vec<Parameters>>>()?;
        let sql = sql.into();
        let (effect, account) = self.with(py, move |lease| lease.run_many(&sql, &rows))?;
        Ok(Result_::new(effect, account))
    }

    /// Return the next number of a sequence; it is used up when the transaction commits. See `Database.next_id`.
    #[pyo3(signature = (name, key=None, /))]
    fn next_id<'py>(slf: Bound<'py, Self>, name: &str, key: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("writelane.sequences")?.call_method1("next_in", (slf, name, key))
    }

    /// Commit and give the lane up. Raises why it was not committed; then it is rolled back.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let result = patience(py, self.deadline, |patience| match self.take() {
            Some(lease) => {
                let result = lease.commit(patience);
                let account = result.as_ref().unwrap_or_else(|failure| &failure.account);
                self.account.get_or_init(|| account.clone());
                result.map(drop)
            }
            None => Err(ended()),
        })?;
        result.map_err(|failure| failure::raise(py, &failure))
    }

    /// Roll back and give the lane up. Harmless when the transaction has ended.
    fn rollback(&self, py: Python<'_>) {
        detach(py, || {
            if let Some(lease) = self.take() {
                let account = lease.rollback();
                self.account.get_or_init(|| account);
            }
        });
    }

    /// Where the time of the whole transaction went until now, in seconds: a mapping with `queue` and `lock`, before it
    /// began, `run`, everything since, and `commit`.
    #[getter]
    fn waited<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let account = detach(py, || {
            let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
            lease.as_deref().map(Lease::account).or_else(|| self.account.get().cloned())
        });
        crate::errors::waited(py, &account.unwrap_or_default().waited)
    }

    /// Whether the transaction is open.
    #[getter]
    fn active(&self) -> bool {
        self.lease.try_lock().map_or(true, |lease| lease.is_some())
    }
}
