//! Counting allocator, for programs that set it as their global one; the system allocator does the work.
//!
//! Counts are per thread, so concurrent tests do not affect each other. Work inside [`excluded`], the fixtures
//! of a test, is not counted. Memory held by the program is counted for all threads together ([`held_bytes`]).
//! If `FLUE_ALLOCATION_SITES` is set, the call stacks of allocations are recorded too ([`record_sites`]).

use std::{
    alloc::{GlobalAlloc, Layout, System},
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use offload_engine::sync::locks_taken;

/// Wrapping sum over all threads: a thread may free memory that another one allocated.
static HELD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ALLOCATED: Cell<Allocations> = const { Cell::new(Allocations { count: 0, bytes: 0 }) };
    static LOCKS_EXCLUDED: Cell<u64> = const { Cell::new(0) };
    static EXCLUDED: Cell<u32> = const { Cell::new(0) };
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    static SITES: RefCell<BTreeMap<String, Site>> = const { RefCell::new(BTreeMap::new()) };
}

/// Number and size of allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allocations {
    /// Allocations, and reallocations that grew.
    pub count: u64,
    /// Bytes requested.
    pub bytes: u64,
}

/// Resources used by a thread so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Memory.
    pub allocations: Allocations,
    /// Locks of `offload_engine::sync`.
    pub locks: u64,
}

impl Usage {
    /// Usage of this thread, up to now.
    pub fn now() -> Self {
        Self { allocations: ALLOCATED.get(), locks: locks_taken() - LOCKS_EXCLUDED.get() }
    }

    /// Usage since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            allocations: Allocations {
                count: self.allocations.count - earlier.allocations.count,
                bytes: self.allocations.bytes - earlier.allocations.bytes,
            },
            locks: self.locks - earlier.locks,
        }
    }
}

/// Call site of allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Site {
    /// Number of allocations.
    pub count: u64,
    /// Total bytes.
    pub bytes: u64,
}

/// Runs `work` without counting it.
#[inline(always)]
pub fn excluded<R>(work: impl FnOnce() -> R) -> R {
    let locks = locks_taken();
    EXCLUDED.set(EXCLUDED.get() + 1);
    let result = work();
    EXCLUDED.set(EXCLUDED.get() - 1);
    LOCKS_EXCLUDED.set(LOCKS_EXCLUDED.get() + locks_taken() - locks);
    result
}

/// Bytes that the program holds now, by requested size, of all threads and including excluded work.
pub fn held_bytes() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Records memory that was returned, unless it is null.
fn hold(memory: *mut u8, bytes: usize) -> *mut u8 {
    if !memory.is_null() {
        HELD.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    memory
}

/// True if this run must report its allocation sites.
pub fn is_site_recording_requested() -> bool {
    std::env::var_os("FLUE_ALLOCATION_SITES").is_some()
}

/// Records the call stacks of this thread's allocations while `work` runs; returns them with their counts.
/// Slow.
pub fn record_sites<R>(work: impl FnOnce() -> R) -> (R, BTreeMap<String, Site>) {
    RECORDING.set(true);
    let result = work();
    RECORDING.set(false);
    (result, SITES.with_borrow_mut(std::mem::take))
}

/// Allocator that counts and forwards to the system's.
#[derive(Debug)]
pub struct CountingAllocator;

// SAFETY: every call is forwarded to `System` unchanged; the counting does not touch the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        hold(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        hold(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() {
            count(new_size);
        }
        // SAFETY: as above.
        let moved = unsafe { System.realloc(memory, layout, new_size) };
        if !moved.is_null() {
            let more = (new_size as u64).wrapping_sub(layout.size() as u64);
            HELD.fetch_add(more, Ordering::Relaxed);
        }
        moved
    }
}

fn count(bytes: usize) {
    // An exiting thread still allocates; its counts are no longer read.
    let is_excluded = EXCLUDED.try_with(Cell::get).unwrap_or(1) > 0;
    if is_excluded {
        return;
    }
    let _ = ALLOCATED.try_with(|allocated| {
        let Allocations { count, bytes: before } = allocated.get();
        allocated.set(Allocations { count: count + 1, bytes: before + bytes as u64 });
    });
    if RECORDING.try_with(Cell::get).unwrap_or(false) {
        excluded(|| keep_site(bytes));
    }
}

fn keep_site(bytes: usize) {
    let stack = own_frames(&Backtrace::force_capture().to_string());
    SITES.with_borrow_mut(|sites| {
        let site = sites.entry(stack).or_default();
        site.count += 1;
        site.bytes += bytes as u64;
    });
}

/// Frames of a backtrace in the crates of the data path, innermost first, one per line.
fn own_frames(backtrace: &str) -> String {
    let mut stack = String::new();
    let mut lines = backtrace.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once(": ") else { continue };
        let place = lines.next_if(|next| next.trim_start().starts_with("at ")).unwrap_or("");
        let place = place.trim_start().trim_start_matches("at ").trim_start_matches("./");
        let is_own = ["offload-engine/", "host-stack/", "rdma-over-tcp/", "tests/guard/src/stream"];
        let Some(at) = is_own.iter().find_map(|own| place.find(own)) else { continue };
        let _ = writeln!(stack, "{} ({})", function.trim(), &place[at..]);
    }
    stack
}

#[cfg(test)]
mod tests {
    use super::own_frames;

    #[test]
    fn frames_of_the_data_path_are_kept() {
        let backtrace = "   0: alloc::alloc::alloc\n             at /rustc/1/library/alloc/src/alloc.rs:1:9\n   \
                         1: offload_engine::tcp::send::Queue::push\n             at \
                         /home/me/flue/offload-engine/src/tcp/send.rs:7:5\n   2: main\n";
        let frames =
            "offload_engine::tcp::send::Queue::push (offload-engine/src/tcp/send.rs:7:5)\n";
        assert_eq!(own_frames(backtrace), frames);
    }
}
