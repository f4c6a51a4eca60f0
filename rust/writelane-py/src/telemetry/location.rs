//! Where in the application's code a transaction or a snapshot was begun.

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use writelane_core::telemetry::snapshots::{OpenSnapshot, Origin};

/// Places that are remembered. A program that reads and writes at more of them has them found out again.
const PLACES_MAX: usize = 1_024;

/// A piece of code, by its address, and an instruction in it.
type Place = (usize, i32);

/// File and line of each place, with its code, whose address thereby stays its own.
type Places = HashMap<Place, (Py<PyAny>, Arc<str>)>;

/// What [`of_caller`] has found. To walk the frames and count the lines costs as much as the rest of a short statement.
static PLACES: Mutex<Option<Places>> = Mutex::new(None);

/// Return file and line of the application's frame that is running; `None` where there is none.
pub fn of_caller(py: Python<'_>) -> Option<Arc<str>> {
    let (code, instruction) = running(py)?;
    let key = (code.as_ptr() as usize, instruction);
    // Not waited for: a forked child may have inherited it locked.
    if let Ok(places) = PLACES.try_lock()
        && let Some((_, text)) = places.as_ref().and_then(|places| places.get(&key))
    {
        return Some(Arc::clone(text));
    }
    let (text, is_running): (Option<String>, bool) = ask(py, "caller", ())?;
    let text: Arc<str> = text?.into();
    // Where the running frame is a library's, the same place has another caller the next time.
    if is_running && let Ok(mut places) = PLACES.try_lock() {
        let known = places.get_or_insert_default();
        let forgotten = (known.len() >= PLACES_MAX).then(|| std::mem::take(known));
        known.insert(key, (code.unbind(), Arc::clone(&text)));
        drop(places);
        // Only now: the end of a piece of code may run code.
        drop(forgotten);
    }
    Some(text)
}

/// Return where in the code an open snapshot was begun: if the call that did so is still running, where its thread stands.
pub fn of_snapshot(py: Python<'_>, open: &OpenSnapshot) -> Option<Arc<str>> {
    match open.origin() {
        Origin::Known(location) => Some(location),
        Origin::Unknown => None,
        Origin::Inside(thread) => {
            let text: Option<String> = ask(py, "of_thread", (thread,))?;
            // If the call has returned meanwhile, its thread stands elsewhere.
            match open.origin() {
                Origin::Known(location) => Some(location),
                Origin::Inside(_) => text.map(Into::into),
                Origin::Unknown => None,
            }
        }
    }
}

/// Return the code that is running and the instruction it is at; `None` where there is none.
fn running(py: Python<'_>) -> Option<(Bound<'_, PyAny>, i32)> {
    // SAFETY: the thread is attached; the frame is borrowed, or null.
    let frame = unsafe { ffi::PyEval_GetFrame() };
    if frame.is_null() {
        return None;
    }
    // SAFETY: a live frame; the code is a new reference and never null.
    let code = unsafe { Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(frame).cast()) };
    // SAFETY: a frame is an object, and this one lives while it runs.
    let frame = unsafe { Bound::from_borrowed_ptr(py, frame.cast()) };
    let instruction = frame.getattr(intern!(py, "f_lasti")).ok()?.extract().ok()?;
    Some((code, instruction))
}

/// Return what a function of `writelane.location` says; `None`: it could not.
fn ask<'py, T>(py: Python<'py>, function: &str, arguments: impl PyCallArgs<'py>) -> Option<T>
where
    T: FromPyObjectOwned<'py, Error = PyErr>,
{
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("writelane.location").map(Bound::unbind)).ok()?;
    match module.bind(py).getattr(function).and_then(|function| function.call1(arguments)) {
        Ok(answer) => answer.extract().ok(),
        Err(error) => {
            // Raised by a signal that came meanwhile: for the application, which is asked again.
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                // SAFETY: the thread is attached; only sets a flag.
                unsafe { ffi::PyErr_SetInterrupt() };
            }
            None
        }
    }
}
