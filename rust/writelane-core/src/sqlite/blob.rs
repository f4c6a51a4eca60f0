//! One value of a table, read and written in pieces.

use super::handle::{Handle, SqliteError};
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;

/// A value opened for reading, and perhaps for writing, in pieces. Its length cannot change.
pub struct Blob {
    blob: *mut ffi::sqlite3_blob,
    handle: Arc<Handle>,
}

// SAFETY: as for `Handle`: bound to no thread, used by one at a time.
unsafe impl Send for Blob {}

impl Blob {
    /// Open the value in `column` of row `row` of `table` in the database `schema`.
    ///
    /// # Errors
    /// What SQLite says: no such table, column or row, no blob or text there, a lock in the way.
    pub fn open(
        handle: &Arc<Handle>,
        schema: &CStr,
        table: &CStr,
        column: &CStr,
        row: i64,
        writable: bool,
    ) -> Result<Self, SqliteError> {
        let mut blob = ptr::null_mut();
        // SAFETY: the handle is open, the names are NUL-terminated, the out pointer is valid.
        let code = unsafe {
            ffi::sqlite3_blob_open(
                handle.as_ptr(),
                schema.as_ptr(),
                table.as_ptr(),
                column.as_ptr(),
                row,
                c_int::from(writable),
                &mut blob,
            )
        };
        handle.check(code)?;
        Ok(Self { blob, handle: Arc::clone(handle) })
    }

    /// Return the length in bytes; 0 after the row was changed.
    pub fn len(&self) -> usize {
        // SAFETY: the blob is open.
        usize::try_from(unsafe { ffi::sqlite3_blob_bytes(self.blob) }).unwrap_or(0)
    }

    /// Say whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fill `out` from `offset` on.
    ///
    /// # Errors
    /// `SQLITE_ABORT` after the row was changed, `SQLITE_ERROR` beyond the end.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), SqliteError> {
        let (length, offset) = (int(out.len())?, int(offset)?);
        // SAFETY: the blob is open and `out` has room for `length` bytes.
        self.handle.check(unsafe { ffi::sqlite3_blob_read(self.blob, out.as_mut_ptr().cast(), length, offset) })
    }

    /// Write `bytes` from `offset` on.
    ///
    /// # Errors
    /// As [`Blob::read`], and `SQLITE_READONLY` where it was opened for reading.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), SqliteError> {
        let (length, offset) = (int(bytes.len())?, int(offset)?);
        // SAFETY: the blob is open and `bytes` has `length` bytes.
        self.handle.check(unsafe { ffi::sqlite3_blob_write(self.blob, bytes.as_ptr().cast(), length, offset) })
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        if !self.handle.is_inherited() {
            // SAFETY: the blob is open, this is its owner, and its handle is still open.
            unsafe { ffi::sqlite3_blob_close(self.blob) };
        }
    }
}

fn int(length: usize) -> Result<c_int, SqliteError> {
    c_int::try_from(length).map_err(|_| SqliteError::from_code(ffi::SQLITE_TOOBIG))
}
