//! An allocator that counts, for programs that set it as their global one; the system's does the work.
//!
//! Counts are those of a thread, so tests beside each other do not disturb each other. What a thread does inside
//! [`excluded`] is not counted: the fixtures of a test. What the program holds is counted for all threads together
//! ([`held_bytes`]). Where `FLUE_ALLOCATION_SITES` is set the calls that led to an
//! allocation are kept too ([`record_sites`]).

use std::{
    alloc::{GlobalAlloc, Layout, System},
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use offload_engine::sync::locks_taken;

/// Sums of all threads that wrap: memory is given back by other threads than have got it.
static HELD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ALLOCATED: Cell<Allocations> = const { Cell::new(Allocations { count: 0, bytes: 0 }) };
    static LOCKS_EXCLUDED: Cell<u64> = const { Cell::new(0) };
    static EXCLUDED: Cell<u32> = const { Cell::new(0) };
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    static SITES: RefCell<BTreeMap<String, Site>> = const { RefCell::new(BTreeMap::new()) };
}

/// Calls of the allocator that gave memory, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allocations {
    /// Allocations, and reallocations that grew.
    pub count: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// What a thread has used so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Memory.
    pub allocations: Allocations,
    /// Locks of `offload_engine::sync`.
    pub locks: u64,
}

impl Usage {
    /// Of this thread, up to now.
    pub fn now() -> Self {
        Self { allocations: ALLOCATED.get(), locks: locks_taken() - LOCKS_EXCLUDED.get() }
    }

    /// What has come since `earlier`.
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

/// One place that allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Site {
    /// How often it did.
    pub count: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// Does `work` without counting it.
#[inline(always)]
pub fn excluded<R>(work: impl FnOnce() -> R) -> R {
    let locks = locks_taken();
    EXCLUDED.set(EXCLUDED.get() + 1);
    let result = work();
    EXCLUDED.set(EXCLUDED.get() - 1);
    LOCKS_EXCLUDED.set(LOCKS_EXCLUDED.get() + locks_taken() - locks);
    result
}

/// Bytes that the program holds now, as they were asked for, of all threads and whether counted or not.
pub fn held_bytes() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Memory that was given, or not.
fn hold(memory: *mut u8, bytes: usize) -> *mut u8 {
    if !memory.is_null() {
        HELD.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    memory
}

/// True if this run is to say where it allocates.
pub fn wants_sites() -> bool {
    std::env::var_os("FLUE_ALLOCATION_SITES").is_some()
}

/// Keeps the call stacks of this thread's allocations while `work` runs; returns them with how often each was seen.
/// Slow.
pub fn record_sites<R>(work: impl FnOnce() -> R) -> (R, BTreeMap<String, Site>) {
    RECORDING.set(true);
    let result = work();
    RECORDING.set(false);
    (result, SITES.with_borrow_mut(std::mem::take))
}

/// Counts, and has the system allocate.
#[derive(Debug)]
pub struct CountingAllocator;

// SAFETY: every call goes to `System` as it came; what is done beside it does not touch the memory.
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
    // A thread that ends still allocates; nobody asks it any more.
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

/// The frames of a backtrace that lie in the crates of the data path, innermost first, one a line.
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
