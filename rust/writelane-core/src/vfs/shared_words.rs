//! Two words of memory that all processes share which have the same log open.
//!
//! The first page of the `-shm` file, which SQLite maps, has eight bytes that stand for its locks: they are locked, and no
//! version reads or writes them (<https://www.sqlite.org/walformat.html>, the WAL-index header, bytes 120 to 127). So
//! processes can leave word for each other there, and wait until it changes (futex(2)): a thread that waits for another
//! process is woken by it, without a third one in between, and without a deadline that the kernel does not know.
//!
//! Nobody owns what is there, and nobody cleans up behind a process that was killed. Whoever waits does so for a limited
//! time, and makes do with what it finds. Where others may have left garbage it costs time. The memory is made anew,
//! with zeros, by the first who opens the database.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where the words are.
const FLUSHES: usize = 120;
const GATE: usize = 124;

/// The words of one log.
pub struct SharedWords {
    page: NonNull<c_void>,
    length: usize,
    generation: u64,
}

// SAFETY: the mapping is this value's own, bound to no thread, and touched by atomic operations only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

/// One of them.
#[derive(Clone, Copy)]
pub struct Word<'a>(&'a AtomicU32);

/// How a wait for a word ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The word is another by now, or somebody called; or nothing of it, as may happen.
    Perhaps,
    /// The time is over.
    TimedOut,
    /// The kernel does not let this process wait.
    Refused,
}

impl SharedWords {
    /// Map the page at `memory` a second time, so that it stays for as long as the value lives.
    ///
    /// `None` where the kernel does not do that.
    ///
    /// # Safety
    /// `memory` is the beginning of a shared mapping of a `-shm` file, of a page at least, which stays during the call.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(crate) unsafe fn of(memory: NonNull<c_void>) -> Option<Self> {
        // SAFETY: asks for a number.
        let length = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        // SAFETY: with an old size of zero the mapping is not moved; its pages are mapped once more (mremap(2)).
        let page = unsafe { libc::mremap(memory.as_ptr(), 0, length, libc::MREMAP_MAYMOVE) };
        let page = NonNull::new(page).filter(|_| page != libc::MAP_FAILED)?;
        Some(Self { page, length, generation: crate::process::generation() })
    }

    /// Not to be had.
    ///
    /// # Safety
    /// Always safe.
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    pub(crate) unsafe fn of(_memory: NonNull<c_void>) -> Option<Self> {
        None
    }

    /// Return the word about the flushes of the log.
    pub fn flushes(&self) -> Word<'_> {
        self.word(FLUSHES)
    }

    /// Return the word about whose turn it is to commit.
    pub fn gate(&self) -> Word<'_> {
        self.word(GATE)
    }

    /// Say whether this is a forked child's copy of its parent's.
    pub fn is_inherited(&self) -> bool {
        self.generation != crate::process::generation()
    }

    fn word(&self, at: usize) -> Word<'_> {
        // SAFETY: the mapping is at least as long and lives as long as `self`; the place is aligned; whoever else touches
        // it does so by atomic operations, too. Somebody who cuts the file to nothing kills those who have it mapped,
        // and SQLite with them.
        Word(unsafe { AtomicU32::from_ptr(self.page.as_ptr().cast::<u8>().add(at).cast()) })
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `of`, which nobody else knows.
        unsafe { libc::munmap(self.page.as_ptr(), self.length) };
    }
}

impl<'a> Word<'a> {
    /// Return the word that is kept there, which may be any memory.
    #[cfg(test)]
    pub fn at(memory: &'a AtomicU32) -> Self {
        Self(memory)
    }

    /// Return what it says.
    pub fn read(self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Have it say something else.
    ///
    /// # Errors
    /// What it says by now, if that is not what was `seen`.
    pub fn replace(self, seen: u32, by: u32) -> Result<(), u32> {
        self.0.compare_exchange(seen, by, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }

    /// Have it say what `change` makes of it, if that is anything. Returns what it said before.
    pub fn change(self, change: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok()
    }

    /// Wait in the kernel while it says what was `seen`, until somebody calls the group (0 to 31) or the time is over.
    #[cfg(target_os = "linux")]
    pub fn wait(self, seen: u32, group: u32, time: Duration) -> Woken {
        // SAFETY: a plain C structure, for which all zeros are a value.
        let mut until: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid; this clock is always there.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
        let nanoseconds = until.tv_nsec + libc::c_long::from(time.subsec_nanos().cast_signed());
        let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
        until.tv_sec = until.tv_sec.saturating_add(seconds).saturating_add(nanoseconds / 1_000_000_000);
        until.tv_nsec = nanoseconds % 1_000_000_000;
        match self.futex(libc::FUTEX_WAIT_BITSET, seen, &raw const until, 1 << group) {
            Ok(_) => Woken::Perhaps,
            Err(libc::EAGAIN | libc::EINTR) => Woken::Perhaps,
            Err(libc::ETIMEDOUT) => Woken::TimedOut,
            Err(_) => Woken::Refused,
        }
    }

    /// Wake as many as `count` who wait in this group, those first who came first. Returns how many there were.
    #[cfg(target_os = "linux")]
    pub fn wake(self, group: u32, count: u32) -> u32 {
        let count = count.min(i32::MAX.cast_unsigned());
        let woken = self.futex(libc::FUTEX_WAKE_BITSET, count, std::ptr::null(), 1 << group);
        woken.ok().and_then(|woken| u32::try_from(woken).ok()).unwrap_or(0)
    }

    #[cfg(target_os = "linux")]
    fn futex(self, operation: i32, value: u32, until: *const libc::timespec, groups: u32) -> Result<i64, i32> {
        // SAFETY: the word is valid for the call, and the time, if there is one. The operations take the fifth argument for
        // nothing. They are not the private ones: others wait in other processes.
        let answer = unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, until, std::ptr::null::<u32>(), groups)
        };
        if answer < 0 {
            Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
        } else {
            Ok(answer)
        }
    }

    /// Not to be had.
    #[cfg(not(target_os = "linux"))]
    pub fn wait(self, _seen: u32, _group: u32, _time: Duration) -> Woken {
        Woken::Refused
    }

    /// Nobody waits.
    #[cfg(not(target_os = "linux"))]
    pub fn wake(self, _group: u32, _count: u32) -> u32 {
        0
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    /// A page that is shared, as SQLite maps one.
    struct Page(NonNull<c_void>, usize);

    impl Page {
        fn new() -> Self {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, wherever the kernel puts it.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 1 << 16, access, kind, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            Self(NonNull::new(page).unwrap(), 1 << 16)
        }

        fn words(&self) -> SharedWords {
            // SAFETY: a shared mapping that stays.
            unsafe { SharedWords::of(self.0) }.unwrap()
        }

        fn bytes(&self) -> [u8; 16] {
            // SAFETY: within the mapping.
            unsafe { self.0.as_ptr().cast::<u8>().add(FLUSHES).cast::<[u8; 16]>().read_volatile() }
        }
    }

    impl Drop for Page {
        fn drop(&mut self) {
            // SAFETY: the mapping made in `new`.
            unsafe { libc::munmap(self.0.as_ptr(), self.1) };
        }
    }

    #[test]
    fn what_one_says_others_read_and_only_there() {
        let page = Page::new();
        let (ours, others) = (page.words(), page.words());
        ours.flushes().replace(0, 0x0101_0101).unwrap();
        ours.gate().replace(0, 0x0202_0202).unwrap();
        assert_eq!((others.flushes().read(), others.gate().read()), (0x0101_0101, 0x0202_0202));
        assert_eq!(page.bytes(), [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(others.gate().replace(0, 1), Err(0x0202_0202));
    }

    #[test]
    fn they_stay_when_the_mapping_goes() {
        let page = Page::new();
        let words = page.words();
        drop(page);
        words.gate().replace(0, 7).unwrap();
        assert_eq!(words.gate().read(), 7);
    }

    #[test]
    fn who_waits_is_woken_by_its_group_or_its_time() {
        let page = Page::new();
        let words = Arc::new(page.words());
        let long = Duration::from_secs(60);
        assert_eq!(words.gate().wait(1, 0, long), Woken::Perhaps, "it says something else");
        assert_eq!(words.gate().wait(0, 0, Duration::from_millis(1)), Woken::TimedOut);
        let waits = {
            let words = Arc::clone(&words);
            thread::spawn(move || words.gate().wait(0, 5, long))
        };
        let until = Instant::now() + long;
        let other = page.words();
        while other.gate().wake(5, 1) == 0 {
            assert_eq!(other.gate().wake(6, 1), 0);
            assert!(Instant::now() < until, "it waits");
            thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), Woken::Perhaps);
    }
}
