//! Can this filesystem be trusted with a database? Asked before anything is created on it.
//!
//! The mount table is the better witness, since it names types and FUSE subtypes; the `statfs` number answers
//! where the table cannot be read or has a type we do not know. Tables: `kinds`. Nothing is opened, so no lock
//! of anyone is touched.

mod kinds;
mod mountinfo;

pub use kinds::Kind;
pub use mountinfo::{Mount, find, parse};

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How far an overlay on an overlay, or a FUSE on a FUSE, is followed.
const DEPTH_MAX: usize = 8;
/// The kernel's own limit on symbolic links in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Whether a filesystem can be trusted with a write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Local,
    /// Yes, but the user should know what it stands on.
    LocalWithWarning,
    /// No: other machines may see the same file.
    Network,
    /// Nobody knows, so no.
    Unknown,
}

impl Verdict {
    /// Return the verdict's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::LocalWithWarning => "local with a warning",
            Self::Network => "network",
            Self::Unknown => "unknown",
        }
    }
}

/// What was found about the filesystem under a path. Plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The folder that was judged, without symbolic links: where the database is or would be created.
    pub folder: PathBuf,
    /// The mount that the folder is on; `None` where the mount table could not be read.
    pub mount_point: Option<PathBuf>,
    /// The filesystem type, with a FUSE subtype after a dot (`fuse.sshfs`).
    pub fs_type: String,
    /// What is mounted there, as the mount table has it (`server:/export`).
    pub source: String,
    /// Why the verdict is what it is, as the end of a sentence.
    pub reason: String,
}

impl Judgement {
    /// Say whether a write-ahead log must not be used here.
    pub fn refuses(&self) -> bool {
        matches!(self.verdict, Verdict::Network | Verdict::Unknown)
    }

    /// Return the text of the refusal to open `database` here: mount, type, why, and the three ways out.
    pub fn refusal(&self, database: &Path) -> String {
        format!(
            "{} is on {}: {}. A write-ahead log there can lose or damage data. Either put the database on a local disk, \
             or open it with journal=\"delete\" (rollback journal, one owning host at a time), or, if you know that \
             one host alone uses it, override this for the whole process with WRITELANE_JOURNAL=wal",
            database.display(),
            self.place(),
            self.reason
        )
    }

    /// Return the text of the warning to give once, if there is one to give.
    pub fn warning(&self, database: &Path) -> Option<String> {
        (self.verdict == Verdict::LocalWithWarning).then(|| {
            format!("{} is on {}: {}; it is used like a local disk", database.display(), self.place(), self.reason)
        })
    }

    fn place(&self) -> String {
        match &self.mount_point {
            Some(mount_point) => format!("the mount {} of type {}", mount_point.display(), self.fs_type),
            None => format!("a filesystem of type {}", self.fs_type),
        }
    }
}

/// Judge the filesystem that the database at `path` is on or would be created on.
///
/// The path need not exist; symbolic links are followed, as SQLite follows them. Creates and opens nothing.
/// An automount is triggered by this, as it would be by opening the file.
///
/// # Errors
/// What the kernel says when the folder cannot be looked at; `ELOOP` for links that go in circles.
pub fn judge(path: &Path) -> io::Result<Judgement> {
    let folder = folder_of(path)?;
    let magic = magic_of(&folder)?;
    let table = fs::read("/proc/self/mountinfo").map(|text| parse(&text)).unwrap_or_default();
    let id = mount_id_of(&folder);
    let mount = id.and_then(|id| table.iter().find(|mount| mount.id == id)).or_else(|| find(&table, &folder));
    Ok(match mount {
        Some(mount) => judge_mount(&table, mount, &folder, Some(magic), &|path| fs::canonicalize(path).ok()),
        None => judge_magic(&folder, magic),
    })
}

/// Judge a folder by a mount table alone.
///
/// `resolve` returns a path without its symbolic links, or `None` where it cannot be seen from here (as the
/// folders of a container's overlay, which belong to its host).
pub fn judge_in(table: &[Mount], folder: &Path, resolve: &dyn Fn(&Path) -> Option<PathBuf>) -> Option<Judgement> {
    Some(judge_mount(table, find(table, folder)?, folder, None, resolve))
}

fn judge_mount(
    table: &[Mount],
    mount: &Mount,
    folder: &Path,
    magic: Option<u32>,
    resolve: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Judgement {
    let (verdict, reason) = verdict_on(table, mount, magic, resolve, &mut vec![mount.id]);
    Judgement {
        verdict,
        folder: folder.to_owned(),
        mount_point: Some(mount.mount_point.clone()),
        fs_type: mount.fs_type.clone(),
        source: mount.source.clone(),
        reason,
    }
}

fn judge_magic(folder: &Path, magic: u32) -> Judgement {
    let (fs_type, (verdict, reason)) = match kinds::by_magic(magic) {
        Some((name, kind)) => (name.to_owned(), verdict_on_kind(kind, name, "")),
        None if magic == kinds::FUSE_MAGIC => (
            "fuse".to_owned(),
            (Verdict::Unknown, "it is a FUSE filesystem, and the mount table does not say which".to_owned()),
        ),
        None => (format!("{magic:#010x}"), (Verdict::Unknown, "this type is not known".to_owned())),
    };
    Judgement { verdict, folder: folder.to_owned(), mount_point: None, fs_type, source: String::new(), reason }
}

fn verdict_on(
    table: &[Mount],
    mount: &Mount,
    magic: Option<u32>,
    resolve: &dyn Fn(&Path) -> Option<PathBuf>,
    seen: &mut Vec<u64>,
) -> (Verdict, String) {
    let is_fuse = mount.fs_type == "fuse" || mount.fs_type.starts_with("fuse.");
    let kind = kinds::by_type(&mount.fs_type).or_else(|| {
        let (_, kind) = kinds::by_magic(magic?)?;
        (!is_fuse).then_some(kind)
    });
    let Some(kind) = kind else {
        return if is_fuse {
            (Verdict::Unknown, "this FUSE filesystem is not known to be local".to_owned())
        } else if mount.major != 0 {
            (Verdict::LocalWithWarning, format!("its type is not known, but it is on the device {}", mount.source))
        } else {
            (Verdict::Unknown, "this type is not known to be local".to_owned())
        };
    };
    let own = verdict_on_kind(kind, &mount.fs_type, &mount.source);
    if !matches!(kind, Kind::Stacked | Kind::LocalFuse) {
        return own;
    }
    // What it stands on may be worse than what it is.
    for below in folders_below(mount) {
        let Some(below) = resolve(&below) else { continue };
        let Some(other) = find(table, &below) else { continue };
        if seen.contains(&other.id) || seen.len() > DEPTH_MAX {
            continue;
        }
        seen.push(other.id);
        let (verdict, reason) = verdict_on(table, other, None, resolve, seen);
        if matches!(verdict, Verdict::Network | Verdict::Unknown) {
            let stands = format!(
                "it stands on {}, which is on the mount {} of type {}: {reason}",
                below.display(),
                other.mount_point.display(),
                other.fs_type
            );
            return (verdict, stands);
        }
    }
    own
}

fn verdict_on_kind(kind: Kind, fs_type: &str, source: &str) -> (Verdict, String) {
    let from = if source.is_empty() { String::new() } else { format!(" ({source})") };
    match kind {
        Kind::Local => (Verdict::Local, format!("{fs_type} is a local filesystem")),
        Kind::Stacked => (Verdict::Local, format!("{fs_type} shows files of local filesystems")),
        Kind::LocalFuse => (
            Verdict::LocalWithWarning,
            "it is a FUSE filesystem, whose locks and shared memory are only as good as the program that serves it"
                .to_owned(),
        ),
        Kind::Network => (Verdict::Network, format!("it is shared over a network{from}, and memory is not shared")),
        Kind::Cluster => (
            Verdict::Network,
            format!("it is shared by the machines of a cluster{from}, and memory is not shared between them"),
        ),
        Kind::Guest => (
            Verdict::Network,
            format!("it is shared between a virtual machine and its host{from}, and memory is not shared"),
        ),
        Kind::Automount => (
            Verdict::Unknown,
            "it is an automount on which nothing is mounted yet, so what will be there is not known".to_owned(),
        ),
    }
}

/// Return the folders that a stacked filesystem writes to, as far as its mount line tells them.
fn folders_below(mount: &Mount) -> Vec<PathBuf> {
    if let Some(upper) = mount.option("upperdir") {
        return vec![PathBuf::from(upper)];
    }
    // Without an upper folder an overlay is read-only; colons part its lower folders.
    let lower = mount.option("lowerdir").or_else(|| mount.option("lowerdir+"));
    let named = lower.as_deref().unwrap_or(&mount.source);
    named.split(':').filter(|part| part.starts_with('/')).map(PathBuf::from).collect()
}

/// Return the folder a path's file is in or would be created in, without symbolic links.
fn folder_of(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    let mut links = 0;
    loop {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.file_type().is_symlink() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = fs::read_link(&path)?;
                path = path.parent().map_or_else(|| target.clone(), |parent| parent.join(&target));
            }
            Ok(found) if found.is_dir() => return fs::canonicalize(&path),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    // The folder itself may be missing too: what it would be created in tells.
    let mut folder = path.parent().unwrap_or(Path::new("/"));
    loop {
        match (fs::canonicalize(folder), folder.parent()) {
            (Ok(found), _) => return Ok(found),
            (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => folder = parent,
            (Err(error), _) => return Err(error),
        }
    }
}

fn magic_of(folder: &Path) -> io::Result<u32> {
    let folder = CString::new(folder.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path is NUL-terminated and `found` is a valid out pointer.
    if unsafe { libc::statfs(folder.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and the struct was zeroed before; every bit pattern of it is valid.
    Ok(unsafe { found.assume_init() }.f_type as u32)
}

/// Ask the kernel for the number of the mount that a folder is on; `None` before Linux 5.8.
fn mount_id_of(folder: &Path) -> Option<u64> {
    let folder = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is NUL-terminated and `found` is a valid out pointer.
    let code = unsafe { libc::statx(libc::AT_FDCWD, folder.as_ptr(), 0, libc::STATX_MNT_ID, found.as_mut_ptr()) };
    if code != 0 {
        return None;
    }
    // SAFETY: the call succeeded, and the struct was zeroed before; every bit pattern of it is valid.
    let found = unsafe { found.assume_init() };
    (found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

#[cfg(test)]
mod tests;
