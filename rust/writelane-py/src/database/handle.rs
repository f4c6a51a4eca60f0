//! One open database.

use super::failure;
use super::outcome::{Result_, list};
use super::parameters;
use super::ticket::{Shape, Ticket};
use super::transaction::Transaction;
use crate::checkpoints::{self, Checkpoints};
use crate::interpreter::{detach, signalled};
use crate::telemetry::{FileTelemetry, location, snapshot};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use writelane_core::database::{self, Access, CallOptions, Journal, Options, Pending};
use writelane_core::job::{Durability, Failure, Parameters, Work};
use writelane_core::policy::{checkpoint, deadline};
use writelane_core::process;
use writelane_core::wait::Patience;

/// Run a wait of at most `timeout` seconds, detached.
pub fn patience<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl FnOnce(&Patience<'_>) -> T + Send,
) -> PyResult<T> {
    let until = deadline::until(Instant::now(), seconds(timeout, "timeout")?);
    Ok(detach(py, || wait(&Patience { until, interrupted: &signalled })))
}

fn seconds(value: Option<f64>, name: &str) -> PyResult<Option<Duration>> {
    match value {
        None => Ok(None),
        Some(value) => deadline::from_seconds(value)
            .map_err(|_| PyValueError::new_err(format!("{name} must be a number of seconds or None, not NaN"))),
    }
}

/// The deadline of one call: as the database was opened, none, or seconds.
#[derive(Clone, Copy)]
enum Deadline {
    AsOpened,
    Given(Option<Duration>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Deadline {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if given.is_none() {
            return Ok(Self::Given(None));
        }
        let value: f64 =
            given.extract().map_err(|_| PyTypeError::new_err("deadline must be a number of seconds or None"))?;
        Ok(Self::Given(seconds(Some(value), "deadline")?))
    }
}

impl Deadline {
    fn call_options(self, durable: bool) -> CallOptions {
        let deadline = match self {
            Self::AsOpened => None,
            Self::Given(wait) => Some(wait),
        };
        CallOptions { deadline, durable }
    }
}

fn choice<T: Copy>(name: &str, given: &str, choices: &[(&str, T)]) -> PyResult<T> {
    choices.iter().find(|(known, _)| *known == given).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = choices.iter().map(|(known, _)| format!("{known:?}")).collect();
        PyValueError::new_err(format!("{name} must be one of {}, not {given:?}", known.join(", ")))
    })
}

/// One open database: the native base of `writelane.Database`.
#[pyclass(frozen, subclass, module = "writelane._native")]
pub struct Database {
    inner: Arc<database::Database>,
}

#[pymethods]
impl Database {
    #[new]
    #[pyo3(signature = (path, *, durability="normal", deadline=Some(30.0), queue_size=1024, queue_bytes=64 << 20,
        journal="auto", access="shared", readonly=false, readers=8, trust_filesystem=false,
        checkpoints=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        durability: &str,
        deadline: Option<f64>,
        queue_size: usize,
        queue_bytes: usize,
        journal: &str,
        access: &str,
        readonly: bool,
        readers: usize,
        trust_filesystem: bool,
        checkpoints: Option<Checkpoints>,
    ) -> PyResult<Self> {
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            // As the standard module says it.
            return Err(PyValueError::new_err("embedded null byte"));
        }
        if queue_size == 0 || queue_bytes == 0 || readers == 0 {
            return Err(PyValueError::new_err("queue_size, queue_bytes and readers must be at least 1"));
        }
        let options = Options {
            durability: choice(
                "durability",
                durability,
                &[
                    ("normal", Durability::Normal),
                    ("full", Durability::Full),
                    ("extra", Durability::Extra),
                    ("off", Durability::Off),
                ],
            )?,
            deadline: seconds(deadline, "deadline")?,
            bounds: writelane_core::queue::Bounds { jobs_max: queue_size, bytes_max: queue_bytes },
            journal: choice(
                "journal",
                journal,
                &[("auto", Journal::Auto), ("wal", Journal::Wal), ("delete", Journal::Delete), ("keep", Journal::Keep)],
            )?,
            access: choice("access", access, &[("shared", Access::Shared), ("exclusive", Access::Exclusive)])?,
            readonly,
            readers_max: readers,
            trust_filesystem,
            checkpoints: checkpoints::thresholds(checkpoints)?,
            ..Options::default()
        };
        let opened = detach(py, || database::Database::open(&path, options, &signalled));
        match opened {
            Ok(inner) => Ok(Self { inner: Arc::new(inner) }),
            Err(error) => Err(failure::raise_open(py, &error)),
        }
    }

    /// The path the database was opened under.
    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.path().to_owned()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Run one statement and return its :class:`Result`.
    ///
    /// A read goes to a reader, never behind a writer. A write goes to the writer and is committed, as durably as the
    /// database was opened, when this returns; with ``durable=True`` it is synced to disk. Blocks, without the GIL, up
    /// to ``deadline`` seconds (default: that of the database; ``None``: without end; zero or less: runs only if
    /// nothing is in its way).
    ///
    /// Raises the standard library's exceptions: ``IntegrityError`` and its kin for what SQLite refuses,
    /// ``WriteTimeout``, ``QueueFull``, ``CommitUncertain``, ``Closed``, ``ForkError``, ``ProgrammingError``.
    #[pyo3(signature = (sql, parameters=None, /, *, durable=false, deadline=Deadline::AsOpened))]
    fn execute(
        &self,
        py: Python<'_>,
        sql: &str,
        parameters: Option<&Bound<'_, PyAny>>,
        durable: bool,
        deadline: Deadline,
    ) -> PyResult<Result_> {
        let options = deadline.call_options(durable);
        let parameters = parameters::from_python(parameters)?;
        let outcome = detach(py, || self.inner.execute(sql, parameters, &options, &signalled));
        outcome.map(Result_::of).map_err(|failure| failure::raise(py, &failure))
    }

    /// Run one statement for every row of parameters, as one atomic job, and return its :class:`Result`.
    ///
    /// Blocks and raises as :meth:`execute`; an error names the row (from 0) in ``position``.
    #[pyo3(signature = (sql, rows, /, *, durable=false, deadline=Deadline::AsOpened))]
    fn executemany(
        &self,
        py: Python<'_>,
        sql: &str,
        rows: &Bound<'_, PyAny>,
        durable: bool,
        deadline: Deadline,
    ) -> PyResult<Result_> {
        let options = deadline.call_options(durable);
        let rows = many(rows)?;
        let called = Instant::now();
        let outcome = detach(py, || self.inner.run(self.inner.many(sql, rows)?, &options, called, &signalled));
        outcome.map(Result_::of).map_err(|failure| failure::raise(py, &failure))
    }

    /// Run several statements as one atomic job and return the list of their results.
    ///
    /// ``calls``: pairs of SQL text and parameters. Blocks and raises as :meth:`execute`; an error names the call
    /// (from 0) in ``position``.
    #[pyo3(signature = (calls, /, *, durable=false, deadline=Deadline::AsOpened))]
    fn run_batch<'py>(
        &self,
        py: Python<'py>,
        calls: &Bound<'py, PyAny>,
        durable: bool,
        deadline: Deadline,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = deadline.call_options(durable);
        let calls = batch(calls)?;
        let called = Instant::now();
        let outcome = detach(py, || self.inner.run(self.inner.batch(calls)?, &options, called, &signalled));
        outcome.map_err(|failure| failure::raise(py, &failure)).and_then(|outcome| list(py, outcome))
    }

    /// Queue one statement and return the claim on its answer. ``wait``: wait for room in a full queue.
    #[pyo3(signature = (sql, parameters=None, /, *, durable=false, wait=true, deadline=Deadline::AsOpened))]
    fn queue_one(
        &self,
        py: Python<'_>,
        sql: &str,
        parameters: Option<&Bound<'_, PyAny>>,
        durable: bool,
        wait: bool,
        deadline: Deadline,
    ) -> PyResult<Ticket> {
        let options = deadline.call_options(durable);
        let parameters = parameters::from_python(parameters)?;
        self.queue(py, |inner| inner.one(sql, parameters), &options, wait, Shape::One)
    }

    /// Queue one statement for many rows of parameters, as one atomic job.
    #[pyo3(signature = (sql, rows, /, *, durable=false, wait=true, deadline=Deadline::AsOpened))]
    fn queue_many(
        &self,
        py: Python<'_>,
        sql: &str,
        rows: &Bound<'_, PyAny>,
        durable: bool,
        wait: bool,
        deadline: Deadline,
    ) -> PyResult<Ticket> {
        let options = deadline.call_options(durable);
        let rows = many(rows)?;
        self.queue(py, |inner| inner.many(sql, rows), &options, wait, Shape::One)
    }

    /// Queue several statements as one atomic job.
    #[pyo3(signature = (calls, /, *, durable=false, wait=true, deadline=Deadline::AsOpened))]
    fn queue_batch(
        &self,
        py: Python<'_>,
        calls: &Bound<'_, PyAny>,
        durable: bool,
        wait: bool,
        deadline: Deadline,
    ) -> PyResult<Ticket> {
        let options = deadline.call_options(durable);
        let calls = batch(calls)?;
        self.queue(py, |inner| inner.batch(calls), &options, wait, Shape::List)
    }

    /// Queue best-effort work and return whether it is queued.
    ///
    /// Never waits and never raises for contention, a full queue or what SQLite will say of it. Newer offers push out
    /// older ones when their share of the queue is full; ``coalesce`` replaces an offer of the same key that has not
    /// run. Every drop is counted in the telemetry, by statement and reason. Raises for what is wrong whatever the state
    /// of the file: a closed database or a parent's, a type that cannot be stored, a statement that cannot be a job.
    #[pyo3(signature = (sql, parameters=None, /, *, coalesce=None))]
    fn offer(
        &self,
        py: Python<'_>,
        sql: &str,
        parameters: Option<&Bound<'_, PyAny>>,
        coalesce: Option<&str>,
    ) -> PyResult<bool> {
        let parameters = parameters::from_python(parameters)?;
        self.offer_work(py, |inner| inner.one(sql, parameters), coalesce).map(|pending| pending.is_some())
    }

    /// Offer one statement for every row of parameters, as one atomic job.
    #[pyo3(signature = (sql, rows, /, *, coalesce=None))]
    fn offer_many(&self, py: Python<'_>, sql: &str, rows: &Bound<'_, PyAny>, coalesce: Option<&str>) -> PyResult<bool> {
        let rows = many(rows)?;
        self.offer_work(py, |inner| inner.many(sql, rows), coalesce).map(|pending| pending.is_some())
    }

    /// Offer several statements as one atomic job.
    #[pyo3(signature = (calls, /, *, coalesce=None))]
    fn offer_batch(&self, py: Python<'_>, calls: &Bound<'_, PyAny>, coalesce: Option<&str>) -> PyResult<bool> {
        let calls = batch(calls)?;
        self.offer_work(py, |inner| inner.batch(calls), coalesce).map(|pending| pending.is_some())
    }

    /// Offer one statement for every row of parameters and return the claim on its answer, or `None` if it is dropped.
    ///
    /// What newer offers push out later is answered with an `OperationalError` of the code `SQLITE_INTERRUPT`.
    #[pyo3(signature = (sql, rows, /))]
    fn queue_offered(&self, py: Python<'_>, sql: &str, rows: &Bound<'_, PyAny>) -> PyResult<Option<Ticket>> {
        let rows = many(rows)?;
        let pending = self.offer_work(py, |inner| inner.many(sql, rows), None)?;
        Ok(pending.map(|pending| Ticket::new(Arc::clone(&self.inner), pending, Shape::One)))
    }

    /// Say whether a statement only reads, so that `execute` runs it on a reader.
    #[pyo3(signature = (sql, /))]
    fn reads(&self, py: Python<'_>, sql: &str) -> PyResult<bool> {
        detach(py, || self.inner.reads(sql)).map_err(|failure| failure::raise(py, &failure))
    }

    /// Return (jobs committed by this process, waits for the turn of other processes), since the file was opened.
    ///
    /// For work that makes way for others: where these rise, there are others.
    fn activity(&self) -> (u64, u64) {
        let jobs = self.inner.writer().map_or(0, |writer| writer.telemetry().jobs());
        (jobs, self.inner.lane().map_or(0, |lane| lane.stats().queued))
    }

    /// Begin an interactive transaction, in turn; ``label`` is what others are told holds the lock, ``task`` the task of
    /// this thread that it belongs to, 0 for the thread itself.
    #[pyo3(signature = (label, /, *, task=0, durable=false, deadline=Deadline::AsOpened))]
    fn begin(
        &self,
        py: Python<'_>,
        label: &str,
        task: u64,
        durable: bool,
        deadline: Deadline,
    ) -> PyResult<Transaction> {
        let options = deadline.call_options(durable);
        let lease =
            detach(py, || self.inner.transaction(label, &options, &signalled).inspect(|lease| lease.belongs_to(task)));
        let lease = lease.map(|mut lease| {
            if let Some(location) = location::of_caller(py) {
                lease.begun_at(location);
            }
            lease
        });
        let deadline = options.deadline.unwrap_or(self.inner.options().deadline).map(|wait| wait.as_secs_f64());
        lease.map(|lease| Transaction::new(lease, deadline)).map_err(|failure| failure::raise(py, &failure))
    }

    /// Wait until everything queued before, offered work too, is answered.
    #[pyo3(signature = (*, deadline=Deadline::AsOpened))]
    fn flush(&self, py: Python<'_>, deadline: Deadline) -> PyResult<()> {
        let options = deadline.call_options(false);
        detach(py, || self.inner.flush(&options, &signalled)).map_err(|failure| failure::raise(py, &failure))
    }

    /// Copy the log into the database, in turn; return (busy, pages in the log, pages copied).
    ///
    /// ``mode``: ``"passive"`` waits for nobody; ``"full"`` waits for readers of old snapshots, up to the deadline;
    /// ``"truncate"`` likewise, and cuts the log file to nothing.
    #[pyo3(signature = (mode="passive", *, deadline=Deadline::AsOpened))]
    fn run_checkpoint(&self, py: Python<'_>, mode: &str, deadline: Deadline) -> PyResult<(i64, i64, i64)> {
        let mode = choice(
            "mode",
            mode,
            &[
                ("passive", checkpoint::Mode::Passive),
                ("full", checkpoint::Mode::Full),
                ("truncate", checkpoint::Mode::Truncate),
            ],
        )?;
        let options = deadline.call_options(false);
        detach(py, || self.inner.checkpoint(mode, &options, &signalled)).map_err(|failure| failure::raise(py, &failure))
    }

    /// Copy the log into the database on this thread, while others go on writing, if at least ``pages`` of it are not
    /// copied; return (busy, pages in the log, pages copied), or ``None`` if there was nothing to do.
    #[pyo3(signature = (pages, /))]
    fn checkpoint_aside(&self, py: Python<'_>, pages: u32) -> PyResult<Option<(bool, i32, i32)>> {
        detach(py, || self.inner.checkpoint_aside(pages)).map_err(|failure| failure::raise(py, &failure))
    }

    /// Do what is queued and let the file go; the writer stops with the file's last database. Closing twice is no
    /// error.
    ///
    /// Blocks while queued work is done, and while another thread is inside a ``transaction()``. Raises
    /// ``ProgrammingError`` inside a ``transaction()`` of the same thread.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detach(py, || self.inner.close(None, &signalled)).map_err(|error| failure::raise(py, &error.into()))
    }

    /// Raise ``ProgrammingError`` if task ``task`` of this thread would wait for its own ``transaction()``.
    fn refuse_own_transaction(&self, py: Python<'_>, task: u64) -> PyResult<()> {
        self.inner.refuse_own_transaction(Some(task)).map_err(|error| failure::raise(py, &error.into()))
    }

    /// Return the telemetry as nested dictionaries.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot::of_database(py, &self.inner)
    }

    /// Start the counts of the telemetry again from nothing.
    fn reset_telemetry(&self) {
        self.inner.telemetry().reset();
    }

    /// Return the counts of the file, which outlive this database.
    fn file_telemetry(&self) -> FileTelemetry {
        FileTelemetry::new(self.inner.telemetry())
    }
}

impl Database {
    fn offer_work(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&database::Database) -> Result<Work, Box<Failure>> + Send,
        coalesce: Option<&str>,
    ) -> PyResult<Option<Pending>> {
        detach(py, || self.inner.offer(work(&self.inner)?, coalesce)).map_err(|failure| failure::raise(py, &failure))
    }

    fn queue(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&database::Database) -> Result<Work, Box<Failure>> + Send,
        options: &CallOptions,
        wait: bool,
        shape: Shape,
    ) -> PyResult<Ticket> {
        let pending = detach(py, || {
            let work = work(&self.inner)?;
            if wait { self.inner.submit(work, options, &signalled) } else { self.inner.enqueue_at_once(work, options) }
        });
        let pending = pending.map_err(|failure| failure::raise(py, &failure))?;
        Ok(Ticket::new(Arc::clone(&self.inner), pending, shape))
    }
}

fn many(rows: &Bound<'_, PyAny>) -> PyResult<Vec<Parameters>> {
    rows.try_iter()?.map(|row| parameters::from_python(Some(&row?))).collect()
}

fn batch(calls: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Parameters)>> {
    calls
        .try_iter()?
        .map(|call| {
            let (sql, parameters): (String, Option<Bound<'_, PyAny>>) = call?.extract()?;
            Ok((sql, parameters::from_python(parameters.as_ref())?))
        })
        .collect()
}

/// Stop every writer of this process, doing what is queued within ``seconds``. For the exit of the interpreter.
#[pyfunction]
pub fn close_all(py: Python<'_>, seconds: f64) -> PyResult<()> {
    let within = self::seconds(Some(seconds), "seconds")?.unwrap_or(deadline::LONGEST);
    // A child that inherits the parent's exit handlers has nothing of its own to stop.
    let _ = process::generation();
    detach(py, || database::close_all(within));
    Ok(())
}
