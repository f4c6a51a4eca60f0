//! The bytes of a database as its readers would see them: the file, with its log or its rollback journal applied.
//!
//! Source of the formats: <https://www.sqlite.org/fileformat2.html>. Everything read here may be garbage.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where bytes come from.
#[derive(Debug)]
pub enum Source {
    /// A file, read as it is needed.
    File(File, u64),
    /// Memory.
    Memory(Vec<u8>),
}

impl Source {
    /// Read from an open file, whose length must not change meanwhile.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn file(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self::File(file, length))
    }

    fn len(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Read up to `length` bytes at `offset`: fewer at the end, none where a disk cannot read its own sectors.
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX).min(length);
        match self {
            Self::Memory(bytes) => {
                bytes.get(offset as usize..offset as usize + left).map(<[u8]>::to_vec).unwrap_or_default()
            }
            Self::File(file, _) => {
                let mut bytes = vec![0; left];
                match file.read_exact_at(&mut bytes, offset) {
                    Ok(()) => bytes,
                    Err(_) => Vec::new(),
                }
            }
        }
    }
}

/// How text is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8.
    Utf8,
    /// UTF-16, low byte first.
    Utf16Le,
    /// UTF-16, high byte first.
    Utf16Be,
}

impl Encoding {
    /// Return the name `PRAGMA encoding` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "UTF-8",
            Self::Utf16Le => "UTF-16le",
            Self::Utf16Be => "UTF-16be",
        }
    }

    /// Decode text as well as it can be.
    pub fn decode(self, bytes: &[u8]) -> String {
        let units = |of: fn([u8; 2]) -> u16| {
            let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| of([pair[0], pair[1]])).collect();
            String::from_utf16_lossy(&units)
        };
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Utf16Le => units(u16::from_le_bytes),
            Self::Utf16Be => units(u16::from_be_bytes),
        }
    }
}

/// What the header of the file says, as far as it can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a page, a power of two from 512 to 65,536.
    pub page_size: u32,
    /// Bytes at the end of each page that are not SQLite's.
    pub reserved: u8,
    /// How text is stored.
    pub encoding: Encoding,
    /// Whether the file is in write-ahead log mode.
    pub wal: bool,
    /// The first page of the list of free pages, or 0.
    pub free_first: u32,
    /// The number of free pages.
    pub free_count: u32,
    /// Whether there are pages of pointers for auto-vacuum, and whether it is incremental.
    pub auto_vacuum: u8,
    /// `PRAGMA user_version`.
    pub user_version: i32,
    /// `PRAGMA application_id`.
    pub application_id: i32,
}

/// The header's first bytes.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The byte of the file that is only locked and never stored; its page holds nothing.
const LOCK_BYTE: u64 = 1 << 30;
/// No page is smaller, none larger.
const SIZES: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

impl Header {
    /// Read the header; `None` if it cannot be one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 100] = bytes.get(..100)?.try_into().ok()?;
        let page_size = match u16::from_be_bytes([bytes[16], bytes[17]]) {
            1 => 65536,
            size => u32::from(size),
        };
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        // Besides the magic, three bytes of this header are the same in every database.
        let fixed = (bytes.starts_with(MAGIC), bytes[21..24] == [64, 32, 32]);
        if !SIZES.contains(&page_size) || fixed == (false, false) || page_size - u32::from(bytes[20]) < 480 {
            return None;
        }
        Some(Self {
            page_size,
            reserved: bytes[20],
            encoding: match word(56) {
                2 => Encoding::Utf16Le,
                3 => Encoding::Utf16Be,
                _ => Encoding::Utf8,
            },
            wal: bytes[18] == 2 || bytes[19] == 2,
            free_first: word(32),
            free_count: word(36),
            auto_vacuum: match (word(52), word(64)) {
                (0, _) => 0,
                (_, 0) => 1,
                _ => 2,
            },
            user_version: word(60) as i32,
            application_id: word(68) as i32,
        })
    }

    /// The header of a file whose own is lost.
    fn guessed(page_size: u32) -> Self {
        Self {
            page_size,
            reserved: 0,
            encoding: Encoding::Utf8,
            wal: false,
            free_first: 0,
            free_count: 0,
            auto_vacuum: 0,
            user_version: 0,
            application_id: 0,
        }
    }
}

/// A database as its readers would see it.
#[derive(Debug)]
pub struct Image {
    database: Source,
    beside: Option<Source>,
    /// Pages that are to be read from the log or journal, and where.
    overlay: HashMap<u32, u64>,
    /// The header, believed or guessed.
    pub header: Header,
    /// Whether the header had to be guessed.
    pub guessed: bool,
    /// The number of pages.
    pub pages: u32,
    /// What was noticed on the way, for people.
    pub notes: Vec<String>,
}

impl Image {
    /// Put an image together from the database and what lies beside it.
    pub fn new(database: Source, wal: Option<Source>, journal: Option<Source>) -> Self {
        let mut notes = Vec::new();
        let log = wal.filter(|source| source.len() > 0).and_then(|source| {
            let log = Log::parse(&source);
            match &log {
                Some(log) => {
                    notes.push(format!("{} pages of the log up to its last commit were applied", log.pages.len()))
                }
                None => notes.push("the log has no whole commit in it and was left out".to_owned()),
            }
            log.map(|log| (log, source))
        });
        let first = database.read(0, 100);
        let from_log = |log: &(Log, Source)| {
            let at = *log.0.pages.get(&1)?;
            Header::parse(&log.1.read(at, 100)).filter(|header| header.page_size == log.0.page_size)
        };
        let believed = log.as_ref().and_then(from_log).or_else(|| Header::parse(&first));
        let mut header = believed.unwrap_or_else(|| {
            let size = log.as_ref().map_or_else(|| guess_page_size(&database), |log| log.0.page_size);
            notes.push(format!("the header of the file is lost; pages are taken to be of {size} bytes"));
            Header::guessed(size)
        });
        let size = u64::from(header.page_size);
        let stored = u32::try_from(database.len().div_ceil(size)).unwrap_or(u32::MAX);
        let mut image = Self {
            database,
            beside: None,
            overlay: HashMap::new(),
            header,
            guessed: believed.is_none(),
            pages: stored,
            notes,
        };
        match log {
            Some((log, source)) if log.page_size == header.page_size => {
                image.pages = log.size.max(1);
                (image.overlay, image.beside) = (log.pages, Some(source));
            }
            Some(_) => image.notes.push("the log has another page size than the file and was left out".to_owned()),
            None => {
                if let Some((journal, source)) =
                    journal.and_then(|source| Journal::parse(&source).map(|journal| (journal, source)))
                {
                    image.notes.push(format!("{} pages of a hot journal were rolled back", journal.pages.len()));
                    if let Some(old) = journal.pages.get(&1)
                        && let Some(old) = Header::parse(&source.read(*old, 100))
                    {
                        header = Header { page_size: header.page_size, ..old };
                    }
                    image.header = header;
                    image.pages = if journal.size > 0 { journal.size } else { stored };
                    (image.overlay, image.beside) = (journal.pages, Some(source));
                }
            }
        }
        image
    }

    /// Return the bytes of a page that are SQLite's to use.
    pub fn usable(&self) -> usize {
        (self.header.page_size - u32::from(self.header.reserved)) as usize
    }

    /// Return a page, padded with zeros where the file is cut; `None` where there is no such page.
    pub fn page(&self, number: u32) -> Option<Vec<u8>> {
        if number == 0 || number > self.pages {
            return None;
        }
        let size = self.header.page_size as usize;
        let mut bytes = match (self.overlay.get(&number), &self.beside) {
            (Some(at), Some(beside)) => beside.read(*at, size),
            _ => self.database.read(u64::from(number - 1) * size as u64, size),
        };
        bytes.resize(size, 0);
        Some(bytes)
    }

    /// Say whether a page can hold nothing of a tree: a page of pointers, or the one that is locked.
    pub fn is_reserved(&self, number: u32) -> bool {
        if u64::from(number - 1) == LOCK_BYTE / u64::from(self.header.page_size) {
            return true;
        }
        if self.header.auto_vacuum == 0 || number < 2 {
            return false;
        }
        let every = self.usable() as u32 / 5 + 1;
        (number - 2).is_multiple_of(every)
    }
}

/// Guess the page size from the pages that parse as leaves of trees and are filled to their very end.
fn guess_page_size(database: &Source) -> u32 {
    const SAMPLE: u64 = 1 << 24;
    let start = database.read(0, database.len().min(SAMPLE) as usize);
    let filled = |size: u32| {
        let size = size as usize;
        start.chunks_exact(size).skip(1).filter(|page| super::page::fills(page, size)).count() * size
    };
    let best = SIZES.into_iter().rev().map(|size| (filled(size), size)).max_by_key(|(filled, _)| *filled);
    best.filter(|(filled, _)| *filled > 0).map_or(4096, |(_, size)| size)
}

/// A write-ahead log up to its last commit.
struct Log {
    page_size: u32,
    /// Where the newest version of each page lies.
    pages: HashMap<u32, u64>,
    /// The database's size in pages after the last commit.
    size: u32,
}

impl Log {
    fn parse(source: &Source) -> Option<Self> {
        let head = source.read(0, 32);
        let word = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let magic = word(&head, 0)?;
        let page_size = word(&head, 8)?;
        if magic & !1 != 0x377f_0682 || !SIZES.contains(&page_size) {
            return None;
        }
        let big = magic & 1 != 0;
        let mut sum = checksum((0, 0), &head[..24], big);
        if sum != (word(&head, 24)?, word(&head, 28)?) {
            return None;
        }
        let (mut log, mut pending) = (Self { page_size, pages: HashMap::new(), size: 0 }, Vec::new());
        let mut at = 32;
        loop {
            let frame = source.read(at, 24 + page_size as usize);
            if frame.len() < 24 + page_size as usize || frame[8..16] != head[16..24] {
                break;
            }
            sum = checksum(checksum(sum, &frame[..8], big), &frame[24..], big);
            if sum != (word(&frame, 16)?, word(&frame, 20)?) {
                break;
            }
            pending.push((word(&frame, 0)?, at + 24));
            let size = word(&frame, 4)?;
            if size > 0 {
                log.size = size;
                log.pages.extend(pending.drain(..));
            }
            at += frame.len() as u64;
        }
        log.pages.retain(|number, _| *number <= log.size);
        (log.size > 0).then_some(log)
    }
}

fn checksum(start: (u32, u32), bytes: &[u8], big: bool) -> (u32, u32) {
    let word = |four: &[u8]| {
        let four = [four[0], four[1], four[2], four[3]];
        if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    bytes.chunks_exact(8).fold(start, |(one, two), eight| {
        let one = one.wrapping_add(word(&eight[..4])).wrapping_add(two);
        (one, two.wrapping_add(word(&eight[4..])).wrapping_add(one))
    })
}

/// A rollback journal: the pages as they were before the transaction that did not end.
struct Journal {
    pages: HashMap<u32, u64>,
    size: u32,
}

impl Journal {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

    fn parse(source: &Source) -> Option<Self> {
        let word = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut journal: Option<Self> = None;
        let mut at = 0;
        loop {
            let head = source.read(at, 28);
            if !head.starts_with(&Self::MAGIC) {
                break;
            }
            let (count, nonce, size) = (word(&head, 8)?, word(&head, 12)?, word(&head, 16)?);
            let (sector, page_size) = (word(&head, 20)?, word(&head, 24)?);
            if !SIZES.contains(&page_size) || !(32..=65536).contains(&sector) || !sector.is_power_of_two() {
                break;
            }
            let into = journal.get_or_insert_with(|| Self { pages: HashMap::new(), size });
            at += u64::from(sector);
            let mut done = 0;
            while count == u32::MAX || done < count {
                let record = source.read(at, page_size as usize + 8);
                if record.len() < page_size as usize + 8 {
                    break;
                }
                let page = &record[4..4 + page_size as usize];
                let mut sum = nonce;
                let mut byte = page.len() as i64 - 200;
                while byte > 0 {
                    sum = sum.wrapping_add(u32::from(page[byte as usize]));
                    byte -= 200;
                }
                if Some(sum) != word(&record, 4 + page_size as usize) {
                    break;
                }
                // The first record of a page is the page before the transaction.
                into.pages.entry(word(&record, 0)?).or_insert(at + 4);
                at += record.len() as u64;
                done += 1;
            }
            if done < count {
                break;
            }
            at = at.next_multiple_of(u64::from(sector));
        }
        journal.filter(|journal| !journal.pages.is_empty())
    }
}
