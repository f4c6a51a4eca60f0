//! Arguments taken by hand, where the interpreter's version says how they may be passed.

use super::convert::warn_deprecated;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Arguments by place, given by position or by keyword.
pub struct Taken<'py, const N: usize> {
    /// The values, `None` where one was not given.
    pub values: [Option<Bound<'py, PyAny>>; N],
    /// Whether any was given by keyword.
    pub by_keyword: bool,
}

/// Sort the arguments of `function` by the names of its parameters; the first `required` must be given, and those
/// from `keyword_only` on only by keyword.
pub fn take<'py, const N: usize>(
    function: &str,
    names: [&str; N],
    required: usize,
    keyword_only: usize,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Taken<'py, N>> {
    let mut taken = Taken { values: std::array::from_fn(|_| None), by_keyword: false };
    if args.len() > keyword_only {
        let message = format!("{function}() takes at most {keyword_only} positional arguments ({} given)", args.len());
        return Err(PyTypeError::new_err(message));
    }
    for (place, value) in args.iter().enumerate() {
        taken.values[place] = Some(value);
    }
    for (name, value) in kwargs.into_iter().flat_map(|kwargs| kwargs.iter()) {
        let name: String = name.extract()?;
        let Some(place) = names.iter().position(|known| *known == name) else {
            return Err(PyTypeError::new_err(format!("{function}() got an unexpected keyword argument '{name}'")));
        };
        if taken.values[place].replace(value).is_some() {
            let message = format!("argument for {function}() given by name ('{name}') and position ({})", place + 1);
            return Err(PyTypeError::new_err(message));
        }
        taken.by_keyword |= place < keyword_only;
    }
    if let Some(place) = (0..required).find(|place| taken.values[*place].is_none()) {
        let message = format!("{function}() missing required argument '{}' (pos {})", names[place], place + 1);
        return Err(PyTypeError::new_err(message));
    }
    Ok(taken)
}

/// From 3.13 on warn that the first parameters of a method will take no keywords.
pub fn warn_keywords(py: Python<'_>, by_keyword: bool, method: &str, names: &[&str]) -> PyResult<()> {
    if !by_keyword || super::minor(py) < 13 {
        return Ok(());
    }
    let list = listed(names);
    let plural = if names.len() == 1 { "" } else { "s" };
    let message = format!(
        "Passing keyword argument{plural} {list} to _sqlite3.Connection.{method}() is deprecated. Parameter{plural} \
         {list} will become positional-only in Python 3.15."
    );
    warn_deprecated(py, &message)
}

/// From 3.13 on warn that all parameters but the first will take keywords only.
pub fn warn_positions(py: Python<'_>, given: usize, function: &str, names: &[&str]) -> PyResult<()> {
    if given <= 1 || super::minor(py) < 13 {
        return Ok(());
    }
    let message = format!(
        "Passing more than 1 positional argument to {function}() is deprecated. Parameters {} will become keyword-only \
         parameters in Python 3.15.",
        listed(names)
    );
    warn_deprecated(py, &message)
}

fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
