//! Where a database will be, told by its name before SQLite opens or creates anything.

use super::Error;
use crate::filesystem::{self, Judgement};
use crate::process::PerProcess;
use crate::sqlite::{OpenFlags, ffi};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Files remembered as being in a good place. A process that opens more than these forgets them and asks again.
const REMEMBERED_MAX: usize = 1024;

/// The files that were judged and not refused, and whether there is a warning to give.
static JUDGED: PerProcess<Mutex<HashMap<PathBuf, bool>>> = PerProcess::new();

/// Refuse a database that is to be written on a filesystem which cannot be trusted with one. Says whether it is on one
/// that is only taken for local. Costs a look-up for a file that was judged before.
///
/// # Errors
/// [`Error::UnsafeFilesystem`].
pub(super) fn judge(name: &[u8], flags: OpenFlags) -> Result<bool, Error> {
    let Some(path) = written_file(name, flags.0 & ffi::SQLITE_OPEN_URI != 0) else { return Ok(false) };
    // What SQLite cannot find either, it will say itself.
    let Ok(path) = std::path::absolute(path) else { return Ok(false) };
    if let Some(warned) = known(&path) {
        return Ok(warned);
    }
    let Ok(judgement) = filesystem::judge(&path) else { return Ok(false) };
    if judgement.refuses() {
        return Err(Error::UnsafeFilesystem(refusal(&judgement, &path).into()));
    }
    let warned = judgement.warning(&path).is_some();
    let mut judged = JUDGED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if judged.len() >= REMEMBERED_MAX {
        judged.clear();
    }
    judged.insert(path, warned);
    Ok(warned)
}

fn known(path: &Path) -> Option<bool> {
    JUDGED.get().lock().unwrap_or_else(PoisonError::into_inner).get(path).copied()
}

fn refusal(judgement: &Judgement, path: &Path) -> String {
    format!("{} (journal=\"delete\" is an option of writelane.open)", judgement.refusal(path))
}

/// Return the file that a connection with this name would write; `None`: in memory, temporary, or only read.
///
/// Source for URIs: <https://www.sqlite.org/uri.html>.
fn written_file(name: &[u8], uri: bool) -> Option<PathBuf> {
    let rest = match name.strip_prefix(b"file:") {
        Some(rest) if uri => rest,
        _ => return (!name.is_empty() && name != b":memory:").then(|| OsStr::from_bytes(name).into()),
    };
    // An authority is empty or localhost; another one is an error of SQLite's.
    let rest = match rest.strip_prefix(b"//") {
        Some(after) => &after[after.iter().position(|byte| *byte == b'/')?..],
        None => rest,
    };
    let rest = until(rest, b'#');
    let path = until(rest, b'?');
    for pair in rest.get(path.len() + 1..).unwrap_or_default().split(|byte| *byte == b'&') {
        let key = until(pair, b'=');
        let value = decoded(pair.get(key.len() + 1..).unwrap_or_default());
        match (&*decoded(key), &*value) {
            (b"mode", b"ro" | b"memory") | (b"vfs", b"memdb") => return None,
            (b"immutable", value) if is_true(value) => return None,
            _ => {}
        }
    }
    let path = decoded(path);
    (!path.is_empty() && path != b":memory:").then(|| OsStr::from_bytes(&path).into())
}

/// Read a boolean as SQLite does: a number other than 0, or one of these words.
fn is_true(value: &[u8]) -> bool {
    let digits = &value[..value.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    digits.iter().any(|digit| *digit != b'0')
        || [&b"yes"[..], b"true", b"on"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

fn until(text: &[u8], end: u8) -> &[u8] {
    &text[..text.iter().position(|byte| *byte == end).unwrap_or(text.len())]
}

/// Replace `%HH` by its byte.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut index = 0;
    while index < text.len() {
        match (text[index], digit(text.get(index + 1)), digit(text.get(index + 2))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                index += 3;
            }
            (byte, ..) => {
                bytes.push(byte);
                index += 1;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_to_be_written_is_told_by_its_name() {
        for (name, uri, expected) in [
            ("app.db", false, Some("app.db")),
            ("", false, None),
            (":memory:", false, None),
            ("file:app.db?mode=ro", false, Some("file:app.db?mode=ro")),
            ("app.db?mode=ro", true, Some("app.db?mode=ro")),
            ("file:app.db", true, Some("app.db")),
            ("file:/srv/app.db", true, Some("/srv/app.db")),
            ("file:///srv/my%20app.db?mode=rwc#x?mode=ro", true, Some("/srv/my app.db")),
            ("file://localhost/srv/app.db?cache=shared&nolock=1", true, Some("/srv/app.db")),
            ("file:app.db?mode=ro", true, None),
            ("file:app.db?cache=private&mode=%72o", true, None),
            ("file:app.db?immutable=1", true, None),
            ("file:app.db?immutable=off", true, Some("app.db")),
            ("file:a?mode=memory&cache=shared", true, None),
            ("file::memory:?cache=shared", true, None),
            ("file:/shared?vfs=memdb", true, None),
            ("file:", true, None),
            ("file:%zz", true, Some("%zz")),
        ] {
            assert_eq!(written_file(name.as_bytes(), uri), expected.map(PathBuf::from), "{name}");
        }
    }
}
