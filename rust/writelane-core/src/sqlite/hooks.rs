//! Being told of every statement, and of the progress of a long one.

use super::handle::Handle;
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A statement that begins to run.
pub struct Traced<'a> {
    statement: *mut ffi::sqlite3_stmt,
    text: &'a CStr,
}

impl Traced<'_> {
    /// Return the text with its placeholders; for a trigger a comment that names it.
    pub fn text(&self) -> &[u8] {
        self.text.to_bytes()
    }

    /// Return the text with the values in place of the placeholders; `None` where that is too long.
    pub fn expanded(&self) -> Option<Vec<u8>> {
        // SAFETY: the statement is live while it is traced; the text is ours to free.
        unsafe {
            let text = ffi::sqlite3_expanded_sql(self.statement);
            if text.is_null() {
                return None;
            }
            let copy = CStr::from_ptr(text).to_bytes().to_vec();
            ffi::sqlite3_free(text.cast());
            Some(copy)
        }
    }
}

type TraceCallback = dyn Fn(&Traced<'_>) + Send + Sync;
type ProgressCallback = dyn Fn() -> bool + Send + Sync;

/// A trace on a handle, taken off when dropped.
pub struct Trace {
    handle: Arc<Handle>,
    _callback: Box<Arc<TraceCallback>>,
}

impl Trace {
    /// Have `callback` told of every statement that begins to run on `handle`.
    pub fn install(handle: &Arc<Handle>, callback: impl Fn(&Traced<'_>) + Send + Sync + 'static) -> Self {
        let callback: Box<Arc<TraceCallback>> = Box::new(Arc::new(callback));
        let user_data: *const Arc<TraceCallback> = &*callback;
        // SAFETY: `user_data` points into the box that this object keeps until the trace is off.
        unsafe {
            ffi::sqlite3_trace_v2(
                handle.as_ptr(),
                ffi::SQLITE_TRACE_STMT as c_uint,
                Some(call_trace),
                user_data.cast_mut().cast(),
            )
        };
        Self { handle: Arc::clone(handle), _callback: callback }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if !self.handle.is_inherited() {
            // SAFETY: the handle is open; after this SQLite calls the callback no more.
            unsafe { ffi::sqlite3_trace_v2(self.handle.as_ptr(), 0, None, std::ptr::null_mut()) };
        }
    }
}

unsafe extern "C" fn call_trace(
    _kind: c_uint,
    user_data: *mut c_void,
    statement: *mut c_void,
    text: *mut c_void,
) -> c_int {
    // SAFETY: set by `install`, alive until `Drop` (cloned, since the callback may take itself off); for this kind SQLite passes the statement and a C string.
    unsafe {
        let callback = Arc::clone(&*user_data.cast::<Arc<TraceCallback>>());
        let traced = Traced { statement: statement.cast(), text: CStr::from_ptr(text.cast::<c_char>()) };
        drop(catch_unwind(AssertUnwindSafe(|| callback(&traced))));
    }
    0
}

/// A progress handler on a handle, taken off when dropped.
pub struct Progress {
    handle: Arc<Handle>,
    _callback: Box<Arc<ProgressCallback>>,
}

impl Progress {
    /// Have `callback` asked every `instructions` steps of the virtual machine; `true` interrupts the statement.
    pub fn install(
        handle: &Arc<Handle>,
        instructions: i32,
        callback: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let callback: Box<Arc<ProgressCallback>> = Box::new(Arc::new(callback));
        let user_data: *const Arc<ProgressCallback> = &*callback;
        // SAFETY: `user_data` points into the box that this object keeps until the handler is off.
        unsafe {
            ffi::sqlite3_progress_handler(
                handle.as_ptr(),
                instructions,
                Some(call_progress),
                user_data.cast_mut().cast(),
            )
        };
        Self { handle: Arc::clone(handle), _callback: callback }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.handle.is_inherited() {
            // SAFETY: the handle is open; after this SQLite calls the callback no more.
            unsafe { ffi::sqlite3_progress_handler(self.handle.as_ptr(), 0, None, std::ptr::null_mut()) };
        }
    }
}

unsafe extern "C" fn call_progress(user_data: *mut c_void) -> c_int {
    // SAFETY: set by `install`, alive until `Drop`; cloned, since the callback may take itself off.
    let callback = unsafe { Arc::clone(&*user_data.cast::<Arc<ProgressCallback>>()) };
    // A panic must not unwind into C.
    c_int::from(catch_unwind(AssertUnwindSafe(|| callback())).unwrap_or(true))
}
