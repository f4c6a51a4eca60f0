//! Functions, aggregates, window functions and collations of the application's own: closures in, C out.

use super::handle::{Handle, SqliteError};
use super::value::ValueRef;
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Where a function puts its result, and finds its state.
pub struct Context {
    context: *mut ffi::sqlite3_context,
}

impl Context {
    /// Give a value as the result.
    pub fn result(&self, value: ValueRef<'_>) {
        // SAFETY: the context is live during the call it was passed to; SQLITE_TRANSIENT makes SQLite copy the bytes.
        unsafe {
            match value {
                ValueRef::Null => ffi::sqlite3_result_null(self.context),
                ValueRef::Integer(i) => ffi::sqlite3_result_int64(self.context, i),
                ValueRef::Real(r) => ffi::sqlite3_result_double(self.context, r),
                ValueRef::Text(t) => ffi::sqlite3_result_text64(
                    self.context,
                    t.as_ptr().cast::<c_char>(),
                    t.len() as u64,
                    ffi::SQLITE_TRANSIENT(),
                    ffi::SQLITE_UTF8 as u8,
                ),
                ValueRef::Blob([]) => ffi::sqlite3_result_zeroblob(self.context, 0),
                ValueRef::Blob(b) => ffi::sqlite3_result_blob64(
                    self.context,
                    b.as_ptr().cast::<c_void>(),
                    b.len() as u64,
                    ffi::SQLITE_TRANSIENT(),
                ),
            }
        }
    }

    /// Fail with a message.
    pub fn fail(&self, message: &str) {
        let length = c_int::try_from(message.len()).unwrap_or(c_int::MAX);
        // SAFETY: the context is live, the message is passed with its length and copied.
        unsafe { ffi::sqlite3_result_error(self.context, message.as_ptr().cast::<c_char>(), length) };
    }

    /// Fail for want of memory.
    pub fn fail_no_memory(&self) {
        // SAFETY: the context is live.
        unsafe { ffi::sqlite3_result_error_nomem(self.context) };
    }

    /// Fail since the result is too big.
    pub fn fail_too_big(&self) {
        // SAFETY: the context is live.
        unsafe { ffi::sqlite3_result_error_toobig(self.context) };
    }
}

/// The arguments of a function.
pub struct Arguments<'a> {
    values: &'a [*mut ffi::sqlite3_value],
}

impl Arguments<'_> {
    /// Return how many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Say whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Return argument `index` (from 0).
    ///
    /// # Panics
    /// Where there is none.
    pub fn get(&self, index: usize) -> ValueRef<'_> {
        let value = self.values[index];
        // SAFETY: SQLite's argument, live during the call; the pointer is asked for before the length.
        unsafe {
            match ffi::sqlite3_value_type(value) {
                ffi::SQLITE_INTEGER => ValueRef::Integer(ffi::sqlite3_value_int64(value)),
                ffi::SQLITE_FLOAT => ValueRef::Real(ffi::sqlite3_value_double(value)),
                ffi::SQLITE_TEXT => {
                    let start = ffi::sqlite3_value_text(value);
                    ValueRef::Text(slice(start, ffi::sqlite3_value_bytes(value)))
                }
                ffi::SQLITE_BLOB => {
                    let start = ffi::sqlite3_value_blob(value);
                    ValueRef::Blob(slice(start.cast(), ffi::sqlite3_value_bytes(value)))
                }
                _ => ValueRef::Null,
            }
        }
    }
}

/// The run of an aggregate over one group of rows.
pub trait Aggregate: Send {
    /// Take a row in.
    fn step(&mut self, context: &Context, arguments: &Arguments<'_>);
    /// Take a row out, the oldest of the window.
    fn inverse(&mut self, context: &Context, arguments: &Arguments<'_>);
    /// Give the result over the rows that are in.
    fn value(&mut self, context: &Context);
    /// Give the last result. Called once, also after a failure.
    fn finish(&mut self, context: &Context);
}

type Scalar = Box<dyn Fn(&Context, &Arguments<'_>) + Send>;
type Maker = Box<dyn Fn(&Context) -> Option<Box<dyn Aggregate>> + Send>;
type Compare = Box<dyn Fn(&[u8], &[u8]) -> c_int + Send>;

impl Handle {
    /// Make `function` callable from SQL as `name` with `arguments` arguments (-1: any number).
    ///
    /// # Errors
    /// `SQLITE_MISUSE` for a bad name or number, `SQLITE_BUSY` while a statement runs that uses the old one.
    pub fn create_function(
        &self,
        name: &CStr,
        arguments: i32,
        deterministic: bool,
        function: impl Fn(&Context, &Arguments<'_>) + Send + 'static,
    ) -> Result<(), SqliteError> {
        let user_data: *mut Scalar = Box::into_raw(Box::new(Box::new(function)));
        let flags = ffi::SQLITE_UTF8 | if deterministic { ffi::SQLITE_DETERMINISTIC } else { 0 };
        // SAFETY: the handle is open, the name is NUL-terminated. SQLite owns the box from here on and gives it to
        // `destroy`, also where the call fails.
        self.check(unsafe {
            ffi::sqlite3_create_function_v2(
                self.as_ptr(),
                name.as_ptr(),
                arguments,
                flags,
                user_data.cast(),
                Some(call_scalar),
                None,
                None,
                Some(destroy::<Scalar>),
            )
        })
    }

    /// Make an aggregate callable from SQL; `windowed` also as a window function. `maker` makes one for each group.
    ///
    /// # Errors
    /// As [`Handle::create_function`].
    pub fn create_aggregate(
        &self,
        name: &CStr,
        arguments: i32,
        windowed: bool,
        maker: impl Fn(&Context) -> Option<Box<dyn Aggregate>> + Send + 'static,
    ) -> Result<(), SqliteError> {
        let user_data: *mut Maker = Box::into_raw(Box::new(Box::new(maker)));
        // SAFETY: as in `create_function`.
        self.check(unsafe {
            if windowed {
                ffi::sqlite3_create_window_function(
                    self.as_ptr(),
                    name.as_ptr(),
                    arguments,
                    ffi::SQLITE_UTF8,
                    user_data.cast(),
                    Some(call_step),
                    Some(call_finish),
                    Some(call_value),
                    Some(call_inverse),
                    Some(destroy::<Maker>),
                )
            } else {
                ffi::sqlite3_create_function_v2(
                    self.as_ptr(),
                    name.as_ptr(),
                    arguments,
                    ffi::SQLITE_UTF8,
                    user_data.cast(),
                    None,
                    Some(call_step),
                    Some(call_finish),
                    Some(destroy::<Maker>),
                )
            }
        })
    }

    /// Take a window function or an aggregate of this name away.
    ///
    /// # Errors
    /// As [`Handle::create_function`].
    pub fn remove_function(&self, name: &CStr, arguments: i32) -> Result<(), SqliteError> {
        // SAFETY: the handle is open, the name is NUL-terminated; null functions take the old one away.
        self.check(unsafe {
            ffi::sqlite3_create_window_function(
                self.as_ptr(),
                name.as_ptr(),
                arguments,
                ffi::SQLITE_UTF8,
                std::ptr::null_mut(),
                None,
                None,
                None,
                None,
                None,
            )
        })
    }

    /// Make `compare` the collation `name`: negative, zero or positive for texts in UTF-8.
    ///
    /// # Errors
    /// As [`Handle::create_function`].
    pub fn create_collation(
        &self,
        name: &CStr,
        compare: impl Fn(&[u8], &[u8]) -> i32 + Send + 'static,
    ) -> Result<(), SqliteError> {
        let user_data: *mut Compare = Box::into_raw(Box::new(Box::new(compare)));
        // SAFETY: as in `create_function`, but where this call fails the box stays ours.
        let code = unsafe {
            ffi::sqlite3_create_collation_v2(
                self.as_ptr(),
                name.as_ptr(),
                ffi::SQLITE_UTF8,
                user_data.cast(),
                Some(call_compare),
                Some(destroy::<Compare>),
            )
        };
        if code != ffi::SQLITE_OK {
            // SAFETY: made by `Box::into_raw` above; SQLite does not call the destructor after a failure.
            drop(unsafe { Box::from_raw(user_data) });
        }
        self.check(code)
    }

    /// Take a collation away.
    ///
    /// # Errors
    /// As [`Handle::create_function`].
    pub fn remove_collation(&self, name: &CStr) -> Result<(), SqliteError> {
        // SAFETY: the handle is open, the name is NUL-terminated; a null function takes the old one away.
        self.check(unsafe {
            ffi::sqlite3_create_collation_v2(
                self.as_ptr(),
                name.as_ptr(),
                ffi::SQLITE_UTF8,
                std::ptr::null_mut(),
                None,
                None,
            )
        })
    }

    pub(super) fn check(&self, code: c_int) -> Result<(), SqliteError> {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.error(code)) }
    }
}

unsafe extern "C" fn destroy<T>(user_data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` of a `Box<T>`, and SQLite calls this once.
    let owned = unsafe { Box::from_raw(user_data.cast::<T>()) };
    // A panic must not unwind into C.
    drop(catch_unwind(AssertUnwindSafe(|| drop(owned))));
}

/// # Safety
/// `start` points to `length` bytes, or is null.
unsafe fn slice<'a>(start: *const u8, length: c_int) -> &'a [u8] {
    if start.is_null() || length <= 0 {
        return &[];
    }
    // SAFETY: by contract of this function.
    unsafe { std::slice::from_raw_parts(start, length as usize) }
}

/// # Safety
/// The arguments are those SQLite passes to a function.
unsafe fn arguments<'a>(count: c_int, values: *mut *mut ffi::sqlite3_value) -> Arguments<'a> {
    if count <= 0 || values.is_null() {
        return Arguments { values: &[] };
    }
    // SAFETY: SQLite passes `count` values, live during the call.
    Arguments { values: unsafe { std::slice::from_raw_parts(values, count as usize) } }
}

/// Run a callback; a panic in it becomes an error of the statement.
fn guarded(context: &Context, call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        context.fail("a function panicked");
    }
}

unsafe extern "C" fn call_scalar(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: the user data is the box given to `create_function`, alive until `destroy`.
    let function = unsafe { &*ffi::sqlite3_user_data(context).cast::<Scalar>() };
    let context = Context { context };
    // SAFETY: passed on as SQLite gave them.
    let arguments = unsafe { arguments(count, values) };
    guarded(&context, || function(&context, &arguments));
}

/// Return the place where SQLite keeps this group's state; null before the first row where `make` is false.
///
/// # Safety
/// `context` is that of an aggregate made by `create_aggregate`.
unsafe fn state(context: *mut ffi::sqlite3_context, make: bool) -> *mut *mut Box<dyn Aggregate> {
    let size = if make { size_of::<*mut Box<dyn Aggregate>>() } else { 0 };
    // SAFETY: by contract of this function. New room is zeroed, which is a null pointer.
    unsafe { ffi::sqlite3_aggregate_context(context, size as c_int).cast() }
}

/// Return this group's aggregate, made with its first row; `None` where making it failed.
///
/// # Safety
/// As for `state`; and no reference to the same aggregate is alive.
unsafe fn aggregate<'a>(context: &Context) -> Option<&'a mut Box<dyn Aggregate>> {
    // SAFETY: by contract of this function.
    let place = unsafe { state(context.context, true) };
    if place.is_null() {
        context.fail_no_memory();
        return None;
    }
    // SAFETY: SQLite's room for one pointer, null or ours.
    unsafe {
        if (*place).is_null() {
            let maker = &*ffi::sqlite3_user_data(context.context).cast::<Maker>();
            let made = catch_unwind(AssertUnwindSafe(|| maker(context))).ok().flatten()?;
            *place = Box::into_raw(Box::new(made));
        }
        Some(&mut **place)
    }
}

unsafe extern "C" fn call_step(context: *mut ffi::sqlite3_context, count: c_int, values: *mut *mut ffi::sqlite3_value) {
    let context = Context { context };
    // SAFETY: called by SQLite for an aggregate of ours, one call at a time for each group.
    let Some(aggregate) = (unsafe { aggregate(&context) }) else { return };
    // SAFETY: passed on as SQLite gave them.
    let arguments = unsafe { arguments(count, values) };
    guarded(&context, || aggregate.step(&context, &arguments));
}

unsafe extern "C" fn call_inverse(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    let context = Context { context };
    // SAFETY: as in `call_step`.
    let Some(aggregate) = (unsafe { aggregate(&context) }) else { return };
    // SAFETY: passed on as SQLite gave them.
    let arguments = unsafe { arguments(count, values) };
    guarded(&context, || aggregate.inverse(&context, &arguments));
}

unsafe extern "C" fn call_value(context: *mut ffi::sqlite3_context) {
    let context = Context { context };
    // SAFETY: as in `call_step`.
    let Some(aggregate) = (unsafe { aggregate(&context) }) else { return };
    guarded(&context, || aggregate.value(&context));
}

unsafe extern "C" fn call_finish(context: *mut ffi::sqlite3_context) {
    let context = Context { context };
    // SAFETY: as in `call_step`; a group without rows has no state.
    unsafe {
        let place = state(context.context, false);
        if place.is_null() || (*place).is_null() {
            return;
        }
        let mut aggregate = Box::from_raw(*place);
        *place = std::ptr::null_mut();
        guarded(&context, || aggregate.finish(&context));
        drop(catch_unwind(AssertUnwindSafe(|| drop(aggregate))));
    }
}

unsafe extern "C" fn call_compare(
    user_data: *mut c_void,
    length_a: c_int,
    a: *const c_void,
    length_b: c_int,
    b: *const c_void,
) -> c_int {
    // SAFETY: the user data is the box given to `create_collation`, alive until `destroy`; the texts are SQLite's.
    unsafe {
        let compare = &*user_data.cast::<Compare>();
        let (a, b) = (slice(a.cast(), length_a), slice(b.cast(), length_b));
        catch_unwind(AssertUnwindSafe(|| compare(a, b))).unwrap_or(0)
    }
}
