//! Whether other code of this process has a file open.

use std::io;
use std::path::Path;

/// Say whether this process has the file at `path` open through anything but our SQLite: another copy of SQLite, or a
/// plain `open()`.
///
/// Where locks belong to the process ([`super::LockKind::Process`]) either is deadly: its close drops our locks. The
/// file is not opened to find out. A file that does not exist is not open. Descriptors that a forked child inherited
/// from our SQLite are never closed, and do not count.
///
/// # Errors
/// `/proc` cannot be read; `Unsupported` on other systems than Linux.
pub fn foreign_copy_has_open(path: &Path) -> io::Result<bool> {
    let file = match super::identity(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    #[cfg(target_os = "linux")]
    return Ok(super::descriptors::lock().foreign_files()?.contains(&file));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Err(io::Error::new(io::ErrorKind::Unsupported, "the open files of a process can only be listed on Linux"))
    }
}
