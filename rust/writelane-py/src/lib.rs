//! The Python face of the core: signature, detach, convert, map the error. No logic.

mod dbapi;
mod errors;
mod filesystem;

use pyo3::prelude::*;

/// The native part of writelane.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("sqlite_version", writelane_core::sqlite::version())?;
    dbapi::register(module)?;
    filesystem::register(module)?;
    // Nobody imports `*` from here, and the stub would have to repeat every name.
    module.delattr("__all__")
}
