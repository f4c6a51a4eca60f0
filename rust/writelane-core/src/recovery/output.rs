//! The new database, as rows are put into it.

use super::forest::Row;
use super::image::{Encoding, Header};
use super::shape::Shape;
use crate::sqlite::{Handle, OpenFlags, SqliteError, Statement, Step, ValueRef, ffi};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// The table for rows that have no place elsewhere, or its name with a number where the database has such a table.
const LOST_AND_FOUND: &str = "lost_and_found";
/// As many fields of a row without a place are kept; the rest of a wider row goes into none.
const LOST_FIELDS_MAX: usize = 1990;

/// A table that needs more collations and functions of its program than this is not made as it was.
const STAND_INS_MAX: usize = 64;

/// What became of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is in its table.
    Yes,
    /// Its table would not have it: why.
    Refused(String),
}

/// A database that is being written.
pub struct Output {
    /// The connection.
    pub handle: Arc<Handle>,
    encoding: Encoding,
    lost: OnceCell<(String, Statement)>,
    lost_rows: Cell<u64>,
    taken: Vec<String>,
    width: usize,
    stand_ins: RefCell<Vec<(StandIn, CString)>>,
}

#[derive(Clone, Copy)]
enum StandIn {
    Collation,
    Function,
}

impl Output {
    /// Make a new database at `path`, where nothing is yet, with what the old header says.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn create(path: &Path, header: &Header) -> Result<Self, SqliteError> {
        let handle = Handle::open(path, OpenFlags::WRITER)?;
        // What was stored is stored again, whatever it breaks; a copy that is cut short is thrown away whole.
        handle.execute_batch(&format!(
            "PRAGMA page_size={}; PRAGMA encoding='{}'; PRAGMA auto_vacuum={}; PRAGMA journal_mode=OFF; \
             PRAGMA synchronous=OFF; PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON; BEGIN",
            header.page_size,
            header.encoding.name(),
            header.auto_vacuum,
        ))?;
        Ok(Self {
            handle,
            encoding: header.encoding,
            lost: OnceCell::new(),
            lost_rows: Cell::new(0),
            stand_ins: RefCell::default(),
            taken: Vec::new(),
            width: 1,
        })
    }

    /// Run the first statement of a text that was found in a file: never more than that one.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn run(&self, sql: &str) -> Result<(), SqliteError> {
        if let (Some(statement), _) = Statement::prepare(&self.handle, sql.as_bytes(), 0)? {
            while statement.step()? == Step::Row {}
        }
        Ok(())
    }

    /// Make a table by its own statement, with stand-ins for collations and functions that only its program has.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn make_table(&self, sql: &str) -> Result<(), SqliteError> {
        for _ in 0..STAND_INS_MAX {
            let Err(error) = self.run(sql) else { return Ok(()) };
            let message = &*error.message;
            let missing = |start: &str| CString::new(message.strip_prefix(start)?.trim()).ok();
            if let Some(name) = missing("no such collation sequence: ") {
                self.handle.create_collation(&name, |one, two| one.cmp(two) as i32)?;
                self.stand_ins.borrow_mut().push((StandIn::Collation, name));
            } else if let Some(name) = missing("no such function: ") {
                self.handle.create_function(&name, -1, true, |_, _| ())?;
                self.stand_ins.borrow_mut().push((StandIn::Function, name));
            } else {
                return Err(error);
            }
        }
        self.run(sql)
    }

    /// Take the stand-ins away, so that nothing is computed or ordered by them; return a note on each.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn remove_stand_ins(&self) -> Result<Vec<String>, SqliteError> {
        let mut notes = Vec::new();
        for (kind, name) in self.stand_ins.take() {
            let shown = name.to_string_lossy();
            notes.push(match kind {
                StandIn::Collation => {
                    self.handle.remove_collation(&name)?;
                    format!(
                        "the collation {shown} is known to the database's own program only: keys in it are in the order of \
                         bytes until that program runs REINDEX {shown}"
                    )
                }
                StandIn::Function => {
                    self.handle.remove_function(&name, -1)?;
                    format!("the function {shown} is known to the database's own program only: it was not called")
                }
            });
        }
        Ok(notes)
    }

    fn bind(&self, statement: &Statement, index: usize, value: ValueRef<'_>) -> Result<(), SqliteError> {
        match (value, self.encoding) {
            (ValueRef::Text(text), Encoding::Utf16Le) => statement.bind_text16(index, text, false),
            (ValueRef::Text(text), Encoding::Utf16Be) => statement.bind_text16(index, text, true),
            (value, _) => statement.bind(index, value),
        }
    }

    /// Say which names a table for rows without a place must not have, and how many fields it is to have.
    pub fn expect_lost(&mut self, taken: Vec<String>, width: usize) {
        (self.taken, self.width) = (taken, width.clamp(1, LOST_FIELDS_MAX));
    }

    fn make_lost_and_found(&self) -> Result<(String, Statement), SqliteError> {
        let mut name = LOST_AND_FOUND.to_owned();
        let mut number = 0;
        while self.taken.iter().any(|other| other.eq_ignore_ascii_case(&name)) {
            name = format!("{LOST_AND_FOUND}_{number}");
            number += 1;
        }
        let columns: String = (0..self.width).map(|at| format!(", c{at}")).collect();
        let table = quoted(&name);
        self.run(&format!(
            "CREATE TABLE {table}(id INTEGER PRIMARY KEY, root INTEGER, page INTEGER, row INTEGER, reason TEXT, fields \
             INTEGER{columns})"
        ))?;
        let marks: String = (0..self.width).map(|_| ", ?").collect();
        let sql = format!("INSERT INTO {table} VALUES (NULL, ?, ?, ?, ?, ?{marks})");
        match Statement::prepare(&self.handle, sql.as_bytes(), 0)? {
            (Some(statement), _) => Ok((name, statement)),
            (None, _) => Err(SqliteError::from_code(ffi::SQLITE_INTERNAL)),
        }
    }

    /// Return the table for rows without a place, if there are any, and how many there are.
    pub fn lost_and_found(&self) -> Option<(&str, u64)> {
        self.lost.get().map(|(name, _)| (&**name, self.lost_rows.get()))
    }

    /// Put a row into the table for those without a place.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn lose(&self, root: u32, row: &Row<'_>, reason: &str) -> Result<(), SqliteError> {
        let (_, statement) = match self.lost.get() {
            Some(made) => made,
            None => {
                let made = self.make_lost_and_found()?;
                self.lost.get_or_init(|| made)
            }
        };
        let fields = &row.record.fields;
        statement.bind(1, ValueRef::Integer(i64::from(root)))?;
        statement.bind(2, ValueRef::Integer(i64::from(row.page)))?;
        statement.bind(3, ValueRef::Integer(row.rowid))?;
        statement.bind(4, ValueRef::Text(reason.as_bytes()))?;
        statement.bind(5, ValueRef::Integer(fields.len() as i64))?;
        for (at, value) in fields.iter().take(statement.parameter_count() - 5).enumerate() {
            self.bind(statement, 6 + at, *value)?;
        }
        let done = statement.step();
        statement.reset();
        statement.clear_bindings();
        done?;
        self.lost_rows.set(self.lost_rows.get() + 1);
        Ok(())
    }

    /// Begin to fill a table.
    pub fn table<'a>(&'a self, name: &str, shape: &'a Shape) -> Filling<'a> {
        Filling { output: self, table: quoted(name), shape, statements: HashMap::new() }
    }
}

/// A table that is being filled.
pub struct Filling<'a> {
    output: &'a Output,
    table: String,
    shape: &'a Shape,
    /// By the number of fields: what a short row leaves out gets its default, as it had in the old database.
    statements: HashMap<usize, Statement>,
}

impl Filling<'_> {
    /// Put a row in.
    ///
    /// # Errors
    /// What SQLite says, if it is not about this row alone.
    pub fn insert(&mut self, row: &Row<'_>) -> Result<Placed, SqliteError> {
        let fields = &row.record.fields;
        let width = fields.len().min(self.shape.columns.len());
        if fields.len() > self.shape.columns.len() {
            return Ok(Placed::Refused(format!("it has {} fields, and the table fewer columns", fields.len())));
        }
        let statement = match self.statements.entry(width) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let mut names: Vec<String> = self.shape.rowid_name.map(str::to_owned).into_iter().collect();
                let given = self.shape.columns[..width].iter().enumerate();
                names.extend(
                    given.filter(|(at, c)| c.insertable && self.shape.alias != Some(*at)).map(|(_, c)| quoted(&c.name)),
                );
                // Where every name of the rowid is that of a column, its alias is the only way to give it.
                if let (None, Some(alias)) = (self.shape.rowid_name, self.shape.alias) {
                    names.insert(0, quoted(&self.shape.columns[alias].name));
                }
                let marks = vec!["?"; names.len()].join(", ");
                let sql = if names.is_empty() {
                    format!("INSERT OR IGNORE INTO {} DEFAULT VALUES", self.table)
                } else {
                    format!("INSERT OR IGNORE INTO {}({}) VALUES ({marks})", self.table, names.join(", "))
                };
                let (statement, _) = Statement::prepare(&self.output.handle, sql.as_bytes(), 0)?;
                let Some(statement) = statement else { return Ok(Placed::Refused("no statement".to_owned())) };
                new.insert(statement)
            }
        };
        let mut index = 1;
        if self.shape.has_rowid && (self.shape.rowid_name.is_some() || self.shape.alias.is_some()) {
            statement.bind(index, ValueRef::Integer(row.rowid))?;
            index += 1;
        }
        for (at, (value, column)) in fields.iter().zip(&self.shape.columns).enumerate() {
            if column.insertable && self.shape.alias != Some(at) {
                self.output.bind(statement, index, *value)?;
                index += 1;
            }
        }
        let before = self.output.handle.total_changes();
        let done = statement.step();
        statement.reset();
        match done {
            Ok(_) if self.output.handle.total_changes() > before => Ok(Placed::Yes),
            Ok(_) => {
                Ok(Placed::Refused("a constraint of its table, or another row with its key, is in the way".to_owned()))
            }
            Err(error) if is_about_the_row(&error) => Ok(Placed::Refused(error.message.to_string())),
            Err(error) => Err(error),
        }
    }
}

fn is_about_the_row(error: &SqliteError) -> bool {
    matches!(
        error.primary(),
        ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH | ffi::SQLITE_TOOBIG | ffi::SQLITE_ERROR | ffi::SQLITE_RANGE
    )
}

/// Quote a name for SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
