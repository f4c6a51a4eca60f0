//! Where the tests of a lane have their database.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own, gone when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("writelane-lanes-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// Make a folder with a database that is an empty file.
    pub fn with_database() -> Self {
        let scratch = Self::new();
        fs::write(scratch.database(), "").unwrap();
        scratch
    }

    pub fn database(&self) -> PathBuf {
        self.0.join("app.db")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
