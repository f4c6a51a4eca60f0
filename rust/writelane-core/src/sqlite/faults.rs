//! Results that SQLite cannot be brought to give at will, given in its place. For tests alone.
//!
//! A plan belongs to one database file and is found by the handles opened on it, so that tests that run side by side
//! do not meet. It counts the calls that can fail and answers the chosen one itself, leaving the transaction as SQLite
//! would leave it.

use super::handle::{Handle, SqliteError};
use rusqlite::ffi;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call does nothing and returns this code.
    Code(i32),
    /// The open transaction is rolled back and the call returns this code.
    Gone(i32),
    /// The thread panics.
    Panic,
}

/// What is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The number of the call, from 1; 0: none.
    pub at: u64,
    /// All calls from there on fail.
    pub for_ever: bool,
    /// How.
    pub fault: Fault,
}

#[derive(Default)]
struct State {
    wish: Option<Wish>,
    count: u64,
    hit: Option<String>,
}

/// The plan for one file.
#[derive(Default)]
pub struct Plan {
    state: Mutex<State>,
}

static PLANS: Mutex<Option<HashMap<PathBuf, Arc<Plan>>>> = Mutex::new(None);

thread_local! {
    static ROLLING_BACK: Cell<bool> = const { Cell::new(false) };
}

impl Plan {
    /// Make the plan for the file at `path`, for the handles opened from now on.
    pub fn of(path: &Path) -> Arc<Self> {
        let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(plans.get_or_insert_default().entry(path.to_owned()).or_default())
    }

    /// Forget the plan for the file at `path`; handles that have it keep it.
    pub fn forget(path: &Path) {
        if let Some(plans) = PLANS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            plans.remove(path);
        }
    }

    pub(super) fn find(name: &[u8]) -> Option<Arc<Self>> {
        let plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
        let name = std::str::from_utf8(name).ok()?;
        plans.as_ref()?.get(Path::new(name)).cloned()
    }

    /// Count from nothing, and fail as wished.
    pub fn arm(&self, wish: Wish) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State { wish: Some(wish), ..State::default() };
    }

    /// Let everything succeed from now on, and return the first call that was made to fail.
    pub fn disarm(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.wish = None;
        state.hit.take()
    }

    fn next(&self, is_step: bool, call: impl FnOnce() -> String) -> Option<Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // No other call but a step ends a transaction.
        let wish = state.wish.filter(|wish| is_step || !matches!(wish.fault, Fault::Gone(_)))?;
        state.count += 1;
        let chosen = state.count == wish.at || (wish.for_ever && state.count > wish.at && wish.at > 0);
        if !chosen {
            return None;
        }
        if state.hit.is_none() {
            state.hit = Some(call());
        }
        Some(wish.fault)
    }
}

/// Say whether the simulation itself rolls back, which no authorizer may deny.
pub(super) fn is_rolling_back() -> bool {
    ROLLING_BACK.get()
}

/// Ask the plan of a handle about one call, and do to the transaction what SQLite would have done.
pub(super) fn ask(
    handle: &Handle,
    plan: Option<&Arc<Plan>>,
    is_step: bool,
    call: impl FnOnce() -> String,
) -> Result<(), SqliteError> {
    let Some(fault) = plan.and_then(|plan| plan.next(is_step, call)) else { return Ok(()) };
    match fault {
        Fault::Panic => panic!("an injected panic"),
        Fault::Code(code) => Err(SqliteError::from_code(code)),
        Fault::Gone(code) => {
            if !handle.autocommit() {
                ROLLING_BACK.set(true);
                // SAFETY: the handle is open, the text is NUL-terminated, no callback.
                let done = unsafe {
                    ffi::sqlite3_exec(handle.as_ptr(), c"ROLLBACK".as_ptr(), None, ptr::null_mut(), ptr::null_mut())
                };
                ROLLING_BACK.set(false);
                assert_eq!(done, ffi::SQLITE_OK, "the simulated loss of the transaction");
            }
            Err(SqliteError::from_code(code))
        }
    }
}
