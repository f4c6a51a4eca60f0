//! `writelane_core::filesystem` for Python.

use pyo3::prelude::*;
use std::path::PathBuf;
use writelane_core::filesystem::{self, Judgement};

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
    let judgement = py.detach(|| filesystem::judge(&path))?;
    Ok(Filesystem { judgement })
}

/// Add what this file has to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Filesystem>()?;
    module.add_function(wrap_pyfunction!(judge_filesystem, module)?)
}
