//! What a statement is about to do, as SQLite tells it while it prepares the statement.

use super::handle::Handle;
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The answer of an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Authorization {
    /// Go on.
    Allow = ffi::SQLITE_OK,
    /// Refuse to prepare the statement.
    Deny = ffi::SQLITE_DENY,
    /// Read NULL, or skip the action.
    Ignore = ffi::SQLITE_IGNORE,
}

type Callback = dyn FnMut(c_int, Option<&CStr>, Option<&CStr>) -> Authorization + Send;

/// An authorizer on a handle, taken off when dropped.
///
/// The callback gets the action code and its two arguments (<https://www.sqlite.org/c3ref/c_alter_table.html>).
pub struct Authorizer {
    handle: Arc<Handle>,
    _callback: Box<Box<Callback>>,
}

impl Authorizer {
    /// Have `callback` asked about every action of every statement prepared on `handle` from now on.
    pub fn install(
        handle: &Arc<Handle>,
        callback: impl FnMut(c_int, Option<&CStr>, Option<&CStr>) -> Authorization + Send + 'static,
    ) -> Self {
        let mut callback: Box<Box<Callback>> = Box::new(Box::new(callback));
        let user_data: *mut Box<Callback> = &mut *callback;
        // SAFETY: `user_data` points into the box that this object keeps until the authorizer is off.
        unsafe { ffi::sqlite3_set_authorizer(handle.as_ptr(), Some(trampoline), user_data.cast()) };
        Self { handle: Arc::clone(handle), _callback: callback }
    }
}

impl Drop for Authorizer {
    fn drop(&mut self) {
        if !self.handle.is_inherited() {
            // SAFETY: the handle is open; after this SQLite calls the trampoline no more.
            unsafe { ffi::sqlite3_set_authorizer(self.handle.as_ptr(), None, std::ptr::null_mut()) };
        }
    }
}

unsafe extern "C" fn trampoline(
    user_data: *mut c_void,
    action: c_int,
    first: *const c_char,
    second: *const c_char,
    _schema: *const c_char,
    _trigger: *const c_char,
) -> c_int {
    // SAFETY: set by `install`, alive until `Drop`; SQLite calls it from the one thread that prepares.
    let callback = unsafe { &mut *user_data.cast::<Box<Callback>>() };
    // SAFETY: SQLite passes NUL-terminated strings or null.
    let text = |pointer: *const c_char| (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
    // A panic must not unwind into C.
    catch_unwind(AssertUnwindSafe(|| callback(action, text(first), text(second)))).unwrap_or(Authorization::Deny)
        as c_int
}
