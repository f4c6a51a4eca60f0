//! Prepared statements kept for their next use.

use super::handle::{Handle, SqliteError};
use super::statement::Statement;
use rusqlite::ffi;
use std::collections::HashMap;
use std::sync::Arc;

/// A bounded cache of prepared statements by SQL text, for one handle; the one unused longest goes first.
///
/// A statement is taken out with its text and given back with it, so that neither is copied. Text that is not UTF-8 is
/// not kept.
pub struct StatementCache {
    /// The one given back last: a program that runs one statement again and again looks nothing up.
    latest: Option<(Arc<str>, Statement)>,
    statements: HashMap<Arc<str>, (Statement, u64)>,
    capacity: usize,
    clock: u64,
}

impl StatementCache {
    /// Make a cache of at most `capacity` statements; 0 keeps none.
    pub fn new(capacity: usize) -> Self {
        Self { latest: None, statements: HashMap::with_capacity(capacity), capacity, clock: 0 }
    }

    /// Take the statement for `sql` out of the cache, with its text.
    pub fn take(&mut self, sql: &[u8]) -> Option<(Arc<str>, Statement)> {
        if let Some(latest) = self.latest.take_if(|(text, _)| text.as_bytes() == sql) {
            return Some(latest);
        }
        let (text, (statement, _)) = self.statements.remove_entry(str::from_utf8(sql).ok()?)?;
        Some((text, statement))
    }

    /// Take the statement for `sql` out of the cache, or prepare it.
    ///
    /// `None`: the text holds no statement.
    ///
    /// # Errors
    /// What SQLite says of the text.
    pub fn take_or_prepare(
        &mut self,
        handle: &Arc<Handle>,
        sql: &str,
    ) -> Result<Option<(Arc<str>, Statement)>, SqliteError> {
        match self.take(sql.as_bytes()) {
            Some(kept) => Ok(Some(kept)),
            None => {
                let (statement, _) = Statement::prepare(handle, sql.as_bytes(), ffi::SQLITE_PREPARE_PERSISTENT)?;
                Ok(statement.map(|statement| (sql.into(), statement)))
            }
        }
    }

    /// Give a statement back. It is reset and its parameters are cleared.
    pub fn give_back(&mut self, text: Arc<str>, statement: Statement) {
        statement.reset();
        statement.clear_bindings();
        if self.capacity == 0 {
            return;
        }
        if let Some((former, statement)) = self.latest.replace((text, statement)) {
            self.put_aside(former, statement);
        }
    }

    fn put_aside(&mut self, text: Arc<str>, statement: Statement) {
        if self.capacity == 1 || self.latest.as_ref().is_some_and(|(latest, _)| *latest == text) {
            return;
        }
        if self.statements.len() + 1 >= self.capacity && !self.statements.contains_key(&text) {
            let oldest = self.statements.iter().min_by_key(|(_, (_, used))| *used).map(|(text, _)| Arc::clone(text));
            if let Some(text) = oldest {
                self.statements.remove(&text);
            }
        }
        self.clock += 1;
        self.statements.insert(text, (statement, self.clock));
    }

    /// Drop every statement.
    pub fn clear(&mut self) {
        self.latest = None;
        self.statements.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::OpenFlags;

    fn cache(capacity: usize) -> (StatementCache, Arc<Handle>) {
        (StatementCache::new(capacity), Handle::open_name(b":memory:", OpenFlags::WRITER, None).unwrap())
    }

    fn run(cache: &mut StatementCache, handle: &Arc<Handle>, sql: &str) {
        let (text, statement) = cache.take_or_prepare(handle, sql).unwrap().unwrap();
        assert_eq!((&*text, &*statement.sql()), (sql, sql));
        cache.give_back(text, statement);
    }

    fn kept(cache: &mut StatementCache, sql: &str) -> bool {
        let taken = cache.take(sql.as_bytes());
        let kept = taken.is_some();
        if let Some((text, statement)) = taken {
            cache.give_back(text, statement);
        }
        kept
    }

    #[test]
    fn the_one_unused_longest_goes_first() {
        for capacity in 1..5 {
            let (mut cache, handle) = cache(capacity);
            let all: Vec<String> = (0..7).map(|number| format!("SELECT {number}")).collect();
            for sql in &all {
                run(&mut cache, &handle, sql);
            }
            // The oldest of those that are kept is used again, and so it is the next that goes.
            run(&mut cache, &handle, &all[7 - capacity]);
            run(&mut cache, &handle, "SELECT 'new'");
            let mut expected: Vec<&str> = all[8 - capacity..].iter().map(String::as_str).collect();
            if capacity > 1 {
                expected.remove(0);
                expected.push(&all[7 - capacity]);
            }
            let found: Vec<&str> =
                all.iter().map(String::as_str).filter(|sql| cache.statements.contains_key(*sql)).collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "capacity {capacity}");
            assert!(kept(&mut cache, "SELECT 'new'"));
        }
    }

    #[test]
    fn none_is_kept_where_none_may_be() {
        let (mut cache, handle) = cache(0);
        run(&mut cache, &handle, "SELECT 1");
        assert!(!kept(&mut cache, "SELECT 1"));
    }

    #[test]
    fn two_at_once_of_the_same_text_are_two_statements() {
        let (mut cache, handle) = cache(3);
        let (text, one) = cache.take_or_prepare(&handle, "SELECT 1").unwrap().unwrap();
        let (again, two) = cache.take_or_prepare(&handle, "SELECT 1").unwrap().unwrap();
        assert_ne!(one.as_ptr(), two.as_ptr());
        cache.give_back(text, one);
        cache.give_back(again, two);
        assert!(cache.statements.is_empty());
        assert!(kept(&mut cache, "SELECT 1"));
    }
}
