//! Adapters and converters: what turns an application's own types into SQLite's, and back.

use crate::errors;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyNone, PyString, PyTuple, PyType};
use std::sync::atomic::{AtomicBool, Ordering};

/// The protocol that a value is asked to conform to when it is bound to a parameter.
#[pyclass(frozen, subclass, module = "writelane.dbapi")]
pub struct PrepareProtocol {}

#[pymethods]
impl PrepareProtocol {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {}
    }
}

static ADAPTERS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
static CONVERTERS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// Whether an adapter was registered for a type that SQLite has itself; without one such values are not looked up.
static BASE_TYPE_ADAPTED: AtomicBool = AtomicBool::new(false);

/// Return the adapters by (type, protocol).
pub fn adapters(py: Python<'_>) -> &Bound<'_, PyDict> {
    ADAPTERS.get_or_init(py, || PyDict::new(py).unbind()).bind(py)
}

/// Return the converters by name in capitals.
pub fn converters(py: Python<'_>) -> &Bound<'_, PyDict> {
    CONVERTERS.get_or_init(py, || PyDict::new(py).unbind()).bind(py)
}

/// Say whether values of SQLite's own types go through adapters too.
#[inline]
pub fn base_type_adapted() -> bool {
    BASE_TYPE_ADAPTED.load(Ordering::Relaxed)
}

/// Adapt a value to a protocol; `alternative` is what comes of a value that nothing adapts.
pub fn adapt_value<'py>(
    value: &Bound<'py, PyAny>,
    protocol: &Bound<'py, PyAny>,
    alternative: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    if let Some(adapter) = adapters(py).get_item((value.get_type(), protocol))? {
        return adapter.call1((value,));
    }
    if let Some(adapt) = protocol.getattr_opt("__adapt__")?
        && let Some(adapted) = none_on_type_error(py, adapt.call1((value,)))?
    {
        return Ok(adapted);
    }
    if let Some(conform) = value.getattr_opt("__conform__")?
        && let Some(adapted) = none_on_type_error(py, conform.call1((protocol,)))?
    {
        return Ok(adapted);
    }
    match alternative {
        Some(alternative) => Ok(alternative.clone()),
        None => Err(errors::new(py, "ProgrammingError", "can't adapt")),
    }
}

fn none_on_type_error<'py>(
    py: Python<'py>,
    adapted: PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match adapted {
        Ok(adapted) => Ok((!adapted.is_none()).then_some(adapted)),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adapt a value for SQLite, or return it as it is.
pub fn for_sqlite<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let protocol = value.py().get_type::<PrepareProtocol>();
    adapt_value(value, &protocol, Some(value))
}

/// Adapt a value to a protocol, by default for SQLite.
///
/// Raises `ProgrammingError` where nothing adapts it and no alternative is given.
#[pyfunction]
#[pyo3(signature = (obj, /, *proto_and_alt), text_signature = "(obj, proto=PrepareProtocol, alt=<unrepresentable>, /)")]
fn adapt<'py>(obj: &Bound<'py, PyAny>, proto_and_alt: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let py = obj.py();
    if proto_and_alt.len() > 2 {
        let message = format!("adapt expected at most 3 arguments, got {}", proto_and_alt.len() + 1);
        return Err(PyTypeError::new_err(message));
    }
    let proto = match proto_and_alt.get_item(0) {
        Ok(proto) => proto,
        Err(_) => py.get_type::<PrepareProtocol>().into_any(),
    };
    adapt_value(obj, &proto, proto_and_alt.get_item(1).ok().as_ref())
}

/// Register a function that adapts values of exactly the type `type` for SQLite.
#[pyfunction]
#[pyo3(signature = (r#type, adapter, /))]
fn register_adapter(py: Python<'_>, r#type: &Bound<'_, PyType>, adapter: &Bound<'_, PyAny>) -> PyResult<()> {
    let base = [
        py.get_type::<PyInt>(),
        py.get_type::<PyFloat>(),
        py.get_type::<PyString>(),
        py.get_type::<PyByteArray>(),
        py.get_type::<PyBytes>(),
        PyNone::get(py).get_type(),
    ];
    if base.iter().any(|base| base.is(r#type)) {
        BASE_TYPE_ADAPTED.store(true, Ordering::Relaxed);
    }
    adapters(py).set_item((r#type, py.get_type::<PrepareProtocol>()), adapter)
}

/// Register a function that turns the bytes of columns with the declared type `typename` into a value.
#[pyfunction]
#[pyo3(signature = (typename, converter, /))]
fn register_converter(typename: &Bound<'_, PyString>, converter: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = typename.py();
    converters(py).set_item(typename.call_method0("upper")?, converter)
}

/// Add the functions and the tables to the native module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("adapters", adapters(py))?;
    module.add("converters", converters(py))?;
    module.add_function(wrap_pyfunction!(adapt, module)?)?;
    module.add_function(wrap_pyfunction!(register_adapter, module)?)?;
    module.add_function(wrap_pyfunction!(register_converter, module)?)
}
