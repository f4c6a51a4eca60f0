//! Which snapshots in the log a short write leaves unmarked.
//!
//! Who reads a database with a log holds a shared lock on one of four marks, each of which says up to where the log may be
//! copied meanwhile. SQLite looks for the highest mark that is not past its snapshot, and where none is right at it, moves
//! one there, under an exclusive lock on that mark. In a loop of writes each one finds the marks behind and moves one: two
//! of its seven system calls. A lower mark does as well, and is what SQLite takes where it gets no exclusive lock; it only
//! keeps more of the log from being copied while it is held. So a write that is over in microseconds may be told that
//! the marks are in use.
//!
//! Source: `walTryBeginRead` in <https://www.sqlite.org/src/file/src/wal.c>.

use std::cell::Cell;

/// The bytes of the `-shm` file that are the marks' locks, without the one that stands for the database file alone.
const MARKS: std::ops::Range<i64> = 124..128;

/// One write of so many has the marks brought up to date all the same, so that a checkpoint that meets a transaction copies
/// nearly all there was before it.
const MOVED_EVERY: u32 = 16;

thread_local! {
    /// How many more times a mark is to stay where it is.
    static STAY: Cell<u8> = const { Cell::new(0) };
    static WRITES: Cell<u32> = const { Cell::new(0) };
}

/// Run `call`, which begins a short write, with the marks left where they are, as a rule. Where SQLite finds none that it
/// can use, it asks again, and then gets one.
pub(super) fn leave<T>(call: impl FnOnce() -> T) -> T {
    let writes = WRITES.get().wrapping_add(1);
    WRITES.set(writes);
    if writes.is_multiple_of(MOVED_EVERY) {
        return call();
    }
    STAY.set((MARKS.end - MARKS.start) as u8);
    let result = call();
    STAY.set(0);
    result
}

/// Say whether this lock would move a mark that is to stay.
#[inline]
pub(super) fn is_to_stay(lock: &libc::flock) -> bool {
    let left = STAY.get();
    let is_mark =
        left > 0 && i32::from(lock.l_type) == libc::F_WRLCK && lock.l_len == 1 && MARKS.contains(&lock.l_start);
    if is_mark {
        STAY.set(left - 1);
    }
    is_mark
}

#[cfg(test)]
mod tests {
    use super::super::kernel::range;
    use super::*;

    fn stays(kind: i32, byte: i64, length: i64) -> bool {
        is_to_stay(&range(kind, byte, length))
    }

    #[test]
    fn each_mark_stays_once_and_then_sqlite_gets_one() {
        let moved = (0..MOVED_EVERY).filter(|_| {
            leave(|| {
                assert!(!stays(libc::F_RDLCK, 124, 1), "who reads gets its lock");
                assert!(!stays(libc::F_WRLCK, 120, 1), "and who writes");
                assert!(!stays(libc::F_WRLCK, 124, 4), "and who has the log begin anew");
                let left = MARKS.filter(|mark| stays(libc::F_WRLCK, *mark, 1)).count();
                assert!(!MARKS.clone().any(|mark| stays(libc::F_WRLCK, mark, 1)));
                left == 0
            })
        });
        assert_eq!(moved.count(), 1);
        assert!(!stays(libc::F_WRLCK, 124, 1), "only while a write begins");
    }
}
