//! Tuples made in place: a row is built without a vector in between.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::CStr;
use std::os::raw::c_char;
use writelane_core::sqlite::{Cells, ValueRef};

/// Make a tuple of `length` values, each made by `make` from its index.
#[inline]
pub fn build<'py>(
    py: Python<'py>,
    length: usize,
    mut make: impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the thread is attached; a null result is turned into the exception that is set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyTuple_New(length as ffi::Py_ssize_t))? };
    for index in 0..length {
        let value = make(index)?;
        // SAFETY: the tuple is new and nobody else has seen it, the index is within it, and the reference is handed
        // over. Where `make` fails half way the empty places are null, which a tuple's deallocation allows.
        unsafe { ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as ffi::Py_ssize_t, value.into_ptr()) };
    }
    // SAFETY: made by PyTuple_New.
    Ok(unsafe { tuple.cast_into_unchecked() })
}

/// What becomes of text in [`row`].
#[derive(Clone, Copy)]
pub enum Texts {
    /// `str`.
    Str,
    /// `bytes`.
    Bytes,
}

/// Make a tuple of the values `cells[first..first + columns]`; `Err`: the first of them that could not be made, with the
/// exception.
///
/// The garbage collector is told at once that it need not look at the tuple, which it would find out by itself when it
/// first comes by: nothing in it refers to anything.
#[inline]
pub fn row<'py>(
    py: Python<'py>,
    cells: &Cells,
    first: usize,
    columns: usize,
    texts: Texts,
) -> Result<Bound<'py, PyTuple>, (usize, PyErr)> {
    // SAFETY: the thread is attached; a null result is turned into the exception that is set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyTuple_New(columns as ffi::Py_ssize_t)) };
    let tuple = tuple.map_err(|error| (0, error))?;
    for index in 0..columns {
        // SAFETY: the thread is attached; pointers and lengths are those of slices, which are no longer than a C int.
        // Each call returns a new reference or null with an exception set.
        let value = unsafe {
            match cells.get(first + index) {
                ValueRef::Null => ffi::Py_NewRef(ffi::Py_None()),
                ValueRef::Integer(integer) => ffi::PyLong_FromLongLong(integer),
                ValueRef::Real(real) => ffi::PyFloat_FromDouble(real),
                ValueRef::Text(text) if matches!(texts, Texts::Str) => string(text),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                    ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t)
                }
            }
        };
        if value.is_null() {
            return Err((index, PyErr::fetch(py)));
        }
        // SAFETY: as in `build`.
        unsafe { ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as ffi::Py_ssize_t, value) };
    }
    // SAFETY: the tuple is live, and whole. An empty one, which is not tracked, is left as it is.
    unsafe { ffi::PyObject_GC_UnTrack(tuple.as_ptr().cast()) };
    // SAFETY: made by PyTuple_New.
    Ok(unsafe { tuple.cast_into_unchecked() })
}

/// Decode UTF-8 into a string: a new reference, or null with an exception set.
///
/// # Safety
/// The thread is attached, and the text no longer than a C int.
#[inline]
unsafe fn string(text: &[u8]) -> *mut ffi::PyObject {
    let length = text.len() as ffi::Py_ssize_t;
    // Strings of one character are kept by the interpreter, which knows them by another way.
    if text.len() < 2 || !text.is_ascii() {
        // SAFETY: the pointer and the length are those of the slice.
        return unsafe { ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast::<c_char>(), length) };
    }
    // SAFETY: a new string for ASCII that nobody else has seen has room for `length` bytes and the zero behind them,
    // which is there already.
    unsafe {
        let string = ffi::PyUnicode_New(length, 127);
        if !string.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr(), ffi::PyUnicode_1BYTE_DATA(string), text.len());
        }
        string
    }
}

/// Decode UTF-8 into a string.
#[inline]
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let length = ffi::Py_ssize_t::try_from(bytes.len()).map_err(|_| PyMemoryError::new_err(()))?;
    // SAFETY: the pointer and the length are those of the slice; a null result is the exception that is set.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast::<c_char>(), length))
    }
}

/// Say whether an object is a sequence by the C API's own test: it can be indexed and is no dictionary.
pub fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the thread is attached and the object is live; the call has no other condition.
    unsafe { ffi::PySequence_Check(value.as_ptr()) == 1 }
}

/// Say whether an object is a mapping by the C API's own test: it has `__getitem__`.
pub fn is_mapping(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: as for `is_sequence`.
    unsafe { ffi::PyMapping_Check(value.as_ptr()) == 1 }
}

/// Return item `index` of a sequence.
pub fn sequence_item<'py>(value: &Bound<'py, PyAny>, index: usize) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the thread is attached and the object is live; a null result is the exception that is set.
    unsafe {
        Bound::from_owned_ptr_or_err(value.py(), ffi::PySequence_GetItem(value.as_ptr(), index as ffi::Py_ssize_t))
    }
}

/// Copy the bytes of an object with a buffer of any item type; `None` where it has no buffer.
///
/// Raises `BufferError` where the buffer is not contiguous.
pub fn contiguous(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    // SAFETY: the thread is attached and the object is live.
    if unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) } == 0 {
        return Ok(None);
    }
    let mut view = std::mem::MaybeUninit::<ffi::Py_buffer>::uninit();
    // SAFETY: the object has a buffer, and `view` is room for its description, which a success fills.
    if unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_SIMPLE) } != 0 {
        return Err(PyErr::fetch(value.py()));
    }
    // SAFETY: filled by the call above.
    let mut view = unsafe { view.assume_init() };
    let length = usize::try_from(view.len).unwrap_or(0);
    let bytes = if length == 0 || view.buf.is_null() {
        Vec::new()
    } else {
        // SAFETY: a simple buffer is `len` contiguous bytes at `buf` until it is released; no Python code runs here.
        unsafe { std::slice::from_raw_parts(view.buf.cast::<u8>(), length) }.to_vec()
    };
    // SAFETY: got above and released once.
    unsafe { ffi::PyBuffer_Release(&mut view) };
    Ok(Some(bytes))
}

/// Say whether an object can be an index: it has `__index__`.
pub fn is_index(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the thread is attached and the object is live.
    unsafe { ffi::PyIndex_Check(value.as_ptr()) == 1 }
}

/// Return an index; one that does not fit raises `IndexError`.
pub fn index(value: &Bound<'_, PyAny>) -> PyResult<isize> {
    // SAFETY: the thread is attached and both objects are live; -1 may be an answer or the sign of an exception.
    let index = unsafe { ffi::PyNumber_AsSsize_t(value.as_ptr(), ffi::PyExc_IndexError) };
    if index == -1 && PyErr::occurred(value.py()) {
        return Err(PyErr::fetch(value.py()));
    }
    Ok(index)
}

/// Report an exception through `sys.unraisablehook` with a message, in which `%R` stands for `object`.
///
/// The interpreter can be told a message from 3.13 on, so the function for it is looked for while running; an older one is
/// told the object alone.
pub fn write_unraisable(py: Python<'_>, error: PyErr, message: &CStr, object: &Bound<'_, PyAny>) {
    type Format = unsafe extern "C" fn(*const c_char, ...);
    // SAFETY: the name ends with a zero, and the search changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyErr_FormatUnraisable".as_ptr()) };
    if found.is_null() {
        error.write_unraisable(py, Some(object));
        return;
    }
    // SAFETY: that is the function's type in the C API, under the name it was found by.
    let format = unsafe { std::mem::transmute::<*mut libc::c_void, Format>(found) };
    error.restore(py);
    // SAFETY: the thread is attached, an exception is set, and the message's one directive takes an object.
    unsafe { format(message.as_ptr(), object.as_ptr()) };
}
