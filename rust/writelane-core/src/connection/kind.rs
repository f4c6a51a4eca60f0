//! What sort of statement a text begins with.

/// The sort of a statement, by its first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// INSERT, UPDATE, DELETE, REPLACE, and WITH in front of them (a WITH ... SELECT is told apart by SQLite).
    Dml,
    /// WITH: a query or a change of rows, which only SQLite can tell.
    With,
    /// BEGIN without DEFERRED, IMMEDIATE or EXCLUSIVE.
    BareBegin,
    /// BEGIN with one of them.
    Begin,
    /// COMMIT or END.
    Commit,
    /// ROLLBACK of the whole transaction.
    Rollback,
    /// ROLLBACK TO, SAVEPOINT, RELEASE.
    Savepoint,
    /// PRAGMA journal_mode.
    JournalMode,
    /// PRAGMA busy_timeout.
    BusyTimeout,
    /// PRAGMA wal_checkpoint in a mode that waits for others.
    Checkpoint,
    /// Anything else.
    Other,
}

/// Return the sort of the first statement in `sql`.
pub fn kind(sql: &[u8]) -> Kind {
    let mut words = Words { rest: sql };
    words.skip_blank(true);
    let first = words.next();
    let is = |word: Option<&[u8]>, name: &[u8]| word.is_some_and(|word| word.eq_ignore_ascii_case(name));
    if [&b"INSERT"[..], b"UPDATE", b"DELETE", b"REPLACE"].iter().any(|name| is(first, name)) {
        Kind::Dml
    } else if is(first, b"WITH") {
        Kind::With
    } else if is(first, b"BEGIN") {
        let mode = words.next();
        if [&b"DEFERRED"[..], b"IMMEDIATE", b"EXCLUSIVE", b"CONCURRENT"].iter().any(|name| is(mode, name)) {
            Kind::Begin
        } else {
            Kind::BareBegin
        }
    } else if is(first, b"COMMIT") || is(first, b"END") {
        Kind::Commit
    } else if is(first, b"ROLLBACK") {
        let mut word = words.next();
        if is(word, b"TRANSACTION") {
            word = words.next();
        }
        if is(word, b"TO") { Kind::Savepoint } else { Kind::Rollback }
    } else if is(first, b"SAVEPOINT") || is(first, b"RELEASE") {
        Kind::Savepoint
    } else if is(first, b"PRAGMA") {
        let mut name = words.next();
        if words.skip_dot() {
            name = words.next();
        }
        if is(name, b"journal_mode") {
            Kind::JournalMode
        } else if is(name, b"busy_timeout") {
            Kind::BusyTimeout
        } else if is(name, b"wal_checkpoint") {
            words.skip_punctuation();
            let mode = words.next();
            if [&b"FULL"[..], b"RESTART", b"TRUNCATE"].iter().any(|name| is(mode, name)) {
                Kind::Checkpoint
            } else {
                Kind::Other
            }
        } else {
            Kind::Other
        }
    } else {
        Kind::Other
    }
}

/// Return the text without the white space, comments and (where asked) semicolons it begins with.
pub fn without_blank(sql: &[u8], semicolons: bool) -> &[u8] {
    let mut words = Words { rest: sql };
    words.skip_blank(semicolons);
    words.rest
}

struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// Skip what may stand before a word. A semicolon counts only in front of a statement, where SQLite skips it too.
    fn skip_blank(&mut self, semicolons: bool) {
        loop {
            match self.rest {
                [b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', rest @ ..] => self.rest = rest,
                [b';', rest @ ..] if semicolons => self.rest = rest,
                [0xef, 0xbb, 0xbf, rest @ ..] => self.rest = rest,
                [b'-', b'-', rest @ ..] => {
                    self.rest = rest.iter().position(|byte| *byte == b'\n').map_or(&[], |end| &rest[end + 1..]);
                }
                [b'/', b'*', rest @ ..] => {
                    self.rest = rest.windows(2).position(|pair| pair == b"*/").map_or(&[], |end| &rest[end + 2..]);
                }
                _ => return,
            }
        }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        self.skip_blank(false);
        let end =
            self.rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Skip what stands between a PRAGMA and its value, and the quotes the value may be in.
    fn skip_punctuation(&mut self) {
        self.skip_blank(false);
        while let [b'=' | b'(' | b'\'' | b'"' | b'`' | b'[', rest @ ..] = self.rest {
            self.rest = rest;
            self.skip_blank(false);
        }
    }

    fn skip_dot(&mut self) -> bool {
        self.skip_blank(false);
        match self.rest {
            [b'.', rest @ ..] => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_tell_the_kind() {
        for (sql, expected) in [
            ("insert into t values(1)", Kind::Dml),
            ("/* SELECT */ INSERT INTO t VALUES(1)", Kind::Dml),
            ("-- x\n REPLACE INTO t VALUES(1)", Kind::Dml),
            ("\n\t;UPDATE t SET x = 1", Kind::Dml),
            ("WITH c(i) AS (SELECT 1) SELECT i FROM c", Kind::With),
            ("EXPLAIN INSERT INTO t VALUES(1)", Kind::Other),
            ("INSERTED", Kind::Other),
            ("begin", Kind::BareBegin),
            ("BEGIN TRANSACTION;", Kind::BareBegin),
            ("begin /* now */ immediate", Kind::Begin),
            ("BEGIN EXCLUSIVE TRANSACTION", Kind::Begin),
            ("end transaction", Kind::Commit),
            ("ROLLBACK", Kind::Rollback),
            ("rollback transaction", Kind::Rollback),
            ("ROLLBACK TRANSACTION TO SAVEPOINT a", Kind::Savepoint),
            ("ROLLBACK TO a", Kind::Savepoint),
            ("RELEASE a", Kind::Savepoint),
            ("PRAGMA main . journal_mode = WAL", Kind::JournalMode),
            ("pragma busy_timeout(5)", Kind::BusyTimeout),
            ("PRAGMA wal_checkpoint(TRUNCATE)", Kind::Checkpoint),
            ("pragma main.wal_checkpoint = 'full'", Kind::Checkpoint),
            ("PRAGMA wal_checkpoint(restart)", Kind::Checkpoint),
            ("PRAGMA wal_checkpoint", Kind::Other),
            ("PRAGMA wal_checkpoint(PASSIVE)", Kind::Other),
            ("pragma user_version", Kind::Other),
            ("", Kind::Other),
            ("/* open", Kind::Other),
        ] {
            assert_eq!(kind(sql.as_bytes()), expected, "{sql}");
        }
    }
}
