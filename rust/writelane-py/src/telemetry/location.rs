//! Where in the application's code a transaction was begun.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use std::sync::Arc;

/// Return file and line of the application's frame that is running; `None` where there is none.
pub fn of_caller(py: Python<'_>) -> Option<Arc<str>> {
    static CALLER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let caller = CALLER
        .get_or_try_init(py, || py.import("writelane.location")?.getattr("caller").map(Bound::unbind))
        .and_then(|caller| caller.call0(py));
    let text = caller.ok()?;
    let text = text.bind(py).cast::<PyString>().ok()?;
    text.to_str().ok().map(Into::into)
}
