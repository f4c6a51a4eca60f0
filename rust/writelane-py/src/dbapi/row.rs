//! A row whose values can be asked for by the names of their columns.

use super::cursor::Cursor;
use pyo3::PyTraverseError;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyInt, PyList, PySlice, PyString, PyTuple};

/// A row of a result: a sequence, and a mapping by column name without regard to ASCII case.
#[pyclass(frozen, subclass, sequence, module = "writelane.dbapi")]
pub struct Row {
    data: Py<PyTuple>,
    /// The cursor's description, `None` where the row was made before any result.
    description: Option<Py<PyTuple>>,
}

impl Row {
    /// Make a row of `data` with the columns in `description`.
    pub fn of(data: Bound<'_, PyTuple>, description: Option<&Bound<'_, PyTuple>>) -> Self {
        Self { data: data.unbind(), description: description.map(|description| description.clone().unbind()) }
    }

    fn names<'py>(&self, py: Python<'py>) -> impl Iterator<Item = PyResult<Bound<'py, PyAny>>> {
        self.description
            .as_ref()
            .map(|description| description.bind(py).clone())
            .into_iter()
            .flat_map(|description| description.into_iter().collect::<Vec<_>>())
            .map(|column| column.get_item(0))
    }
}

#[pymethods]
impl Row {
    #[new]
    #[pyo3(signature = (cursor, data, /))]
    fn new(cursor: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let cursor = cursor.cast::<Cursor>().map_err(|_| {
            let kind = cursor.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("Row() argument 1 must be sqlite3.Cursor, not {kind}"))
        })?;
        let data = data.cast::<PyTuple>().map_err(|_| {
            let kind = data.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("Row() argument 2 must be tuple, not {kind}"))
        })?;
        Ok(Self { data: data.clone().unbind(), description: cursor.get().description_tuple(cursor.py())? })
    }

    /// Return the names of the columns.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let names = PyList::empty(py);
        for name in self.names(py) {
            names.append(name?)?;
        }
        Ok(names)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.data.bind(py).len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let data = self.data.bind(py);
        if index.is_instance_of::<PyInt>() || index.is_instance_of::<PySlice>() {
            return data.as_any().get_item(index).map_err(|error| {
                // A number beyond any index is out of range too.
                if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(py) {
                    PyIndexError::new_err("cannot fit 'int' into an index-sized integer")
                } else {
                    error
                }
            });
        }
        let Ok(wanted) = index.cast::<PyString>() else {
            return Err(PyIndexError::new_err("Index must be int or string"));
        };
        if self.description.is_none() && super::minor(py) >= 14 {
            return Err(PyIndexError::new_err(format!("No item with key {}", index.repr()?)));
        }
        for (position, name) in self.names(py).enumerate() {
            let name = name?;
            if name.eq(wanted)? {
                return data.get_item(position);
            }
            if let (Ok(name), Ok(wanted)) = (name.cast::<PyString>()?.to_str(), wanted.to_str())
                && name.eq_ignore_ascii_case(wanted)
            {
                return data.get_item(position);
            }
        }
        Err(PyIndexError::new_err("No item with that key"))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.data.bind(py).try_iter()?.into_any())
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        let description = match &self.description {
            Some(description) => description.bind(py).hash()?,
            None => py.None().bind(py).hash()?,
        };
        Ok(description ^ self.data.bind(py).hash()?)
    }

    fn __richcmp__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let not_implemented = || py.NotImplemented().into_bound(py);
        if !matches!(operation, CompareOp::Eq | CompareOp::Ne) {
            return Ok(not_implemented());
        }
        let Ok(other) = other.cast::<Row>() else { return Ok(not_implemented()) };
        let other = other.get();
        let same_columns = match (&self.description, &other.description) {
            (Some(mine), Some(theirs)) => mine.bind(py).eq(theirs.bind(py))?,
            (None, None) => true,
            _ => false,
        };
        let equal = same_columns && self.data.bind(py).eq(other.data.bind(py))?;
        Ok((matches!(operation, CompareOp::Eq) == equal).into_pyobject(py)?.to_owned().into_any())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)?;
        match &self.description {
            Some(description) => visit.call(description),
            None => Ok(()),
        }
    }
}

/// Say whether a row factory is [`Row`] itself, so that rows can be made without calling it.
pub fn is_row_type(factory: &Bound<'_, PyAny>) -> bool {
    factory.is(factory.py().get_type::<Row>())
}
