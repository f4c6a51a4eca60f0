//! The native classes of `writelane.dbapi`.

pub mod adapt;
mod arguments;
mod blob;
mod callback;
mod connection;
mod constants;
mod convert;
mod cursor;
mod extend;
mod row;
pub mod tuple;

pub use connection::Connection;

use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::atomic::{AtomicU8, Ordering};

static MINOR: AtomicU8 = AtomicU8::new(0);

/// Return the interpreter's minor version, 11 for Python 3.11: the interface follows that of its own module.
pub fn minor(py: Python<'_>) -> u8 {
    match MINOR.load(Ordering::Relaxed) {
        0 => {
            let minor = py.version_info().minor;
            MINOR.store(minor, Ordering::Relaxed);
            minor
        }
        minor => minor,
    }
}

/// Add the classes and functions to the native module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<connection::Connection>()?;
    module.add_class::<connection::Statement>()?;
    module.add_class::<cursor::Cursor>()?;
    module.add_class::<row::Row>()?;
    module.add_class::<adapt::PrepareProtocol>()?;
    module.add_class::<blob::Blob>()?;
    module.add_function(wrap_pyfunction!(callback::enable_callback_tracebacks, module)?)?;
    module.add_function(wrap_pyfunction!(extend::connection_waits, module)?)?;
    module.add_function(wrap_pyfunction!(extend::complete_statement, module)?)?;
    module.add_function(wrap_pyfunction!(extend::enable_shared_cache, module)?)?;
    connection::add_exceptions(&module.py().get_type::<connection::Connection>())?;
    take_away_later_names(&module.py().get_type::<connection::Connection>())?;
    constants::register(module)?;
    adapt::register(module)
}

/// Take from the connection class what the running interpreter's own does not have yet.
fn take_away_later_names(class: &Bound<'_, PyType>) -> PyResult<()> {
    const SINCE_3_11: [&str; 6] =
        ["blobopen", "create_window_function", "deserialize", "getlimit", "serialize", "setlimit"];
    const SINCE_3_12: [&str; 3] = ["autocommit", "getconfig", "setconfig"];
    let minor = minor(class.py());
    let later = SINCE_3_11.iter().filter(|_| minor < 11).chain(SINCE_3_12.iter().filter(|_| minor < 12));
    for name in later {
        class.delattr(*name)?;
    }
    Ok(())
}
