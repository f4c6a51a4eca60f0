//! Values as SQLite stores them.

/// An owned SQLite value.
///
/// Text is kept as the bytes SQLite holds: they are UTF-8 when they came from us, but a file may hold anything.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// A 64-bit signed integer.
    Integer(i64),
    /// A 64-bit float.
    Real(f64),
    /// Text, as the bytes SQLite holds.
    Text(Box<[u8]>),
    /// A blob.
    Blob(Box<[u8]>),
}

/// A value of the current row, valid until its statement moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    /// SQL NULL.
    Null,
    /// A 64-bit signed integer.
    Integer(i64),
    /// A 64-bit float.
    Real(f64),
    /// Text, as the bytes SQLite holds.
    Text(&'a [u8]),
    /// A blob.
    Blob(&'a [u8]),
}

impl Value {
    /// Return the bytes this value keeps on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Text(bytes) | Value::Blob(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(i) => Value::Integer(i),
            ValueRef::Real(r) => Value::Real(r),
            ValueRef::Text(t) => Value::Text(t.into()),
            ValueRef::Blob(b) => Value::Blob(b.into()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.as_bytes().into())
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Value::Integer(integer)
    }
}
