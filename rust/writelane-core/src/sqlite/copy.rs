//! Whole databases: copied to another handle, taken out as bytes, put in as bytes; and extensions.

use super::handle::{Handle, SqliteError};
use rusqlite::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_uchar};
use std::ptr;
use std::sync::Arc;

/// A copy of one database to another, page by page.
pub struct Backup {
    backup: *mut ffi::sqlite3_backup,
    target: Arc<Handle>,
    _source: Arc<Handle>,
}

// SAFETY: as for `Handle`: bound to no thread, used by one at a time.
unsafe impl Send for Backup {}

impl Backup {
    /// Begin to copy the database `schema` of `source` over the main database of `target`.
    ///
    /// # Errors
    /// What SQLite says, left on the target: in use, an unknown database.
    pub fn begin(target: &Arc<Handle>, source: &Arc<Handle>, schema: &CStr) -> Result<Self, SqliteError> {
        // SAFETY: both handles are open and kept alive by this object; the names are NUL-terminated.
        let backup =
            unsafe { ffi::sqlite3_backup_init(target.as_ptr(), c"main".as_ptr(), source.as_ptr(), schema.as_ptr()) };
        if backup.is_null() {
            // SAFETY: the handle is open.
            let code = unsafe { ffi::sqlite3_extended_errcode(target.as_ptr()) };
            return Err(target.error(code));
        }
        Ok(Self { backup, target: Arc::clone(target), _source: Arc::clone(source) })
    }

    /// Copy up to `pages` pages (negative: all) and return the result code, `SQLITE_DONE` at the end.
    pub fn step(&self, pages: i32) -> i32 {
        // SAFETY: the backup is live and both handles are open.
        unsafe { ffi::sqlite3_backup_step(self.backup, pages) }
    }

    /// Return the pages left and the pages of the source, as of the last step.
    pub fn progress(&self) -> (i32, i32) {
        // SAFETY: the backup is live.
        unsafe { (ffi::sqlite3_backup_remaining(self.backup), ffi::sqlite3_backup_pagecount(self.backup)) }
    }

    /// End the copy; one that has not come to its end is undone.
    ///
    /// # Errors
    /// That of the last step, unless it was a lock in the way.
    pub fn finish(mut self) -> Result<(), SqliteError> {
        let backup = std::mem::replace(&mut self.backup, ptr::null_mut());
        // SAFETY: the backup is live, and not used after this.
        let code = unsafe { ffi::sqlite3_backup_finish(backup) };
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.target.error(code)) }
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if !self.backup.is_null() && !self.target.is_inherited() {
            // SAFETY: the backup is live, and not used after this.
            unsafe { ffi::sqlite3_backup_finish(self.backup) };
        }
    }
}

impl Handle {
    /// Return the bytes of the database `schema` as a file of it would hold them.
    ///
    /// # Errors
    /// An unknown database, or one that cannot be read.
    pub fn serialize(&self, schema: &CStr) -> Result<Vec<u8>, SqliteError> {
        let mut size = 0;
        // SAFETY: the handle is open, the name is NUL-terminated, the out pointer is valid.
        let start = unsafe { ffi::sqlite3_serialize(self.as_ptr(), schema.as_ptr(), &mut size, 0) };
        if start.is_null() {
            if size == 0 && self.has_schema(schema) {
                return Ok(Vec::new());
            }
            return Err(SqliteError {
                code: ffi::SQLITE_ERROR,
                message: format!("unable to serialize '{}'", schema.to_string_lossy()).into(),
                offset: None,
            });
        }
        // SAFETY: `size` bytes at `start`, allocated by SQLite and ours to free.
        unsafe {
            let bytes = std::slice::from_raw_parts(start, usize::try_from(size).unwrap_or(0)).to_vec();
            ffi::sqlite3_free(start.cast());
            Ok(bytes)
        }
    }

    fn has_schema(&self, schema: &CStr) -> bool {
        // SAFETY: the handle is open, the name is NUL-terminated.
        unsafe { ffi::sqlite3_db_readonly(self.as_ptr(), schema.as_ptr()) >= 0 }
    }

    /// Replace the database `schema` by one in memory with these bytes.
    ///
    /// # Errors
    /// `SQLITE_NOMEM`, an unknown database, one that is in use. Bytes that are no database show when they are read.
    pub fn deserialize(&self, schema: &CStr, bytes: &[u8]) -> Result<(), SqliteError> {
        let length = bytes.len() as u64;
        // SAFETY: the copy has room for all bytes; SQLite frees it, also where the call fails, by the flag.
        unsafe {
            let copy = ffi::sqlite3_malloc64(length.max(1)).cast::<c_uchar>();
            if copy.is_null() {
                return Err(SqliteError::from_code(ffi::SQLITE_NOMEM));
            }
            ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
            let flags = ffi::SQLITE_DESERIALIZE_FREEONCLOSE | ffi::SQLITE_DESERIALIZE_RESIZEABLE;
            self.check(ffi::sqlite3_deserialize(
                self.as_ptr(),
                schema.as_ptr(),
                copy,
                length as i64,
                length as i64,
                flags,
            ))
        }
    }

    /// Load an extension from a shared library; its entry point by name, or the one SQLite makes of the file's name.
    ///
    /// # Errors
    /// What SQLite or the loader says.
    pub fn load_extension(&self, file: &CStr, entry_point: Option<&CStr>) -> Result<(), SqliteError> {
        let mut message: *mut c_char = ptr::null_mut();
        // SAFETY: the handle is open, the names are NUL-terminated or null, the out pointer is valid.
        let code = unsafe {
            ffi::sqlite3_load_extension(
                self.as_ptr(),
                file.as_ptr(),
                entry_point.map_or(ptr::null(), CStr::as_ptr),
                &mut message,
            )
        };
        if code == ffi::SQLITE_OK {
            return Ok(());
        }
        if message.is_null() {
            return Err(self.error(code));
        }
        // SAFETY: a NUL-terminated message that is ours to free.
        unsafe {
            let text = CStr::from_ptr(message).to_string_lossy().into();
            ffi::sqlite3_free(message.cast());
            Err(SqliteError { code, message: text, offset: None })
        }
    }

    /// Allow extensions to be loaded, or forbid it.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn enable_load_extension(&self, on: bool) -> Result<(), SqliteError> {
        // SAFETY: the handle is open.
        self.check(unsafe { ffi::sqlite3_enable_load_extension(self.as_ptr(), i32::from(on)) })
    }

    /// Return the value of a `SQLITE_DBCONFIG_*` switch.
    ///
    /// # Errors
    /// What SQLite says of an unknown switch.
    pub fn config(&self, switch: i32) -> Result<bool, SqliteError> {
        let mut now: i32 = 0;
        // SAFETY: the switches taken here are those with the (int, int*) signature; -1 only asks.
        self.check(unsafe { ffi::sqlite3_db_config(self.as_ptr(), switch, -1, ptr::from_mut(&mut now)) })?;
        Ok(now != 0)
    }
}

/// Say whether a text ends with a complete statement.
pub fn complete_statement(text: &CStr) -> bool {
    // SAFETY: the text is NUL-terminated.
    unsafe { ffi::sqlite3_complete(text.as_ptr()) != 0 }
}

/// Have connections opened from now on in this process share their caches, or not.
///
/// # Errors
/// What SQLite says where it was built without.
pub fn enable_shared_cache(on: bool) -> Result<(), SqliteError> {
    // SAFETY: no state of ours; SQLite guards its own.
    let code = unsafe { ffi::sqlite3_enable_shared_cache(i32::from(on)) };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(SqliteError::from_code(code)) }
}
