//! A prepared statement that owns what it points to.

use super::cells::Cells;
use super::handle::{Handle, SqliteError};
use super::value::{Value, ValueRef};
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;

/// What one step of a statement gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A row can be read.
    Row,
    /// The statement has run to its end.
    Done,
}

/// A prepared statement.
pub struct Statement {
    stmt: *mut ffi::sqlite3_stmt,
    handle: Arc<Handle>,
}

// SAFETY: as for `Handle`: bound to no thread, used by one at a time.
unsafe impl Send for Statement {}

impl Statement {
    /// Prepare the first statement of `sql`; return it with the byte offset of the text behind it.
    ///
    /// `None` in the first place: the text holds nothing but white space and comments.
    ///
    /// # Errors
    /// What SQLite says of the text. A NUL in the text is not looked for here.
    pub fn prepare(handle: &Arc<Handle>, sql: &[u8], flags: u32) -> Result<(Option<Self>, usize), SqliteError> {
        let length = c_int::try_from(sql.len()).map_err(|_| SqliteError::from_code(ffi::SQLITE_TOOBIG))?;
        handle.may_fail(|| format!("prepare {}", String::from_utf8_lossy(sql)))?;
        let mut stmt = ptr::null_mut();
        let mut tail = ptr::null();
        // SAFETY: the text is passed with its length, so it needs no NUL; the out pointers are valid.
        let code = unsafe {
            ffi::sqlite3_prepare_v3(handle.as_ptr(), sql.as_ptr().cast(), length, flags, &mut stmt, &mut tail)
        };
        if code != ffi::SQLITE_OK {
            return Err(handle.error(code));
        }
        let rest = if tail.is_null() { sql.len() } else { tail as usize - sql.as_ptr() as usize };
        if stmt.is_null() {
            return Ok((None, rest));
        }
        Ok((Some(Self { stmt, handle: Arc::clone(handle) }), rest))
    }

    /// Return the handle the statement belongs to.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Return the C pointer, for the few calls this type does not wrap.
    pub fn as_ptr(&self) -> *mut ffi::sqlite3_stmt {
        self.stmt
    }

    /// Return the text the statement was prepared from.
    pub fn sql(&self) -> std::borrow::Cow<'_, str> {
        // SAFETY: the statement is live; the text lives as long as the statement.
        let text = unsafe { ffi::sqlite3_sql(self.stmt) };
        if text.is_null() {
            return std::borrow::Cow::Borrowed("");
        }
        // SAFETY: a non-null text is NUL-terminated.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    }

    /// Say whether the statement makes no direct change to a database file.
    ///
    /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE and ATTACH count as read-only here.
    /// Source: <https://www.sqlite.org/c3ref/stmt_readonly.html>.
    pub fn is_readonly(&self) -> bool {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_stmt_readonly(self.stmt) != 0 }
    }

    /// Say whether the statement is an EXPLAIN or EXPLAIN QUERY PLAN.
    pub fn is_explain(&self) -> bool {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_stmt_isexplain(self.stmt) != 0 }
    }

    /// Say whether the statement has been stepped and neither ended nor reset.
    pub fn is_running(&self) -> bool {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_stmt_busy(self.stmt) != 0 }
    }

    /// Return how many parameters the statement takes (the largest number among them).
    pub fn parameter_count(&self) -> usize {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_bind_parameter_count(self.stmt) as usize }
    }

    /// Return the name of parameter `index` (from 1) with its prefix, or `None` where it has none.
    pub fn parameter_name(&self, index: usize) -> Option<&str> {
        // SAFETY: the statement is live; the name lives as long as the statement.
        let name = unsafe { ffi::sqlite3_bind_parameter_name(self.stmt, index as c_int) };
        if name.is_null() {
            return None;
        }
        // SAFETY: a NUL-terminated string cut from UTF-8 SQL text.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    /// Bind a value to parameter `index` (from 1), letting SQLite copy it.
    ///
    /// # Errors
    /// `SQLITE_RANGE`, `SQLITE_TOOBIG`, `SQLITE_NOMEM`, and `SQLITE_MISUSE` while the statement is running.
    pub fn bind(&self, index: usize, value: ValueRef<'_>) -> Result<(), SqliteError> {
        self.handle.may_fail(|| format!("bind {index} of {}", self.sql()))?;
        // SAFETY: SQLITE_TRANSIENT makes SQLite copy the bytes before the call returns.
        self.checked(unsafe { self.bind_with(index, value, ffi::SQLITE_TRANSIENT()) })
    }

    /// Bind a value to parameter `index` (from 1) without a copy.
    ///
    /// # Safety
    /// The bytes stay where they are, unchanged, until the parameter is bound anew or cleared, or the statement
    /// is finalized.
    ///
    /// # Errors
    /// As [`Statement::bind`].
    pub unsafe fn bind_borrowed(&self, index: usize, value: ValueRef<'_>) -> Result<(), SqliteError> {
        self.handle.may_fail(|| format!("bind {index} of {}", self.sql()))?;
        // SAFETY: by contract of this function.
        self.checked(unsafe { self.bind_with(index, value, ffi::SQLITE_STATIC()) })
    }

    /// # Safety
    /// The bytes outlive what `destructor` promises.
    unsafe fn bind_with(&self, index: usize, value: ValueRef<'_>, destructor: ffi::sqlite3_destructor_type) -> c_int {
        let index = index as c_int;
        // SAFETY: the statement is live, lengths are those of the slices; by contract of this function.
        unsafe {
            match value {
                ValueRef::Null => ffi::sqlite3_bind_null(self.stmt, index),
                ValueRef::Integer(i) => ffi::sqlite3_bind_int64(self.stmt, index, i),
                ValueRef::Real(r) => ffi::sqlite3_bind_double(self.stmt, index, r),
                ValueRef::Text(t) => ffi::sqlite3_bind_text64(
                    self.stmt,
                    index,
                    non_null(t),
                    t.len() as u64,
                    destructor,
                    ffi::SQLITE_UTF8 as u8,
                ),
                ValueRef::Blob(b) => {
                    ffi::sqlite3_bind_blob64(self.stmt, index, non_null(b).cast(), b.len() as u64, destructor)
                }
            }
        }
    }

    /// Bind UTF-16 text as its bytes to parameter `index` (from 1), letting SQLite copy it.
    ///
    /// # Errors
    /// As [`Statement::bind`].
    pub fn bind_text16(&self, index: usize, text: &[u8], big_endian: bool) -> Result<(), SqliteError> {
        let encoding = if big_endian { ffi::SQLITE_UTF16BE } else { ffi::SQLITE_UTF16LE };
        let even = text.len() & !1;
        // SAFETY: the statement is live, the length is within the slice, SQLITE_TRANSIENT makes SQLite copy it.
        self.checked(unsafe {
            ffi::sqlite3_bind_text64(
                self.stmt,
                index as c_int,
                non_null(text),
                even as u64,
                ffi::SQLITE_TRANSIENT(),
                encoding as u8,
            )
        })
    }

    /// Set every parameter to NULL.
    pub fn clear_bindings(&self) {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_clear_bindings(self.stmt) };
    }

    /// Run to the next row or to the end.
    ///
    /// # Errors
    /// What SQLite says. The statement must then be reset.
    #[inline]
    pub fn step(&self) -> Result<Step, SqliteError> {
        self.handle.step_may_fail(|| format!("step {}", self.sql()))?;
        // SAFETY: the statement is live.
        match unsafe { ffi::sqlite3_step(self.stmt) } {
            ffi::SQLITE_ROW => Ok(Step::Row),
            ffi::SQLITE_DONE => Ok(Step::Done),
            code => Err(self.handle.error(code)),
        }
    }

    /// Make the statement ready to run again. The code of a failed step, which SQLite repeats here, is dropped.
    #[inline]
    pub fn reset(&self) {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_reset(self.stmt) };
    }

    /// Return the number of result columns; 0 for a statement that returns no rows.
    #[inline]
    pub fn column_count(&self) -> usize {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_column_count(self.stmt) as usize }
    }

    /// Return the number of columns of the current row; 0 where there is none.
    #[inline]
    pub fn data_count(&self) -> usize {
        // SAFETY: the statement is live.
        unsafe { ffi::sqlite3_data_count(self.stmt) as usize }
    }

    /// Return the name of result column `index` (from 0).
    pub fn column_name(&self, index: usize) -> Option<&[u8]> {
        // SAFETY: the statement is live.
        let name = unsafe { ffi::sqlite3_column_name(self.stmt, index as c_int) };
        // SAFETY: a non-null name is NUL-terminated and lives until the statement is prepared anew.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
    }

    /// Return the declared type of result column `index` (from 0), where it is a table's column.
    pub fn column_decltype(&self, index: usize) -> Option<&[u8]> {
        // SAFETY: the statement is live.
        let name = unsafe { ffi::sqlite3_column_decltype(self.stmt, index as c_int) };
        // SAFETY: as for `column_name`.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
    }

    /// Return the value of column `index` (from 0) of the current row.
    ///
    /// It is valid until the statement is stepped, reset or finalized.
    #[inline(always)]
    pub fn column(&self, index: usize) -> ValueRef<'_> {
        let column = index as c_int;
        // SAFETY: the statement is live, and so is the value until the next step. To read it without a lock of SQLite's
        // is right because one thread at a time uses the handle; the functions for columns look the value up in each
        // call. The pointer is asked for before the length, and no conversion is asked for, so both describe the same
        // bytes.
        unsafe {
            let value = ffi::sqlite3_column_value(self.stmt, column);
            match ffi::sqlite3_value_type(value) {
                ffi::SQLITE_INTEGER => ValueRef::Integer(ffi::sqlite3_value_int64(value)),
                ffi::SQLITE_FLOAT => ValueRef::Real(ffi::sqlite3_value_double(value)),
                ffi::SQLITE_TEXT => {
                    let start = ffi::sqlite3_value_text(value);
                    ValueRef::Text(bytes(start, ffi::sqlite3_value_bytes(value)))
                }
                ffi::SQLITE_BLOB => {
                    let start = ffi::sqlite3_value_blob(value);
                    ValueRef::Blob(bytes(start.cast(), ffi::sqlite3_value_bytes(value)))
                }
                _ => ValueRef::Null,
            }
        }
    }

    /// Add the values of the current row's first `columns` columns behind those in `cells`.
    #[inline]
    pub fn copy_row(&self, columns: usize, cells: &mut Cells) {
        cells.reserve(columns);
        for index in 0..columns {
            cells.push(self.column(index));
        }
    }

    /// Return column `index` (from 0) of the current row as a blob, a number as its text; `None` where it is NULL
    /// or empty.
    ///
    /// The column's type is undefined afterwards. Source: <https://www.sqlite.org/c3ref/column_blob.html>.
    pub fn column_raw(&self, index: usize) -> Option<&[u8]> {
        let column = index as c_int;
        // SAFETY: the statement is live, and the pointer is asked for before the length.
        unsafe {
            let start = ffi::sqlite3_column_blob(self.stmt, column);
            (!start.is_null()).then(|| bytes(start.cast(), ffi::sqlite3_column_bytes(self.stmt, column)))
        }
    }

    /// Copy the current row.
    pub fn row(&self) -> Box<[Value]> {
        (0..self.data_count()).map(|index| self.column(index).into()).collect()
    }

    fn checked(&self, code: c_int) -> Result<(), SqliteError> {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.handle.error(code)) }
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        if self.handle.is_inherited() {
            return;
        }
        // SAFETY: the statement is live and this is its owner; its handle is still open.
        unsafe { ffi::sqlite3_finalize(self.stmt) };
    }
}

/// An empty slice's pointer may be anything; SQLite reads a null pointer as NULL, so never pass one.
fn non_null(bytes: &[u8]) -> *const std::os::raw::c_char {
    if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast() }
}

/// # Safety
/// `start` points to `length` bytes, or is null (an empty value, or no memory for it).
unsafe fn bytes<'a>(start: *const u8, length: c_int) -> &'a [u8] {
    if start.is_null() || length <= 0 {
        return &[];
    }
    // SAFETY: by contract of this function.
    unsafe { std::slice::from_raw_parts(start, length as usize) }
}
