//! Pooled read-only connections: a read never stands behind a writer.

use crate::error::{Error, Phase};
use crate::job::{Account, Call, Effect, Failure, Waited};
use crate::policy::{backoff, retry};
use crate::sqlite::{Handle, OpenFlags, SqliteError, StatementCache, Step};
use crate::telemetry::Telemetry;
use crate::telemetry::snapshots::Place;
use crate::wait::{GaveUp, Patience};
use crate::writer::engine::{bind, random_bits};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prepared statements kept by each reader.
const STATEMENTS_MAX: usize = 64;

struct Reader {
    cache: StatementCache,
    handle: Arc<Handle>,
    /// How many of the pool's settings it has.
    settings: usize,
    snapshot: Arc<Place>,
}

struct Pool {
    idle: Vec<Reader>,
    open: usize,
    reading: usize,
    closed: bool,
}

/// What the readers of a file do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Connections that are open.
    pub open: usize,
    /// Those of them that read now, each with a snapshot of its own.
    pub reading: usize,
    /// The most connections there may be.
    pub readers_max: usize,
}

/// The PRAGMAs of the connection that succeeded on the writer, in order: every reader runs them before its next read.
#[derive(Default)]
pub struct Settings {
    texts: Mutex<Vec<Arc<str>>>,
}

impl Settings {
    /// Add one.
    pub fn add(&self, sql: Arc<str>) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        // Readers count how many they have run, so that one is only ever added; a repeated last one changes nothing.
        if texts.last() != Some(&sql) {
            texts.push(sql);
        }
    }

    fn from(&self, done: usize) -> Vec<Arc<str>> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(done..).unwrap_or_default().to_vec()
    }
}

/// The readers of one file.
pub struct Readers {
    path: PathBuf,
    readers_max: usize,
    settings: Arc<Settings>,
    telemetry: Arc<Telemetry>,
    pool: Mutex<Pool>,
    freed: Condvar,
}

impl Readers {
    /// Make an empty pool of at most `readers_max` connections, opened as they are needed.
    pub fn new(path: PathBuf, readers_max: usize, settings: Arc<Settings>) -> Self {
        let pool = Pool { idle: Vec::new(), open: 0, reading: 0, closed: false };
        let telemetry = Telemetry::of(&path);
        let readers_max = readers_max.max(1);
        Self { path, readers_max, settings, telemetry, pool: Mutex::new(pool), freed: Condvar::new() }
    }

    /// Return what the readers do now.
    pub fn stats(&self) -> ReaderStats {
        let pool = self.lock();
        ReaderStats { open: pool.open, reading: pool.reading, readers_max: self.readers_max }
    }

    /// Close the idle connections, and those in use when they come back.
    pub fn close(&self) {
        let mut pool = self.lock();
        pool.closed = true;
        pool.open -= pool.idle.len();
        let idle = std::mem::take(&mut pool.idle);
        self.freed.notify_all();
        drop(pool);
        drop(idle);
    }

    /// Run a statement that only reads, to its end.
    ///
    /// Waits for a free reader, and for locks that keep readers out (recovery of the log, the last close of another
    /// process, a commit in rollback-journal mode).
    ///
    /// # Errors
    /// What SQLite says, or that the patience ended.
    pub fn read(&self, call: &Call, patience: &Patience<'_>) -> Result<(Effect, Account), Box<Failure>> {
        let called = Instant::now();
        let failed = |error: Error, account: Account| {
            Box::new(Failure { error, statement: Some(Arc::clone(&call.sql)), position: None, account })
        };
        let mut reader = self.take(patience, called).map_err(|error| {
            let waited = Waited { queue: called.elapsed(), ..Waited::default() };
            failed(error, Account { waited, ..Account::default() })
        })?;
        let taken = Instant::now();
        reader.snapshot.begin(&call.sql, taken);
        let mut retries = 0;
        let mut lock = Duration::ZERO;
        let result = loop {
            let started = Instant::now();
            let result = apply(&mut reader, &self.settings).map_err(Error::from).and_then(|()| run(&mut reader, call));
            let Err(Error::Sqlite(error)) = &result else { break result };
            if retry::remedy(error.code, retry::Point::Read) == retry::Remedy::Report {
                break result;
            }
            let slice = patience.next_slice();
            if let Ok(slice) = slice {
                std::thread::sleep(backoff::sleep(retries, random_bits() as u32).min(slice));
            }
            // Only an attempt that found a lock in its way is a wait for it.
            lock += started.elapsed();
            if let Err(gave_up) = slice {
                break Err(gave_up_error(gave_up, called));
            }
            retries += 1;
        };
        reader.snapshot.end();
        self.give(reader);
        let queue = taken.saturating_duration_since(called);
        let waited = Waited { queue, lock, run: taken.elapsed().saturating_sub(lock), ..Waited::default() };
        let account = Account { waited, retries, ..Account::default() };
        match result {
            Ok(effect) => Ok((effect, account)),
            Err(error) => Err(failed(error, account)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, patience: &Patience<'_>, called: Instant) -> Result<Reader, Error> {
        loop {
            let mut pool = self.lock();
            if pool.closed {
                return Err(Error::Closed);
            }
            if let Some(reader) = pool.idle.pop() {
                pool.reading += 1;
                return Ok(reader);
            }
            if pool.open < self.readers_max {
                pool.open += 1;
                pool.reading += 1;
                drop(pool);
                let opened = Handle::open(&self.path, OpenFlags::READER);
                let opened = opened.map(|handle| Reader {
                    handle,
                    cache: StatementCache::new(STATEMENTS_MAX),
                    settings: 0,
                    snapshot: self.telemetry.place(),
                });
                return opened.map_err(|error| {
                    let mut pool = self.lock();
                    pool.open -= 1;
                    pool.reading -= 1;
                    self.freed.notify_one();
                    error.into()
                });
            }
            drop(pool);
            let slice = patience.next_slice().map_err(|gave_up| gave_up_error(gave_up, called))?;
            let pool = self.lock();
            if pool.idle.is_empty() && pool.open >= self.readers_max && !pool.closed {
                drop(self.freed.wait_timeout(pool, slice).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn give(&self, reader: Reader) {
        let mut pool = self.lock();
        pool.reading -= 1;
        if pool.closed {
            pool.open -= 1;
            drop(pool);
            drop(reader);
        } else {
            pool.idle.push(reader);
            self.freed.notify_one();
        }
    }
}

fn apply(reader: &mut Reader, settings: &Settings) -> Result<(), SqliteError> {
    for sql in settings.from(reader.settings) {
        reader.handle.execute_batch(&sql)?;
        reader.settings += 1;
    }
    Ok(())
}

fn gave_up_error(gave_up: GaveUp, called: Instant) -> Error {
    match gave_up {
        GaveUp::TimedOut => Error::Timeout { phase: Phase::Read, after: called.elapsed(), holder: None },
        GaveUp::Interrupted => Error::Interrupted,
    }
}

fn run(reader: &mut Reader, call: &Call) -> Result<Effect, Error> {
    let prepared = reader.cache.take_or_prepare(&reader.handle, &call.sql)?;
    let Some((text, statement)) = prepared else { return Ok(Effect { rowcount: -1, ..Effect::default() }) };
    let result = (|| {
        bind(&statement, &call.parameters)?;
        let mut rows = Vec::new();
        while statement.step()? == Step::Row {
            rows.push(statement.row());
        }
        let columns = (0..statement.column_count())
            .map(|index| statement.column_name(index).unwrap_or_default().into())
            .collect();
        Ok(Effect { columns, rows, rowcount: -1, lastrowid: None })
    })();
    // Reset at once, whatever happened: a statement left running would pin its snapshot.
    reader.cache.give_back(text, statement);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Parameters;
    use std::cell::Cell;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn readers(journal: &str) -> (Folder, Arc<Handle>, Readers) {
        let folder = std::env::temp_dir().join(format!("writelane-readers-{journal}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, folder) = (folder.join("app.db"), Folder(folder));
        let writer = Handle::open(&path, OpenFlags::WRITER).unwrap();
        writer.execute_batch(&format!("PRAGMA journal_mode={journal}; CREATE TABLE t(x)")).unwrap();
        (folder, writer, Readers::new(path, 1, Arc::default()))
    }

    fn call(sql: &str) -> Call {
        Call { sql: sql.into(), parameters: Parameters::none() }
    }

    #[test]
    fn a_read_that_fails_has_run_and_not_waited() {
        let (_folder, _writer, readers) = readers("WAL");
        let patience = Patience { until: None, interrupted: &|| false };
        let failure = readers.read(&call("SELECT abs(-9223372036854775807 - 1)"), &patience).unwrap_err();
        assert!(matches!(failure.error, Error::Sqlite(_)));
        assert_eq!(failure.account.waited.lock, Duration::ZERO);
        assert!(failure.account.waited.run > Duration::ZERO);
    }

    #[test]
    fn a_read_that_gives_up_has_waited_for_the_lock_or_for_a_reader() {
        let (_folder, writer, readers) = readers("DELETE");
        writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let asked = Cell::new(0);
        let interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() > 3
        };
        let patience = Patience { until: None, interrupted: &interrupted };
        let failure = readers.read(&call("SELECT x FROM t"), &patience).unwrap_err();
        assert_eq!(failure.error, Error::Interrupted);
        assert!(failure.account.retries > 0);
        assert!(failure.account.waited.lock > Duration::ZERO);

        let never = Patience { until: None, interrupted: &|| false };
        let busy = readers.take(&never, Instant::now()).unwrap();
        let at_once = Patience { until: None, interrupted: &|| true };
        let failure = readers.read(&call("SELECT x FROM t"), &at_once).unwrap_err();
        assert!(failure.account.waited.queue > Duration::ZERO);
        assert_eq!(failure.account.waited.lock, Duration::ZERO);
        readers.give(busy);
    }
}
