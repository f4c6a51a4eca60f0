//! UUIDs of version 7 (RFC 9562), in order within a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The time of the last one, in units of 1/4096 ms: the 48 bits of milliseconds and the 12 bits after them.
///
/// An atomic and no lock, so that a fork in between leaves nothing locked. A child goes on from its parent's time; its
/// random bits come from the kernel and are its own.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Return the next UUID, in lower case with hyphens. Later ones of a process sort after earlier ones.
///
/// The 12 bits after the milliseconds are a finer time (RFC 9562, 6.2, method 3), raised by one where the clock has not
/// moved or was set back; the other 62 are random.
pub fn uuid7() -> String {
    let time = advance(&LAST, clock());
    let (milliseconds, fraction) = (time >> 12, time & 0xfff);
    let high = (milliseconds << 16) | 0x7000 | fraction;
    let low = (random() >> 2) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Advance `last` to `now`, or by one where that is not later, and return the new value.
fn advance(last: &AtomicU64, now: u64) -> u64 {
    let mut before = last.load(Ordering::Relaxed);
    loop {
        let next = now.max(before + 1);
        match last.compare_exchange_weak(before, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return next,
            Err(other) => before = other,
        }
    }
}

fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let milliseconds = u64::try_from(now.as_millis()).unwrap_or(0) & 0xffff_ffff_ffff;
    (milliseconds << 12) | (u64::from(now.subsec_nanos() % 1_000_000) * 4096 / 1_000_000)
}

fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the pointer and the length are those of `bytes`. Source: getentropy(3).
    let failed = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) } != 0;
    if failed {
        // A kernel before 3.17: the standard library knows another way to the same bits.
        return crate::writer::engine::random_bits();
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn they_have_the_form_of_version_7() {
        let uuid = uuid7();
        assert_eq!(uuid.len(), 36);
        let bytes = uuid.as_bytes();
        assert!([8, 13, 18, 23].iter().all(|&place| bytes[place] == b'-'), "{uuid}");
        assert_eq!(bytes[14], b'7', "{uuid}");
        assert!(b"89ab".contains(&bytes[19]), "{uuid}");
        let milliseconds = u64::from_str_radix(&uuid.replace('-', "")[..12], 16).unwrap();
        let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        assert!(now.abs_diff(milliseconds) < 60_000, "{uuid}");
    }

    #[test]
    fn each_sorts_after_the_one_before_whatever_the_clock_does() {
        let many: Vec<String> = (0..10_000).map(|_| uuid7()).collect();
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        let ahead = AtomicU64::new(1 << 59);
        assert_eq!(advance(&ahead, 5), (1 << 59) + 1);
    }

    #[test]
    fn threads_get_different_ones() {
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| (0..2_000).map(|_| uuid7()).collect::<Vec<_>>())).collect();
        let all: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 8_000);
    }
}
