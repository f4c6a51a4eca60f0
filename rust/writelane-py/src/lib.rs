//! The Python face of the core: signature, detach, convert, map the error. No logic.

mod checkpoints;
mod database;
mod dbapi;
mod errors;
mod filesystem;
mod interpreter;
mod outside;
mod recovery;
mod telemetry;

use pyo3::prelude::*;

/// Return a new UUID of version 7 as text; later ones of a process sort after earlier ones.
#[pyfunction]
fn uuid7() -> String {
    writelane_core::uuid::uuid7()
}

/// The native part of writelane.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("sqlite_version", writelane_core::sqlite::version())?;
    checkpoints::register(module)?;
    dbapi::register(module)?;
    database::register(module)?;
    filesystem::register(module)?;
    telemetry::register(module)?;
    module.add_function(wrap_pyfunction!(outside::look, module)?)?;
    module.add_function(wrap_pyfunction!(uuid7, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::announce_exit, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::stay_awake, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::begin_exit, module)?)?;
    module.add_function(wrap_pyfunction!(interpreter::cancel_exit, module)?)?;
    recovery::register(module)?;
    // Nobody imports `*` from here, and the stub would have to repeat every name.
    module.delattr("__all__")
}
