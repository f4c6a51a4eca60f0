//! The lanes and lane files of this process: one each, however many names lead to them.

use super::Lane;
use super::file::{self, LaneFile};
use crate::process::PerProcess;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type Identity = (u64, u64);

#[derive(Default)]
struct Registry {
    lanes: Mutex<HashMap<Identity, Weak<Lane>>>,
    /// Kept open until nobody uses them *and* this is locked: closing a second descriptor of a lane file, opened in the
    /// meantime by another lane, would drop that lane's locks.
    files: Mutex<HashMap<Identity, Arc<LaneFile>>>,
}

/// A forked child makes its own: the parent's may have been locked at the fork.
static REGISTRY: PerProcess<Registry> = PerProcess::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identify(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

fn find(lanes: &HashMap<Identity, Weak<Lane>>, identity: Identity) -> Option<Arc<Lane>> {
    // A file that was deleted may have left its number to this one, and its lane behind.
    lanes.get(&identity).and_then(Weak::upgrade).filter(|lane| identify(&lane.path) == Some(identity))
}

/// Return the lane of the database at `path`, if this process has one.
pub fn known(path: &Path) -> Option<Arc<Lane>> {
    let identity = identify(path)?;
    find(&lock(&REGISTRY.get().lanes), identity)
}

/// Return the lane of the database at `path`, made by `make` where this process has none yet.
pub fn lane(path: &Path, make: impl FnOnce() -> Lane) -> Arc<Lane> {
    let Some(identity) = identify(path) else { return Arc::new(make()) };
    let mut lanes = lock(&REGISTRY.get().lanes);
    if let Some(lane) = find(&lanes, identity) {
        return lane;
    }
    lanes.retain(|_, lane| lane.strong_count() > 0);
    let lane = Arc::new(make());
    lanes.insert(identity, Arc::downgrade(&lane));
    lane
}

/// Return the lane file of the database at `path`, opened or made where that can be done.
pub fn file(path: &Path) -> Option<Arc<LaneFile>> {
    let mut files = lock(&REGISTRY.get().files);
    let known = file::identity(&file::path_of(path)).and_then(|identity| files.get(&identity)).map(Arc::clone);
    files.retain(|_, file| Arc::strong_count(file) > 1);
    if known.is_some() {
        return known;
    }
    // Without the file there is no turn-taking, and that is all: SQLite's own locks are taken as ever.
    let file = LaneFile::open(path).ok()?;
    if let Some(other) = files.get(&file.identity()) {
        // Put there between the two looks. Closing this second descriptor would drop the locks of the first.
        std::mem::forget(file);
        return Some(Arc::clone(other));
    }
    let file = Arc::new(file);
    files.insert(file.identity(), Arc::clone(&file));
    Some(file)
}

/// Read the records beside the database at `path`, through the open lane file where this process has it open.
pub fn records(path: &Path) -> std::io::Result<Vec<super::slot::Record>> {
    let files = lock(&REGISTRY.get().files);
    let open = file::identity(&file::path_of(path)).and_then(|identity| files.get(&identity)).map(Arc::clone);
    match open {
        Some(file) => Ok(file.records()),
        // The registry stays locked, so that nobody opens the file before this look has closed it.
        None => file::look(path),
    }
}
