//! What an owner writes down about itself.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The length of a record: one sector, so that a disk writes it whole.
pub const RECORD_BYTES: usize = 512;
const TITLE: &str = "writelane owner 1";

/// Which process on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The host's name.
    pub host: String,
    /// The kernel's identity of this run of the host: two containers of one host share it.
    pub boot: String,
    /// The process, as its own pid namespace numbers it.
    pub pid: u32,
    /// When the process started, in the kernel's clock ticks, so that a pid used again is told apart.
    pub started: u64,
}

impl Identity {
    /// Return the identity of this process.
    pub fn own() -> Self {
        let mut name = [0_u8; 256];
        // SAFETY: the buffer is valid for its length.
        let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        let host = CStr::from_bytes_until_nul(&name).ok().filter(|_| code == 0);
        Self {
            host: host.map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned()),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
            pid: std::process::id(),
            started: start_time(),
        }
    }
}

fn start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command, in parentheses, may have spaces and parentheses in it: fields are counted after the last.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// An owner of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who.
    pub identity: Identity,
    /// The fencing number: each new owner's is higher. 0 where the kernel's lock alone decides.
    pub number: u64,
    /// Random, so that two records of one number are told apart.
    pub nonce: u64,
    /// Since when, in seconds of the owner's own wall clock; for people only.
    pub since: u64,
    /// How often it was renewed.
    pub beat: u64,
    /// The owner's lease.
    pub lease: Duration,
    /// Device and inode of the lock file as the owner saw it.
    pub lock: (u64, u64),
    /// Whether the owner gave it up.
    pub released: bool,
}

impl Owner {
    /// Make a record for an owner that begins now.
    pub fn new(identity: Identity, number: u64, lease: Duration, lock: (u64, u64)) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { identity, number, nonce: nonce(), since, beat: 0, lease, lock, released: false }
    }

    /// Say whether two records are of the same owner, whatever their beat.
    pub fn is(&self, other: &Self) -> bool {
        (self.number, self.nonce) == (other.number, other.nonce)
    }

    /// Write the record out, with a sum over it.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let host: String = self.identity.host.chars().filter(|c| !c.is_control()).take(64).collect();
        let boot: String = self.identity.boot.chars().filter(|c| !c.is_control()).take(64).collect();
        let text = format!(
            "{TITLE}\nhost={host}\nboot={boot}\npid={}\nstarted={}\nnumber={}\nnonce={}\nsince={}\nbeat={}\nlease_ms={}\n\
             lock={}:{}\nreleased={}\n",
            self.identity.pid,
            self.identity.started,
            self.number,
            self.nonce,
            self.since,
            self.beat,
            self.lease.as_millis(),
            self.lock.0,
            self.lock.1,
            u8::from(self.released),
        );
        let text = format!("{text}sum={:016x}\n", sum(text.as_bytes()));
        let mut record = [b'\n'; RECORD_BYTES];
        // 64 characters may be four times as many bytes; what does not fit makes a record with a wrong sum, which
        // is waited out and never trusted.
        let length = text.len().min(RECORD_BYTES);
        record[..length].copy_from_slice(&text.as_bytes()[..length]);
        record
    }

    /// Read a record; `None` for one that is torn, of another version, or no record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, rest) = text.split_at(text.find("sum=")?);
        let claimed = u64::from_str_radix(rest.strip_prefix("sum=")?.lines().next()?, 16).ok()?;
        if claimed != sum(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        (lines.next()? == TITLE).then_some(())?;
        let field = |name: &str| {
            body.lines().find_map(|line| line.strip_prefix(name).and_then(|value| value.strip_prefix('=')))
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        let (device, inode) = field("lock")?.split_once(':')?;
        Some(Self {
            identity: Identity {
                host: field("host")?.to_owned(),
                boot: field("boot")?.to_owned(),
                pid: field("pid")?.parse().ok()?,
                started: number("started")?,
            },
            number: number("number")?,
            nonce: number("nonce")?,
            since: number("since")?,
            beat: number("beat")?,
            lease: Duration::from_millis(number("lease_ms")?),
            lock: (device.parse().ok()?, inode.parse().ok()?),
            released: number("released")? != 0,
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().saturating_sub(self.since));
        write!(f, "process {} on host {}, for {held} s", self.identity.pid, self.identity.host)
    }
}

/// FNV-1a: finds a torn record, and is not meant against forgery.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn nonce() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // Early at boot there is no randomness yet; time and process are different enough between hosts.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    now ^ (u64::from(std::process::id()) << 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::new(Identity::own(), 7, Duration::from_secs(30), (5, 9))
    }

    #[test]
    fn a_record_read_back_is_the_record_written() {
        let mut owner = owner();
        owner.beat = 3;
        assert_eq!(Owner::decode(&owner.encode()), Some(owner.clone()));
        assert!(owner.identity.started > 0 && !owner.identity.boot.is_empty());
    }

    #[test]
    fn a_torn_or_foreign_record_is_none() {
        let whole = owner().encode();
        assert_eq!(Owner::decode(b""), None);
        for cut in [10, 100, 150, 200] {
            assert_eq!(Owner::decode(&whole[..cut]), None);
        }
        let mut other = owner();
        other.beat = 1_000_000;
        let mut torn = other.encode();
        torn[..120].copy_from_slice(&whole[..120]);
        torn[130] ^= 1;
        assert_eq!(Owner::decode(&torn), None);
    }

    #[test]
    fn a_host_with_a_hostile_name_still_makes_a_record() {
        let mut owner = owner();
        owner.identity.host = "a\nsum=0\nb".repeat(50);
        let read = Owner::decode(&owner.encode());
        assert!(read.is_none_or(|read| read.is(&owner)));
    }
}
