//! A value of a table, open in pieces.

use super::connection::Connection;
use super::tuple;
use crate::errors;
use crate::interpreter::detach;
use pyo3::PyTraverseError;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use writelane_core::connection::Connection as Core;

const SEEK_SET: i32 = 0;
const SEEK_CUR: i32 = 1;
const SEEK_END: i32 = 2;

/// A value of a table, read and written in pieces; its length cannot change.
#[pyclass(frozen, mapping, module = "writelane.dbapi")]
pub struct Blob {
    connection: Mutex<Option<Py<Connection>>>,
    core: Arc<Core>,
    number: u64,
    length: usize,
    state: Mutex<State>,
}

struct State {
    open: bool,
    offset: usize,
}

impl Blob {
    /// Wrap the open value `number`.
    pub fn new(connection: &Bound<'_, Connection>, core: Arc<Core>, number: u64, length: usize) -> Self {
        Self {
            connection: Mutex::new(Some(connection.clone().unbind())),
            core,
            number,
            length,
            state: Mutex::new(State { open: true, offset: 0 }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_connection(&self, py: Python<'_>) -> PyResult<()> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|connection| connection.clone_ref(py));
        match connection {
            Some(connection) => connection.get().check(py).map(drop),
            None => Ok(()),
        }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.check_connection(py)?;
        if self.state().open {
            Ok(())
        } else {
            Err(errors::new(py, "ProgrammingError", "Cannot operate on a closed blob."))
        }
    }

    fn read_at(&self, py: Python<'_>, offset: usize, length: usize) -> PyResult<Vec<u8>> {
        Connection::run(py, &self.core, |core| core.blob_read(self.number, offset, length))
    }

    fn write_at(&self, py: Python<'_>, offset: usize, bytes: &[u8]) -> PyResult<()> {
        Connection::run(py, &self.core, |core| core.blob_write(self.number, offset, bytes))
    }

    fn do_close(&self, py: Python<'_>) {
        let open = std::mem::replace(&mut self.state().open, false);
        if open {
            detach(py, || self.core.blob_close(self.number));
        }
    }

    fn index(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        let index = tuple::index(key)?;
        let index = if index < 0 { index + self.length as isize } else { index };
        match usize::try_from(index) {
            Ok(index) if index < self.length => Ok(index),
            _ => Err(PyIndexError::new_err("Blob index out of range")),
        }
    }
}

fn buffer(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    tuple::contiguous(data)?.ok_or_else(|| {
        let kind = data.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("a bytes-like object is required, not '{kind}'"))
    })
}

#[pymethods]
impl Blob {
    /// Close the blob; one that is closed stays so.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_connection(py)?;
        self.do_close(py);
        Ok(())
    }

    /// Return up to `length` bytes from the current place on (negative: all that are left), and move it behind
    /// them.
    #[pyo3(signature = (length=-1, /))]
    fn read<'py>(&self, py: Python<'py>, length: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.check(py)?;
        let offset = self.state().offset;
        let left = self.length - offset;
        let length = usize::try_from(length).map_or(left, |length| length.min(left));
        if length == 0 {
            return Ok(PyBytes::new(py, b""));
        }
        let bytes = self.read_at(py, offset, length)?;
        self.state().offset = offset + length;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Write bytes from the current place on, and move it behind them. The length of the value stays.
    #[pyo3(signature = (data, /))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = buffer(data)?;
        self.check(py)?;
        let offset = self.state().offset;
        if bytes.len() > self.length - offset {
            return Err(PyValueError::new_err("data longer than blob length"));
        }
        self.write_at(py, offset, &bytes)?;
        self.state().offset = offset + bytes.len();
        Ok(())
    }

    /// Move the current place to `offset` from the start (0), the current place (1) or the end (2).
    #[pyo3(signature = (offset, origin=SEEK_SET, /))]
    fn seek(&self, py: Python<'_>, offset: i32, origin: i32) -> PyResult<()> {
        self.check(py)?;
        let length = self.length as i64;
        let base = match origin {
            SEEK_SET => 0,
            SEEK_CUR => self.state().offset as i64,
            SEEK_END => length,
            _ => {
                let message = "'origin' should be os.SEEK_SET, os.SEEK_CUR, or os.SEEK_END";
                return Err(PyValueError::new_err(message));
            }
        };
        let place = base + i64::from(offset);
        if place > i64::from(i32::MAX) {
            return Err(PyOverflowError::new_err("seek offset results in overflow"));
        }
        if place < 0 || place > length {
            return Err(PyValueError::new_err("offset out of blob range"));
        }
        self.state().offset = place as usize;
        Ok(())
    }

    /// Return the current place.
    fn tell(&self, py: Python<'_>) -> PyResult<usize> {
        self.check(py)?;
        Ok(self.state().offset)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.check(py)?;
        Ok(self.length)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().check(slf.py())?;
        Ok(slf.clone())
    }

    #[pyo3(signature = (r#type=None, val=None, tb=None, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        r#type: Option<&Bound<'_, PyAny>>,
        val: Option<&Bound<'_, PyAny>>,
        tb: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let _ = (r#type, val, tb);
        self.check(py)?;
        self.do_close(py);
        Ok(false)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.check(py)?;
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(self.length as isize)?;
            if range.slicelength == 0 {
                return Ok(PyBytes::new(py, b"").into_any());
            }
            if range.step < 0 {
                return Err(PyValueError::new_err("Blob doesn't support slices with a negative step"));
            }
            if range.step == 1 {
                let bytes = self.read_at(py, range.start as usize, range.slicelength)?;
                return Ok(PyBytes::new(py, &bytes).into_any());
            }
            let places: Vec<usize> =
                (0..range.slicelength as isize).map(|step| (range.start + step * range.step) as usize).collect();
            let (first, last) = ends(&places);
            let bytes = self.read_at(py, first, last - first + 1)?;
            let picked: Vec<u8> = places.iter().map(|place| bytes[place - first]).collect();
            return Ok(PyBytes::new(py, &picked).into_any());
        }
        if !tuple::is_index(key) {
            return Err(PyTypeError::new_err("Blob indices must be integers"));
        }
        let index = self.index(key)?;
        let bytes = self.read_at(py, index, 1)?;
        Ok(bytes[0].into_pyobject(py)?.into_any())
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check(py)?;
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(self.length as isize)?;
            let bytes = buffer(value)?;
            if bytes.len() != range.slicelength {
                return Err(PyIndexError::new_err("Blob slice assignment is wrong size"));
            }
            if range.slicelength == 0 {
                return Ok(());
            }
            if range.step < 0 {
                return Err(PyValueError::new_err("Blob doesn't support slices with a negative step"));
            }
            if range.step == 1 {
                return self.write_at(py, range.start as usize, &bytes);
            }
            let places: Vec<usize> =
                (0..range.slicelength as isize).map(|step| (range.start + step * range.step) as usize).collect();
            let (first, last) = ends(&places);
            let mut around = self.read_at(py, first, last - first + 1)?;
            for (place, byte) in places.iter().zip(&bytes) {
                around[place - first] = *byte;
            }
            return self.write_at(py, first, &around);
        }
        if !tuple::is_index(key) {
            return Err(PyTypeError::new_err("Blob indices must be integers"));
        }
        if !value.is_instance_of::<pyo3::types::PyInt>() {
            let kind = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!("'{kind}' object cannot be interpreted as an integer")));
        }
        let index = self.index(key)?;
        let byte: u8 = value.extract().map_err(|_| PyValueError::new_err("byte must be in range(0, 256)"))?;
        self.write_at(py, index, &[byte])
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check(py)?;
        if key.is_instance_of::<PySlice>() {
            return Err(PyTypeError::new_err("Blob object doesn't support slice deletion"));
        }
        if !tuple::is_index(key) {
            return Err(PyTypeError::new_err("Blob indices must be integers"));
        }
        Err(PyTypeError::new_err("Blob object doesn't support item deletion"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Nobody holds this lock across anything that can run the collector.
        let Ok(connection) = self.connection.try_lock() else { return Ok(()) };
        match &*connection {
            Some(connection) => visit.call(connection),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        let former = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(former);
    }
}

fn ends(places: &[usize]) -> (usize, usize) {
    let first = places.iter().copied().min().unwrap_or(0);
    (first, places.iter().copied().max().unwrap_or(first))
}

impl Drop for Blob {
    fn drop(&mut self) {
        Python::attach(|py| self.do_close(py));
    }
}
