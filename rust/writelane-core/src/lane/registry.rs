//! The lanes and lane files of this process: one each, however many names lead to them.

use super::Lane;
use super::file::{self, LaneFile};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type Identity = (u64, u64);

struct Registry {
    generation: u64,
    lanes: Mutex<HashMap<Identity, Weak<Lane>>>,
    /// Kept open until nobody uses them *and* this is locked: closing a second descriptor of a lane file, opened in the
    /// meantime by another lane, would drop that lane's locks.
    files: Mutex<HashMap<Identity, Arc<LaneFile>>>,
}

/// Return the registry of this process. A forked child makes its own: the parent's may have been locked at the fork.
fn registry() -> &'static Registry {
    static CURRENT: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());
    let generation = crate::process::generation();
    let mut current = CURRENT.load(Ordering::Acquire);
    loop {
        // SAFETY: the pointer is null or came from `Box::leak` below, and what was leaked is never freed.
        if let Some(registry) = unsafe { current.as_ref() }
            && registry.generation == generation
        {
            return registry;
        }
        let fresh = Box::leak(Box::new(Registry { generation, lanes: Mutex::default(), files: Mutex::default() }));
        match CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return fresh,
            Err(other) => {
                // SAFETY: nobody else has seen `fresh`, which was made by `Box::new` just above.
                drop(unsafe { Box::from_raw(ptr::from_mut(fresh)) });
                current = other;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Return the lane of the database at `path`, made by `make` where this process has none yet.
pub fn lane(path: &Path, make: impl FnOnce() -> Lane) -> Arc<Lane> {
    let identify = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let Some(identity) = identify(path) else { return Arc::new(make()) };
    let mut lanes = lock(&registry().lanes);
    // A file that was deleted may have left its number to this one, and its lane behind.
    let known = lanes.get(&identity).and_then(Weak::upgrade).filter(|lane| identify(&lane.path) == Some(identity));
    if let Some(lane) = known {
        return lane;
    }
    lanes.retain(|_, lane| lane.strong_count() > 0);
    let lane = Arc::new(make());
    lanes.insert(identity, Arc::downgrade(&lane));
    lane
}

/// Return the lane file of the database at `path`, opened or made where that can be done.
pub fn file(path: &Path) -> Option<Arc<LaneFile>> {
    let mut files = lock(&registry().files);
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
    let files = lock(&registry().files);
    let open = file::identity(&file::path_of(path)).and_then(|identity| files.get(&identity)).map(Arc::clone);
    match open {
        Some(file) => Ok(file.records()),
        // The registry stays locked, so that nobody opens the file before this look has closed it.
        None => file::look(path),
    }
}
