//! Which file stands in the way of opening a database, and why. Looks at names and permissions alone.

use crate::holder::beside;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Say whether this process may do `mode` (`R_OK`, `W_OK`) with the file.
fn may(path: &Path, mode: i32) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the name is NUL-terminated and outlives the call, which looks and changes nothing.
    unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), mode, libc::AT_EACCESS) == 0 }
}

/// Return what this process lacks to open the database at `path`; `None` where names and permissions are in order.
pub(super) fn find(path: &Path, readonly: bool) -> Option<String> {
    let mode = if readonly { libc::R_OK } else { libc::R_OK | libc::W_OK };
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (log, shared_memory) = (beside(&path, "-wal"), beside(&path, "-shm"));
    for (file, mode) in [(&path, mode), (&log, mode), (&shared_memory, libc::R_OK | libc::W_OK)] {
        let Ok(found) = fs::symlink_metadata(file) else { continue };
        if !may(file, mode) {
            return Some(format!(
                "{} belongs to user {} with mode {:o}, and this user ({}) may not {} it: mend its owner or permissions{}",
                file.display(),
                found.uid(),
                found.mode() & 0o7777,
                // SAFETY: no arguments, cannot fail.
                unsafe { libc::geteuid() },
                if may(file, libc::R_OK) { "write" } else { "read" },
                if file == &path && may(file, libc::R_OK) { ", or open it with readonly=True" } else { "" },
            ));
        }
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if may(folder, libc::W_OK) {
        return None;
    }
    let needed = if path.exists() { "the log and its shared memory beside the file" } else { "the file" };
    Some(format!(
        "the folder {} cannot be written by this user, who would have to make {needed}: mend its permissions, or use a \
         copy of the database elsewhere",
        folder.display()
    ))
}
