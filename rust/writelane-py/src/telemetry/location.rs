//! Where in the application's code a transaction was begun.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::{Arc, Mutex, PoisonError};

/// Places that are remembered: a program has few that it writes at again and again.
const PLACES_MAX: usize = 8;

/// A place in a piece of code that is the application's own, and its file and line.
struct Place {
    code: Py<PyAny>,
    instruction: i32,
    text: Arc<str>,
}

/// What [`of_caller`] has found. To walk the frames and count the lines costs as much as the rest of a short write.
static PLACES: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Return file and line of the application's frame that is running; `None` where there is none.
pub fn of_caller(py: Python<'_>) -> Option<Arc<str>> {
    let (code, instruction) = running(py)?;
    {
        let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = places.iter().find(|place| place.instruction == instruction && place.code.is(&code));
        if let Some(known) = known {
            return Some(Arc::clone(&known.text));
        }
    }
    let (text, is_running) = ask(py).ok()?;
    let text: Arc<str> = text?.into();
    // Where the running frame is a library's, the same place has another caller the next time.
    if is_running {
        let place = Place { code: code.unbind(), instruction, text: Arc::clone(&text) };
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (places.len() >= PLACES_MAX).then(|| places.remove(0));
        places.push(place);
        drop(places);
        // Only now: the end of a piece of code may run code.
        drop(oldest);
    }
    Some(text)
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

/// Return file and line, and whether they are the running frame's own.
fn ask(py: Python<'_>) -> PyResult<(Option<String>, bool)> {
    static CALLER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CALLER
        .get_or_try_init(py, || py.import("writelane.location")?.getattr("caller").map(Bound::unbind))?
        .call0(py)?
        .extract(py)
}
