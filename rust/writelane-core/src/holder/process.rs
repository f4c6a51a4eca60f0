//! What the kernel tells of a process: whether it is stopped, when it started, what it runs.
//!
//! All of it comes from `/proc`; where there is none, nothing is known.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// What `/proc/PID/stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The state's letter: `T` stopped by a signal, `t` by a debugger, `Z` dead but not waited for.
    pub state: char,
    /// When the process started, in clock ticks since boot.
    pub started: u64,
}

impl Stat {
    /// Read the text of a `/proc/PID/stat` file. The command in it may hold any character, so it ends at the last `)`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        // Field 22 of the file; the state is field 3.
        let started = fields.nth(18)?.parse().ok()?;
        Some(Self { state, started })
    }

    /// Ask for a process of this pid namespace.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Say whether the process is stopped and so cannot give anything up.
    pub fn is_stopped(self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Say whether a process is known to be stopped.
pub fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_some_and(Stat::is_stopped)
}

/// Return the command line of a process, its arguments parted by spaces; its short name where that is empty.
pub fn command(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    if text.is_empty() {
        Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().into())
    } else {
        Some(text)
    }
}

/// Return the inode of this process's pid namespace; 0 where that cannot be told.
pub fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

/// Say whether this process sees the pids of the whole host.
pub fn sees_all_pids() -> bool {
    /// The inode of the first pid namespace, fixed in the kernel's `include/uapi/linux/nsfs.h` (`PID_NS_INIT_INO`).
    const FIRST: u64 = 0xEFFF_FFFC;
    namespace() == FIRST
}

/// Return a number that is another one after each boot.
pub fn boot() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Return the time that the calling thread has spent on a processor, in itself and in the kernel.
pub fn thread_time() -> Duration {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spent` is a valid out pointer; where the clock does not exist, it stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Return `CLOCK_MONOTONIC` in nanoseconds: the same clock in every process of a host.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_command_is_called() {
        let line = "4711 (a) b) ( R 1) T 1 4711 4711 0 -1 4194560 120 0 0 0 0 0 0 0 20 0 1 0 987654 2000 300 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat, Stat { state: 'T', started: 987_654 });
        assert!(stat.is_stopped());
        assert_eq!(Stat::parse("4711 (x"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_is_known() {
        let stat = Stat::of(std::process::id()).unwrap();
        assert!(!stat.is_stopped() && stat.started > 0);
        assert!(command(std::process::id()).unwrap().contains("writelane"));
        assert_eq!(boot(), boot());
        assert!(monotonic_ns() > 0);
    }
}
