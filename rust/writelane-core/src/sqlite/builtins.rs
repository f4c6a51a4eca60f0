//! The SQL functions that every handle of ours has.

use super::handle::{Handle, SqliteError};
use rusqlite::ffi;
use std::os::raw::c_int;
use std::panic::catch_unwind;
use std::ptr;

/// Add our functions to a handle: `uuid7()`.
///
/// # Errors
/// `SQLITE_NOMEM`.
pub(super) fn register(handle: &Handle) -> Result<(), SqliteError> {
    // Innocuous, so that a DEFAULT or a trigger of a schema that is not trusted may use it. Not deterministic.
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS;
    // SAFETY: the handle is open, the name is NUL-terminated, the function needs no user data and no destructor.
    let code = unsafe {
        ffi::sqlite3_create_function_v2(
            handle.as_ptr(),
            c"uuid7".as_ptr(),
            0,
            flags,
            ptr::null_mut(),
            Some(uuid7),
            None,
            None,
            None,
        )
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(handle.error(code)) }
}

unsafe extern "C" fn uuid7(context: *mut ffi::sqlite3_context, _count: c_int, _values: *mut *mut ffi::sqlite3_value) {
    // A panic must not unwind into C.
    match catch_unwind(crate::uuid::uuid7) {
        // SAFETY: SQLite gives a valid context; SQLITE_TRANSIENT has it copy the 36 bytes before this returns.
        Ok(text) => unsafe {
            ffi::sqlite3_result_text(context, text.as_ptr().cast(), text.len() as c_int, ffi::SQLITE_TRANSIENT());
        },
        // SAFETY: as above.
        Err(_) => unsafe { ffi::sqlite3_result_error_code(context, ffi::SQLITE_INTERNAL) },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OpenFlags, Statement, Step, ValueRef};
    use super::*;

    #[test]
    fn a_schema_may_use_uuid7_for_its_defaults() {
        let handle = Handle::open_name(b":memory:", OpenFlags::WRITER, None).unwrap();
        handle
            .execute_batch(
                "PRAGMA trusted_schema=OFF; CREATE TABLE t(id TEXT PRIMARY KEY DEFAULT (uuid7()), x);
                 INSERT INTO t(x) VALUES (1), (2), (3)",
            )
            .unwrap();
        let sql = "SELECT group_concat(x, '') FROM (SELECT x FROM t WHERE length(id) = 36 ORDER BY id)";
        let (statement, _) = Statement::prepare(&handle, sql.as_bytes(), 0).unwrap();
        let statement = statement.unwrap();
        assert_eq!(statement.step().unwrap(), Step::Row);
        assert!(matches!(statement.column(0), ValueRef::Text(b"123")));
    }
}
