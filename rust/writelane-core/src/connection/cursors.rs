//! The half-read statements of a connection.

use super::Rows;
use std::collections::BTreeMap;

/// What the statements of a connection have yet to give, each under its number.
///
/// While one runs it is out of its place, since SQLite may call back into here. The place stays, so that nothing is made
/// anew for each row.
#[derive(Default)]
pub(super) struct Cursors {
    places: BTreeMap<u64, Option<Box<Rows>>>,
}

impl Cursors {
    pub(super) fn insert(&mut self, number: u64, rows: Rows) {
        self.places.insert(number, Some(Box::new(rows)));
    }

    /// Take a statement out of its place, to run it; `None`: there is none, or it runs.
    pub(super) fn take(&mut self, number: u64) -> Option<Box<Rows>> {
        self.places.get_mut(&number)?.take()
    }

    /// Put it back. Returned is what finds its place gone, to be dropped by the caller when nothing of this is borrowed.
    #[must_use]
    pub(super) fn put_back(&mut self, number: u64, rows: Box<Rows>) -> Option<Box<Rows>> {
        match self.places.get_mut(&number) {
            Some(place) => {
                *place = Some(rows);
                None
            }
            None => Some(rows),
        }
    }

    /// Take a statement and its place away.
    pub(super) fn remove(&mut self, number: u64) -> Option<Box<Rows>> {
        self.places.remove(&number)?
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Rows> {
        self.places.get_mut(&number)?.as_deref_mut()
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.places.keys().copied().collect()
    }
}
