//! What a call gave.

use super::failure;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use writelane_core::job::{Account, Effect, Outcome};
use writelane_core::sqlite::Value;

/// The result of one statement.
#[pyclass(frozen, name = "Result", module = "writelane")]
pub struct Result_ {
    effect: Effect,
    account: Account,
    rows: PyOnceLock<Py<PyList>>,
}

impl Result_ {
    pub fn new(effect: Effect, account: Account) -> Self {
        Self { effect, account, rows: PyOnceLock::new() }
    }

    /// Make the result of a job of one statement.
    pub fn of(mut outcome: Outcome) -> Self {
        let effect = if outcome.effects.is_empty() { Effect::default() } else { outcome.effects.swap_remove(0) };
        Self::new(effect, outcome.account)
    }
}

/// Make the results of a job of several statements.
pub fn list(py: Python<'_>, outcome: Outcome) -> PyResult<Bound<'_, PyList>> {
    let account = outcome.account;
    let results = outcome.effects.into_iter().map(|effect| Py::new(py, Result_::new(effect, account.clone())));
    PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl Result_ {
    /// Make the result of a call that gave nothing.
    #[new]
    fn nothing() -> Self {
        Self::new(Effect { rowcount: -1, ..Effect::default() }, Account::default())
    }

    /// The rows, each a tuple; read to the end before the call returned.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = self.rows.get_or_try_init(py, || {
            let rows = self.effect.rows.iter().map(|row| {
                let values = row.iter().map(|value| to_python(py, value)).collect::<PyResult<Vec<_>>>()?;
                PyTuple::new(py, values)
            });
            PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?).map(Bound::unbind)
        })?;
        Ok(rows.bind(py).clone())
    }

    /// Rows inserted, updated or deleted; -1 for a statement that is none of these.
    #[getter]
    fn rowcount(&self) -> i64 {
        self.effect.rowcount
    }

    /// The rowid of the last insert of this statement; `None` if it inserted nothing.
    #[getter]
    fn lastrowid(&self) -> Option<i64> {
        self.effect.lastrowid
    }

    /// The names of the columns of `rows`.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.effect.columns.iter().map(|name| PyString::from_bytes(py, name));
        PyTuple::new(py, names.collect::<PyResult<Vec<_>>>()?)
    }

    /// Where the time went, in seconds: a mapping with `queue`, `lock`, `run` and `commit`.
    #[getter]
    fn waited<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        crate::errors::waited(py, &self.account.waited)
    }

    /// How often the lock was busy, or the transaction was run again.
    #[getter]
    fn retries(&self) -> u32 {
        self.account.retries
    }

    /// How many jobs shared the transaction; 0 for a read.
    #[getter]
    fn group(&self) -> u32 {
        self.account.group
    }

    /// Who held the lock that this call waited for: a mapping with `pid`, `command`, `statement`, `seconds` and
    /// `stopped`; `None` if it did not wait, or it cannot be told.
    #[getter]
    fn holder<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        failure::holder(py, self.account.holder.as_ref())
    }

    fn __repr__(&self) -> String {
        format!(
            "<writelane.Result rows={} rowcount={} waited={:.6}s>",
            self.effect.rows.len(),
            self.effect.rowcount,
            self.account.waited.total().as_secs_f64()
        )
    }
}

fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Integer(integer) => integer.into_bound_py_any(py),
        Value::Real(real) => real.into_bound_py_any(py),
        Value::Text(text) => match PyString::from_bytes(py, text) {
            Ok(text) => Ok(text.into_any()),
            Err(_) => {
                let shown = String::from_utf8_lossy(text);
                let message = format!("Could not decode to UTF-8 text '{shown}'");
                Err(PyErr::from_type(crate::errors::class(py, "OperationalError")?, (message,)))
            }
        },
        Value::Blob(blob) => PyBytes::new(py, blob).into_bound_py_any(py),
    }
}
