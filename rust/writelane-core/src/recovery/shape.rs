//! What rows of a table look like, learnt from the table as it was made anew.

use super::forest::Row;
use crate::sqlite::{Handle, SqliteError, Statement, Step, Value, ValueRef};
use std::sync::Arc;

/// A column as it is stored.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Whether a row may give it: not for a generated one.
    pub insertable: bool,
    not_null: bool,
    affinity: Affinity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affinity {
    Blob,
    Text,
    Number,
    Integer,
}

impl Affinity {
    /// Source: <https://www.sqlite.org/datatype3.html>, "Determination Of Column Affinity".
    fn of(declared: &str) -> Self {
        let declared = declared.to_ascii_uppercase();
        let has = |part| declared.contains(part);
        if has("INT") {
            Self::Integer
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            Self::Text
        } else if has("BLOB") || declared.is_empty() || declared == "ANY" {
            Self::Blob
        } else {
            Self::Number
        }
    }

    /// Say whether a value can be stored in a column, and whether it is what the column is for.
    fn agrees(self, value: &ValueRef<'_>) -> Option<bool> {
        match (self, value) {
            (_, ValueRef::Null) => Some(false),
            // A number is made text when it is stored, so one that is still a number was never there.
            (Self::Text, ValueRef::Integer(_) | ValueRef::Real(_)) => None,
            (Self::Text, value) => Some(matches!(value, ValueRef::Text(_))),
            (Self::Integer, value) => Some(matches!(value, ValueRef::Integer(_))),
            (Self::Number, value) => Some(matches!(value, ValueRef::Integer(_) | ValueRef::Real(_))),
            (Self::Blob, value) => Some(matches!(value, ValueRef::Blob(_))),
        }
    }
}

/// The rows of a table.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The columns, in the order in which they are stored.
    pub columns: Vec<Column>,
    /// The column that is the rowid and is stored as NULL.
    pub alias: Option<usize>,
    /// Whether the rows have rowids.
    pub has_rowid: bool,
    /// A name by which the rowid can be given, where there is one that no column has.
    pub rowid_name: Option<&'static str>,
}

impl Shape {
    /// Ask SQLite about a table; `None` if there is none of that name.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn of(handle: &Arc<Handle>, table: &str) -> Result<Option<Self>, SqliteError> {
        let columns = query(handle, "SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?1)", table)?;
        if columns.is_empty() {
            return Ok(None);
        }
        let sql = "SELECT wr FROM pragma_table_list(?1) WHERE schema = 'main'";
        let has_rowid = query(handle, sql, table)?.first().is_none_or(|row| row[0] != Value::Integer(1));
        let sql = "SELECT x.cid FROM pragma_index_list(?1) AS l, pragma_index_xinfo(l.name) AS x WHERE l.origin = 'pk' \
                   ORDER BY x.seqno";
        let keys = query(handle, sql, table)?;
        let column = |row: &[Value]| Column {
            name: text(&row[0]),
            insertable: integer(&row[4]) != 3,
            not_null: integer(&row[2]) != 0,
            affinity: Affinity::of(&text(&row[1])),
        };
        // A generated column that is not stored has no place in a record.
        let is_stored = |row: &[Value]| integer(&row[4]) != 2;
        let stored: Vec<&Box<[Value]>> = columns.iter().filter(|row| is_stored(row)).collect();
        // A primary key without an index of its own is the rowid.
        let alias =
            if has_rowid && keys.is_empty() { stored.iter().position(|row| integer(&row[3]) != 0) } else { None };
        let names: Vec<String> = columns.iter().map(|row| text(&row[0]).to_lowercase()).collect();
        let order = if has_rowid {
            stored.into_iter().map(|row| column(row)).collect()
        } else {
            let at = keys.iter().filter_map(|row| usize::try_from(integer(&row[0])).ok());
            at.filter_map(|at| columns.get(at)).filter(|row| is_stored(row)).map(|row| column(row)).collect()
        };
        let rowid_name = ["rowid", "_rowid_", "oid"].into_iter().find(|name| !names.iter().any(|other| other == name));
        Ok(Some(Self { columns: order, alias, has_rowid, rowid_name: rowid_name.filter(|_| has_rowid) }))
    }

    /// A table of which only the number of columns is known.
    pub fn plain(columns: usize) -> Self {
        let column =
            |at| Column { name: format!("c{at}"), insertable: true, not_null: false, affinity: Affinity::Blob };
        Self { columns: (0..columns).map(column).collect(), alias: None, has_rowid: true, rowid_name: Some("rowid") }
    }

    /// Grade how well a row agrees with the columns; `None` if it cannot be of this table.
    pub fn grade(&self, row: &Row<'_>) -> Option<u32> {
        let fields = &row.record.fields;
        // A column added later is not in the rows that were there before; one of a key is in all.
        if fields.len() > self.columns.len() || (!self.has_rowid && fields.len() < self.columns.len()) {
            return None;
        }
        let mut good = 0;
        for (at, (field, column)) in fields.iter().zip(&self.columns).enumerate() {
            if self.alias == Some(at) {
                good += matches!(field, ValueRef::Null).then_some(1)?;
            } else if column.not_null && matches!(field, ValueRef::Null) {
                return None;
            } else {
                good += u32::from(column.affinity.agrees(field)?);
            }
        }
        let whole = if fields.len() == self.columns.len() { 1000 } else { 0 };
        Some(whole + 100 * good / self.columns.len().max(1) as u32)
    }
}

/// Return all rows of a query with one parameter.
///
/// # Errors
/// What SQLite says.
pub fn query(handle: &Arc<Handle>, sql: &str, parameter: &str) -> Result<Vec<Box<[Value]>>, SqliteError> {
    let (statement, _) = Statement::prepare(handle, sql.as_bytes(), 0)?;
    let Some(statement) = statement else { return Ok(Vec::new()) };
    if statement.parameter_count() > 0 {
        statement.bind(1, ValueRef::Text(parameter.as_bytes()))?;
    }
    let mut rows = Vec::new();
    while statement.step()? == Step::Row {
        rows.push(statement.row());
    }
    Ok(rows)
}

fn text(value: &Value) -> String {
    match value {
        Value::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

fn integer(value: &Value) -> i64 {
    if let Value::Integer(integer) = value { *integer } else { 0 }
}
