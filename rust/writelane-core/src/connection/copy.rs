//! A copy of one connection's database to another connection.

use super::{Connection, Error};
use crate::sqlite::{Backup, Handle, SqliteError, ffi, primary};
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// What one step of a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStep {
    /// The result code: `SQLITE_OK`, `SQLITE_DONE`, `SQLITE_BUSY`, `SQLITE_LOCKED`, or an error.
    pub code: i32,
    /// The pages that are left.
    pub remaining: i32,
    /// The pages of the source.
    pub total: i32,
}

impl Connection {
    /// Copy the database `schema` of this connection over that of `target`, `pages` at a time (negative: all),
    /// telling `progress` of every step and sleeping `pause` after one that met a lock.
    ///
    /// Both connections can be used between the steps. Where `progress` breaks off, the copy is undone.
    ///
    /// # Errors
    /// What SQLite says, and those of a write on the target.
    pub fn copy_to(
        &self,
        target: &Connection,
        schema: &CStr,
        pages: i32,
        pause: Duration,
        mut progress: impl FnMut(CopyStep) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut backup =
            Some(self.both(target, |source, destination| Ok(Backup::begin(destination, source, schema)?))?);
        let mut result = Ok(());
        loop {
            let step = self.both(target, |_, _| {
                let Some(backup) = &backup else { return Err(SqliteError::from_code(ffi::SQLITE_MISUSE).into()) };
                let code = backup.step(pages);
                let (remaining, total) = backup.progress();
                Ok(CopyStep { code, remaining, total })
            });
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            if progress(step).is_break() {
                break;
            }
            match primary(step.code) {
                ffi::SQLITE_OK => {}
                ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => std::thread::sleep(pause),
                _ => break,
            }
        }
        let finished = self.both(target, |_, _| match backup.take() {
            Some(backup) => Ok(backup.finish()?),
            None => Ok(()),
        });
        result.and(finished)
    }

    /// Run `call` with this connection's handle and the target's, both locked, in an order that two copies in
    /// opposite directions share.
    fn both<T>(
        &self,
        target: &Connection,
        call: impl FnOnce(&Arc<Handle>, &Arc<Handle>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if std::ptr::from_ref(self) < std::ptr::from_ref(target) {
            self.with(|source| target.with_turn("backup", |destination| call(source, destination)))
        } else {
            target.with_turn("backup", |destination| self.with(|source| call(source, destination)))
        }
    }
}
