//! The telemetry as dictionaries, under the names that users and tools rely on.

use super::location;
use crate::errors;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::time::Duration;
use writelane_core::checkpoint::{CheckpointStats, Episode};
use writelane_core::database::Database;
use writelane_core::lane::{Holder, LaneStats};
use writelane_core::sqlite;
use writelane_core::telemetry::{GroupStats, LongTransaction, PhaseStats, StatementStats, Telemetry};
use writelane_core::writer::Shared;

/// Return what is known of an open database: the counts of its file, and how its queue, lane and readers are.
pub fn of_database<'py>(py: Python<'py>, database: &Database) -> PyResult<Bound<'py, PyDict>> {
    let snapshot = of_file(py, database.telemetry())?;
    // Text, not a path object: the snapshot is plain data.
    snapshot.set_item("path", database.path().to_string_lossy())?;
    if let Some(writer) = database.writer() {
        let full = database.telemetry().statements().iter().map(queue_full).sum();
        snapshot.set_item("queue", queue(py, writer, full)?)?;
    }
    let stats = database.reader_stats();
    let readers = readers(py, database.telemetry())?;
    readers.set_item("open", stats.open)?;
    readers.set_item("reading", stats.reading)?;
    readers.set_item("max", stats.readers_max)?;
    snapshot.set_item("readers", readers)?;
    Ok(snapshot)
}

/// Return what was counted of a file by this process, whoever used it.
pub fn of_file<'py>(py: Python<'py>, telemetry: &Telemetry) -> PyResult<Bound<'py, PyDict>> {
    let (all, groups, long) = py.detach(|| (telemetry.statements(), telemetry.groups(), telemetry.long_transactions()));
    let statements = PyList::empty(py);
    for stats in &all {
        statements.append(statement(py, stats)?)?;
    }
    let transactions = PyList::empty(py);
    for long in &long {
        transactions.append(transaction(py, long)?)?;
    }
    let library = PyDict::new(py);
    library.set_item("version", sqlite::version())?;
    library.set_item("compile_options", sqlite::compile_options())?;
    let snapshot = PyDict::new(py);
    snapshot.set_item("path", telemetry.path().to_string_lossy())?;
    snapshot.set_item("seconds", telemetry.age().as_secs_f64())?;
    snapshot.set_item("statements", statements)?;
    snapshot.set_item("queue", PyDict::new(py))?;
    snapshot.set_item("groups", self::groups(py, &groups)?)?;
    snapshot.set_item("long_transactions", transactions)?;
    let (lane, checkpoints) = (PyDict::new(py), PyDict::new(py));
    if let Some(stats) = py.detach(|| telemetry.lane()) {
        lane_counts(&lane, &stats)?;
    }
    if let Some(stats) = py.detach(|| telemetry.checkpoints()) {
        checkpoint_counts(py, &checkpoints, &stats)?;
    }
    snapshot.set_item("lane", lane)?;
    snapshot.set_item("checkpoints", checkpoints)?;
    snapshot.set_item("readers", readers(py, telemetry)?)?;
    snapshot.set_item("sqlite", library)?;
    Ok(snapshot)
}

/// Describe the snapshots that are open.
fn readers<'py>(py: Python<'py>, telemetry: &Telemetry) -> PyResult<Bound<'py, PyDict>> {
    let open = telemetry.snapshots();
    let oldest = open.first();
    let readers = PyDict::new(py);
    readers.set_item("snapshots", open.len())?;
    readers.set_item("oldest", oldest.map(|open| open.age.as_secs_f64()))?;
    readers.set_item("oldest_sql", oldest.map(|open| &*open.statement))?;
    readers.set_item("oldest_location", oldest.and_then(|open| location::of_snapshot(py, open)).as_deref())?;
    Ok(readers)
}

/// Describe a holder with its share of a wait.
pub fn share<'py>(py: Python<'py>, holder: &Holder, time: Duration) -> PyResult<Bound<'py, PyDict>> {
    let described = match errors::holder(py, holder)? {
        Some(described) => described,
        None => {
            let described = PyDict::new(py);
            let (command, statement) = match holder {
                Holder::Elsewhere { command, statement, .. } => (Some(command), statement.as_ref()),
                _ => (None, None),
            };
            described.set_item("pid", py.None())?;
            described.set_item("command", command)?;
            described.set_item("statement", statement)?;
            described.set_item("stopped", false)?;
            described
        }
    };
    described.set_item("seconds", time.as_secs_f64())?;
    Ok(described)
}

fn queue_full(stats: &StatementStats) -> u64 {
    stats.errors.iter().find(|(name, _)| *name == "QUEUE_FULL").map_or(0, |(_, count)| *count)
}

fn queue<'py>(py: Python<'py>, writer: &Shared, full: u64) -> PyResult<Bound<'py, PyDict>> {
    let (stats, bounds) = (writer.queue().stats(), writer.queue().bounds());
    let queue = PyDict::new(py);
    queue.set_item("depth", stats.depth)?;
    queue.set_item("high_water", stats.high_water)?;
    queue.set_item("capacity", bounds.jobs_max)?;
    queue.set_item("bytes", stats.bytes)?;
    queue.set_item("bytes_capacity", bounds.bytes_max)?;
    queue.set_item("waiting_for_room", stats.parked)?;
    queue.set_item("refused", stats.refused)?;
    queue.set_item("dropped", stats.displaced)?;
    queue.set_item("coalesced", stats.coalesced)?;
    let required = PyDict::new(py);
    required.set_item("refused", full)?;
    required.set_item("dropped", 0)?;
    let offered = PyDict::new(py);
    offered.set_item("refused", stats.refused)?;
    offered.set_item("dropped", stats.displaced)?;
    offered.set_item("coalesced", stats.coalesced)?;
    let classes = PyDict::new(py);
    classes.set_item("required", required)?;
    classes.set_item("offered", offered)?;
    queue.set_item("classes", classes)?;
    Ok(queue)
}

fn checkpoint_counts(py: Python<'_>, counts: &Bound<'_, PyDict>, stats: &CheckpointStats) -> PyResult<()> {
    counts.set_item("count", stats.count)?;
    counts.set_item("busy", stats.busy)?;
    counts.set_item("errors", stats.errors)?;
    counts.set_item("last_error", stats.last_error.as_deref())?;
    counts.set_item("cuts", stats.cuts)?;
    counts.set_item("ahead", stats.ahead)?;
    counts.set_item("log", stats.log)?;
    counts.set_item("checkpointed", stats.copied)?;
    counts.set_item("seconds", stats.took.as_secs_f64())?;
    counts.set_item("seconds_max", stats.longest.as_secs_f64())?;
    counts.set_item("total_seconds", stats.total.as_secs_f64())?;
    counts.set_item("log_bytes", stats.file_bytes)?;
    counts.set_item("episodes", stats.episodes)?;
    let pinned = stats.episode.as_ref().map(|pinned| episode(py, pinned)).transpose()?;
    counts.set_item("pinned", pinned)
}

/// Describe a time in which the log could not shrink.
pub fn episode<'py>(py: Python<'py>, episode: &Episode) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("over", episode.lasted.is_some())?;
    entry.set_item("seconds", episode.lasted.unwrap_or_else(|| episode.since.elapsed()).as_secs_f64())?;
    entry.set_item("pages", episode.pages)?;
    entry.set_item("after", episode.after)?;
    // Not as bytes, which is what Python is given for a vector of them.
    entry.set_item("marks", PyList::new(py, episode.marks.iter().map(|mark| u32::from(*mark)).collect::<Vec<_>>())?)?;
    let readers = PyList::empty(py);
    for reader in &episode.readers {
        let who = PyDict::new(py);
        who.set_item("pid", reader.pid)?;
        who.set_item("command", &reader.command)?;
        readers.append(who)?;
    }
    entry.set_item("readers", readers)?;
    Ok(entry)
}

fn lane_counts(described: &Bound<'_, PyDict>, stats: &LaneStats) -> PyResult<()> {
    described.set_item("turns", stats.turns)?;
    described.set_item("fast_turns", stats.fast_turns)?;
    described.set_item("bypasses", stats.bypasses)?;
    described.set_item("alone", stats.alone)?;
    described.set_item("waits", stats.waits)?;
    described.set_item("waited", stats.waited.as_secs_f64())?;
    described.set_item("longest_wait", stats.longest_wait.as_secs_f64())?;
    described.set_item("waiting", stats.waiting)?;
    described.set_item("queued", stats.queued)?;
    described.set_item("gaps", stats.windows)
}

fn groups<'py>(py: Python<'py>, stats: &GroupStats) -> PyResult<Bound<'py, PyDict>> {
    let groups = PyDict::new(py);
    groups.set_item("count", stats.count)?;
    groups.set_item("jobs", stats.jobs)?;
    groups.set_item("jobs_max", stats.jobs_max)?;
    groups.set_item("shared_flushes", stats.shared_flushes)?;
    let sizes = PyList::empty(py);
    for (power, count) in stats.sizes.iter().enumerate().filter(|(_, count)| **count > 0) {
        let size = PyDict::new(py);
        size.set_item("up_to", 1_u64 << power)?;
        size.set_item("count", count)?;
        sizes.append(size)?;
    }
    groups.set_item("sizes", sizes)?;
    groups.set_item("hold", phase(py, &stats.hold)?)?;
    groups.set_item("reruns", stats.reruns())?;
    let causes = PyDict::new(py);
    causes.set_item("job_error", stats.reruns_job_error)?;
    causes.set_item("snapshot", stats.reruns_snapshot)?;
    causes.set_item("commit", stats.reruns_commit)?;
    groups.set_item("rerun_causes", causes)?;
    Ok(groups)
}

fn transaction<'py>(py: Python<'py>, long: &LongTransaction) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("location", long.location.as_deref())?;
    entry.set_item("sql", &*long.statement)?;
    entry.set_item("count", long.count)?;
    entry.set_item("sum", long.sum.as_secs_f64())?;
    entry.set_item("max", long.max.as_secs_f64())?;
    Ok(entry)
}

fn counts<'py>(py: Python<'py>, counts: &[(&'static str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let mapping = PyDict::new(py);
    for (name, count) in counts {
        mapping.set_item(name, count)?;
    }
    Ok(mapping)
}

/// Describe the counts of one SQL text.
pub fn statement<'py>(py: Python<'py>, stats: &StatementStats) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("sql", &*stats.sql)?;
    entry.set_item("count", stats.count)?;
    entry.set_item("errors", counts(py, &stats.errors)?)?;
    entry.set_item("retries", stats.retries)?;
    entry.set_item("queue_wait", phase(py, &stats.queue_wait)?)?;
    entry.set_item("lock_wait", phase(py, &stats.lock_wait)?)?;
    entry.set_item("lock_waits", stats.lock_waits)?;
    entry.set_item("run", phase(py, &stats.run)?)?;
    entry.set_item("commit", phase(py, &stats.commit)?)?;
    entry.set_item("latency", phase(py, &stats.latency)?)?;
    let held_by = PyList::empty(py);
    for (holder, sum) in &stats.held_by {
        held_by.append(share(py, holder, *sum)?)?;
    }
    entry.set_item("held_by", held_by)?;
    entry.set_item("dropped", counts(py, &stats.dropped)?)?;
    Ok(entry)
}

fn phase<'py>(py: Python<'py>, stats: &PhaseStats) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("count", stats.count)?;
    for (name, value) in [
        ("sum", stats.sum),
        ("max", stats.max),
        ("p50", stats.p50),
        ("p90", stats.p90),
        ("p99", stats.p99),
        ("p999", stats.p999),
    ] {
        entry.set_item(name, value.as_secs_f64())?;
    }
    Ok(entry)
}
