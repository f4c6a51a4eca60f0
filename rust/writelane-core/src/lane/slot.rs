//! What a process says about itself: one record, read by anybody, trusted by checksum only.
//!
//! A record is read while it is written, so a torn one is recognised by its checksum and read again.

use std::time::Duration;

/// The bytes of one record.
pub const SIZE: usize = 512;
/// The records a lane file has room for; a process that finds none free goes without.
pub const COUNT: usize = 128;

/// Where the checksum lies.
const SUM: usize = 8;
const MAGIC: [u8; 8] = *b"wl-slot1";
/// How [`Doing::Holding`] is written.
const HOLDING: u8 = 2;
const COMMAND: std::ops::Range<usize> = 80..144;
const STATEMENT: std::ops::Range<usize> = 144..352;
const WANTED: std::ops::Range<usize> = 352..512;

/// What the process that wrote a record is doing in the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It has no turn.
    Nothing,
    /// It has a turn, and may or may not hold SQLite's write lock.
    Turn,
    /// It has a turn, and said that it holds SQLite's write lock.
    Holding,
    /// It has a turn, and waits for SQLite's write lock, which an outsider holds.
    Blocked,
    /// It is in the lane, and this user may not see what it does.
    Hidden,
}

/// One process in the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The process, as its own pid namespace numbers it.
    pub pid: u32,
    /// When it started, in clock ticks since boot: tells it from a later process of the same number.
    pub started: u64,
    /// The inode of its pid namespace.
    pub namespace: u64,
    /// A number that is another one after each boot.
    pub boot: u64,
    /// Its command line, shortened.
    pub command: String,
    /// The descriptor of its board, on which the record that counts is; 0 where it is this one.
    pub board: u32,
    /// What it does.
    pub doing: Doing,
    /// Since when, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// The statement of its turn, shortened.
    pub statement: String,
    /// The threads of it that wait for a turn.
    pub waiting: u16,
    /// Since when the first of them waits, in nanoseconds of `CLOCK_MONOTONIC`.
    pub waiting_since_ns: u64,
    /// The statement the first of them waits for, shortened.
    pub wanted: String,
}

/// A record as it lies in the file, kept by its writer so that a change costs one copy and one checksum.
#[derive(Clone)]
pub struct Page([u8; SIZE]);

impl Page {
    /// Begin the record of a process that does nothing yet. `board` is the descriptor of its board, 0 for none.
    pub fn new(pid: u32, started: u64, namespace: u64, boot: u64, command: &str, board: u32) -> Self {
        let mut page = Self([0; SIZE]);
        page.0[..8].copy_from_slice(&MAGIC);
        page.put(16, u64::from(pid));
        page.put(24, started);
        page.put(32, namespace);
        page.put(40, boot);
        page.text(COMMAND, 72, command);
        page.0[68..72].copy_from_slice(&board.to_le_bytes());
        page
    }

    /// Set what the process does, since when and with which statement.
    pub fn turn(&mut self, doing: Doing, since_ns: u64, statement: &str) {
        self.doing(doing);
        self.put(48, since_ns);
        self.text(STATEMENT, 74, statement);
    }

    /// Set what the process does, with the statement and the time it has.
    pub fn doing(&mut self, doing: Doing) {
        self.0[64] = match doing {
            Doing::Nothing => 0,
            Doing::Turn => 1,
            Doing::Holding => HOLDING,
            Doing::Blocked => 3,
            Doing::Hidden => 4,
        };
    }

    /// Say whether this is that the process holds the write lock, with this statement.
    pub fn is_holding(&self, statement: &str) -> bool {
        let statement = shortened(statement, STATEMENT.len());
        self.0[64] == HOLDING
            && usize::from(self.0[74]) == statement.len()
            && self.0[STATEMENT][..statement.len()] == *statement.as_bytes()
    }

    /// Set how many threads of the process wait, since when the first does and what for.
    pub fn wait(&mut self, waiting: usize, since_ns: u64, wanted: &str) {
        let count = u16::try_from(waiting).unwrap_or(u16::MAX);
        self.0[66..68].copy_from_slice(&count.to_le_bytes());
        self.put(56, since_ns);
        self.text(WANTED, 76, wanted);
    }

    /// Say whether a record is of the same process with the same board.
    pub fn is_of(&self, record: &Record) -> bool {
        let board = u32::from_le_bytes([self.0[68], self.0[69], self.0[70], self.0[71]]);
        (number(&self.0, 16), number(&self.0, 24), board) == (u64::from(record.pid), record.started, record.board)
    }

    /// Return the bytes to write, with their checksum.
    pub fn seal(&mut self) -> &[u8; SIZE] {
        let sum = checksum(&self.0);
        self.put(SUM, sum);
        &self.0
    }

    fn put(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, room: std::ops::Range<usize>, length_at: usize, text: &str) {
        let text = shortened(text, room.len());
        self.0[room.start..room.start + text.len()].copy_from_slice(text.as_bytes());
        // The longest room has 208 bytes, so a byte holds every length.
        self.0[length_at] = u8::try_from(text.len()).unwrap_or(0);
    }
}

impl Record {
    /// Return how long the process has done what it does.
    pub fn since(&self) -> Duration {
        Duration::from_nanos(crate::holder::process::monotonic_ns().saturating_sub(self.since_ns))
    }

    /// Read a record, if these bytes are a whole one.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC || number(bytes, SUM) != checksum(bytes) {
            return None;
        }
        let text = |room: std::ops::Range<usize>, length_at: usize| {
            let length = usize::from(bytes[length_at]).min(room.len());
            String::from_utf8_lossy(&bytes[room.start..room.start + length]).into_owned()
        };
        Some(Self {
            pid: u32::try_from(number(bytes, 16)).ok()?,
            started: number(bytes, 24),
            namespace: number(bytes, 32),
            boot: number(bytes, 40),
            command: text(COMMAND, 72),
            board: u32::from_le_bytes([bytes[68], bytes[69], bytes[70], bytes[71]]),
            doing: match bytes[64] {
                0 => Doing::Nothing,
                1 => Doing::Turn,
                HOLDING => Doing::Holding,
                3 => Doing::Blocked,
                4 => Doing::Hidden,
                _ => return None,
            },
            since_ns: number(bytes, 48),
            statement: text(STATEMENT, 74),
            waiting: u16::from_le_bytes([bytes[66], bytes[67]]),
            waiting_since_ns: number(bytes, 56),
            wanted: text(WANTED, 76),
        })
    }
}

/// Cut a text between characters to what there is room for.
fn shortened(text: &str, room: usize) -> &str {
    let mut length = text.len().min(room);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    &text[..length]
}

fn number(bytes: &[u8; SIZE], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Mix every word but the checksum's own. Not against malice: against torn and stray bytes. In four strands, since the
/// multiplications of one would wait for each other.
fn checksum(bytes: &[u8; SIZE]) -> u64 {
    let mut strands = [1, 2, 3, 4_u64];
    for at in (0..SIZE).step_by(32) {
        for (n, strand) in strands.iter_mut().enumerate() {
            let word = if at + 8 * n == SUM { 0 } else { number(bytes, at + 8 * n) };
            *strand = (*strand ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            *strand ^= *strand >> 32;
        }
    }
    strands.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, strand| (sum ^ strand).wrapping_mul(0xc4ce_b9fe_1a85_ec53))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let mut page = Page::new(7, 8, 9, 10, "python app.py", 5);
        page.turn(Doing::Holding, 11, "INSERT INTO t(x) VALUES (?)");
        page.wait(3, 12, "DELETE FROM t");
        page
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let record = Record::read(page().seal()).unwrap();
        assert_eq!(
            record,
            Record {
                pid: 7,
                started: 8,
                namespace: 9,
                boot: 10,
                command: "python app.py".into(),
                board: 5,
                doing: Doing::Holding,
                since_ns: 11,
                statement: "INSERT INTO t(x) VALUES (?)".into(),
                waiting: 3,
                waiting_since_ns: 12,
                wanted: "DELETE FROM t".into(),
            }
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(1000);
        let mut page = page();
        page.turn(Doing::Turn, 1, &format!("x{long}"));
        let record = Record::read(page.seal()).unwrap();
        assert_eq!(record.statement, format!("x{}", "é".repeat((STATEMENT.len() - 1) / 2)));
        assert!(!page.is_holding(&format!("x{long}")), "it has a turn only");
        page.turn(Doing::Holding, 1, &format!("x{long}"));
        assert!(page.is_holding(&format!("x{long}")));
        assert!(!page.is_holding("x"));
        // A shorter text after it leaves nothing of the longer one.
        page.turn(Doing::Turn, 1, "short");
        assert_eq!(Record::read(page.seal()).unwrap().statement, "short");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = *page().seal();
        for at in 0..SIZE {
            for bit in [1, 0x80] {
                let mut bad = good;
                bad[at] ^= bit;
                assert_eq!(Record::read(&bad), None, "byte {at}");
            }
        }
        assert_eq!(Record::read(&good[..SIZE - 1]), None);
        assert_eq!(Record::read(&[0; SIZE]), None);
    }

    #[test]
    fn a_record_torn_between_two_states_is_noticed() {
        let mut page = page();
        let one = *page.seal();
        page.turn(Doing::Nothing, 99, "UPDATE t SET x = x + 1 WHERE y > 3");
        let two = *page.seal();
        for cut in (8..SIZE).step_by(8) {
            let mut torn = two;
            torn[cut..].copy_from_slice(&one[cut..]);
            assert!(torn == one || torn == two || Record::read(&torn).is_none(), "cut at {cut}");
        }
    }
}
