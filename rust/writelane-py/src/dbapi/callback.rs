//! Functions of the application called from inside SQL, and what becomes of their exceptions.

use super::convert;
use super::tuple;
use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString, PyTuple};
use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use writelane_core::sqlite::{Action, Aggregate, Arguments, Cells, Context, Traced, ValueRef, ffi};

static TRACEBACKS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Return what a collation raised in this thread's last call into SQLite, which has no way to be told of it.
pub fn raised_by_collation() -> Option<PyErr> {
    RAISED.with(|slot| slot.borrow_mut().take())
}

/// Have exceptions in functions called from SQL reported through `sys.unraisablehook`, or not.
#[pyfunction]
#[pyo3(signature = (enable, /))]
pub fn enable_callback_tracebacks(enable: bool) {
    TRACEBACKS.store(enable, Ordering::Relaxed);
}

/// A Python callable owned by SQLite.
///
/// It is dropped wherever SQLite drops it, with the interpreter attached: that thread holds the connection's lock
/// and is detached, which is the order in which the two may be taken.
pub struct Callable(Option<Py<PyAny>>);

impl Callable {
    /// Keep a callable.
    pub fn new(callable: &Bound<'_, PyAny>) -> Self {
        Self(Some(callable.clone().unbind()))
    }

    /// Return the callable.
    pub fn get<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match &self.0 {
            Some(callable) => callable.bind(py).clone(),
            None => py.None().into_bound(py),
        }
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        let callable = self.0.take();
        // While the interpreter ends nobody can be attached; what it owned goes with it.
        let mut callable = Some(callable);
        Python::try_attach(|_| drop(callable.take()));
        std::mem::forget(callable);
    }
}

/// Report an exception where that is asked for, and forget it.
fn report(py: Python<'_>, error: PyErr, callable: &Bound<'_, PyAny>) {
    if !TRACEBACKS.load(Ordering::Relaxed) {
        return;
    }
    if super::minor(py) < 11 {
        error.print(py);
    } else if super::minor(py) < 14 {
        error.write_unraisable(py, Some(callable));
    } else {
        tuple::write_unraisable(py, error, c"Exception ignored on sqlite3 callback %R", callable);
    }
}

/// Make an exception the error of the statement.
fn fail(py: Python<'_>, context: &Context, error: PyErr, message: &str, callable: &Bound<'_, PyAny>) {
    if super::minor(py) < 11 {
        // Before 3.11 every exception was the same to the statement.
        context.fail(message);
    } else if error.is_instance_of::<PyMemoryError>(py) {
        context.fail_no_memory();
    } else if error.is_instance_of::<PyOverflowError>(py) {
        context.fail_too_big();
    } else {
        context.fail(message);
    }
    report(py, error, callable);
}

fn arguments_tuple<'py>(py: Python<'py>, arguments: &Arguments<'_>) -> PyResult<Bound<'py, PyTuple>> {
    tuple::build(py, arguments.len(), |index| match arguments.get(index) {
        ValueRef::Null => Ok(py.None().into_bound(py)),
        ValueRef::Integer(integer) => Ok(integer.into_pyobject(py)?.into_any()),
        ValueRef::Real(real) => Ok(PyFloat::new(py, real).into_any()),
        ValueRef::Text(text) => tuple::text(py, text),
        ValueRef::Blob(blob) => Ok(PyBytes::new(py, blob).into_any()),
    })
}

fn give(context: &Context, result: &Bound<'_, PyAny>) -> PyResult<()> {
    if result.is_none() {
        context.result(ValueRef::Null);
    } else if let Ok(integer) = result.cast::<PyInt>() {
        context.result(ValueRef::Integer(integer.extract()?));
    } else if let Ok(real) = result.cast::<PyFloat>() {
        context.result(ValueRef::Real(real.value()));
    } else if let Ok(text) = result.cast::<PyString>() {
        context.result(ValueRef::Text(text.to_str()?.as_bytes()));
    } else {
        let mut cells = Cells::default();
        match convert::push(&mut cells, result) {
            Ok(()) => context.result(cells.get(0)),
            Err(convert::Unfit::Raised(error)) => return Err(error),
            Err(convert::Unfit::Type) => {
                let kind = result.get_type().name()?;
                let message = format!("User-defined functions cannot return '{kind}' values to SQLite");
                return Err(crate::errors::new(result.py(), "ProgrammingError", &message));
            }
        }
    }
    Ok(())
}

/// Call a scalar function.
pub fn call_function(function: &Callable, context: &Context, arguments: &Arguments<'_>) {
    Python::attach(|py| {
        let function = function.get(py);
        let result = arguments_tuple(py, arguments)
            .and_then(|arguments| function.call1(arguments))
            .and_then(|result| give(context, &result));
        if let Err(error) = result {
            fail(py, context, error, "user-defined function raised exception", &function);
        }
    });
}

/// An instance of an aggregate class at work on one group.
pub struct Instance {
    instance: Callable,
    class: Callable,
}

/// Make an instance of an aggregate class.
pub fn make_aggregate(class: &Callable, context: &Context) -> Option<Box<dyn Aggregate>> {
    Python::attach(|py| {
        let class = class.get(py);
        match class.call0() {
            Ok(instance) => {
                Some(Box::new(Instance { instance: Callable::new(&instance), class: Callable::new(&class) })
                    as Box<dyn Aggregate>)
            }
            Err(error) => {
                fail(py, context, error, "user-defined aggregate's '__init__' method raised error", &class);
                None
            }
        }
    })
}

impl Instance {
    fn call(&self, context: &Context, method: &str, arguments: Option<&Arguments<'_>>, gives: bool) {
        Python::attach(|py| {
            let bound = match self.instance.get(py).getattr(method) {
                Ok(bound) => bound,
                Err(error) => {
                    // Up to 3.10 a missing method is told no differently from one that raises.
                    let message = if super::minor(py) < 11 {
                        format!("user-defined aggregate's '{method}' method raised error")
                    } else {
                        format!("user-defined aggregate's '{method}' method not defined")
                    };
                    fail(py, context, error, &message, &self.class.get(py));
                    return;
                }
            };
            let result = match arguments {
                Some(arguments) => arguments_tuple(py, arguments).and_then(|arguments| bound.call1(arguments)),
                None => bound.call0(),
            };
            let result = result.and_then(|result| if gives { give(context, &result) } else { Ok(()) });
            if let Err(error) = result {
                let message = format!("user-defined aggregate's '{method}' method raised error");
                fail(py, context, error, &message, &self.class.get(py));
            }
        });
    }
}

impl Aggregate for Instance {
    fn step(&mut self, context: &Context, arguments: &Arguments<'_>) {
        self.call(context, "step", Some(arguments), false);
    }

    fn inverse(&mut self, context: &Context, arguments: &Arguments<'_>) {
        self.call(context, "inverse", Some(arguments), false);
    }

    fn value(&mut self, context: &Context) {
        self.call(context, "value", None, true);
    }

    fn finish(&mut self, context: &Context) {
        self.call(context, "finalize", None, true);
    }
}

/// Compare two texts.
///
/// Once it has raised, all are equal to the rest of the statement, which raises that in its turn.
pub fn call_collation(collation: &Callable, a: &[u8], b: &[u8]) -> i32 {
    if RAISED.with(|slot| slot.borrow().is_some()) {
        return 0;
    }
    Python::attach(|py| {
        let collation = collation.get(py);
        let compared = (|| {
            let result = collation.call1((tuple::text(py, a)?, tuple::text(py, b)?))?;
            // Of any size: only the sign counts.
            let zero = 0_i32;
            Ok(if result.gt(zero)? {
                1
            } else if result.lt(zero)? {
                -1
            } else {
                0
            })
        })();
        compared.unwrap_or_else(|error: PyErr| {
            RAISED.with(|slot| *slot.borrow_mut() = Some(error));
            0
        })
    })
}

/// Ask an authorizer.
pub fn call_authorizer(authorizer: &Callable, action: &Action<'_>) -> i32 {
    Python::attach(|py| {
        let authorizer = authorizer.get(py);
        let text = |text: Option<&CStr>| text.map(|text| text.to_string_lossy().into_owned());
        let answer = authorizer
            .call1((action.code, text(action.first), text(action.second), text(action.schema), text(action.trigger)))
            .and_then(|answer| if answer.is_instance_of::<PyInt>() { answer.extract() } else { Ok(ffi::SQLITE_DENY) });
        answer.unwrap_or_else(|error: PyErr| {
            report(py, error, &authorizer);
            ffi::SQLITE_DENY
        })
    })
}

/// Ask a progress handler whether to end the statement.
pub fn call_progress(handler: &Callable) -> bool {
    Python::attach(|py| {
        let handler = handler.get(py);
        handler.call0().and_then(|answer| answer.is_truthy()).unwrap_or_else(|error| {
            report(py, error, &handler);
            true
        })
    })
}

/// Tell a trace callback of a statement.
pub fn call_trace(callback: &Callable, traced: &Traced<'_>) {
    Python::attach(|py| {
        let callback = callback.get(py);
        // What a trigger runs is told by a comment, which has no values to be put in.
        let text = if traced.text().starts_with(b"--") {
            traced.text().to_vec()
        } else {
            traced.expanded().unwrap_or_else(|| {
                let error =
                    crate::errors::new(py, "DataError", "Expanded SQL string exceeds the maximum string length");
                report(py, error, &callback);
                traced.text().to_vec()
            })
        };
        if let Err(error) = tuple::text(py, &text).and_then(|text| callback.call1((text,))) {
            report(py, error, &callback);
        }
    });
}
