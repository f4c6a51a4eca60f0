//! The thresholds of checkpoints: the attributes of `writelane.Checkpoints`, or what the environment says.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use writelane_core::policy::checkpoint::Thresholds;
use writelane_core::policy::deadline;

/// The environment variable that sets them for a whole process, as `pages=500,idle=2`.
const VARIABLE: &str = "WRITELANE_CHECKPOINTS";

/// What can be set.
#[derive(FromPyObject, Clone, Copy)]
pub struct Checkpoints {
    pages: i64,
    idle: f64,
    keep_bytes: i64,
    limit_bytes: i64,
    pinned_after: f64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        let thresholds = Thresholds::default();
        Self {
            pages: thresholds.pages.into(),
            idle: thresholds.idle.as_secs_f64(),
            keep_bytes: i64::try_from(thresholds.keep_bytes).unwrap_or(i64::MAX),
            limit_bytes: i64::try_from(thresholds.hard_bytes).unwrap_or(i64::MAX),
            pinned_after: thresholds.pinned_after.as_secs_f64(),
        }
    }
}

impl Checkpoints {
    fn thresholds(self) -> Result<Thresholds, String> {
        let bounded = |value: f64, name: &str| match deadline::from_seconds(value) {
            Ok(Some(time)) if value >= 0.0 => Ok(time),
            _ => Err(format!("{name} must be a number of seconds, not {value}")),
        };
        // A negative number becomes one that is refused.
        let thresholds = Thresholds {
            pages: u32::try_from(self.pages).unwrap_or(u32::MAX),
            idle: bounded(self.idle, "idle")?,
            keep_bytes: u64::try_from(self.keep_bytes).unwrap_or(u64::MAX),
            hard_bytes: u64::try_from(self.limit_bytes).map_err(|_| "limit_bytes must not be negative")?,
            pinned_after: bounded(self.pinned_after, "pinned_after")?,
            ..Thresholds::default()
        };
        thresholds.objection().map_or(Ok(thresholds), |objection| Err(objection.to_owned()))
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut read = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let wrong = || format!("{pair:?} is not a name and a number").replace('"', "'");
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value = value.trim();
            match name.trim() {
                "pages" => read.pages = value.parse().map_err(|_| wrong())?,
                "idle" => read.idle = value.parse().map_err(|_| wrong())?,
                "keep_bytes" => read.keep_bytes = value.parse().map_err(|_| wrong())?,
                "limit_bytes" => read.limit_bytes = value.parse().map_err(|_| wrong())?,
                "pinned_after" => read.pinned_after = value.parse().map_err(|_| wrong())?,
                other => return Err(format!("there is no '{other}'")),
            }
        }
        Ok(read)
    }
}

/// Return the thresholds that were given, or else those of the environment, or else the defaults.
///
/// # Errors
/// ValueError: what was given would do harm, or is nonsense.
pub fn thresholds(given: Option<Checkpoints>) -> PyResult<Thresholds> {
    let (name, read) = match given {
        Some(given) => ("checkpoints", Ok(given)),
        None => match std::env::var_os(VARIABLE) {
            Some(text) => (VARIABLE, Checkpoints::read(&text.to_string_lossy())),
            None => return Ok(Thresholds::default()),
        },
    };
    read.and_then(Checkpoints::thresholds).map_err(|objection| PyValueError::new_err(format!("{name}: {objection}")))
}

/// Return the defaults, by the names of `writelane.Checkpoints`.
#[pyfunction]
fn checkpoint_defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let Checkpoints { pages, idle, keep_bytes, limit_bytes, pinned_after } = Checkpoints::default();
    let defaults = PyDict::new(py);
    defaults.set_item("pages", pages)?;
    defaults.set_item("idle", idle)?;
    defaults.set_item("keep_bytes", keep_bytes)?;
    defaults.set_item("limit_bytes", limit_bytes)?;
    defaults.set_item("pinned_after", pinned_after)?;
    Ok(defaults)
}

/// Add this part to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(checkpoint_defaults, module)?)
}
