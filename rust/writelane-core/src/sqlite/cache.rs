//! Prepared statements kept for their next use.

use super::handle::{Handle, SqliteError};
use super::statement::Statement;
use rusqlite::ffi;
use std::collections::HashMap;
use std::sync::Arc;

/// A bounded cache of prepared statements by SQL text, for one handle; the one unused longest goes first.
pub struct StatementCache {
    statements: HashMap<Box<[u8]>, (Statement, u64)>,
    capacity: usize,
    clock: u64,
}

impl StatementCache {
    /// Make a cache of at most `capacity` statements; 0 keeps none.
    pub fn new(capacity: usize) -> Self {
        Self { statements: HashMap::with_capacity(capacity), capacity, clock: 0 }
    }

    /// Take the statement for `sql` out of the cache.
    pub fn take(&mut self, sql: &[u8]) -> Option<Statement> {
        self.statements.remove(sql).map(|(statement, _)| statement)
    }

    /// Take the statement for `sql` out of the cache, or prepare it.
    ///
    /// `Ok(None)`: the text holds no statement. The offset is that of the text behind the statement.
    ///
    /// # Errors
    /// What SQLite says of the text.
    pub fn take_or_prepare(
        &mut self,
        handle: &Arc<Handle>,
        sql: &[u8],
    ) -> Result<(Option<Statement>, usize), SqliteError> {
        match self.take(sql) {
            Some(statement) => Ok((Some(statement), sql.len())),
            None => Statement::prepare(handle, sql, ffi::SQLITE_PREPARE_PERSISTENT),
        }
    }

    /// Give a statement back. It is reset and its parameters are cleared.
    pub fn give_back(&mut self, sql: &[u8], statement: Statement) {
        statement.reset();
        statement.clear_bindings();
        if self.capacity == 0 {
            return;
        }
        if self.statements.len() >= self.capacity && !self.statements.contains_key(sql) {
            let oldest = self.statements.iter().min_by_key(|(_, (_, used))| *used).map(|(text, _)| text.clone());
            if let Some(text) = oldest {
                self.statements.remove(&text);
            }
        }
        self.clock += 1;
        self.statements.insert(sql.into(), (statement, self.clock));
    }

    /// Drop every statement.
    pub fn clear(&mut self) {
        self.statements.clear();
    }
}
