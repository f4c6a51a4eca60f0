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
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

static MINOR: AtomicU8 = AtomicU8::new(0);
/// The minor version in the upper byte, the patch in the lower.
static PATCH: AtomicU16 = AtomicU16::new(0);

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

/// Say whether the interpreter is one of those that have a change which came with a patch release: `since` has the first
/// such patch of each minor version that got it late, the last of them being the first version that always had it.
pub fn has_patch(py: Python<'_>, since: &[(u8, u8)]) -> bool {
    let known = match PATCH.load(Ordering::Relaxed) {
        0 => {
            let version = py.version_info();
            let known = u16::from_be_bytes([version.minor, version.patch]);
            PATCH.store(known, Ordering::Relaxed);
            known
        }
        known => known,
    };
    let [minor, patch] = known.to_be_bytes();
    let is_later = since.last().is_some_and(|(last, _)| minor > *last);
    is_later || since.iter().any(|(in_minor, from)| minor == *in_minor && patch >= *from)
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
