//! The safe face of SQLite's C API: a handle, a statement, a value, an error.
//!
//! rusqlite's own `Statement<'conn>` borrows its connection, so it can be kept neither in a cache that moves
//! between threads nor in a Python cursor. These types own what they point to instead, and are as thin as
//! that allows; rusqlite brings the bundled library and its bindings.

mod authorizer;
mod blob;
mod builtins;
mod busy;
mod cache;
mod cells;
mod codes;
mod copy;
#[cfg(test)]
pub mod faults;
mod function;
mod handle;
mod hooks;
mod statement;
mod value;

pub use authorizer::{Action, Authorization, Authorizer};
pub use blob::Blob;
pub use busy::BusyHandler;
pub use cache::StatementCache;
pub use cells::Cells;
pub use codes::{code_name, primary};
pub use copy::{Backup, complete_statement, enable_shared_cache};
pub use function::{Aggregate, Arguments, Context};
pub use handle::{Handle, Interrupter, LogPages, OpenFlags, SqliteError};
pub use hooks::{Progress, Trace, Traced};
pub use rusqlite::ffi;
pub use statement::{Statement, Step};
pub use value::{Value, ValueRef};

use std::ffi::CStr;

/// Return the version of the bundled SQLite, for example `"3.54.1"`.
pub fn version() -> &'static str {
    // SAFETY: sqlite3_libversion returns a pointer to a constant, NUL-terminated ASCII string.
    unsafe { CStr::from_ptr(ffi::sqlite3_libversion()) }.to_str().unwrap_or("unknown")
}

/// Return the options the bundled SQLite was compiled with, without their `SQLITE_`.
pub fn compile_options() -> Vec<&'static str> {
    // SAFETY: any number is a valid argument; the result is null past the last option, else a constant string.
    let option = |number| unsafe { ffi::sqlite3_compileoption_get(number) };
    (0..)
        .map(option)
        .take_while(|text| !text.is_null())
        // SAFETY: not null, NUL-terminated, and never freed.
        .filter_map(|text| unsafe { CStr::from_ptr(text) }.to_str().ok())
        .collect()
}

/// Return the version of the bundled SQLite as a number, for example `3_054_001`.
pub fn version_number() -> i32 {
    // SAFETY: no arguments, no state.
    unsafe { ffi::sqlite3_libversion_number() }
}
