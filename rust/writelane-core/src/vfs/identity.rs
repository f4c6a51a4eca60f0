//! Which file it is, whatever its name.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The true device and inode of a file: what two names of one file share, and a file put in its place does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Return the identity of the file that `path` names now, following symbolic links.
///
/// # Errors
/// What stat(2) says.
pub fn identity(path: &Path) -> io::Result<FileIdentity> {
    let found = std::fs::metadata(path)?;
    Ok(FileIdentity { device: found.dev(), inode: found.ino() })
}
