//! Which table and columns a constraint is about: from SQLite's message, and where that is silent from the statement.

use crate::sqlite::{SqliteError, ffi};

/// What a failed constraint is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The table, where it is known.
    pub table: Option<String>,
    /// The columns of a UNIQUE, PRIMARY KEY or NOT NULL constraint.
    pub columns: Vec<String>,
    /// The message does not name the table.
    pub unsaid: bool,
}

/// Describe the constraint behind `error`; `None` where it is not about one.
///
/// SQLite names `table.column, table.column` for UNIQUE, PRIMARY KEY and NOT NULL, the name or text of a CHECK, and
/// nothing for a foreign key: there the table that `sql` writes is named. Values are in none of these.
pub fn describe(error: &SqliteError, sql: Option<&str>) -> Option<Constraint> {
    if error.primary() != ffi::SQLITE_CONSTRAINT {
        return None;
    }
    let named = match error.code {
        ffi::SQLITE_CONSTRAINT_UNIQUE
        | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
        | ffi::SQLITE_CONSTRAINT_ROWID
        | ffi::SQLITE_CONSTRAINT_NOTNULL => columns(&error.message),
        _ => None,
    };
    Some(match named {
        Some((table, columns)) => Constraint { table: Some(table), columns, unsaid: false },
        None => Constraint { table: sql.and_then(target), columns: Vec::new(), unsaid: true },
    })
}

/// Read `... constraint failed: t.a, t.b`. An index on expressions is named otherwise: `index 'i'`.
fn columns(message: &str) -> Option<(String, Vec<String>)> {
    let (_, list) = message.split_once(" constraint failed: ")?;
    let mut parts = list.split(", ").map(|part| part.split_once('.'));
    let (table, first) = parts.next()??;
    let mut columns = vec![first.to_owned()];
    for part in parts {
        let (other, column) = part?;
        if other != table {
            return None;
        }
        columns.push(column.to_owned());
    }
    Some((table.to_owned(), columns))
}

/// Return the table that a statement writes, as its text names it.
fn target(sql: &str) -> Option<String> {
    let tokens = tokens(sql);
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate() {
        match token {
            Token::Other('(') => depth += 1,
            Token::Other(')') => depth = depth.saturating_sub(1),
            // Not inside the SELECTs of a WITH clause.
            Token::Word(word) if depth == 0 => {
                let after = match word.to_ascii_uppercase().as_str() {
                    "INTO" | "UPDATE" => place + 1,
                    "DELETE" => place + 2,
                    _ => continue,
                };
                return name(&tokens[after.min(tokens.len())..]);
            }
            _ => {}
        }
    }
    None
}

fn name(tokens: &[Token]) -> Option<String> {
    let mut tokens = tokens;
    // UPDATE OR IGNORE t
    if let [Token::Word(or), Token::Word(_), rest @ ..] = tokens
        && or.eq_ignore_ascii_case("or")
    {
        tokens = rest;
    }
    match tokens {
        [Token::Word(_) | Token::Quoted(_), Token::Other('.'), Token::Word(table) | Token::Quoted(table), ..]
        | [Token::Word(table) | Token::Quoted(table), ..] => Some(table.clone()),
        _ => None,
    }
}

enum Token {
    Word(String),
    Quoted(String),
    Other(char),
}

/// Split SQL into words, quoted names and single characters; comments and white space are left out.
fn tokens(sql: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
        } else if first == '_' || first.is_alphabetic() {
            let end = rest.find(|c: char| c != '_' && c != '$' && !c.is_alphanumeric()).unwrap_or(rest.len());
            found.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if let '"' | '\'' | '`' | '[' = first {
            let last = if first == '[' { ']' } else { first };
            let mut name = String::new();
            let mut inside = &rest[1..];
            while let Some(end) = inside.find(last) {
                name.push_str(&inside[..end]);
                inside = &inside[end + 1..];
                if first == '[' || !inside.starts_with(last) {
                    break;
                }
                // Doubled, it stands for itself.
                name.push(last);
                inside = &inside[1..];
            }
            found.push(Token::Quoted(name));
            rest = inside;
        } else {
            if !first.is_whitespace() {
                found.push(Token::Other(first));
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32, message: &str) -> SqliteError {
        SqliteError { code, message: message.into(), offset: None }
    }

    #[test]
    fn table_and_columns_are_read_from_the_message() {
        let unique = error(ffi::SQLITE_CONSTRAINT_UNIQUE, "UNIQUE constraint failed: t.a, t.b");
        let expected = Constraint { table: Some("t".into()), columns: vec!["a".into(), "b".into()], unsaid: false };
        assert_eq!(describe(&unique, None), Some(expected));
        let missing = error(ffi::SQLITE_CONSTRAINT_NOTNULL, "NOT NULL constraint failed: t.x");
        assert_eq!(describe(&missing, None).map(|found| found.columns), Some(vec!["x".to_owned()]));
    }

    #[test]
    fn where_the_message_is_silent_the_statement_names_the_table() {
        let foreign = error(ffi::SQLITE_CONSTRAINT_FOREIGNKEY, "FOREIGN KEY constraint failed");
        for sql in [
            "INSERT INTO child(x) VALUES (?)",
            "insert or replace into main.child values(1)",
            "REPLACE INTO \"child\" VALUES (1)",
            "/* INTO other */ UPDATE OR IGNORE [child] SET x = 1",
            "UPDATE child SET x = 'INTO other'",
            "WITH a AS (SELECT 1), b AS (SELECT 'DELETE FROM other') DELETE FROM `child` WHERE x IN a",
        ] {
            let found = describe(&foreign, Some(sql));
            assert_eq!(found.and_then(|found| found.table).as_deref(), Some("child"), "{sql}");
        }
        assert_eq!(target("SELECT 1"), None);
        assert_eq!(target("DELETE"), None);
    }

    #[test]
    fn a_doubled_quote_stands_for_itself() {
        assert_eq!(target(r#"INSERT INTO "a""b" VALUES (1)"#).as_deref(), Some("a\"b"));
    }

    #[test]
    fn other_errors_are_no_constraints() {
        assert_eq!(describe(&error(ffi::SQLITE_FULL, "database or disk is full"), Some("DELETE FROM t")), None);
    }
}
