//! `writelane.Database` and what it gives, over `writelane_core::database`.

mod completions;
mod failure;
mod handle;
mod outcome;
mod parameters;
mod ticket;
mod transaction;

use pyo3::prelude::*;

/// Add this part to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<handle::Database>()?;
    module.add_class::<outcome::Result_>()?;
    module.add_class::<ticket::Ticket>()?;
    module.add_class::<completions::Completions>()?;
    module.add_class::<transaction::Transaction>()?;
    module.add_class::<parameters::Earlier>()?;
    module.add_function(wrap_pyfunction!(handle::close_all, module)?)?;
    Ok(())
}
