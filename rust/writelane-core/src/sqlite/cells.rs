//! Many values in two allocations.

use super::value::ValueRef;

#[derive(Clone, Copy)]
enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text { length: u32, start: usize },
    Blob { length: u32, start: usize },
}

// The rows of a batch are written and read again while they are in the processor's cache.
const _: () = assert!(size_of::<Cell>() == 16);

/// A flat list of values: rows on their way out, parameters on their way in.
///
/// It is filled and read on different sides of the interpreter's lock, so it holds plain bytes, and it is
/// cleared and used again, so that a row costs no allocation.
#[derive(Default)]
pub struct Cells {
    cells: Vec<Cell>,
    bytes: Vec<u8>,
}

impl Cells {
    /// Add a value.
    ///
    /// # Panics
    /// For text or a blob longer than SQLite knows any.
    #[inline(always)]
    pub fn push(&mut self, value: ValueRef<'_>) {
        let cell = match value {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(i) => Cell::Integer(i),
            ValueRef::Real(r) => Cell::Real(r),
            ValueRef::Text(text) => {
                let (length, start) = self.keep(text);
                Cell::Text { length, start }
            }
            ValueRef::Blob(blob) => {
                let (length, start) = self.keep(blob);
                Cell::Blob { length, start }
            }
        };
        self.cells.push(cell);
    }

    #[inline]
    fn keep(&mut self, bytes: &[u8]) -> (u32, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let Ok(length) = u32::try_from(bytes.len()) else { panic!("the lengths of SQLite's values are C ints") };
        (length, start)
    }

    /// Return the value at `index`.
    ///
    /// # Panics
    /// Where there is none.
    #[inline(always)]
    pub fn get(&self, index: usize) -> ValueRef<'_> {
        match self.cells[index] {
            Cell::Null => ValueRef::Null,
            Cell::Integer(i) => ValueRef::Integer(i),
            Cell::Real(r) => ValueRef::Real(r),
            Cell::Text { length, start } => ValueRef::Text(&self.bytes[start..][..length as usize]),
            Cell::Blob { length, start } => ValueRef::Blob(&self.bytes[start..][..length as usize]),
        }
    }

    /// Make room for so many more values.
    #[inline]
    pub fn reserve(&mut self, values: usize) {
        self.cells.reserve(values);
    }

    /// Return the number of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Say whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Return the bytes of text and blobs kept.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Drop the values behind the first `length`; their bytes go with the next [`Cells::clear`].
    pub fn truncate(&mut self, length: usize) {
        self.cells.truncate(length);
    }

    /// Drop every value and keep the room.
    pub fn clear(&mut self) {
        self.cells.clear();
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_went_in() {
        let mut cells = Cells::default();
        let values = [
            ValueRef::Null,
            ValueRef::Integer(-3),
            ValueRef::Text(b""),
            ValueRef::Text(b"ab\0c"),
            ValueRef::Real(0.5),
            ValueRef::Blob(b"\xff"),
        ];
        for value in values {
            cells.push(value);
        }
        let back: Vec<ValueRef<'_>> = (0..cells.len()).map(|index| cells.get(index)).collect();
        assert_eq!(back, values);
        assert_eq!(cells.byte_len(), 5);
        cells.clear();
        assert!(cells.is_empty());
    }
}
