//! What to do when SQLite meets somebody else's lock.

use super::handle::Handle;
use rusqlite::ffi;
use std::os::raw::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Callback = dyn FnMut(u32) -> bool + Send;

/// A busy handler on a handle, taken off when dropped.
///
/// SQLite asks it only where waiting can help: never where two connections would wait for each other.
/// Source: <https://www.sqlite.org/c3ref/busy_handler.html>.
pub struct BusyHandler {
    handle: Arc<Handle>,
    _callback: Box<Box<Callback>>,
}

impl BusyHandler {
    /// Have `callback` asked, with the number of earlier questions about the same lock; `true` tries the lock again.
    pub fn install(handle: &Arc<Handle>, callback: impl FnMut(u32) -> bool + Send + 'static) -> Self {
        let mut callback: Box<Box<Callback>> = Box::new(Box::new(callback));
        let user_data: *mut Box<Callback> = &mut *callback;
        // SAFETY: `user_data` points into the box that this object keeps until the handler is off.
        unsafe { ffi::sqlite3_busy_handler(handle.as_ptr(), Some(trampoline), user_data.cast()) };
        Self { handle: Arc::clone(handle), _callback: callback }
    }
}

impl Drop for BusyHandler {
    fn drop(&mut self) {
        if !self.handle.is_inherited() {
            // SAFETY: the handle is open; after this SQLite calls the trampoline no more.
            unsafe { ffi::sqlite3_busy_handler(self.handle.as_ptr(), None, std::ptr::null_mut()) };
        }
    }
}

unsafe extern "C" fn trampoline(user_data: *mut c_void, count: c_int) -> c_int {
    // SAFETY: set by `install`, alive until `Drop`; SQLite calls it from the one thread that uses the handle.
    let callback = unsafe { &mut *user_data.cast::<Box<Callback>>() };
    // A panic must not unwind into C.
    c_int::from(catch_unwind(AssertUnwindSafe(|| callback(count.unsigned_abs()))).unwrap_or(false))
}
