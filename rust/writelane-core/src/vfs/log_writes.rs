//! A commit's frames, gathered into one write to the log.
//!
//! SQLite writes each frame with two system calls, 24 bytes and a page, and tells others of the frames only after the
//! last one, which says in its header that it ends a transaction. So the frames of one commit can be held back until that
//! one is there, and then go to the log at once: every error of the disk still comes before anything is relied upon.
//!
//! What is held back is written before the same file is read, before anything is written elsewhere and before a lock is
//! given up, so that the file has at each of these moments what it would have had anyway. An error is told to the next
//! read or write of that file, or at the end of the call: SQLite then rolls back.

use super::{WrittenLog, kernel};
use crate::sqlite::{SqliteError, ffi};
use libc::{c_int, off_t};
use std::cell::{Cell, RefCell};
use std::io;

/// How much is held back at most. Commits with more frames are written in pieces.
const HELD_MAX: usize = 64 * 1024;
/// What SQLite writes before each page (<https://www.sqlite.org/fileformat2.html#the_write_ahead_log>).
const FRAME_HEADER: usize = 24;
/// How much of the log comes before its first frame.
const LOG_HEADER: off_t = 32;
/// Where a frame's header has the size of the database after the commit, which it ends, or zero.
const SIZE_AFTER_COMMIT: std::ops::Range<usize> = 4..8;

thread_local! {
    /// Whether this thread gathers: asked at every write.
    static GATHERING: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<Held> = const { RefCell::new(Held::new()) };
    /// The log that the last commit was written to.
    static WRITTEN: Cell<Option<WrittenLog>> = const { Cell::new(None) };
}

/// Which part of a frame comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Header,
    Page { ends_transaction: bool },
}

/// The frames that are not written yet.
struct Held {
    fd: c_int,
    start: off_t,
    bytes: Vec<u8>,
    next: Next,
    /// What came of writing them, until it is told: the files, and the errors' numbers.
    failed: Vec<(c_int, i32)>,
}

/// Run `call`, which makes a commit or fails, with its frames gathered.
///
/// # Errors
/// Those of `call`, and that frames which belong to no commit could not be written, because `call` failed, or filled
/// SQLite's cache first: a transaction that is open is to be rolled back.
pub(super) fn gather<T>(call: impl FnOnce() -> Result<T, SqliteError>) -> Result<T, SqliteError> {
    if GATHERING.replace(true) {
        return call();
    }
    let end = End;
    WRITTEN.set(None);
    let result = call();
    drop(end);
    let untold = HELD.with_borrow_mut(|held| std::mem::take(&mut held.failed));
    if untold.is_empty() { result } else { Err(SqliteError::from_code(ffi::SQLITE_IOERR_WRITE)) }
}

/// Ends the gathering, also where the call panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        GATHERING.set(false);
        HELD.with_borrow_mut(Held::write_out);
    }
}

/// Return the log that the last commit was written to, once.
pub(super) fn take_written() -> Option<WrittenLog> {
    WRITTEN.take()
}

/// Write, or hold back.
pub(super) fn write(fd: c_int, bytes: &[u8], at: off_t) -> io::Result<usize> {
    if GATHERING.get() { HELD.with_borrow_mut(|held| held.add(fd, bytes, at)) } else { kernel::write(fd, bytes, at) }
}

/// Have the file as its reader expects it.
pub(super) fn before_read(fd: c_int) -> io::Result<()> {
    if !GATHERING.get() {
        return Ok(());
    }
    HELD.with_borrow_mut(|held| {
        if held.fd == fd {
            held.write_out();
        }
        held.tell(fd)
    })
}

/// Have the file as whoever gets the lock expects it.
pub(super) fn before_unlock() {
    if GATHERING.get() {
        HELD.with_borrow_mut(Held::write_out);
    }
}

impl Held {
    const fn new() -> Self {
        Self { fd: -1, start: 0, bytes: Vec::new(), next: Next::Header, failed: Vec::new() }
    }

    fn add(&mut self, fd: c_int, bytes: &[u8], at: off_t) -> io::Result<usize> {
        let follows = fd == self.fd && at == self.start + self.bytes.len() as off_t;
        let fits = match self.next {
            Next::Header => bytes.len() == FRAME_HEADER,
            Next::Page { .. } => bytes.len() > FRAME_HEADER,
        };
        if !(follows && fits) {
            self.write_out();
        }
        self.tell(fd)?;
        if self.bytes.is_empty() {
            // Nothing else of this length is written where the rest of a frame follows.
            if bytes.len() != FRAME_HEADER || at < LOG_HEADER {
                return kernel::write(fd, bytes, at);
            }
            (self.fd, self.start, self.next) = (fd, at, Next::Header);
        }
        self.bytes.extend_from_slice(bytes);
        match self.next {
            Next::Header => self.next = Next::Page { ends_transaction: bytes[SIZE_AFTER_COMMIT] != [0; 4] },
            Next::Page { ends_transaction } => {
                self.next = Next::Header;
                // What comes after the commit's last frame is no new frame.
                GATHERING.set(!ends_transaction);
                if ends_transaction || self.bytes.len() >= HELD_MAX {
                    self.write_out();
                    self.tell(fd)?;
                }
                if ends_transaction {
                    WRITTEN.set(Some(WrittenLog(fd)));
                }
            }
        }
        Ok(bytes.len())
    }

    /// Return the error of writing what was held back of this file, once.
    fn tell(&mut self, fd: c_int) -> io::Result<()> {
        match self.failed.iter().position(|(failed, _)| *failed == fd) {
            Some(place) => Err(io::Error::from_raw_os_error(self.failed.swap_remove(place).1)),
            None => Ok(()),
        }
    }

    /// Write what is held back, all of it or with an error to tell.
    fn write_out(&mut self) {
        let mut rest = &self.bytes[..];
        let mut at = self.start;
        while !rest.is_empty() {
            match kernel::write(self.fd, rest, at) {
                // As SQLite takes it.
                Ok(0) => return self.give_up(libc::ENOSPC),
                Ok(written) => (rest, at) = (&rest[written..], at + written as off_t),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.give_up(error.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        self.bytes.clear();
    }

    fn give_up(&mut self, code: i32) {
        self.bytes.clear();
        self.failed.push((self.fd, code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 512;

    /// A file that is gone when its test is over.
    fn file() -> File {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("writelane-log-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        file
    }

    fn frame(number: usize) -> off_t {
        LOG_HEADER + (number * (FRAME_HEADER + PAGE)) as off_t
    }

    fn write_header(file: &File, number: usize, ends: bool) -> io::Result<usize> {
        let mut header = [number as u8 + 1; FRAME_HEADER];
        header[SIZE_AFTER_COMMIT].copy_from_slice(&u32::from(ends).to_be_bytes());
        write(file.as_raw_fd(), &header, frame(number))
    }

    fn write_frame(file: &File, number: usize, ends: bool) -> io::Result<()> {
        assert_eq!(write_header(file, number, ends)?, FRAME_HEADER);
        let page = [number as u8 + 1; PAGE];
        assert_eq!(write(file.as_raw_fd(), &page, frame(number) + FRAME_HEADER as off_t)?, PAGE);
        Ok(())
    }

    /// How many whole frames are in the file.
    fn frames(file: &File) -> usize {
        let length = file.metadata().unwrap().len() as usize;
        let count = length.saturating_sub(LOG_HEADER as usize).div_ceil(FRAME_HEADER + PAGE);
        for number in 0..count {
            let mut bytes = [0; FRAME_HEADER + PAGE];
            file.read_exact_at(&mut bytes, frame(number) as u64).unwrap();
            let rest = bytes[..4].iter().chain(&bytes[8..]);
            assert!(rest.into_iter().all(|byte| *byte == number as u8 + 1), "frame {number}");
        }
        count
    }

    fn gathered<T>(run: impl FnOnce() -> T) -> T {
        gather(|| Ok(run())).unwrap()
    }

    #[test]
    fn a_commit_is_written_with_its_last_frame() {
        let log = file();
        gathered(|| {
            write_frame(&log, 0, false).unwrap();
            write_frame(&log, 1, false).unwrap();
            assert_eq!(frames(&log), 0);
            write_frame(&log, 2, true).unwrap();
            assert_eq!(frames(&log), 3);
            // No frame of a new commit comes in this call: what is written now is a change of what is there.
            write_header(&log, 1, false).unwrap();
            let mut bytes = [0; 8];
            log.read_exact_at(&mut bytes, frame(1) as u64).unwrap();
            assert_eq!(bytes, [2, 2, 2, 2, 0, 0, 0, 0]);
        });
        assert_eq!(frames(&log), 3);
    }

    #[test]
    fn without_a_call_that_commits_nothing_is_held() {
        let log = file();
        write_frame(&log, 0, false).unwrap();
        assert_eq!(frames(&log), 1);
    }

    #[test]
    fn what_is_held_is_there_before_a_read_another_write_an_unlock_and_the_end() {
        type Event = fn(&File, &File);
        let events: [(&str, Event); 6] = [
            ("a read", |log, _| before_read(log.as_raw_fd()).unwrap()),
            ("a write of another file", |_, other| {
                write(other.as_raw_fd(), b"x", 0).unwrap();
            }),
            ("a frame of another file", |_, other| {
                write_header(other, 0, true).unwrap();
            }),
            ("a write elsewhere", |log, _| {
                write(log.as_raw_fd(), &[1; PAGE], frame(0) + FRAME_HEADER as off_t).unwrap();
            }),
            ("an unlock", |_, _| before_unlock()),
            ("a nested call", |_, other| gathered(|| write_frame(other, 0, true).unwrap())),
        ];
        for (event, happens) in events {
            let (log, other) = (file(), file());
            gathered(|| {
                write_frame(&log, 0, false).unwrap();
                assert_eq!(frames(&log), 0, "{event}");
                happens(&log, &other);
                assert_eq!(frames(&log), 1, "{event}");
                write_frame(&log, 1, false).unwrap();
            });
            assert_eq!(frames(&log), 2, "{event}");
        }
        let (log, other) = (file(), file());
        gathered(|| {
            write_frame(&log, 0, false).unwrap();
            before_read(other.as_raw_fd()).unwrap();
            assert_eq!(frames(&log), 0, "another file's read is nothing to this one");
        });
    }

    #[test]
    fn a_long_commit_goes_in_pieces() {
        let log = file();
        let count = 3 * HELD_MAX / PAGE;
        gathered(|| {
            for number in 0..count {
                let number = number % 250;
                write_frame(&log, number, false).unwrap();
                HELD.with_borrow(|held| assert!(held.bytes.len() < HELD_MAX));
            }
        });
    }

    /// A file that every write to fails.
    fn broken() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn an_error_is_told_with_the_commit() {
        let log = broken();
        let result = gather(|| {
            write_frame(&log, 0, false).unwrap();
            assert_eq!(write_frame(&log, 1, true).unwrap_err().raw_os_error(), Some(libc::EBADF));
            Ok(())
        });
        assert_eq!(result, Ok(()), "told once");
    }

    #[test]
    fn an_error_is_told_to_its_own_file_only() {
        let (log, other) = (broken(), file());
        let result = gather(|| {
            write_frame(&log, 0, false).unwrap();
            write_frame(&other, 0, false).unwrap();
            assert_eq!(frames(&other), 0);
            before_unlock();
            assert_eq!(frames(&other), 1);
            before_read(other.as_raw_fd()).unwrap();
            assert!(before_read(log.as_raw_fd()).is_err());
            assert!(before_read(log.as_raw_fd()).is_ok(), "told once");
            Ok(())
        });
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn the_errors_of_two_files_are_told_to_each() {
        let logs = [broken(), broken()];
        let result = gather(|| {
            for log in &logs {
                write_frame(log, 0, false).unwrap();
            }
            before_unlock();
            for log in &logs {
                assert!(before_read(log.as_raw_fd()).is_err());
            }
            Ok(())
        });
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn an_error_that_nobody_was_told_is_told_at_the_end() {
        for failed in [false, true] {
            let log = broken();
            let result = gather(|| {
                write_frame(&log, 0, false).unwrap();
                if failed { Err(SqliteError::from_code(ffi::SQLITE_BUSY)) } else { Ok(()) }
            });
            assert_eq!(result.unwrap_err().code, ffi::SQLITE_IOERR_WRITE);
            assert_eq!(gather(|| Ok(())), Ok(()), "and not again");
        }
    }
}
