//! Whether the database file is still the one that its path leads to, asked before each commit.
//!
//! SQLite's own check walks the path, which is a large part of a short write. A rename, a removal and a replacement all
//! change the time of the inode's last change, and to read that of an open descriptor is a third of the work. It is
//! relied on where the kernel gives each change that somebody could tell apart a time of its own: Linux 6.13 and the
//! filesystems that take part (<https://docs.kernel.org/filesystems/multigrain-ts.html>). A folder above that is renamed
//! leaves no trace in the file, so the path is walked from time to time in any case.

use crate::sqlite::Handle;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the path is walked though the file shows no change.
const WALK_EVERY: Duration = Duration::from_millis(1);
/// The first Linux with a time for each change.
const FINE_TIMES_SINCE: (u32, u32) = (6, 13);
/// The filesystems that take part, by their `statfs` numbers: ext4, XFS, Btrfs, tmpfs.
const FINE_TIMES_ON: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// What an inode tells of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    links: u64,
    changed: (i64, i64),
}

/// The place of the database file of one handle.
#[derive(Default)]
pub struct HomeFile {
    /// The file, opened for its inode alone: such a descriptor takes no locks with it when it is closed.
    file: Option<File>,
    /// What the file told before the path was last walked, and when that was.
    walked: Option<(Stamp, Instant)>,
}

impl HomeFile {
    /// Watch the file at `path`, if its times tell what is needed.
    pub fn watch(path: Option<&Path>) -> Self {
        let file = path.filter(|_| has_fine_times()).and_then(|path| open(path).ok()).filter(is_on_known_filesystem);
        Self { file, walked: None }
    }

    /// Say whether the file was deleted, replaced or renamed. What cannot be told is not taken for moved: the commit
    /// itself will say what is wrong.
    pub fn has_moved(&mut self, handle: &Handle, now: Instant) -> bool {
        // Before the walk, so that what happens after it shows as a change.
        let stamp = self.file.as_ref().and_then(|file| stamp(file).ok());
        if let (Some(stamp), Some((seen, at))) = (stamp, self.walked)
            && stamp == seen
            && now.saturating_duration_since(at) < WALK_EVERY
        {
            return false;
        }
        let moved = handle.has_moved().unwrap_or(false);
        self.walked = stamp.filter(|_| !moved).map(|stamp| (stamp, now));
        moved
    }
}

fn open(path: &Path) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    let descriptor = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

fn stamp(file: &File) -> io::Result<Stamp> {
    // SAFETY: `stat` is plain old data, filled by the call, and the descriptor is open.
    let (code, found) = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(file.as_raw_fd(), &raw mut found), found)
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let changed = (found.st_ctime, found.st_ctime_nsec);
    Ok(Stamp { device: found.st_dev, inode: found.st_ino, links: found.st_nlink, changed })
}

fn is_on_known_filesystem(file: &File) -> bool {
    // SAFETY: `statfs` is plain old data, filled by the call, and the descriptor is open.
    let (code, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut found), found)
    };
    code == 0 && FINE_TIMES_ON.contains(&found.f_type)
}

fn has_fine_times() -> bool {
    // SAFETY: `utsname` is plain old data, filled by the call with NUL-terminated texts.
    let release = unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        if libc::uname(&raw mut names) != 0 {
            return false;
        }
        CStr::from_ptr(names.release.as_ptr()).to_string_lossy().into_owned()
    };
    cfg!(target_os = "linux") && version(&release).is_some_and(|version| version >= FINE_TIMES_SINCE)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::OpenFlags;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("writelane-home-{}-{number}", std::process::id()));
            fs::create_dir_all(folder.join("inner")).unwrap();
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("inner/app.db")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_goes_right_after_a_look_is_noticed_at_the_next() {
        let goes: [fn(&Path); 3] = [
            |file| fs::remove_file(file).unwrap(),
            |file| fs::rename(file, file.with_extension("old")).unwrap(),
            |file| {
                fs::write(file.with_extension("new"), b"").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            },
        ];
        for round in 0..60 {
            let scratch = Scratch::new();
            let file = scratch.file();
            let handle = Handle::open(&file, OpenFlags::WRITER).unwrap();
            handle.execute_batch("CREATE TABLE t(x)").unwrap();
            let mut home = HomeFile::watch(Some(&file));
            for _ in 0..round {
                assert!(!home.has_moved(&handle, Instant::now()));
            }
            // A change of the file's times that leaves it where it is, too.
            handle.execute_batch("INSERT INTO t VALUES (1)").unwrap();
            assert!(!home.has_moved(&handle, Instant::now()));
            goes[round % goes.len()](&file);
            assert!(home.has_moved(&handle, Instant::now()), "round {round}");
            assert!(home.has_moved(&handle, Instant::now()), "round {round}, asked again");
        }
    }

    #[test]
    fn a_folder_that_goes_is_noticed_when_the_path_is_walked_again() {
        let scratch = Scratch::new();
        let file = scratch.file();
        let handle = Handle::open(&file, OpenFlags::WRITER).unwrap();
        handle.execute_batch("CREATE TABLE t(x)").unwrap();
        let mut home = HomeFile::watch(Some(&file));
        let now = Instant::now();
        assert!(!home.has_moved(&handle, now));
        fs::rename(scratch.0.join("inner"), scratch.0.join("elsewhere")).unwrap();
        assert!(home.has_moved(&handle, now + WALK_EVERY));
    }

    #[test]
    fn without_fine_times_the_path_is_walked_each_time() {
        let scratch = Scratch::new();
        let file = scratch.file();
        let handle = Handle::open(&file, OpenFlags::WRITER).unwrap();
        handle.execute_batch("CREATE TABLE t(x)").unwrap();
        let mut home = HomeFile::default();
        let now = Instant::now();
        assert!(!home.has_moved(&handle, now));
        fs::rename(scratch.0.join("inner"), scratch.0.join("elsewhere")).unwrap();
        assert!(home.has_moved(&handle, now));
    }

    #[test]
    fn kernels_are_told_apart() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("6.8.0-31-generic"), Some((6, 8)));
        assert_eq!(version("5"), None);
        assert_eq!(version("unknown"), None);
    }
}
