//! An interactive transaction.

use super::failure;
use super::handle::patience;
use super::outcome::Result_;
use super::parameters;
use crate::interpreter::detach;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use writelane_core::error::Error;
use writelane_core::job::{Account, Call, Parameters};
use writelane_core::writer::lease::Lease;

/// An open write transaction: it holds the lane and the lock until it is committed or rolled back.
#[pyclass(frozen, module = "writelane")]
pub struct Transaction {
    lease: Mutex<Option<Box<Lease>>>,
    deadline: Option<f64>,
}

impl Transaction {
    pub fn new(lease: Box<Lease>, deadline: Option<f64>) -> Self {
        Self { lease: Mutex::new(Some(lease)), deadline }
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
        let (effect, account) = self.with(py, move |lease| {
            let started = std::time::Instant::now();
            let effect = lease.run(&call)?;
            let mut account = Account { group: 1, ..Account::default() };
            account.waited.run = started.elapsed();
            Ok((effect, account))
        })?;
        Ok(Result_::new(effect, account))
    }

    /// Run one statement for every row of parameters, all or none, and return its result.
    #[pyo3(signature = (sql, rows, /))]
    fn executemany(&self, py: Python<'_>, sql: &str, rows: &Bound<'_, PyAny>) -> PyResult<Result_> {
        let rows =
            rows.try_iter()?.map(|row| parameters::from_python(Some(&row?))).collect::<PyResult<Vec<Parameters>>>()?;
        let sql = sql.into();
        let effect = self.with(py, move |lease| lease.run_many(&sql, &rows))?;
        Ok(Result_::new(effect, Account::default()))
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
            Some(lease) => lease.commit(patience).map(|_| ()),
            None => Err(ended()),
        })?;
        result.map_err(|failure| failure::raise(py, &failure))
    }

    /// Roll back and give the lane up. Harmless when the transaction has ended.
    fn rollback(&self, py: Python<'_>) {
        detach(py, || {
            if let Some(lease) = self.take() {
                lease.rollback();
            }
        });
    }

    /// Whether the transaction is open.
    #[getter]
    fn active(&self) -> bool {
        self.lease.try_lock().map_or(true, |lease| lease.is_some())
    }
}
