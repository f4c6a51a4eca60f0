//! Values of Python to values of SQLite, and rows back.

use super::adapt;
use super::tuple::{self, Texts};
use crate::errors;
use pyo3::exceptions::{PyIndexError, PyLookupError, PyOverflowError, PyUnicodeDecodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::Arc;
use writelane_core::connection::{Column, Prepared};
use writelane_core::sqlite::{Cells, ValueRef};

/// The longest text or blob that can be given to SQLite, whose lengths are C ints.
const LENGTH_MAX: usize = i32::MAX as usize;

/// Why a value cannot be given to SQLite.
pub enum Unfit {
    /// Its type is none of SQLite's and nothing adapts it.
    Type,
    /// Something it was asked for raised.
    Raised(PyErr),
}

impl From<PyErr> for Unfit {
    fn from(error: PyErr) -> Self {
        Unfit::Raised(error)
    }
}

/// Add one value of Python behind those in `cells`, without adapting it.
#[inline]
pub fn push(cells: &mut Cells, value: &Bound<'_, PyAny>) -> Result<(), Unfit> {
    if value.is_none() {
        cells.push(ValueRef::Null);
    } else if let Ok(integer) = value.cast::<PyInt>() {
        let integer: i64 = integer.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(value.py()) {
                PyOverflowError::new_err("Python int too large to convert to SQLite INTEGER")
            } else {
                error
            }
        })?;
        cells.push(ValueRef::Integer(integer));
    } else if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_str()?.as_bytes();
        if text.len() > LENGTH_MAX {
            return Err(PyOverflowError::new_err("string longer than INT_MAX bytes").into());
        }
        cells.push(ValueRef::Text(text));
    } else if let Ok(real) = value.cast::<PyFloat>() {
        cells.push(ValueRef::Real(real.value()));
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        push_blob(cells, bytes.as_bytes())?;
    } else {
        let bytes = buffer(value).map_err(|error| {
            if super::minor(value.py()) < 11 {
                PyValueError::new_err("could not convert BLOB to buffer")
            } else {
                error
            }
        })?;
        let Some(bytes) = bytes else { return Err(Unfit::Type) };
        push_blob(cells, &bytes)?;
    }
    Ok(())
}

fn push_blob(cells: &mut Cells, bytes: &[u8]) -> PyResult<()> {
    if bytes.len() > LENGTH_MAX {
        return Err(PyOverflowError::new_err("BLOB longer than INT_MAX bytes"));
    }
    cells.push(ValueRef::Blob(bytes));
    Ok(())
}

/// Copy the bytes of an object with a buffer; `None` where it has none.
///
/// Raises `BufferError` where the buffer is not contiguous.
pub fn buffer(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    tuple::contiguous(value)
}

fn push_adapted(cells: &mut Cells, value: &Bound<'_, PyAny>) -> Result<(), Unfit> {
    let exact = value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyByteArray>();
    if exact && !adapt::base_type_adapted() {
        return push(cells, value);
    }
    push(cells, &adapt::for_sqlite(value)?)
}

fn unfit(value: &Bound<'_, PyAny>, name: &dyn Fn() -> String, index: usize, unfit: Unfit) -> PyErr {
    let py = value.py();
    match unfit {
        Unfit::Raised(error) => error,
        Unfit::Type if super::minor(py) < 11 => errors::new(
            py,
            "InterfaceError",
            &format!("Error binding parameter {} - probably unsupported type.", legacy_name(&name(), index)),
        ),
        Unfit::Type => {
            let kind = value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            let message = format!("Error binding parameter {}: type '{kind}' is not supported", name());
            errors::new(py, "ProgrammingError", &message)
        }
    }
}

fn legacy_name(name: &str, index: usize) -> String {
    if name.starts_with(':') { name.to_owned() } else { index.to_string() }
}

/// Add the parameters of one run of a statement behind those in `cells`.
///
/// On an error what was added stays; the caller truncates.
pub fn push_parameters(cells: &mut Cells, prepared: &Prepared, parameters: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = parameters.py();
    let wanted = prepared.parameter_count();
    if let Ok(values) = parameters.cast_exact::<PyTuple>() {
        check_count(py, wanted, values.len())?;
        warn_named(py, prepared, wanted)?;
        for index in 0..wanted {
            let value = values.get_borrowed_item(index)?;
            push_adapted(cells, &value).map_err(|error| unfit(&value, &|| (index + 1).to_string(), index, error))?;
        }
    } else if let Ok(values) = parameters.cast_exact::<PyList>() {
        check_count(py, wanted, values.len())?;
        warn_named(py, prepared, wanted)?;
        for index in 0..wanted {
            // An adapter may have changed the list meanwhile.
            let value = values.get_item(index).map_err(|_| PyIndexError::new_err("list index out of range"))?;
            push_adapted(cells, &value).map_err(|error| unfit(&value, &|| (index + 1).to_string(), index, error))?;
        }
    } else if !parameters.is_instance_of::<PyDict>() && tuple::is_sequence(parameters) {
        let length = parameters.len()?;
        check_count(py, wanted, length)?;
        warn_named(py, prepared, wanted)?;
        for index in 0..wanted {
            let value = tuple::sequence_item(parameters, index)?;
            push_adapted(cells, &value).map_err(|error| unfit(&value, &|| (index + 1).to_string(), index, error))?;
        }
    } else if parameters.is_instance_of::<PyDict>() || tuple::is_mapping(parameters) {
        for index in 0..wanted {
            let Some(name) = prepared.parameter_name(index + 1) else {
                let message =
                    format!("Binding {} has no name, but you supplied a dictionary (which has only names).", index + 1);
                return Err(errors::new(py, "ProgrammingError", &message));
            };
            let name = &name[1..];
            let value = parameters.get_item(name).map_err(|error| {
                if error.is_instance_of::<PyLookupError>(py) {
                    let message = format!("You did not supply a value for binding parameter :{name}.");
                    errors::new(py, "ProgrammingError", &message)
                } else {
                    error
                }
            })?;
            push_adapted(cells, &value).map_err(|error| unfit(&value, &|| format!(":{name}"), index, error))?;
        }
    } else {
        let message = "parameters are of unsupported type";
        return Err(if super::minor(py) < 11 {
            PyValueError::new_err(message)
        } else {
            errors::new(py, "ProgrammingError", message)
        });
    }
    Ok(())
}

fn check_count(py: Python<'_>, wanted: usize, given: usize) -> PyResult<()> {
    if wanted == given {
        return Ok(());
    }
    let error = writelane_core::connection::Error::ParameterCount { expected: wanted, given };
    Err(errors::from_core(py, &error))
}

/// From 3.12 on a sequence for named placeholders is deprecated, from 3.14 on it is refused.
fn warn_named(py: Python<'_>, prepared: &Prepared, wanted: usize) -> PyResult<()> {
    let minor = super::minor(py);
    if minor < 12 {
        return Ok(());
    }
    for index in 1..=wanted {
        let Some(name) = prepared.parameter_name(index) else { continue };
        if name.starts_with('?') {
            continue;
        }
        let message = format!(
            "Binding {index} ('{name}') is a named parameter, but you supplied a sequence which requires nominal \
             (qmark) placeholders."
        );
        if minor >= 14 {
            return Err(errors::new(py, "ProgrammingError", &message));
        }
        let message = format!("{message} Starting with Python 3.14 an sqlite3.ProgrammingError will be raised.");
        warn_deprecated(py, &message)?;
    }
    Ok(())
}

/// Emit a `DeprecationWarning` at the caller's line.
pub fn warn_deprecated(py: Python<'_>, message: &str) -> PyResult<()> {
    let category = py.get_type::<pyo3::exceptions::PyDeprecationWarning>();
    let message = std::ffi::CString::new(message)?;
    PyErr::warn(py, &category, &message, 1)
}

/// What becomes of text columns.
pub enum TextFactory {
    /// `str`.
    Str,
    /// `bytes`.
    Bytes,
    /// `bytearray`.
    ByteArray,
    /// Anything else, called with the bytes.
    Other(Py<PyAny>),
}

impl TextFactory {
    /// Read what the application set.
    pub fn of(factory: &Bound<'_, PyAny>) -> Self {
        let py = factory.py();
        if factory.is(py.get_type::<PyString>()) {
            Self::Str
        } else if factory.is(py.get_type::<PyBytes>()) {
            Self::Bytes
        } else if factory.is(py.get_type::<PyByteArray>()) {
            Self::ByteArray
        } else {
            Self::Other(factory.clone().unbind())
        }
    }

    /// Return what the application set.
    pub fn object(&self, py: Python<'_>) -> Py<PyAny> {
        match self {
            Self::Str => py.get_type::<PyString>().into_any().unbind(),
            Self::Bytes => py.get_type::<PyBytes>().into_any().unbind(),
            Self::ByteArray => py.get_type::<PyByteArray>().into_any().unbind(),
            Self::Other(factory) => factory.clone_ref(py),
        }
    }

    /// Make another of the same.
    pub fn duplicate(&self, py: Python<'_>) -> Self {
        match self {
            Self::Str => Self::Str,
            Self::Bytes => Self::Bytes,
            Self::ByteArray => Self::ByteArray,
            Self::Other(factory) => Self::Other(factory.clone_ref(py)),
        }
    }

    /// Say whether making a value of text runs code of the application.
    pub fn runs_code(&self) -> bool {
        matches!(self, Self::Other(_))
    }
}

/// The converter of each column, where there is one.
pub type Casts = Arc<[Option<Py<PyAny>>]>;

/// Find the converters for the columns of a result, by the rules of `detect_types`; `None` where no column has one.
pub fn casts(py: Python<'_>, columns: &[Column], by_name: bool, by_type: bool) -> PyResult<Option<Casts>> {
    let converters = adapt::converters(py);
    if converters.is_empty() {
        return Ok(None);
    }
    let find = |name: &[u8]| -> PyResult<Option<Py<PyAny>>> {
        let name = String::from_utf8_lossy(name).to_uppercase();
        Ok(converters.get_item(name)?.map(Bound::unbind))
    };
    let mut found = Vec::with_capacity(columns.len());
    for column in columns {
        let mut converter = None;
        if by_name
            && let Some(start) = column.name.iter().position(|byte| *byte == b'[')
            && let Some(length) = column.name[start..].iter().position(|byte| *byte == b']')
        {
            converter = find(&column.name[start + 1..start + length])?;
        }
        if converter.is_none()
            && by_type
            && let Some(declared) = &column.declared
        {
            let end = declared.iter().position(|byte| matches!(byte, b' ' | b'(')).unwrap_or(declared.len());
            converter = find(&declared[..end])?;
        }
        found.push(converter);
    }
    Ok(found.iter().any(Option::is_some).then(|| found.into()))
}

/// Make the description of a result: a tuple of 7 for each column.
pub fn description<'py>(py: Python<'py>, columns: &[Column], cut_names: bool) -> PyResult<Bound<'py, PyTuple>> {
    tuple::build(py, columns.len(), |index| {
        let mut name: &[u8] = &columns[index].name;
        if cut_names && let Some(start) = name.iter().position(|byte| *byte == b'[') {
            name = &name[..start];
            if name.last() == Some(&b' ') {
                name = &name[..name.len() - 1];
            }
        }
        let name = tuple::text(py, name)?;
        let none = py.None();
        Ok((name, &none, &none, &none, &none, &none, &none).into_pyobject(py)?.into_any())
    })
}

/// Make a tuple of the row that begins at `first`.
#[inline]
pub fn row<'py>(
    py: Python<'py>,
    cells: &Cells,
    first: usize,
    columns: usize,
    text_factory: &TextFactory,
    casts: Option<&Casts>,
    names: &dyn Fn() -> Option<Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let plain = match text_factory {
        TextFactory::Str => Some(Texts::Str),
        TextFactory::Bytes => Some(Texts::Bytes),
        TextFactory::ByteArray | TextFactory::Other(_) => None,
    };
    if let (None, Some(texts)) = (casts, plain) {
        return tuple::row(py, cells, first, columns, texts).map_err(|(index, error)| match cells.get(first + index) {
            ValueRef::Text(text) => undecodable(error, index, text, names()),
            _ => error,
        });
    }
    tuple::build(py, columns, |index| {
        let value = cells.get(first + index);
        if let Some(Some(converter)) = casts.and_then(|casts| casts.get(index)) {
            return match value {
                ValueRef::Blob(bytes) => converter.bind(py).call1((PyBytes::new(py, bytes),)),
                _ => Ok(py.None().into_bound(py)),
            };
        }
        match value {
            ValueRef::Null => Ok(py.None().into_bound(py)),
            ValueRef::Integer(integer) => Ok(integer.into_pyobject(py)?.into_any()),
            ValueRef::Real(real) => Ok(PyFloat::new(py, real).into_any()),
            ValueRef::Blob(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
            ValueRef::Text(bytes) => match text_factory {
                TextFactory::Str => tuple::text(py, bytes).map_err(|error| undecodable(error, index, bytes, names())),
                TextFactory::Bytes => Ok(PyBytes::new(py, bytes).into_any()),
                TextFactory::ByteArray => Ok(PyByteArray::new(py, bytes).into_any()),
                TextFactory::Other(factory) => factory.bind(py).call1((PyBytes::new(py, bytes),)),
            },
        }
    })
}

#[cold]
fn undecodable(error: PyErr, index: usize, bytes: &[u8], names: Option<Bound<'_, PyTuple>>) -> PyErr {
    let Some(names) = names else { return error };
    let py = names.py();
    if !error.is_instance_of::<PyUnicodeDecodeError>(py) {
        return error;
    }
    let name = names
        .get_item(index)
        .and_then(|column| column.get_item(0))
        .map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let text: String = bytes.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '\u{fffd}' }).collect();
    let message = format!("Could not decode to UTF-8 column '{name}' with text '{text}'");
    errors::new(py, "OperationalError", &message)
}
