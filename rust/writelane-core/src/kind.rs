//! What kind of statement a text is, as SQLite judges it and not its first word.

use crate::sqlite::{Authorization, Authorizer, Handle, OpenFlags, SqliteError, Statement, ffi};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

/// How a statement is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes nothing: a reader runs it.
    Read,
    /// It writes, or cannot be judged without running what was queued before it: the writer runs it in a group.
    Write,
    /// It must run outside any transaction, on the writer: VACUUM.
    Alone,
    /// A PRAGMA that sets something of the connection: on the writer outside any transaction, and on every reader.
    Setting,
    /// It would break the group or undo what writelane arranges; the text says what to do instead.
    Forbidden(Arc<str>),
    /// Nothing but white space and comments.
    Empty,
    /// More than one statement.
    Several,
}

/// PRAGMAs whose argument chooses what to read. Source: <https://www.sqlite.org/pragma.html>.
const READS_WITH_ARGUMENT: &[&str] = &[
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// PRAGMAs that set something of one connection.
const SETTINGS: &[&str] = &[
    "analysis_limit",
    "automatic_index",
    "cache_size",
    "cache_spill",
    "case_sensitive_like",
    "cell_size_check",
    "checkpoint_fullfsync",
    "defensive",
    "foreign_keys",
    "full_column_names",
    "fullfsync",
    "ignore_check_constraints",
    "legacy_alter_table",
    "max_page_count",
    "read_uncommitted",
    "recursive_triggers",
    "reverse_unordered_selects",
    "secure_delete",
    "short_column_names",
    "temp_store",
    "threads",
    "trusted_schema",
    "writable_schema",
];

/// PRAGMAs that would undo what writelane arranges, with what to do instead.
const FORBIDDEN: &[(&str, &str)] = &[
    ("busy_timeout", "waits are writelane's: give deadline= to the call or to writelane.open()"),
    ("journal_mode", "the journal mode is chosen by writelane.open(journal=...)"),
    ("journal_size_limit", "the size of the log is kept by writelane's checkpoints"),
    ("locking_mode", "use writelane.open(access=\"exclusive\")"),
    ("mmap_size", "memory-mapped reads are off: a truncated file would kill the process"),
    ("query_only", "use writelane.open(readonly=True)"),
    ("synchronous", "use writelane.open(durability=...) or durable=True on one call"),
    ("wal_autocheckpoint", "checkpoints are writelane's; see db.checkpoint()"),
    ("wal_checkpoint", "use db.checkpoint(mode)"),
];

/// PRAGMAs that read when they have no argument but act all the same.
const ACTS_WITHOUT_ARGUMENT: &[&str] = &["incremental_vacuum", "optimize", "shrink_memory"];

/// Judge a PRAGMA by its name and argument.
pub fn pragma(name: &str, argument: Option<&str>) -> Kind {
    let name = name.to_ascii_lowercase();
    let is = |list: &[&str]| list.contains(&name.as_str());
    if (name == "wal_checkpoint" || argument.is_some())
        && let Some((_, advice)) = FORBIDDEN.iter().find(|(known, _)| *known == name)
    {
        return Kind::Forbidden(format!("PRAGMA {name} is not for a shared writer: {advice}").into());
    }
    if is(ACTS_WITHOUT_ARGUMENT) {
        Kind::Write
    } else if argument.is_none() || is(READS_WITH_ARGUMENT) {
        Kind::Read
    } else if is(SETTINGS) {
        Kind::Setting
    } else {
        // user_version, application_id, auto_vacuum, encoding ...: stored in the file.
        Kind::Write
    }
}

/// What an authorizer saw of one statement.
#[derive(Clone, Debug, Default)]
struct Seen {
    transaction: Option<&'static str>,
    attach: bool,
    pragma: Option<(String, Option<String>)>,
}

/// Judges statements on a read-only handle of its own, and remembers its judgements.
pub struct Judge {
    inner: Mutex<Inner>,
}

/// A handle, and what its authorizer sees.
struct Watched {
    handle: Arc<Handle>,
    seen: Arc<Mutex<Seen>>,
    _authorizer: Authorizer,
}

impl Watched {
    fn new(handle: Arc<Handle>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let authorizer = {
            let seen = Arc::clone(&seen);
            Authorizer::install(&handle, move |action, first, second| {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                observe(&mut seen, action, first, second)
            })
        };
        Self { handle, seen, _authorizer: authorizer }
    }

    fn look(&self, sql: &str) -> Look {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Seen::default();
        let first = Statement::prepare(&self.handle, sql.as_bytes(), 0);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((name, argument)) = &seen.pragma {
            // The authorizer denied it before it could act; what stands behind it is looked at when it runs.
            return Look::Is(pragma(name, argument.as_deref()));
        }
        if let Some(what) = seen.transaction {
            return Look::Is(forbidden_transaction(what));
        }
        if seen.attach {
            return Look::Is(forbidden_attach());
        }
        match first {
            Err(error) => Look::Failed(error),
            Ok((None, _)) => Look::Is(Kind::Empty),
            Ok((Some(statement), rest)) => Look::Is(if has_statement(&self.handle, &sql.as_bytes()[rest..]) {
                Kind::Several
            } else if statement.is_explain() || statement.is_readonly() {
                Kind::Read
            } else if is_vacuum(sql) {
                Kind::Alone
            } else {
                Kind::Write
            }),
        }
    }
}

enum Look {
    Is(Kind),
    Failed(SqliteError),
}

struct Inner {
    /// `None` once it is closed.
    file: Option<Watched>,
    /// Without a file: it knows no table, and nothing keeps it from preparing what needs none.
    empty: Option<Watched>,
    known: HashMap<Arc<str>, (Kind, Arc<str>)>,
}

/// Judgements kept; past it all are dropped, since a program has few texts or infinitely many.
const KNOWN_MAX: usize = 1024;
/// Longer texts are judged anew each time: a thousand of them would be a lot of memory.
const KNOWN_BYTES_MAX: usize = 16 << 10;

impl Judge {
    /// Make a judge on `handle`, which it uses for nothing else.
    pub fn new(handle: Arc<Handle>) -> Self {
        Self { inner: Mutex::new(Inner { file: Some(Watched::new(handle)), empty: None, known: HashMap::new() }) }
    }

    /// Let the file go. What is judged from then on is told by its text alone.
    pub fn close(&self) {
        let file = self.inner.lock().unwrap_or_else(PoisonError::into_inner).file.take();
        drop(file);
    }

    /// Return the kind of `sql`, and the text as it is shared by all jobs that repeat it.
    pub fn judge(&self, sql: &str) -> (Kind, Arc<str>) {
        let (kind, text, _) = self.judge_surely(sql);
        (kind, text)
    }

    /// As [`Judge::judge`], and whether SQLite could prepare it: what it could not counts as a write.
    pub fn judge_surely(&self, sql: &str) -> (Kind, Arc<str>, bool) {
        if sql.contains('\0') {
            // SQLite would read the text up to there and no further.
            return (Kind::Forbidden("the query contains a null character".into()), sql.into(), true);
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((kind, text)) = inner.known.get(sql) {
            return (kind.clone(), Arc::clone(text), true);
        }
        let (kind, certain) = inner.look(sql);
        let text: Arc<str> = sql.into();
        if certain && sql.len() <= KNOWN_BYTES_MAX {
            if inner.known.len() >= KNOWN_MAX {
                inner.known.clear();
            }
            inner.known.insert(Arc::clone(&text), (kind.clone(), Arc::clone(&text)));
        }
        (kind, text, certain)
    }
}

impl Inner {
    /// Return the kind, and whether it will stay so whatever becomes of the schema.
    fn look(&mut self, sql: &str) -> (Kind, bool) {
        // Perhaps a job that is queued now creates what is missing: the writer will know.
        let unknown = (Kind::Write, false);
        match self.file.as_ref().map(|file| file.look(sql)) {
            Some(Look::Is(kind)) => return (kind, true),
            Some(Look::Failed(error)) if error.primary() == ffi::SQLITE_ERROR => return unknown,
            Some(Look::Failed(_)) | None => {}
        }
        // The schema could not be read just now, which says nothing of the text.
        if self.empty.is_none() {
            let handle = Handle::open_name(b":memory:", OpenFlags::WRITER, None);
            self.empty = handle.ok().map(Watched::new);
        }
        match self.empty.as_ref().map(|empty| empty.look(sql)) {
            Some(Look::Is(kind @ (Kind::Alone | Kind::Setting | Kind::Forbidden(_) | Kind::Empty | Kind::Several))) => {
                (kind, true)
            }
            _ => unknown,
        }
    }
}

fn observe(seen: &mut Seen, action: i32, first: Option<&CStr>, second: Option<&CStr>) -> Authorization {
    match action {
        ffi::SQLITE_TRANSACTION => {
            seen.transaction = Some("BEGIN, COMMIT and ROLLBACK");
            Authorization::Allow
        }
        ffi::SQLITE_SAVEPOINT => {
            seen.transaction = Some("SAVEPOINT, RELEASE and ROLLBACK TO");
            Authorization::Allow
        }
        ffi::SQLITE_ATTACH | ffi::SQLITE_DETACH => {
            seen.attach = true;
            Authorization::Allow
        }
        ffi::SQLITE_PRAGMA => {
            let text = |text: Option<&CStr>| text.map(|text| text.to_string_lossy().into_owned());
            seen.pragma = Some((text(first).unwrap_or_default(), text(second)));
            // Some PRAGMAs act while they are prepared.
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}

/// Return the refusal of a statement that would end or nest the transaction it runs in.
pub fn forbidden_transaction(what: &str) -> Kind {
    Kind::Forbidden(
        format!(
            "{what} cannot be a job, since other jobs share its transaction: use db.batch() for several statements \
             at once, or db.transaction() for an interactive one"
        )
        .into(),
    )
}

/// Return the refusal of what has no effect, or another one, inside a transaction.
pub fn forbidden_inside() -> Kind {
    Kind::Forbidden(
        "this statement must run outside any transaction: give it to db.execute() by itself, which applies it to \
         every connection"
            .into(),
    )
}

/// Return the refusal of ATTACH and DETACH.
pub fn forbidden_attach() -> Kind {
    Kind::Forbidden(
        "ATTACH and DETACH cannot be jobs, since all callers share the writer's connection: open the other file with \
         writelane.open(), or attach it to a connection of your own from writelane.dbapi"
            .into(),
    )
}

/// Say whether `text` holds another statement, and not just white space and comments.
pub fn has_statement(handle: &Arc<Handle>, text: &[u8]) -> bool {
    if text.iter().all(|byte| byte.is_ascii_whitespace() || *byte == b';') {
        return false;
    }
    // What does not even parse is a statement too.
    !matches!(Statement::prepare(handle, text, 0), Ok((None, _)))
}

/// Say whether the first token of `sql`, comments and semicolons aside, is VACUUM. SQLite tells no other way.
pub fn is_vacuum(sql: &str) -> bool {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ';');
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
        } else {
            break;
        }
    }
    rest.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("vacuum"))
        && !rest[6..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// Turn "not authorized" into what the authorizer of the writer denied.
pub fn explain_denial(error: SqliteError, denied: Option<Kind>) -> crate::error::Error {
    match (error.primary(), denied) {
        (ffi::SQLITE_AUTH, Some(Kind::Forbidden(text))) => crate::error::Error::Usage(text),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(sql: &str) -> Kind {
        let handle = Handle::open_name(b":memory:", OpenFlags::WRITER, None).unwrap();
        handle.execute_batch("CREATE TABLE t(x)").unwrap();
        Judge::new(handle).judge(sql).0
    }

    #[test]
    fn reads_are_told_from_writes_by_what_they_do() {
        for sql in [
            "SELECT 1",
            "WITH c(i) AS (SELECT 1) SELECT i FROM c",
            "EXPLAIN INSERT INTO t VALUES(1)",
            "EXPLAIN QUERY PLAN DELETE FROM t",
            "VALUES(1)",
            "PRAGMA table_info(t)",
            "PRAGMA user_version",
            "PRAGMA journal_mode",
            "/* INSERT INTO t */ SELECT 1",
            "SELECT 'INSERT INTO t VALUES(1)'",
            "SELECT 1; -- more",
        ] {
            assert_eq!(judge(sql), Kind::Read, "{sql}");
        }
        for sql in [
            "/* SELECT */ INSERT INTO t VALUES(1)",
            "-- x\n INSERT INTO t VALUES(1)",
            "\n\t;INSERT INTO t VALUES(1)",
            "WITH c(i) AS (SELECT 1) INSERT INTO t SELECT i FROM c",
            "REPLACE INTO t VALUES(1)",
            "INSERT INTO t VALUES(1) RETURNING x",
            "CREATE TABLE u(x)",
            "PRAGMA user_version = 4",
            "INSERT INTO not_there_yet VALUES(1)",
            "PRAGMA optimize",
        ] {
            assert_eq!(judge(sql), Kind::Write, "{sql}");
        }
    }

    #[test]
    fn what_would_break_a_group_is_forbidden_with_advice() {
        for sql in [
            "BEGIN",
            "/* x */ COMMIT",
            "ROLLBACK",
            "SAVEPOINT a",
            "RELEASE a",
            "ROLLBACK TO a",
            "ATTACH ':memory:' AS other",
            "DETACH other",
            "PRAGMA journal_mode=DELETE",
            "PRAGMA synchronous(0)",
            "PRAGMA main.wal_checkpoint",
            "PRAGMA busy_timeout=1",
        ] {
            assert!(matches!(judge(sql), Kind::Forbidden(_)), "{sql}: {:?}", judge(sql));
        }
    }

    #[test]
    fn vacuum_and_settings_run_outside_a_transaction() {
        assert_eq!(judge("-- tidy\nVACUUM"), Kind::Alone);
        assert_eq!(judge("vacuum main"), Kind::Alone);
        assert_eq!(judge("PRAGMA foreign_keys=ON"), Kind::Setting);
        assert_eq!(judge("PRAGMA foreign_keys"), Kind::Read);
    }

    #[test]
    fn empty_and_several_statements_are_seen() {
        assert_eq!(judge(""), Kind::Empty);
        assert_eq!(judge(" -- nothing\n"), Kind::Empty);
        assert_eq!(judge("SELECT 1; SELECT 2"), Kind::Several);
        assert_eq!(judge("INSERT INTO t VALUES(1); DROP TABLE t"), Kind::Several);
    }
}
