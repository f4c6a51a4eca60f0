//! One page of a tree, and the cells in it.

use super::image::Image;
use super::record::varint;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Children and keys of a tree of rows without rowids, which has rows on every level.
    IndexInterior,
    /// Children and rowids.
    TableInterior,
    /// Rows, or entries of an index, in order of their fields.
    IndexLeaf,
    /// Rows with rowids.
    TableLeaf,
}

impl Kind {
    fn of(flag: u8) -> Option<Self> {
        match flag {
            2 => Some(Self::IndexInterior),
            5 => Some(Self::TableInterior),
            10 => Some(Self::IndexLeaf),
            13 => Some(Self::TableLeaf),
            _ => None,
        }
    }

    /// Whether it has children.
    pub fn is_interior(self) -> bool {
        matches!(self, Self::IndexInterior | Self::TableInterior)
    }

    /// Whether it belongs to a table with rowids.
    pub fn is_table(self) -> bool {
        matches!(self, Self::TableInterior | Self::TableLeaf)
    }
}

/// A page of a tree.
#[derive(Debug)]
pub struct Page {
    /// Its number.
    pub number: u32,
    /// What it is.
    pub kind: Kind,
    /// The last child, on an interior page.
    pub right: u32,
    /// Whether every pointer to a cell is where it can be.
    pub sound: bool,
    bytes: Vec<u8>,
    cells: Vec<usize>,
}

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The child before it, on an interior page.
    pub child: u32,
    /// The rowid, in a table.
    pub rowid: i64,
    /// Where its payload lies, if it has one.
    pub payload: Option<Payload>,
}

/// Where a payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    length: usize,
    start: usize,
    local: usize,
    overflow: u32,
}

impl Page {
    /// Parse a page of an image; `None` if it cannot be one of a tree.
    pub fn read(image: &Image, number: u32) -> Option<Self> {
        Self::parse(image.page(number)?, number, image.usable())
    }

    fn parse(bytes: Vec<u8>, number: u32, usable: usize) -> Option<Self> {
        let start = if number == 1 { 100 } else { 0 };
        let head = bytes.get(start..start + 12)?;
        let kind = Kind::of(head[0])?;
        let count = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let content = match usize::from(u16::from_be_bytes([head[5], head[6]])) {
            0 => 65536,
            content => content,
        };
        let right = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        let pointers = start + if kind.is_interior() { 12 } else { 8 };
        let after = pointers + 2 * count;
        // Also the count of loose bytes, at most 60, is a sign; but it is one that old versions did not keep to.
        if after > usable || (count > 0 && content > usable) {
            return None;
        }
        let mut cells = Vec::with_capacity(count);
        for pointer in bytes.get(pointers..after)?.chunks_exact(2) {
            let at = usize::from(u16::from_be_bytes([pointer[0], pointer[1]]));
            if at >= after.max(content.min(usable)) && at < usable {
                cells.push(at);
            }
        }
        let sound = cells.len() == count && content >= after;
        Some(Self { number, kind, right, sound, bytes, cells })
    }

    /// Return how many cells it has.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Say whether it has no cells.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Return a cell; `None` if it cannot be one.
    pub fn cell(&self, index: usize, image: &Image) -> Option<Cell> {
        let usable = image.usable();
        let mut at = *self.cells.get(index)?;
        let mut child = 0;
        if self.kind.is_interior() {
            child = u32::from_be_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?);
            at += 4;
            if !(2..=image.pages).contains(&child) {
                return None;
            }
        }
        if self.kind == Kind::TableInterior {
            let (rowid, _) = varint(self.bytes.get(at..usable)?)?;
            return Some(Cell { child, rowid: rowid as i64, payload: None });
        }
        let (length, used) = varint(self.bytes.get(at..usable)?)?;
        at += used;
        let mut rowid = 0;
        if self.kind == Kind::TableLeaf {
            let (value, used) = varint(self.bytes.get(at..usable)?)?;
            rowid = value as i64;
            at += used;
        }
        let length = usize::try_from(length).ok()?;
        let room = u64::from(image.pages) * u64::from(image.header.page_size);
        if length < 2 || length as u64 > room || length > i32::MAX as usize {
            return None;
        }
        let local = local_bytes(length, usable, self.kind);
        let end = at.checked_add(local)?.checked_add(if local < length { 4 } else { 0 })?;
        if end > usable {
            return None;
        }
        let overflow =
            if local < length { u32::from_be_bytes(self.bytes.get(end - 4..end)?.try_into().ok()?) } else { 0 };
        Some(Cell { child, rowid, payload: Some(Payload { length, start: at, local, overflow }) })
    }

    /// Read a payload to its end; `None` if its chain of overflow pages is broken.
    ///
    /// `chained` is called with each page of the chain.
    pub fn payload(&self, payload: Payload, image: &Image, mut chained: impl FnMut(u32)) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.get(payload.start..payload.start + payload.local)?.to_vec();
        let mut next = payload.overflow;
        let each = image.usable() - 4;
        // The length bounds the chain, so that one in a circle ends.
        while bytes.len() < payload.length {
            if !(2..=image.pages).contains(&next) || image.is_reserved(next) {
                return None;
            }
            let page = image.page(next)?;
            chained(next);
            next = u32::from_be_bytes([page[0], page[1], page[2], page[3]]);
            let part = each.min(payload.length - bytes.len());
            bytes.extend_from_slice(page.get(4..4 + part)?);
        }
        // The last page of a chain says so: one that does not has been overwritten.
        (next == 0).then_some(bytes)
    }
}

/// How much of a payload is in its cell, the rest being in overflow pages.
fn local_bytes(length: usize, usable: usize, kind: Kind) -> usize {
    let least = (usable - 12) * 32 / 255 - 23;
    let most = if kind == Kind::TableLeaf { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
    if length <= most {
        return length;
    }
    let fitting = least + (length - least) % (usable - 4);
    if fitting <= most { fitting } else { least }
}

/// Say whether bytes are a leaf of this size that is filled from its end, as nearly all are.
pub fn fills(bytes: &[u8], size: usize) -> bool {
    let flag = bytes.first().copied().and_then(Kind::of);
    if flag.is_none_or(Kind::is_interior) {
        return false;
    }
    let Some(page) = Page::parse(bytes.to_vec(), 2, size) else { return false };
    let ends = |at: usize| {
        let (length, used) = varint(bytes.get(at..)?)?;
        let (_, key) = if page.kind == Kind::TableLeaf { varint(bytes.get(at + used..)?)? } else { (0, 0) };
        let length = usize::try_from(length).ok()?;
        let local = local_bytes(length, size, page.kind);
        Some((at + used + key + local + if local < length { 4 } else { 0 }).max(at + 4))
    };
    page.sound && !page.is_empty() && page.cells.iter().filter_map(|at| ends(*at)).max() == Some(size)
}
