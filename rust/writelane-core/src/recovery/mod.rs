//! Recovery of every readable row of a damaged database into a new one.
//!
//! The pages are walked here, not by SQLite, since one bad page is enough for SQLite to refuse a whole table: the
//! schema from page 1 and what is left of it, each table from its root, and then the pages that nothing leads to
//! any more, which go to the one table they can have fallen out of, or to a table of their own.

mod forest;
mod image;
mod output;
mod page;
mod record;
mod schema;
mod shape;

pub use image::{Image, Source};

use crate::sqlite::{SqliteError, Value, ffi};
use forest::{Forest, Hole, Tree, home_of};
use output::{Output, Placed, quoted};
use schema::Entry;
use shape::{Shape, query};
use std::fmt;
use std::path::Path;

/// Rows that are looked at to tell where pages without a parent belong.
const SAMPLE_ROWS: usize = 64;
/// Ranges of lost rowids that are listed for one table.
const RANGES_MAX: usize = 100;
/// Pages between two reports of progress.
const REPORT_PAGES: u64 = 64;

/// What was recovered of one table, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    /// The table.
    pub name: String,
    /// Rows that are in the new table.
    pub rows: u64,
    /// Rows that were read and that the new table would not have; they are among those without a place.
    pub refused: u64,
    /// Pages that are lost.
    pub lost_pages: u64,
    /// Rows on pages that could be read otherwise, but that are unreadable themselves.
    pub lost_cells: u64,
    /// Pages found without their parents.
    pub adopted_pages: u64,
    /// The ranges of rowids, both ends included, in which rows are lost; `None` is without end.
    pub lost_rowids: Vec<(Option<i64>, Option<i64>)>,
    /// Why the table could not be made as it was, so that its columns are only numbered.
    pub error: Option<String>,
}

impl TableReport {
    /// Say whether every row is there.
    pub fn is_whole(&self) -> bool {
        self.refused == 0 && self.lost_pages == 0 && self.lost_cells == 0 && self.error.is_none()
    }
}

/// What was recovered, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Table by table.
    pub tables: Vec<TableReport>,
    /// The table of the rows that have no place elsewhere.
    pub lost_and_found: Option<String>,
    /// The rows in it.
    pub lost_and_found_rows: u64,
    /// Indexes, views and triggers that could not be made again: kind, name, why.
    pub not_made: Vec<(String, String, String)>,
    /// Whether the schema was all there.
    pub schema_whole: bool,
    /// Whether the list of free pages was whole.
    pub free_list_whole: bool,
    /// The page size.
    pub page_size: u32,
    /// The number of pages of the old database.
    pub pages: u32,
    /// What else was noticed.
    pub notes: Vec<String>,
}

/// Why there is no new database.
#[derive(Debug)]
pub enum RecoveryError {
    /// The new database cannot be written.
    Output(SqliteError),
    /// There is not one row, and no table, to recover.
    Nothing(Vec<String>),
    /// The caller wanted no more of it.
    Interrupted,
}

impl From<SqliteError> for RecoveryError {
    fn from(error: SqliteError) -> Self {
        Self::Output(error)
    }
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(error) => write!(f, "the new database cannot be written: {error}"),
            Self::Nothing(notes) if notes.is_empty() => write!(f, "no table and no row of a database was found in it"),
            Self::Nothing(notes) => {
                write!(f, "no table and no row of a database was found in it ({})", notes.join("; "))
            }
            Self::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for RecoveryError {}

/// Called with what is being done, how far it has come, and where it ends; `false` ends it.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64) -> bool;

struct Table {
    entry: Entry,
    shape: Shape,
    tree: Tree,
    report: TableReport,
}

/// Recover every readable row of `image` into a new database at `path`, where nothing is yet.
///
/// `deleted`: also rows on free pages, which were deleted; they go among the rows without a place.
///
/// # Errors
/// See [`RecoveryError`]; what is at `path` then is of no use.
pub fn recover(image: &Image, path: &Path, deleted: bool, progress: Progress<'_>) -> Result<Report, RecoveryError> {
    let mut output = Output::create(path, &image.header)?;
    let mut forest = Forest::new(image);
    let (entries, schema_tree) = schema::read(&mut forest, image.header.encoding);
    let mut report = Report {
        schema_whole: schema_tree.is_whole() && !image.guessed,
        free_list_whole: forest.free_list_whole,
        page_size: image.header.page_size,
        pages: image.pages,
        notes: image.notes.clone(),
        ..Report::default()
    };
    if !progress("walking", 0, u64::from(image.pages)) {
        return Err(RecoveryError::Interrupted);
    }

    let mut tables = make_tables(&output, &mut forest, &entries)?;
    let indexes = walk_indexes(&output, &mut forest, &entries, &tables)?;
    let homeless = house_orphans(&mut forest, &mut tables, &indexes, deleted);
    if tables.is_empty() && homeless.is_empty() {
        return Err(RecoveryError::Nothing(report.notes));
    }

    let columns = tables.iter().map(|table| table.shape.columns.len()).max().unwrap_or(0);
    let names = entries.iter().map(|entry| entry.name.clone()).collect();
    output.expect_lost(names, columns.max(widest(&forest, &homeless)));
    // What is stored of AUTOINCREMENT first: the inserts that follow only ever raise it.
    tables.sort_by_key(|table| !is_sequence(&table.entry));
    let total = tables.iter().map(|table| table.tree.rows.len()).sum::<usize>()
        + homeless.iter().map(|tree| tree.rows.len()).sum::<usize>();
    let mut meter = Meter { done: 0, total: total as u64, progress };
    for table in &mut tables {
        fill(&output, &forest, table, &mut meter)?;
    }
    for tree in &homeless {
        for rows in &tree.rows {
            let mut failed = None;
            forest.rows(*rows, |row| {
                failed = failed.take().or(output.lose(tree.root, &row, "no table it can belong to").err());
            });
            failed.map_or(Ok(()), Err)?;
            meter.count("rows without a place")?;
        }
    }
    report.tables = tables.into_iter().map(|table| table.report).collect();
    finish(&output, &entries, image, &mut report, &mut meter)?;
    Ok(report)
}

struct Meter<'a> {
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Meter<'_> {
    fn count(&mut self, what: &str) -> Result<(), RecoveryError> {
        self.done += 1;
        self.say(what, self.done.is_multiple_of(REPORT_PAGES))
    }

    fn say(&mut self, what: &str, now: bool) -> Result<(), RecoveryError> {
        let goes_on = !now || (self.progress)(what, self.done, self.total);
        if goes_on { Ok(()) } else { Err(RecoveryError::Interrupted) }
    }
}

/// Make every table anew, empty, and walk its old tree.
fn make_tables(output: &Output, forest: &mut Forest<'_>, entries: &[Entry]) -> Result<Vec<Table>, RecoveryError> {
    let mut tables = Vec::new();
    let real = entries.iter().filter(|entry| entry.kind == "table" && !entry.is_virtual());
    // Statistics are made anew at the end.
    for entry in real.filter(|entry| !entry.name.to_ascii_lowercase().starts_with("sqlite_stat")) {
        // The table of AUTOINCREMENT comes with the first table that uses it.
        let is_sequence = is_sequence(entry);
        let made = if is_sequence { Ok(()) } else { output.make_table(entry.sql.as_deref().unwrap_or_default()) };
        let shape = match made {
            Ok(()) if is_sequence => Some(Shape::plain(2)),
            Ok(()) => Shape::of(&output.handle, &entry.name)?,
            Err(ref error) if is_fatal(error) => return Err(error.clone().into()),
            Err(_) => None,
        };
        let mut report = TableReport { name: entry.name.clone(), ..TableReport::default() };
        let shape = match shape {
            Some(shape) => shape,
            None => {
                let error =
                    made.err().map_or_else(|| "its statement makes another".to_owned(), |error| error.to_string());
                report.error = Some(error);
                Shape::plain(0)
            }
        };
        tables.push(Table { entry: entry.clone(), shape, tree: Tree::default(), report });
    }
    for table in &mut tables {
        let by_rowid =
            if table.report.error.is_some() { forest.is_table_at(table.entry.root) } else { table.shape.has_rowid };
        table.tree = forest.walk(table.entry.root, by_rowid);
        if table.report.error.is_some() {
            let width = widest(forest, [&table.tree]);
            table.shape = Shape::plain(width.max(1));
            let columns: Vec<&str> = table.shape.columns.iter().map(|column| &*column.name).collect();
            output.run(&format!("CREATE TABLE {}({})", quoted(&table.entry.name), columns.join(", ")))?;
        }
    }
    Ok(tables)
}

/// Walk the old indexes, so that their pages are not taken for rows; return those with holes and how wide they are.
fn walk_indexes(
    output: &Output,
    forest: &mut Forest<'_>,
    entries: &[Entry],
    tables: &[Table],
) -> Result<Vec<(Tree, usize)>, RecoveryError> {
    let mut trees = Vec::new();
    for entry in entries.iter().filter(|entry| entry.kind == "index" && entry.root > 1) {
        // The key of a table without rowids has the table's own tree.
        if tables.iter().any(|table| table.entry.root == entry.root) {
            continue;
        }
        let tree = forest.walk(entry.root, false);
        if !tree.is_whole() {
            // An index that is not made yet cannot be asked: its rows tell.
            let known = query(&output.handle, "SELECT count(*) FROM pragma_index_xinfo(?1)", &entry.name)?;
            let width = match known.first().map(|row| &row[0]) {
                Some(Value::Integer(width)) if *width > 0 => *width as usize,
                _ => widest(forest, [&tree]),
            };
            trees.push((tree, width));
        }
    }
    Ok(trees)
}

/// Give the trees without a parent to the tables they fell out of; return those that have none.
fn house_orphans(forest: &mut Forest<'_>, tables: &mut [Table], indexes: &[(Tree, usize)], deleted: bool) -> Vec<Tree> {
    let mut homeless = Vec::new();
    for orphan in forest.orphans(true, deleted) {
        let candidates: Vec<usize> = (0..tables.len()).filter(|at| tables[*at].shape.has_rowid).collect();
        let home = find_home(forest, &orphan, tables, &candidates, &[]);
        settle(orphan, home.map(|at| candidates[at]), tables, &mut homeless);
    }
    let candidates: Vec<usize> =
        (0..tables.len()).filter(|at| !tables[*at].shape.has_rowid && !tables[*at].tree.is_whole()).collect();
    if candidates.is_empty() {
        // Then what is left are pages of indexes, which are made anew.
        return homeless;
    }
    for orphan in forest.orphans(false, deleted) {
        match find_home(forest, &orphan, tables, &candidates, indexes) {
            Some(at) if at >= candidates.len() => {}
            home => settle(orphan, home.map(|at| candidates[at]), tables, &mut homeless),
        }
    }
    homeless
}

fn settle(orphan: Tree, home: Option<usize>, tables: &mut [Table], homeless: &mut Vec<Tree>) {
    match home {
        Some(at) => {
            let tree = &mut tables[at].tree;
            tree.adopted += orphan.rows.len() as u64;
            tree.bad_cells += orphan.bad_cells;
            tree.holes.extend(orphan.holes);
            tree.rows.extend(orphan.rows);
        }
        None => homeless.push(orphan),
    }
}

/// Find the one candidate, among tables and then indexes, that an orphan can belong to.
fn find_home(
    forest: &Forest<'_>,
    orphan: &Tree,
    tables: &[Table],
    candidates: &[usize],
    indexes: &[(Tree, usize)],
) -> Option<usize> {
    let mut span: Option<(i64, i64)> = None;
    let mut grades: Vec<Option<u32>> = vec![Some(0); candidates.len() + indexes.len()];
    let mut seen = 0_u32;
    for rows in &orphan.rows {
        forest.rows(*rows, |row| {
            let (first, last) = span.unwrap_or((row.rowid, row.rowid));
            span = Some((first.min(row.rowid), last.max(row.rowid)));
            if seen as usize >= SAMPLE_ROWS {
                return;
            }
            seen += 1;
            for (at, grade) in grades.iter_mut().enumerate() {
                let this = match candidates.get(at) {
                    Some(table) => tables[*table].shape.grade(&row),
                    None => (row.record.fields.len() == indexes[at - candidates.len()].1).then_some(1000),
                };
                *grade = grade.and_then(|sum| Some(sum + this?));
            }
        });
    }
    let trees: Vec<&Tree> =
        candidates.iter().map(|at| &tables[*at].tree).chain(indexes.iter().map(|(tree, _)| tree)).collect();
    let by_rowid = candidates.first().is_some_and(|at| tables[*at].shape.has_rowid);
    home_of(orphan, span.filter(|_| by_rowid), &trees, |at| grades[at].map(|sum| sum / seen.max(1)))
}

fn widest<'a>(forest: &Forest<'_>, trees: impl IntoIterator<Item = &'a Tree>) -> usize {
    let mut width = 0;
    for tree in trees {
        for rows in &tree.rows {
            forest.rows(*rows, |row| width = width.max(row.record.fields.len()));
        }
    }
    width
}

fn is_sequence(entry: &Entry) -> bool {
    entry.name.eq_ignore_ascii_case("sqlite_sequence")
}

fn fill(output: &Output, forest: &Forest<'_>, table: &mut Table, meter: &mut Meter<'_>) -> Result<(), RecoveryError> {
    let (report, tree) = (&mut table.report, &table.tree);
    if is_sequence(&table.entry) {
        // It is there if a table that counts in it is.
        match Shape::of(&output.handle, &table.entry.name)? {
            Some(shape) => table.shape = shape,
            None => return Ok(()),
        }
    }
    let mut filling = output.table(&table.entry.name, &table.shape);
    for rows in &tree.rows {
        let mut failed = None;
        forest.rows(*rows, |row| {
            if failed.is_some() {
                return;
            }
            match filling.insert(&row) {
                Ok(Placed::Yes) => report.rows += 1,
                Ok(Placed::Refused(why)) => {
                    report.refused += 1;
                    failed = output.lose(tree.root, &row, &format!("table {}: {why}", report.name)).err();
                }
                Err(error) => failed = Some(error),
            }
        });
        failed.map_or(Ok(()), Err)?;
        meter.count(&report.name)?;
    }
    report.lost_pages = tree.holes.len() as u64;
    report.lost_cells = tree.bad_cells;
    report.adopted_pages = tree.adopted;
    if table.shape.has_rowid {
        let range = |hole: &Hole| (hole.above.map(|above| above.saturating_add(1)), hole.up_to);
        report.lost_rowids = tree.holes.iter().take(RANGES_MAX).map(range).collect();
    }
    Ok(())
}

/// Make what hangs on the tables, and set what the old header said.
fn finish(
    output: &Output,
    entries: &[Entry],
    image: &Image,
    report: &mut Report,
    meter: &mut Meter<'_>,
) -> Result<(), RecoveryError> {
    report.notes.extend(output.remove_stand_ins()?);
    for kind in ["index", "view", "trigger"] {
        for entry in entries.iter().filter(|entry| entry.kind == kind) {
            let Some(sql) = &entry.sql else { continue };
            meter.say(&entry.name, true)?;
            match output.run(sql) {
                Err(error) if is_fatal(&error) => return Err(error.into()),
                Err(error) => report.not_made.push((kind.to_owned(), entry.name.clone(), error.to_string())),
                Ok(()) => {}
            }
        }
    }
    if let Some((name, rows)) = output.lost_and_found() {
        (report.lost_and_found, report.lost_and_found_rows) = (Some(name.to_owned()), rows);
    }
    let header = &image.header;
    output.run(&format!("PRAGMA user_version={}", header.user_version))?;
    output.run(&format!("PRAGMA application_id={}", header.application_id))?;
    let virtuals: Vec<&Entry> = entries.iter().filter(|entry| entry.is_virtual()).collect();
    if !virtuals.is_empty() {
        // Their rows are in tables of their own, which are there already, so making them anew would be wrong.
        output.run("PRAGMA writable_schema=ON")?;
        for entry in &virtuals {
            let [name, table, sql] = [&entry.name, &entry.table, entry.sql.as_ref().unwrap_or(&String::new())]
                .map(|text| text.replace('\'', "''"));
            output.run(&format!("INSERT INTO sqlite_master VALUES ('table', '{name}', '{table}', 0, '{sql}')"))?;
        }
    }
    output.run("COMMIT")?;
    if !virtuals.is_empty() {
        output.run("PRAGMA writable_schema=RESET")?;
        for entry in virtuals {
            mend_virtual(output, entry, report)?;
        }
    }
    if entries.iter().any(|entry| entry.name.to_ascii_lowercase().starts_with("sqlite_stat")) {
        // Only the planner's estimates: a table of an extension that cannot be read is no reason to fail.
        if let Err(error) = output.run("ANALYZE") {
            report.notes.push(format!("statistics could not be made anew: {error}"));
        }
    }
    if header.wal {
        output.run("PRAGMA journal_mode=WAL")?;
    }
    Ok(())
}

/// See that a table of an extension works on the tables it keeps its rows in; take it out of the schema if it does
/// not, so that its rows can be read there.
fn mend_virtual(output: &Output, entry: &Entry, report: &mut Report) -> Result<(), RecoveryError> {
    let name = quoted(&entry.name);
    let check = || {
        output.run(&format!("SELECT count(*) FROM (SELECT * FROM {name})"))?;
        // Damage within a row that can be read shows only here.
        match query(&output.handle, &format!("PRAGMA integrity_check({name})"), "")?.first().map(|row| &row[0]) {
            Some(Value::Text(text)) if **text != *b"ok" => {
                let message = String::from_utf8_lossy(text).into();
                Err(SqliteError { code: ffi::SQLITE_CORRUPT_VTAB, message, offset: None })
            }
            _ => Ok(()),
        }
    };
    let is_index_of_words = entry.sql.as_deref().unwrap_or_default().to_ascii_lowercase().contains("using fts");
    let mended = check().or_else(|error| {
        if !is_index_of_words {
            return Err(error);
        }
        // The words can be counted anew from the rows.
        output.run(&format!("INSERT INTO {name}({name}) VALUES ('rebuild')"))?;
        check()
    });
    let Err(error) = mended else { return Ok(()) };
    report.not_made.push(("virtual table".to_owned(), entry.name.clone(), error.to_string()));
    output.run("PRAGMA writable_schema=ON")?;
    let plain = entry.name.replace('\'', "''");
    output.run(&format!("DELETE FROM sqlite_master WHERE type = 'table' AND rootpage = 0 AND name = '{plain}'"))?;
    output.run("PRAGMA writable_schema=RESET")?;
    Ok(())
}

fn is_fatal(error: &SqliteError) -> bool {
    matches!(
        error.primary(),
        ffi::SQLITE_FULL | ffi::SQLITE_IOERR | ffi::SQLITE_NOMEM | ffi::SQLITE_CORRUPT | ffi::SQLITE_READONLY
    )
}

#[cfg(test)]
mod tests;
