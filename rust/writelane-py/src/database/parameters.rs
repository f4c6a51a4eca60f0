//! Parameters of Python to parameters of a job. They are copied: the job outlives the call.

use crate::dbapi::{adapt, tuple};
use crate::errors;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PySequence, PyString, PyTuple};
use writelane_core::job::{Link, Linked, Parameters};
use writelane_core::sqlite::Value;

/// The value that an earlier call of the same batch will give: the first column of its first row.
#[pyclass(frozen, subclass, module = "writelane._native")]
pub struct Earlier {
    /// Which call of the batch, from 0.
    #[pyo3(get)]
    call: usize,
}

#[pymethods]
impl Earlier {
    #[new]
    fn new(call: usize) -> Self {
        Self { call }
    }
}

/// Convert the parameters of one call: a sequence, a mapping, or nothing.
pub fn from_python(parameters: Option<&Bound<'_, PyAny>>) -> PyResult<Parameters> {
    let Some(parameters) = parameters else { return Ok(Parameters::none()) };
    if let Ok(tuple) = parameters.cast_exact::<PyTuple>() {
        return positional(tuple.iter_borrowed().map(|item| item.to_owned()), tuple.len());
    }
    if let Ok(list) = parameters.cast_exact::<PyList>() {
        return positional(list.iter(), list.len());
    }
    if let Ok(dict) = parameters.cast::<PyDict>() {
        return named(dict.iter());
    }
    if parameters.is_instance_of::<PyString>() || parameters.is_instance_of::<PyBytes>() {
        let message = "parameters are a string, which would be one parameter for each character: write (value,)";
        return Err(errors::class(parameters.py(), "ProgrammingError")
            .map_or_else(|error| error, |class| PyErr::from_type(class, (message,))));
    }
    if let Ok(sequence) = parameters.cast::<PySequence>() {
        let items = sequence.to_list()?;
        return positional(items.iter(), items.len());
    }
    if let Ok(mapping) = parameters.cast::<PyMapping>() {
        let items = mapping.items()?;
        return named(
            items
                .iter()
                .map(|item| item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>())
                .collect::<PyResult<Vec<_>>>()?
                .into_iter(),
        );
    }
    Err(programming(parameters.py(), "parameters are of unsupported type"))
}

fn programming(py: Python<'_>, message: &str) -> PyErr {
    errors::class(py, "ProgrammingError")
        .map_or_else(|error| error, |class| PyErr::from_type(class, (message.to_owned(),)))
}

fn positional<'py>(items: impl Iterator<Item = Bound<'py, PyAny>>, length: usize) -> PyResult<Parameters> {
    let mut values = Vec::with_capacity(length);
    let mut links = Vec::new();
    for (index, item) in items.enumerate() {
        values.push(value(&item, index, &mut links, &|| (index + 1).to_string())?);
    }
    Ok(linked(Parameters::Positional(values.into_boxed_slice()), links))
}

fn named<'py>(items: impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)>) -> PyResult<Parameters> {
    let mut values = Vec::new();
    let mut links = Vec::new();
    for (index, (name, item)) in items.enumerate() {
        let name: PyBackedStr =
            name.extract().map_err(|_| programming(item.py(), "the names of named parameters must be strings"))?;
        let value = value(&item, index, &mut links, &|| format!(":{name}"))?;
        values.push((Box::from(&*name), value));
    }
    Ok(linked(Parameters::Named(values.into_boxed_slice()), links))
}

fn linked(known: Parameters, links: Vec<Link>) -> Parameters {
    if links.is_empty() {
        return known;
    }
    Parameters::Linked(Box::new(Linked { known, links: links.into_boxed_slice() }))
}

/// Convert one value, the parameter at `index`. `name` is asked for only where it does not fit.
fn value(item: &Bound<'_, PyAny>, index: usize, links: &mut Vec<Link>, name: &dyn Fn() -> String) -> PyResult<Value> {
    if let Some(value) = native(item)? {
        return Ok(value);
    }
    if let Ok(earlier) = item.cast::<Earlier>() {
        links.push(Link { parameter: index, call: earlier.get().call });
        return Ok(Value::Null);
    }
    let adapted = adapt::for_sqlite(item)?;
    if let Some(value) = native(&adapted)? {
        return Ok(value);
    }
    if let Some(bytes) = tuple::contiguous(&adapted)? {
        return Ok(Value::Blob(bytes.into_boxed_slice()));
    }
    let kind = item.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    Err(programming(item.py(), &format!("Error binding parameter {}: type '{kind}' is not supported", name())))
}

/// Convert a value of one of SQLite's own types.
fn native(item: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    Ok(Some(if item.is_none() {
        Value::Null
    } else if let Ok(integer) = item.cast::<PyInt>() {
        Value::Integer(integer.extract::<i64>().map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(item.py()) {
                PyOverflowError::new_err("Python int too large to convert to SQLite INTEGER")
            } else {
                error
            }
        })?)
    } else if let Ok(text) = item.cast::<PyString>() {
        Value::Text(text.to_str()?.as_bytes().into())
    } else if let Ok(real) = item.cast::<PyFloat>() {
        Value::Real(real.value())
    } else if let Ok(bytes) = item.cast::<PyBytes>() {
        Value::Blob(bytes.as_bytes().into())
    } else {
        return Ok(None);
    }))
}
