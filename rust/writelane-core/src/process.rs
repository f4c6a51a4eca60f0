//! This process: which one it is, also after a fork.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// Return a number that a forked child finds raised: what was made under another number was inherited.
#[inline]
pub fn generation() -> u64 {
    WATCH.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is safe in a child of any fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
