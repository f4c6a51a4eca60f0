//! What was measured, as Python sees it, over `writelane_core::telemetry`.

mod events;
mod file;
pub mod location;
pub mod snapshot;

use pyo3::prelude::*;

pub use file::FileTelemetry;

/// Add this part to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<file::FileTelemetry>()?;
    module.add_class::<events::Events>()?;
    Ok(())
}
