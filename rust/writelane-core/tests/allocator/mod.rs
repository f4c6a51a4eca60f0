//! An allocator that counts: what all threads have taken, and how often each asked and all did.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the usual allocator adds to each allocation, and rounds it up to.
const OVERHEAD: usize = 8;
const GRAIN: usize = 16;

/// Bytes that all threads have now.
pub static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Allocations of all threads.
pub static CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN_CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Return the allocations of this thread.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn own_calls() -> usize {
    OWN_CALLS.get()
}

struct Counting;

fn real(layout: Layout) -> usize {
    (layout.size() + OVERHEAD).next_multiple_of(GRAIN)
}

// SAFETY: everything is done by the system's allocator; it is only counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(real(layout), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // A thread that ends may free and allocate after its own count is gone.
        let _ = OWN_CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(real(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
