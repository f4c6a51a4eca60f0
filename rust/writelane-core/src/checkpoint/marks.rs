//! Which read marks of the log are held.

use crate::holder::{beside, locks};
use std::path::Path;

/// Return the read marks, 1 to 4, that anybody holds on the log of the database at `path`, as the kernel lists them.
/// Opens none of its files. Mark 0 is left out: who holds it reads the database file only, and pins no page of the log.
pub fn held(path: &Path) -> Vec<u8> {
    let locks = locks::on_file(&beside(path, "-shm")).unwrap_or_default();
    let marks = (0_u8..).zip(locks::WAL_READERS).skip(1);
    marks.filter(|(_, byte)| locks.iter().any(|lock| lock.holds(*byte))).map(|(mark, _)| mark).collect()
}
