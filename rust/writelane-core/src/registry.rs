//! Things of which a process has one for each file, however many names lead to it.

use crate::process::PerProcess;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One `T` for each file of this process. A forked child begins with none.
pub struct ByFile<T: Send + Sync + 'static> {
    known: PerProcess<Known<T>>,
}

struct Known<T>(Mutex<HashMap<(u64, u64), Weak<T>>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<T: Send + Sync + 'static> ByFile<T> {
    /// Make an empty one.
    pub const fn new() -> Self {
        Self { known: PerProcess::new() }
    }

    /// Return what belongs to the file at `path`, if there is anything.
    pub fn get(&self, path: &Path) -> Option<Arc<T>> {
        let found = fs::metadata(path).ok()?;
        let known = self.known.get().0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(found.dev(), found.ino())).and_then(Weak::upgrade)
    }

    /// Return what belongs to the file at `path`, made by `make` where there is nothing yet. It lives as long as
    /// somebody keeps it. `make` must not block; a file that does not exist gets one of its own.
    pub fn get_or_make(&self, path: &Path, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(found) = fs::metadata(path) else { return Arc::new(make()) };
        let mut known = self.known.get().0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (found.dev(), found.ino());
        if let Some(existing) = known.get(&key).and_then(Weak::upgrade) {
            return existing;
        }
        known.retain(|_, weak| weak.strong_count() > 0);
        let made = Arc::new(make());
        known.insert(key, Arc::downgrade(&made));
        made
    }
}
