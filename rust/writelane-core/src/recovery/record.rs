//! Varints and records. Strict: what is not exactly as SQLite writes it is no record.

use crate::sqlite::ValueRef;

/// Read a varint; return it with its length.
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        if at == 8 {
            return Some((value << 8 | u64::from(*byte), 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// A record's fields, borrowed from its payload.
#[derive(Debug, PartialEq)]
pub struct Record<'a> {
    /// The fields. Text is in the database's encoding.
    pub fields: Vec<ValueRef<'a>>,
}

/// More columns a table cannot have (`SQLITE_MAX_COLUMN` at its highest).
const FIELDS_MAX: usize = 32767;

impl<'a> Record<'a> {
    /// Decode a payload; `None` unless header and body fill it exactly.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (header, mut at) = varint(payload)?;
        let header = usize::try_from(header).ok().filter(|header| (at..=payload.len()).contains(header))?;
        let mut body = header;
        let mut fields = Vec::new();
        while at < header {
            let (serial, length) = varint(&payload[at..header])?;
            at += length;
            let size = size_of_serial(serial)?;
            let end = body.checked_add(size).filter(|end| *end <= payload.len())?;
            fields.push(value(serial, &payload[body..end]));
            body = end;
            if fields.len() > FIELDS_MAX {
                return None;
            }
        }
        (body == payload.len() && !fields.is_empty()).then_some(Self { fields })
    }
}

fn size_of_serial(serial: u64) -> Option<usize> {
    match serial {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(serial as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        _ => usize::try_from((serial - 12) / 2).ok(),
    }
}

fn value(serial: u64, bytes: &[u8]) -> ValueRef<'_> {
    let integer = || {
        let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
        bytes.iter().fold(if negative { -1_i64 } else { 0 }, |value, byte| value << 8 | i64::from(*byte))
    };
    match serial {
        0 => ValueRef::Null,
        7 => ValueRef::Real(f64::from_bits(integer() as u64)),
        8 => ValueRef::Integer(0),
        9 => ValueRef::Integer(1),
        1..=6 => ValueRef::Integer(integer()),
        serial if serial % 2 == 0 => ValueRef::Blob(bytes),
        _ => ValueRef::Text(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0x80]), None);
        assert_eq!(varint(&[]), None);
    }

    #[test]
    fn fields_of_every_kind() {
        let payload = [
            9,
            0,
            1,
            2,
            8,
            9,
            7,
            12 + 4,
            13 + 2, // header
            0xff,
            0x01,
            0x00, // -1, 256
            0x3f,
            0xf0,
            0,
            0,
            0,
            0,
            0,
            0, // 1.0
            1,
            2,
            b'x',
        ];
        let record = Record::decode(&payload).unwrap();
        use ValueRef::{Blob, Integer, Null, Real, Text};
        let expected = [Null, Integer(-1), Integer(256), Integer(0), Integer(1), Real(1.0), Blob(&[1, 2]), Text(b"x")];
        assert_eq!(record.fields, expected);
    }

    #[test]
    fn a_record_that_does_not_fill_its_payload_exactly_is_none() {
        assert!(Record::decode(&[2, 1, 5]).is_some());
        assert!(Record::decode(&[2, 1, 5, 0]).is_none());
        assert!(Record::decode(&[2, 2, 5]).is_none());
        assert!(Record::decode(&[2, 10]).is_none());
        assert!(Record::decode(&[1]).is_none());
        assert!(Record::decode(&[0]).is_none());
        assert!(Record::decode(&[]).is_none());
    }
}
