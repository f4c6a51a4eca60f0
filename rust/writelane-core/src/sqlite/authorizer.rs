//! What a statement is about to do, as SQLite tells it while it prepares the statement.

use super::handle::Handle;
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

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

/// What a statement is about to do.
///
/// What the two arguments mean depends on the code: <https://www.sqlite.org/c3ref/c_alter_table.html>.
#[derive(Clone, Copy, Debug)]
pub struct Action<'a> {
    /// `SQLITE_INSERT`, `SQLITE_READ` and so on.
    pub code: c_int,
    /// The first argument.
    pub first: Option<&'a CStr>,
    /// The second argument.
    pub second: Option<&'a CStr>,
    /// The database: `main`, `temp`, or the name it is attached by.
    pub schema: Option<&'a CStr>,
    /// The innermost trigger or view that the action is for.
    pub trigger: Option<&'a CStr>,
}

type Callback = dyn Fn(&Action<'_>) -> c_int + Send + Sync;

/// An authorizer on a handle, taken off when dropped.
pub struct Authorizer {
    handle: Arc<Handle>,
    _callback: Box<Arc<Callback>>,
}

impl Authorizer {
    /// Have `callback` asked, with the code and the two arguments, about every action of every statement prepared on
    /// `handle` from now on.
    pub fn install(
        handle: &Arc<Handle>,
        callback: impl FnMut(c_int, Option<&CStr>, Option<&CStr>) -> Authorization + Send + 'static,
    ) -> Self {
        let callback = Mutex::new(callback);
        Self::install_raw(handle, move |action| match callback.try_lock() {
            Ok(mut callback) => callback(action.code, action.first, action.second) as c_int,
            // Asked from inside its own answer, which nothing of ours does.
            Err(_) => ffi::SQLITE_DENY,
        })
    }

    /// As [`Authorizer::install`], for a callback that is told everything, may be asked from inside its own answer,
    /// and answers with a number.
    pub fn install_raw(handle: &Arc<Handle>, callback: impl Fn(&Action<'_>) -> i32 + Send + Sync + 'static) -> Self {
        let callback: Box<Arc<Callback>> = Box::new(Arc::new(callback));
        let user_data: *const Arc<Callback> = &*callback;
        // SAFETY: `user_data` points into the box that this object keeps until the authorizer is off.
        unsafe { ffi::sqlite3_set_authorizer(handle.as_ptr(), Some(trampoline), user_data.cast_mut().cast()) };
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
    code: c_int,
    first: *const c_char,
    second: *const c_char,
    schema: *const c_char,
    trigger: *const c_char,
) -> c_int {
    #[cfg(test)]
    if super::faults::is_rolling_back() {
        return Authorization::Allow as c_int;
    }
    // SAFETY: set by `install_raw`, alive until `Drop`; cloned, since the callback may take itself off.
    let callback = unsafe { Arc::clone(&*user_data.cast::<Arc<Callback>>()) };
    // SAFETY: SQLite passes NUL-terminated strings or null.
    let text = |pointer: *const c_char| (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
    let action =
        Action { code, first: text(first), second: text(second), schema: text(schema), trigger: text(trigger) };
    // A panic must not unwind into C.
    catch_unwind(AssertUnwindSafe(|| callback(&action))).unwrap_or(ffi::SQLITE_DENY)
}
