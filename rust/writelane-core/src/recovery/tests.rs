use super::*;
use crate::sqlite::{Handle, OpenFlags};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder for one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("wl-recovery-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn recover(&self, bytes: Vec<u8>) -> Result<(Report, Arc<Handle>), RecoveryError> {
        self.recover_image(&Image::new(Source::Memory(bytes), None, None))
    }

    fn recover_image(&self, image: &Image) -> Result<(Report, Arc<Handle>), RecoveryError> {
        let path = self.0.join("new.db");
        let _ = fs::remove_file(&path);
        let report = recover(image, &path, false, &mut |_, _, _| true)?;
        let handle = Handle::open(&path, OpenFlags::EXISTING).unwrap();
        assert_eq!(texts(&handle, "PRAGMA integrity_check"), ["'ok'"], "the new database is sound");
        Ok((report, handle))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }
}

fn texts(handle: &Arc<Handle>, sql: &str) -> Vec<String> {
    query(handle, sql, "").unwrap().iter().map(|row| row.iter().map(show).collect::<Vec<_>>().join("|")).collect()
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) => format!("{real:?}"),
        Value::Text(bytes) => format!("'{}'", bytes.escape_ascii()),
        Value::Blob(bytes) => format!("x'{}'", bytes.escape_ascii()),
    }
}

/// Everything in a database that a user sees, table by table.
fn contents(handle: &Arc<Handle>) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name";
    for row in query(handle, tables, "").unwrap() {
        let name = match &row[0] {
            Value::Text(name) => String::from_utf8(name.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        let mut rows = texts(handle, &format!("SELECT * FROM {}", quoted(&name)));
        rows.sort();
        found.insert(name, rows);
    }
    found.insert(
        "(schema)".to_owned(),
        texts(handle, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2"),
    );
    found.insert("(user_version)".to_owned(), texts(handle, "PRAGMA user_version"));
    found.insert("(page_size)".to_owned(), texts(handle, "PRAGMA page_size"));
    found.insert("(encoding)".to_owned(), texts(handle, "PRAGMA encoding"));
    found.insert("(auto_vacuum)".to_owned(), texts(handle, "PRAGMA auto_vacuum"));
    found
}

const RICH: &str = "
    CREATE TABLE plain(id INTEGER PRIMARY KEY, name TEXT NOT NULL, value REAL, data BLOB);
    CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE);
    CREATE TABLE bare(a, \"b c\", [rowid]);
    CREATE TABLE keyed(k TEXT, n INTEGER, v, extra TEXT, PRIMARY KEY(n DESC, k)) WITHOUT ROWID;
    CREATE TABLE made(a INTEGER, twice INTEGER AS (a * 2) STORED, thrice INTEGER AS (a * 3), z TEXT);
    CREATE TABLE typed(a INT, b TEXT, c ANY) STRICT;
    CREATE TABLE child(id INTEGER PRIMARY KEY, plain REFERENCES plain, CHECK (id > 0));
    CREATE TABLE empty(x);
    CREATE VIRTUAL TABLE words USING fts5(text);
    CREATE INDEX plain_name ON plain(name);
    CREATE INDEX plain_part ON plain(value) WHERE value > 10;
    CREATE VIEW seen AS SELECT name FROM plain;
    CREATE TRIGGER counting AFTER INSERT ON child BEGIN INSERT INTO empty VALUES (new.id); END;
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
        INSERT INTO plain SELECT i, 'näme ' || i, i * 0.5, CASE WHEN i % 7 THEN zeroblob(i % 300) ELSE randomblob(i * 3) END FROM n;
    INSERT INTO counted(name) SELECT name FROM plain WHERE id < 900;
    DELETE FROM counted WHERE id > 600;
    INSERT INTO bare SELECT id, NULL, name FROM plain WHERE id % 2;
    INSERT INTO keyed SELECT name, id, zeroblob(id % 90), 'x' FROM plain;
    INSERT INTO made(a, z) SELECT id, name FROM plain WHERE id < 500;
    INSERT INTO typed SELECT id, name, data FROM plain WHERE id < 400;
    INSERT INTO child SELECT id, id FROM plain WHERE id < 100;
    DELETE FROM empty;
    INSERT INTO words SELECT name || ' some words of text' FROM plain WHERE id < 200;
    ALTER TABLE child ADD COLUMN late TEXT DEFAULT 'later';
    PRAGMA user_version = 42;
";

fn build(folder: &Folder, before: &str, sql: &str) -> (Vec<u8>, BTreeMap<String, Vec<String>>) {
    let path = folder.0.join("old.db");
    for suffix in ["", "-wal", "-journal", "-shm"] {
        let _ = fs::remove_file(folder.0.join(format!("old.db{suffix}")));
    }
    let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
    handle.execute_batch(before).unwrap();
    handle.execute_batch(&format!("BEGIN; {sql}; COMMIT")).unwrap();
    let contents = contents(&handle);
    drop(handle);
    (fs::read(&path).unwrap(), contents)
}

#[test]
fn a_sound_database_comes_through_whole_whatever_its_format() {
    let folder = Folder::new();
    for before in [
        "PRAGMA page_size=512",
        "PRAGMA page_size=1024; PRAGMA encoding='UTF-16le'",
        "PRAGMA page_size=4096; PRAGMA encoding='UTF-16be'; PRAGMA auto_vacuum=FULL",
        "PRAGMA page_size=512; PRAGMA auto_vacuum=INCREMENTAL",
        "PRAGMA page_size=65536; PRAGMA journal_mode=WAL",
    ] {
        let (bytes, expected) = build(&folder, before, RICH);
        let (report, handle) = folder.recover(bytes).unwrap();
        let found = contents(&handle);
        for (table, rows) in &expected {
            assert_eq!(found.get(table), Some(rows), "{table} after {before}");
        }
        assert_eq!(found.len(), expected.len());
        assert!(report.schema_whole && report.free_list_whole && report.not_made.is_empty(), "{report:?}");
        assert!(report.tables.iter().all(TableReport::is_whole) && report.lost_and_found.is_none(), "{report:?}");
        assert_eq!(texts(&handle, "SELECT count(*) FROM words WHERE words MATCH 'some'"), ["199"]);
    }
}

/// Which table each page belongs to, as SQLite itself says, before the damage.
fn owners(folder: &Folder) -> BTreeMap<usize, (String, String)> {
    let handle = Handle::open(&folder.0.join("old.db"), OpenFlags::EXISTING).unwrap();
    query(&handle, "SELECT pageno, name, pagetype FROM dbstat", "")
        .unwrap()
        .iter()
        .map(|row| match (&row[0], &row[1], &row[2]) {
            (Value::Integer(page), Value::Text(name), Value::Text(kind)) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (*page as usize, (text(name), text(kind)))
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn pages_of_garbage_cost_no_row_of_another_table_and_bring_no_row_that_was_not_there() {
    let folder = Folder::new();
    let (bytes, expected) = build(&folder, "PRAGMA page_size=1024", RICH);
    let owners = owners(&folder);
    for seed in 0..20 {
        let (mut dice, mut damaged) = (Dice(seed), bytes.clone());
        let mut hit = Vec::new();
        for _ in 0..=seed {
            let page = 2 + dice.below(bytes.len() / 1024 - 1);
            // The schema's own pages are another test's.
            if owners.get(&page).is_some_and(|(name, _)| name == "sqlite_schema") {
                continue;
            }
            dice.fill(&mut damaged[(page - 1) * 1024..page * 1024]);
            hit.extend(owners.get(&page).map(|(name, _)| name.clone()));
        }
        let (report, handle) = folder.recover(damaged).unwrap();
        let found = contents(&handle);
        for table in report.tables.iter().filter(|table| !table.name.starts_with("words")) {
            let (old, new) = (&expected[&table.name], &found[&table.name]);
            if !hit.contains(&table.name) {
                assert_eq!(old, new, "{} was not hit (seed {seed})", table.name);
                assert!(table.is_whole(), "{table:?}");
            }
            // A row of a damaged table is one it had. (A row's overflow pages may have been hit in the middle of
            // a chain in such a way that nothing shows it; random bytes do not do that.)
            let strange: Vec<_> = new.iter().filter(|row| old.binary_search(row).is_err()).collect();
            assert!(strange.is_empty(), "{}: {strange:?} (seed {seed})", table.name);
            assert_eq!(table.rows as usize, new.len());
            assert!(old.len() == new.len() || !table.is_whole(), "a loss is told: {table:?}");
        }
    }
}

#[test]
fn rows_under_a_lost_inner_page_find_their_table_again() {
    let folder = Folder::new();
    let sql =
        "CREATE TABLE one(id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE two(id INTEGER PRIMARY KEY, x REAL, y BLOB);
        CREATE TABLE three(k TEXT PRIMARY KEY, v INT, w INT) WITHOUT ROWID; CREATE INDEX two_x ON two(x);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
            INSERT INTO one SELECT i, 'name ' || i FROM n;
        INSERT INTO two SELECT id, id * 0.25, zeroblob(20) FROM one;
        INSERT INTO three SELECT name, id, id FROM one;";
    let (bytes, expected) = build(&folder, "PRAGMA page_size=512", sql);
    let owners = owners(&folder);
    for (page, (name, kind)) in owners.iter().filter(|(_, (_, kind))| kind == "internal") {
        let mut damaged = bytes.clone();
        Dice(*page as u64).fill(&mut damaged[(page - 1) * 512..page * 512]);
        let (report, handle) = folder.recover(damaged).unwrap();
        let found = contents(&handle);
        for table in ["one", "two"] {
            assert_eq!(found[table], expected[table], "page {page}, {kind} of {name}: {report:?}");
        }
        // An inner page of a table without rowids holds rows of its own.
        let lost = expected["three"].len() - found["three"].len();
        let on_page = if name == "three" { 60 } else { 0 };
        assert!(lost <= on_page, "page {page} of {name} lost {lost} rows: {report:?}");
        assert_eq!(report.lost_and_found, None, "page {page} of {name}");
    }
}

#[test]
fn the_mark_of_twenty_five_pages_of_garbage_is_reached() {
    let folder = Folder::new();
    let sql = "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, data BLOB); CREATE INDEX i ON t(name);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
            INSERT INTO t SELECT i, 'name ' || i, randomblob(100) FROM n;";
    let (mut damaged, _) = build(&folder, "", sql);
    let mut dice = Dice(25);
    for _ in 0..25 {
        let page = 1 + dice.below(damaged.len() / 4096 - 1);
        dice.fill(&mut damaged[page * 4096..(page + 1) * 4096]);
    }
    let (report, _) = folder.recover(damaged).unwrap();
    assert!(report.tables[0].rows >= 19_200, "{} rows", report.tables[0].rows);
    let lost = 20_000 - report.tables[0].rows;
    let told: i64 = report.tables[0].lost_rowids.iter().filter_map(|(from, to)| Some((*to)? - (*from)? + 1)).sum();
    assert!(told as u64 >= lost, "{told} of {lost} lost rows are in the ranges told");
}

#[test]
fn without_the_first_page_every_row_is_kept_among_those_without_a_place() {
    let folder = Folder::new();
    let sql = "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO t SELECT i, 'name ' || i FROM n;";
    for size in [512, 4096, 16384] {
        let (mut damaged, _) = build(&folder, &format!("PRAGMA page_size={size}"), sql);
        Dice(1).fill(&mut damaged[..size]);
        let (report, handle) = folder.recover(damaged).unwrap();
        assert_eq!(report.page_size as usize, size);
        assert!(!report.schema_whole);
        assert_eq!(
            texts(&handle, "SELECT count(*), count(DISTINCT row), max(c1) FROM lost_and_found"),
            ["2000|2000|'name 999'"]
        );
    }
}

#[test]
fn a_schema_that_outgrew_its_first_page_is_put_together_from_its_leaves() {
    let folder = Folder::new();
    let tables: String = (0..80)
        .map(|n| format!("CREATE TABLE t{n}(id INTEGER PRIMARY KEY, a{n} TEXT); INSERT INTO t{n} VALUES ({n}, 'x');"))
        .collect();
    let (mut damaged, expected) = build(&folder, "PRAGMA page_size=512", &tables);
    Dice(3).fill(&mut damaged[100..512]);
    let (report, handle) = folder.recover(damaged).unwrap();
    assert!(!report.schema_whole);
    let found = contents(&handle);
    for n in 0..80 {
        assert_eq!(found[&format!("t{n}")], expected[&format!("t{n}")]);
    }
}

#[test]
fn what_is_only_in_the_log_is_recovered_and_a_hot_journal_rolled_back() {
    let folder = Folder::new();
    let (bytes, _) = build(&folder, "PRAGMA journal_mode=WAL", "CREATE TABLE t(x); INSERT INTO t VALUES (1)");
    let writer = Handle::open(&folder.0.join("old.db"), OpenFlags::EXISTING).unwrap();
    writer.execute_batch("INSERT INTO t VALUES (2); INSERT INTO t VALUES (3)").unwrap();
    let log = fs::read(folder.0.join("old.db-wal")).unwrap();
    let image = Image::new(Source::Memory(bytes.clone()), Some(Source::Memory(log.clone())), None);
    let (report, handle) = folder.recover_image(&image).unwrap();
    assert_eq!(texts(&handle, "SELECT x FROM t"), ["1", "2", "3"]);
    assert!(report.notes.iter().any(|note| note.contains("log")), "{report:?}");
    // A log that breaks off counts up to its last whole commit.
    let cut = log[..log.len() - 10].to_vec();
    let image = Image::new(Source::Memory(bytes), Some(Source::Memory(cut)), None);
    assert_eq!(texts(&folder.recover_image(&image).unwrap().1, "SELECT x FROM t"), ["1", "2"]);
    drop((writer, handle));

    build(&folder, "PRAGMA journal_mode=DELETE", "CREATE TABLE t(x); INSERT INTO t VALUES (1)");
    let writer = Handle::open(&folder.0.join("old.db"), OpenFlags::EXISTING).unwrap();
    // A cache of nothing makes SQLite write what is not committed into the file.
    writer.execute_batch("PRAGMA cache_size=1; PRAGMA cache_spill=1; BEGIN").unwrap();
    writer.execute_batch("UPDATE t SET x = 'never'").unwrap();
    let more = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
        INSERT INTO t SELECT zeroblob(200) FROM n";
    writer.execute_batch(more).unwrap();
    let bytes = fs::read(folder.0.join("old.db")).unwrap();
    let journal = fs::read(folder.0.join("old.db-journal")).unwrap();
    let image = Image::new(Source::Memory(bytes), None, Some(Source::Memory(journal)));
    let (report, handle) = folder.recover_image(&image).unwrap();
    assert_eq!(texts(&handle, "SELECT x FROM t"), ["1"], "{report:?}");
}

#[test]
fn rows_that_were_deleted_stay_deleted_unless_asked_for() {
    let folder = Folder::new();
    let sql = "CREATE TABLE t(id INTEGER PRIMARY KEY, x TEXT); CREATE TABLE u(id INTEGER PRIMARY KEY, x TEXT);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
            INSERT INTO t SELECT i, 'secret ' || i FROM n;
        INSERT INTO u VALUES (1, 'kept')";
    let (_, _) = build(&folder, "", sql);
    let handle = Handle::open(&folder.0.join("old.db"), OpenFlags::EXISTING).unwrap();
    handle.execute_batch("PRAGMA secure_delete=OFF; DELETE FROM t").unwrap();
    drop(handle);
    let image = Image::new(Source::Memory(fs::read(folder.0.join("old.db")).unwrap()), None, None);
    let (report, handle) = folder.recover_image(&image).unwrap();
    assert_eq!((report.lost_and_found, texts(&handle, "SELECT count(*) FROM t")), (None, vec!["0".to_owned()]));
    drop(handle);
    fs::remove_file(folder.0.join("new.db")).unwrap();
    let report = recover(&image, &folder.0.join("new.db"), true, &mut |_, _, _| true).unwrap();
    assert!(report.lost_and_found_rows > 2000, "{report:?}");
}

#[test]
fn a_table_whose_program_has_collations_and_functions_of_its_own_keeps_its_rows_and_names() {
    let folder = Folder::new();
    let path = folder.0.join("old.db");
    let handle = Handle::open(&path, OpenFlags::WRITER).unwrap();
    handle.create_collation(c"mine", |one, two| two.cmp(one) as i32).unwrap();
    handle.create_function(c"f", 1, true, |context, _| context.result(crate::sqlite::ValueRef::Integer(1))).unwrap();
    handle
        .execute_batch(
            "CREATE TABLE t(name TEXT COLLATE mine UNIQUE, n INT CHECK (f(n))); CREATE INDEX i ON t(f(n));
             CREATE INDEX j ON t(name); INSERT INTO t VALUES ('a', 1), ('b', 2)",
        )
        .unwrap();
    drop(handle);
    let image = Image::new(Source::Memory(fs::read(&path).unwrap()), None, None);
    let report = recover(&image, &folder.0.join("new.db"), false, &mut |_, _, _| true).unwrap();
    assert!(report.tables[0].is_whole(), "{report:?}");
    assert_eq!(report.not_made.iter().map(|(_, name, _)| &**name).collect::<Vec<_>>(), ["i", "j"]);
    assert_eq!(report.notes.len(), 2, "{report:?}");
    let handle = Handle::open(&folder.0.join("new.db"), OpenFlags::EXISTING).unwrap();
    handle.create_collation(c"mine", |one, two| two.cmp(one) as i32).unwrap();
    handle.create_function(c"f", 1, true, |context, _| context.result(crate::sqlite::ValueRef::Integer(1))).unwrap();
    handle.execute_batch("REINDEX mine").unwrap();
    assert_eq!(texts(&handle, "PRAGMA integrity_check"), ["'ok'"]);
    assert_eq!(texts(&handle, "SELECT name, n FROM t ORDER BY n"), ["'a'|1", "'b'|2"]);
}

#[test]
fn whatever_the_bytes_nothing_panics_and_what_is_made_is_sound() {
    let folder = Folder::new();
    let (bytes, _) = build(&folder, "PRAGMA page_size=512; PRAGMA auto_vacuum=FULL", RICH);
    for seed in 0..60 {
        let (mut dice, mut damaged) = (Dice(1000 + seed), bytes.clone());
        for _ in 0..1 + dice.below(400) {
            let at = dice.below(damaged.len());
            // Half of the damage is small and in the heads of pages, where it does most.
            let at = if dice.below(2) == 0 { at } else { at / 512 * 512 + dice.below(16) };
            damaged[at] = dice.next() as u8;
        }
        if seed % 5 == 0 {
            damaged.truncate(dice.below(bytes.len()));
        }
        match folder.recover(damaged) {
            Ok(_) | Err(RecoveryError::Nothing(_)) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    for nothing in [vec![], vec![0; 8192], b"SQLite format 3\0".to_vec(), b"hello, world".repeat(1000)] {
        assert!(matches!(folder.recover(nothing), Err(RecoveryError::Nothing(_))));
    }
}

#[test]
fn an_interrupted_recovery_says_so() {
    let folder = Folder::new();
    let (bytes, _) = build(&folder, "", RICH);
    let image = Image::new(Source::Memory(bytes), None, None);
    let stopped = recover(&image, &folder.0.join("new.db"), false, &mut |_, _, _| false);
    assert!(matches!(stopped, Err(RecoveryError::Interrupted)));
}
