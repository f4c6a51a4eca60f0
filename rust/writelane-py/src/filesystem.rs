//! `writelane_core::filesystem` and `writelane_core::ownership` for Python.

use crate::interpreter::detach;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use writelane_core::filesystem::{self, Judgement};
use writelane_core::ownership;

/// What was found about the filesystem under a path.
#[pyclass(frozen, module = "writelane._native")]
pub struct Filesystem {
    judgement: Judgement,
}

#[pymethods]
impl Filesystem {
    #[getter]
    fn verdict(&self) -> &'static str {
        self.judgement.verdict.name()
    }

    #[getter]
    fn refused(&self) -> bool {
        self.judgement.refuses()
    }

    #[getter]
    fn folder(&self) -> PathBuf {
        self.judgement.folder.clone()
    }

    #[getter]
    fn mount_point(&self) -> Option<PathBuf> {
        self.judgement.mount_point.clone()
    }

    #[getter]
    fn fs_type(&self) -> &str {
        &self.judgement.fs_type
    }

    #[getter]
    fn source(&self) -> &str {
        &self.judgement.source
    }

    #[getter]
    fn reason(&self) -> &str {
        &self.judgement.reason
    }

    /// Return the text of the refusal to open a database here.
    fn refusal(&self, database: PathBuf) -> String {
        self.judgement.refusal(&database)
    }

    /// Return the text of the warning to give once, or None.
    fn warning(&self, database: PathBuf) -> Option<String> {
        self.judgement.warning(&database)
    }

    fn __repr__(&self) -> String {
        format!("<Filesystem {} {}>", self.judgement.fs_type, self.judgement.verdict.name())
    }
}

/// Judge the filesystem that the database at a path is on or would be created on.
#[pyfunction]
fn judge_filesystem(py: Python<'_>, path: PathBuf) -> PyResult<Filesystem> {
    let judgement = detach(py, || filesystem::judge(&path))?;
    Ok(Filesystem { judgement })
}

/// Say who owns a database exclusively, as a mapping, or None.
#[pyfunction]
fn database_owner(py: Python<'_>, path: PathBuf) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(seen) = detach(py, || ownership::look(&path))? else { return Ok(None) };
    let found = PyDict::new(py);
    found.set_item("certain", seen.certain)?;
    let owner = seen.owner.as_ref();
    found.set_item("pid", owner.map(|owner| owner.identity.pid))?;
    found.set_item("host", owner.map(|owner| &*owner.identity.host))?;
    found.set_item("since", owner.map(|owner| owner.since))?;
    found.set_item("number", owner.map(|owner| owner.number))?;
    found.set_item("lease", owner.map(|owner| owner.lease.as_secs_f64()))?;
    Ok(Some(found))
}

/// Close the files of databases that no connection of this process uses any more.
#[pyfunction]
fn release_idle_files(py: Python<'_>) {
    detach(py, writelane_core::vfs::release_idle);
}

/// Add what this file has to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Filesystem>()?;
    module.add_function(wrap_pyfunction!(release_idle_files, module)?)?;
    module.add_function(wrap_pyfunction!(database_owner, module)?)?;
    module.add_function(wrap_pyfunction!(judge_filesystem, module)?)
}
