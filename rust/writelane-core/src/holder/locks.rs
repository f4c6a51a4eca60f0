//! The kernel's list of file locks, and what SQLite means by them.
//!
//! Source of the bytes: <https://www.sqlite.org/walformat.html#wal_locks> (each is 120 and up in the `-shm` file) and
//! <https://www.sqlite.org/src/file/src/os.h> (`PENDING_BYTE` and its kin, in the database file itself).

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub use crate::vfs::Owner;

/// The byte of the `-shm` file that a writer of a write-ahead log holds.
pub const WAL_WRITE: u64 = 120;
/// The byte of the `-shm` file that a checkpoint holds.
pub const WAL_CHECKPOINT: u64 = 121;
/// The byte of the `-shm` file that the recovery of a log holds.
pub const WAL_RECOVER: u64 = 122;
/// The bytes of the `-shm` file that readers share, one of them for each mark of the log.
pub const WAL_READERS: RangeInclusive<u64> = 123..=127;
/// The byte of the `-shm` file that everybody shares who has the database open.
pub const WAL_OPEN: u64 = 128;
/// The byte of the database file that a writer with a rollback journal holds from its first write on.
pub const RESERVED: u64 = 0x4000_0001;

/// One lock on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// Whose it is.
    pub owner: Owner,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// Whether its owner only waits for it.
    pub waiting: bool,
    /// The device, as (major, minor).
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl FileLock {
    /// Read one line of `/proc/locks`; `None` for what is no record lock (flock, leases) or cannot be read.
    pub fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1).peekable();
        let waiting = fields.next_if_eq(&"->").is_some();
        let kind = fields.next()?;
        let exclusive = match (fields.next()?, fields.next()?) {
            ("ADVISORY" | "MANDATORY", "WRITE") => true,
            ("ADVISORY" | "MANDATORY", "READ") => false,
            _ => return None,
        };
        let pid = fields.next()?;
        let owner = match kind {
            "POSIX" => Owner::Process(pid.parse().ok().filter(|pid| *pid > 0)?),
            "OFDLCK" => Owner::Description,
            _ => return None,
        };
        let mut place = fields.next()?.split(':');
        let mut hex = || u32::from_str_radix(place.next()?, 16).ok();
        let device = (hex()?, hex()?);
        let inode = place.next()?.parse().ok()?;
        let first = fields.next()?.parse().ok()?;
        let last = match fields.next()? {
            "EOF" => u64::MAX,
            last => last.parse().ok()?,
        };
        Some(Self { owner, exclusive, waiting, device, inode, first, last })
    }

    /// Say whether the lock is held on `byte`, and not only waited for.
    pub fn holds(&self, byte: u64) -> bool {
        !self.waiting && (self.first..=self.last).contains(&byte)
    }
}

/// Return the locks on the file at `path`, which is neither opened nor closed. None where the file does not exist.
///
/// # Errors
/// Where the kernel's list cannot be read.
pub fn on_file(path: &Path) -> io::Result<Vec<FileLock>> {
    let Ok(meta) = fs::metadata(path) else { return Ok(Vec::new()) };
    let mut devices = vec![(libc::major(meta.dev()), libc::minor(meta.dev()))];
    let needle = format!(":{} ", meta.ino());
    let locks = look(&needle)?;
    if locks.iter().any(|lock| !devices.contains(&lock.device)) {
        // On btrfs and overlay the number in stat is not the one the kernel lists locks under; mountinfo has that one.
        devices.extend(device_of_mount(path));
    }
    Ok(locks.into_iter().filter(|lock| lock.inode == meta.ino() && devices.contains(&lock.device)).collect())
}

#[cfg(test)]
thread_local! {
    static READINGS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Return how often this thread has read the kernel's list.
#[cfg(test)]
pub fn readings() -> u64 {
    READINGS.with(std::cell::Cell::get)
}

/// How often a list that came in pieces is read at most.
const LOOKS_MAX: usize = 4;

/// Return the locks whose line has `needle`.
///
/// The kernel gives at most a page of the list at a time and finds its place again by counting, so that locks that others
/// take and drop meanwhile make it leave one out or tell one twice. A list in pieces is believed when it says twice the same.
fn look(needle: &str) -> io::Result<Vec<FileLock>> {
    let mut before = None;
    for _ in 0..LOOKS_MAX {
        #[cfg(test)]
        READINGS.with(|readings| readings.set(readings.get() + 1));
        let (list, pieces) = read_list(fs::File::open("/proc/locks")?)?;
        let mut locks: Vec<FileLock> = Vec::new();
        for lock in list.lines().filter(|line| line.contains(needle)).filter_map(FileLock::parse) {
            if !locks.contains(&lock) {
                locks.push(lock);
            }
        }
        if pieces <= 1 || before.as_ref() == Some(&locks) {
            return Ok(locks);
        }
        before = Some(locks);
    }
    Ok(before.unwrap_or_default())
}

/// Read a list of the kernel's, and say in how many pieces it came. Room for more than a page is offered each time: a
/// smaller read has the kernel stop in the middle of its page.
fn read_list(mut file: impl io::Read) -> io::Result<(String, usize)> {
    const ROOM: usize = 64 << 10;
    let (mut bytes, mut read, mut pieces) = (vec![0; ROOM], 0, 0);
    loop {
        match file.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(count) => {
                read += count;
                pieces += 1;
                bytes.resize(read + ROOM, 0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(read);
    Ok((String::from_utf8_lossy(&bytes).into_owned(), pieces))
}

/// Return the device of the mount that holds `path`, as the kernel itself numbers it.
fn device_of_mount(path: &Path) -> Option<(u32, u32)> {
    let path = fs::canonicalize(path).ok()?;
    deepest_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?, path.to_str()?)
}

fn deepest_mount(table: &str, path: &str) -> Option<(u32, u32)> {
    let mut best: Option<(usize, (u32, u32))> = None;
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace().skip(2);
        let (Some(device), Some(_root), Some(point)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
        let inside =
            point == "/" || path.strip_prefix(&point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let Some((major, minor)) = device.split_once(':') else { continue };
        let (Ok(major), Ok(minor)) = (major.parse(), minor.parse()) else { continue };
        // Of two mounts on one point the later hides the earlier.
        if inside && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), (major, minor)));
        }
    }
    best.map(|(_, device)| device)
}

/// Say whether a descriptor of process `pid` holds a lock on one of these bytes of the file with this inode.
pub fn held_by(pid: u32, inode: u64, bytes: RangeInclusive<u64>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    descriptors.flatten().any(|entry| {
        fs::read_to_string(entry.path()).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| FileLock::parse(line.strip_prefix("lock:")?.trim_start()))
                .any(|lock| lock.inode == inode && bytes.clone().any(|byte| lock.holds(byte)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = "\
1: POSIX  ADVISORY  READ 3866 fe:00:2621451 128 128
2: POSIX  ADVISORY  WRITE 3866 fe:00:2621451 120 120
3: OFDLCK ADVISORY  READ -1 fe:00:2621451 128 128
4: FLOCK  ADVISORY  WRITE 611 00:1a:1222 0 EOF
5: POSIX  ADVISORY  WRITE 77 00:2f:9 0 EOF
5: -> POSIX  ADVISORY  WRITE 78 00:2f:9 100 100
6: LEASE  ACTIVE    READ 99 fe:00:12 0 EOF
7: POSIX  ADVISORY  READ 3870 fe:00:2621450 1073741826 1073742335
8: DELEG  ACTIVE    READ 100 fe:00:13 0 EOF
9: OFDLCK ADVISORY  WRITE -1 fe:00:2621451 120 120
10: POSIX  *NOINODE* 7 <none>:0 0 EOF
";

    #[test]
    fn a_recorded_list_is_read() {
        let locks: Vec<FileLock> = RECORDED.lines().filter_map(FileLock::parse).collect();
        assert_eq!(locks.len(), 7);
        assert_eq!(
            locks[1],
            FileLock {
                owner: Owner::Process(3866),
                exclusive: true,
                waiting: false,
                device: (0xfe, 0),
                inode: 2_621_451,
                first: 120,
                last: 120
            }
        );
        assert!(locks[1].holds(WAL_WRITE) && !locks[1].holds(WAL_CHECKPOINT));
        assert_eq!(locks[2].owner, Owner::Description);
        assert!(locks[3].holds(5_000_000_000));
        assert!(locks[4].waiting && !locks[4].holds(100));
        assert!(locks[5].holds(0x4000_0002) && !locks[5].holds(RESERVED) && !locks[5].exclusive);
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        for line in
            ["", "1:", "1: POSIX", "1: POSIX ADVISORY WRITE x fe:00:1 0 0", "1: POSIX ADVISORY WRITE 0 fe:00:1 0 0"]
        {
            assert_eq!(FileLock::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     30 22 0:30 / /srv rw - btrfs /dev/vdb rw\n\
                     31 22 0:31 / /srv rw - overlay overlay rw\n\
                     32 22 0:32 / /srv/with\\040space rw - tmpfs tmpfs rw\n";
        assert_eq!(deepest_mount(table, "/home/app.db"), Some((254, 0)));
        assert_eq!(deepest_mount(table, "/srv/app.db"), Some((0, 31)));
        assert_eq!(deepest_mount(table, "/srv/with space/app.db"), Some((0, 32)));
        assert_eq!(deepest_mount(table, "/srvother/app.db"), Some((254, 0)));
    }

    fn lock_byte(file: &fs::File, byte: i64) {
        use std::os::fd::AsRawFd;
        // SAFETY: plain old data, for which zeros are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as libc::c_short, byte, 1);
        // SAFETY: the descriptor is open, the pointer valid for the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw mut lock) }, 0);
    }

    /// A file of its own, gone from its folder in the end.
    fn scratch(name: &str) -> (std::path::PathBuf, fs::File) {
        let path = std::env::temp_dir().join(format!("writelane-locks-{name}-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        (path, file)
    }

    #[test]
    fn a_lock_of_this_process_is_found() {
        let (path, file) = scratch("found");
        lock_byte(&file, 120);
        // Others come and go in the kernel's list, which can hide a lock from one look, not from all.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let locks = loop {
            let locks = on_file(&path).unwrap();
            if !locks.is_empty() || until <= std::time::Instant::now() {
                break locks;
            }
        };
        fs::remove_file(&path).unwrap();
        assert_eq!(locks.len(), 1);
        assert_eq!(locks[0].owner, Owner::Process(std::process::id()));
        assert!(locks[0].holds(WAL_WRITE) && locks[0].exclusive);
    }

    #[test]
    fn a_list_is_read_as_it_is_given_and_its_pieces_counted() {
        struct Pieces<'a>(Vec<&'a [u8]>);
        impl io::Read for Pieces<'_> {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let Some(piece) = self.0.pop() else { return Ok(0) };
                to[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        assert_eq!(read_list(Pieces(vec![b"one\n"])).unwrap(), ("one\n".to_owned(), 1));
        let long = vec![b'x'; 60 << 10];
        let (list, pieces) = read_list(Pieces(vec![b"end", &long, &long])).unwrap();
        assert_eq!((list.len(), pieces), ((120 << 10) + 3, 3));
    }

    #[test]
    fn locks_that_come_and_go_make_no_look_tell_one_twice() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (path, file) = scratch("twice");
        lock_byte(&file, 120);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let (other, file) = scratch("other");
                    (0..200).for_each(|byte| lock_byte(&file, byte * 2));
                    drop(file);
                    fs::remove_file(other).unwrap();
                }
            });
            let mut found = 0;
            for _ in 0..200 {
                let locks = on_file(&path).unwrap();
                if locks.len() > 1 {
                    over.store(true, Ordering::Relaxed);
                    panic!("one lock, told as {locks:?}");
                }
                found += locks.len();
            }
            over.store(true, Ordering::Relaxed);
            println!("found in {found} looks of 200");
            assert!(found > 0);
        });
        fs::remove_file(&path).unwrap();
    }
}
