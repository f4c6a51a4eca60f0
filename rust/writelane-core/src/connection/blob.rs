//! Values opened in pieces, by number, so that closing the connection closes them.

use super::{Connection, Error, State};
use crate::sqlite::{Blob, Handle, SqliteError, ffi};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Connection {
    /// Open a value and return its number and its length in bytes. One opened for writing holds the write lock
    /// from here until it is closed and the transaction ends.
    ///
    /// # Errors
    /// What SQLite says, and those of a write.
    pub fn blob_open(
        &self,
        schema: &CStr,
        table: &CStr,
        column: &CStr,
        row: i64,
        writable: bool,
    ) -> Result<(u64, usize), Error> {
        let (state, handle) = self.enter()?;
        self.waits.begin();
        let turn = if writable { self.take_turn(&state, &handle, "blobopen") } else { Ok(()) };
        let opened = turn.and_then(|()| {
            Blob::open(&handle, schema, table, column, row, writable).map_err(|error| self.gave_up(error))
        });
        self.settle(&state, &handle);
        let blob = opened?;
        let (number, length) = (self.next_cursor.fetch_add(1, Ordering::Relaxed), blob.len());
        state.blobs.borrow_mut().insert(number, blob);
        Ok((number, length))
    }

    /// Read `length` bytes from `offset` on.
    ///
    /// # Errors
    /// `SQLITE_ABORT` after the row was changed.
    pub fn blob_read(&self, number: u64, offset: usize, length: usize) -> Result<Vec<u8>, Error> {
        self.with_blob(number, |blob| {
            let mut bytes = vec![0; length];
            blob.read(offset, &mut bytes).map(|()| bytes)
        })
    }

    /// Write `bytes` from `offset` on.
    ///
    /// # Errors
    /// `SQLITE_ABORT` after the row was changed, `SQLITE_READONLY`.
    pub fn blob_write(&self, number: u64, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.with_blob(number, |blob| blob.write(offset, bytes))
    }

    /// Close a value; one that is closed stays so.
    pub fn blob_close(&self, number: u64) {
        if self.is_inherited() {
            return;
        }
        let state = self.state.lock();
        let blob = state.blobs.borrow_mut().remove(&number);
        drop(blob);
        let handle = state.handle.borrow().clone();
        if let Some(handle) = handle {
            self.settle(&state, &handle);
        }
    }

    fn with_blob<T>(&self, number: u64, call: impl FnOnce(&Blob) -> Result<T, SqliteError>) -> Result<T, Error> {
        let (state, handle): (_, Arc<Handle>) = self.enter()?;
        self.waits.begin();
        self.waits.set_for_write_lock(false);
        let blob = take(&state, number)?;
        let result = call(&blob);
        state.blobs.borrow_mut().insert(number, blob);
        self.settle(&state, &handle);
        result.map_err(|error| self.gave_up(error))
    }
}

fn take(state: &State, number: u64) -> Result<Blob, Error> {
    let blob = state.blobs.borrow_mut().remove(&number);
    blob.ok_or_else(|| SqliteError::from_code(ffi::SQLITE_ABORT).into())
}
