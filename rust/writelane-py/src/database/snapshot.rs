//! The telemetry as dictionaries, under the names that users and tools rely on.

use super::failure;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use writelane_core::checkpoint::CheckpointStats;
use writelane_core::database::Database;
use writelane_core::sqlite;
use writelane_core::telemetry::{PhaseStats, StatementStats};

/// Return the snapshot.
pub fn of<'py>(py: Python<'py>, database: &Database) -> PyResult<Bound<'py, PyDict>> {
    let snapshot = PyDict::new(py);
    let statements = PyList::empty(py);
    let queue = PyDict::new(py);
    let groups = PyDict::new(py);
    let checkpoints = PyDict::new(py);
    if let Some(writer) = database.writer() {
        for stats in writer.telemetry().statements() {
            statements.append(statement(py, &stats)?)?;
        }
        let (stats, bounds) = (writer.queue().stats(), writer.queue().bounds());
        queue.set_item("depth", stats.depth)?;
        queue.set_item("high_water", stats.high_water)?;
        queue.set_item("capacity", bounds.jobs_max)?;
        queue.set_item("bytes", stats.bytes)?;
        queue.set_item("bytes_capacity", bounds.bytes_max)?;
        queue.set_item("waiting_for_room", stats.parked)?;
        queue.set_item("refused", stats.refused)?;
        queue.set_item("dropped", stats.displaced)?;
        queue.set_item("coalesced", stats.coalesced)?;
        let stats = writer.telemetry().groups();
        groups.set_item("count", stats.count)?;
        groups.set_item("jobs", stats.jobs)?;
        groups.set_item("jobs_max", stats.jobs_max)?;
        groups.set_item("hold", phase(py, &stats.hold)?)?;
        groups.set_item("reruns", stats.reruns)?;
        checkpoint_counts(py, &checkpoints, &writer.checkpointer().stats())?;
    }
    let readers = PyDict::new(py);
    let (open, reading) = database.reader_counts();
    readers.set_item("open", open)?;
    readers.set_item("reading", reading)?;
    let library = PyDict::new(py);
    library.set_item("version", sqlite::version())?;
    // Text, not a path object: the snapshot is plain data.
    snapshot.set_item("path", database.path().to_string_lossy())?;
    snapshot.set_item("statements", statements)?;
    snapshot.set_item("queue", queue)?;
    snapshot.set_item("groups", groups)?;
    snapshot.set_item("lane", PyDict::new(py))?;
    snapshot.set_item("checkpoints", checkpoints)?;
    snapshot.set_item("readers", readers)?;
    snapshot.set_item("sqlite", library)?;
    Ok(snapshot)
}

/// Describe the counts of one SQL text.
pub fn statement<'py>(py: Python<'py>, stats: &StatementStats) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("sql", &*stats.sql)?;
    entry.set_item("count", stats.count)?;
    let errors = PyDict::new(py);
    for (name, count) in &stats.errors {
        errors.set_item(&**name, count)?;
    }
    entry.set_item("errors", errors)?;
    let dropped = PyDict::new(py);
    for (reason, count) in &stats.dropped {
        dropped.set_item(&**reason, count)?;
    }
    entry.set_item("dropped", dropped)?;
    entry.set_item("retries", stats.retries)?;
    entry.set_item("queue_wait", phase(py, &stats.queue_wait)?)?;
    entry.set_item("lock_wait", phase(py, &stats.lock_wait)?)?;
    entry.set_item("run", phase(py, &stats.run)?)?;
    entry.set_item("commit", phase(py, &stats.commit)?)?;
    let held_by = PyList::empty(py);
    for (holder, sum) in &stats.held_by {
        if let Some(described) = failure::holder(py, Some(holder))? {
            described.set_item("seconds", sum.as_secs_f64())?;
            held_by.append(described)?;
        }
    }
    entry.set_item("held_by", held_by)?;
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

fn checkpoint_counts(py: Python<'_>, counts: &Bound<'_, PyDict>, stats: &CheckpointStats) -> PyResult<()> {
    counts.set_item("count", stats.count)?;
    counts.set_item("busy", stats.busy)?;
    counts.set_item("errors", stats.errors)?;
    counts.set_item("last_error", stats.last_error.as_deref())?;
    counts.set_item("cuts", stats.cuts)?;
    counts.set_item("log", stats.log)?;
    counts.set_item("checkpointed", stats.copied)?;
    counts.set_item("seconds", stats.took.as_secs_f64())?;
    counts.set_item("seconds_max", stats.longest.as_secs_f64())?;
    counts.set_item("total_seconds", stats.total.as_secs_f64())?;
    counts.set_item("log_bytes", stats.file_bytes)?;
    counts.set_item("episodes", stats.episodes)?;
    let episode = stats.episode.as_ref().map(|episode| {
        let entry = PyDict::new(py);
        entry.set_item("over", episode.lasted.is_some())?;
        entry.set_item("seconds", episode.lasted.unwrap_or_else(|| episode.since.elapsed()).as_secs_f64())?;
        entry.set_item("pages", episode.pages)?;
        let readers = PyList::empty(py);
        for reader in &episode.readers {
            let who = PyDict::new(py);
            who.set_item("pid", reader.pid)?;
            who.set_item("command", &reader.command)?;
            readers.append(who)?;
        }
        entry.set_item("readers", readers)?;
        Ok::<_, PyErr>(entry)
    });
    counts.set_item("pinned", episode.transpose()?)
}
