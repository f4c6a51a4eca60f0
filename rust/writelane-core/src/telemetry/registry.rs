//! One account of each file in a process, whoever writes to it: the writer or a connection of an application's own.

use super::Telemetry;
use crate::process::PerProcess;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Files whose counts are kept after their last connection was closed, since many programs open one for each request.
const UNUSED_MAX: usize = 32;

/// The time of birth tells a file from a later one that was given the same number.
type Identity = (u64, u64, Option<SystemTime>);

#[derive(Default)]
struct Files {
    known: HashMap<Identity, Arc<Telemetry>>,
}

static FILES: PerProcess<Mutex<Files>> = PerProcess::new();

fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.created().ok()))
}

impl Telemetry {
    /// Return this process's counts of all files, in the order in which they were first opened. Of those that nobody has
    /// open, the latest few are known.
    pub fn all() -> Vec<Arc<Self>> {
        let mut all: Vec<_> = {
            let files = FILES.get().lock().unwrap_or_else(PoisonError::into_inner);
            files.known.values().map(Arc::clone).collect()
        };
        all.sort_by_key(|telemetry| telemetry.number());
        all
    }

    /// Return this process's counts of the file at `path`: the same for every name of it. Opens nothing.
    ///
    /// They live on when the file is closed and opened again, and begin anew in a forked child.
    pub fn of(path: &Path) -> Arc<Self> {
        let resolved = || std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
        let Some(identity) = identity(path) else { return Arc::new(Self::new(&resolved())) };
        let mut files = FILES.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = files.known.get(&identity) {
            return Arc::clone(known);
        }
        let unused = |telemetry: &Arc<Telemetry>| Arc::strong_count(telemetry) == 1;
        if files.known.values().filter(|telemetry| unused(telemetry)).count() >= UNUSED_MAX {
            let oldest = files.known.iter().filter(|(_, telemetry)| unused(telemetry)).min_by_key(|(_, t)| t.number());
            if let Some(oldest) = oldest.map(|(identity, _)| *identity) {
                files.known.remove(&oldest);
            }
        }
        let made = Arc::new(Self::new(&resolved()));
        files.known.insert(identity, Arc::clone(&made));
        made
    }
}
