//! `writelane_core::recovery` for Python.

use crate::errors;
use crate::interpreter::detach;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use writelane_core::recovery::{self, Image, RecoveryError, Report, Source};

/// Between two calls of the progress function, and looks for signals.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Recover every readable row of a damaged database into a new one.
#[pyfunction]
#[pyo3(signature = (database, wal, journal, output, *, deleted=false, progress=None))]
fn recover<'py>(
    py: Python<'py>,
    database: PathBuf,
    wal: Option<PathBuf>,
    journal: Option<PathBuf>,
    output: PathBuf,
    deleted: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let open = |path: &Path| Source::file(File::open(path)?);
    let image =
        Image::new(open(&database)?, wal.as_deref().map(open).transpose()?, journal.as_deref().map(open).transpose()?);
    let mut raised = None;
    let mut last = Instant::now();
    let done = detach(py, || {
        recovery::recover(&image, &output, deleted, &mut |what, done, total| {
            if last.elapsed() < REPORT_EVERY {
                return true;
            }
            last = Instant::now();
            let told = Python::attach(|py| {
                py.check_signals()?;
                progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (what, done, total)).map(|_| ()))
            });
            raised = told.err();
            raised.is_none()
        })
    });
    match (done, raised) {
        (_, Some(error)) => Err(error),
        (Ok(report), None) => to_dict(py, &report),
        (Err(RecoveryError::Output(error)), None) => Err(errors::from_sqlite(py, &error)),
        (Err(error), None) => {
            let class = errors::class(py, "DatabaseError")?;
            Err(PyErr::from_value(class.call1((error.to_string(),))?))
        }
    }
}

fn to_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let tables = PyList::empty(py);
    for table in &report.tables {
        let entry = PyDict::new(py);
        entry.set_item("name", &table.name)?;
        entry.set_item("rows", table.rows)?;
        entry.set_item("whole", table.is_whole())?;
        entry.set_item("refused", table.refused)?;
        entry.set_item("lost_pages", table.lost_pages)?;
        entry.set_item("lost_cells", table.lost_cells)?;
        entry.set_item("adopted_pages", table.adopted_pages)?;
        entry.set_item("lost_rowids", &table.lost_rowids)?;
        entry.set_item("error", &table.error)?;
        tables.append(entry)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("tables", tables)?;
    dict.set_item("lost_and_found", &report.lost_and_found)?;
    dict.set_item("lost_and_found_rows", report.lost_and_found_rows)?;
    dict.set_item("not_made", &report.not_made)?;
    dict.set_item("schema_whole", report.schema_whole)?;
    dict.set_item("free_list_whole", report.free_list_whole)?;
    dict.set_item("page_size", report.page_size)?;
    dict.set_item("pages", report.pages)?;
    dict.set_item("notes", &report.notes)?;
    Ok(dict)
}

/// Add what this file has to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(recover, module)?)
}
