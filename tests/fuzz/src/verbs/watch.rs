//! Process environment of the scripts: setup of the library, watchdog, and leak checks.

use std::{
    env, fs, panic, process,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use flue_verbs_abi::{objects::ibv_context, settings};

use super::{ffi, memory::Memory};

/// Time limit of a call of the library.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of an asynchronous result.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Panics so far, in any thread: the library catches its own.
static PANICS: AtomicUsize = AtomicUsize::new(0);
/// Call in progress, with its start time.
static CALLING: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// State that exists as long as the process.
pub(super) struct ProcessState {
    /// Device opened by the scripts.
    pub(super) context: *mut ibv_context,
    /// Device of the identifiers.
    pub(super) of_identifiers: *mut ibv_context,
    pub(super) memory: Memory,
}

// SAFETY: one thread at a time owns it.
unsafe impl Send for ProcessState {}

/// Settings of the library: both ends are on this adapter, whose events and errors are those of iWARP. The target
/// `modify` covers the other device.
const SETTINGS: [(&str, &str); 4] = [
    (settings::DEVICE, "iwarp"),
    (settings::RFC7306, "on"),
    (settings::RECEIVE_WAIT, "0.02"),
    (settings::CONTROL, "none"),
];

/// Starts the adapter.
fn start() -> ProcessState {
    for (name, value) in SETTINGS {
        if env::var_os(name).is_none() {
            // SAFETY: no other thread of this process reads the environment except through Rust's API.
            unsafe { env::set_var(name, value) };
        }
    }
    let hook = panic::take_hook();
    // SAFETY: the list has one device, and lists are freed once.
    let (context, of_identifiers) = unsafe {
        let list = ffi::ibv_get_device_list(core::ptr::null_mut());
        let context = ffi::ibv_open_device(*list);
        ffi::ibv_free_device_list(list);
        let list = ffi::rdma_get_devices(core::ptr::null_mut());
        let of_identifiers = *list;
        ffi::rdma_free_devices(list);
        // The first object starts the adapter.
        let pd = ffi::ibv_alloc_pd(context);
        assert_eq!(ffi::ibv_dealloc_pd(pd), 0);
        set_nonblocking((*context).async_fd);
        set_nonblocking((*of_identifiers).async_fd);
        (context, of_identifiers)
    };
    // The library's first call has installed a quiet hook.
    panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        if let Some((_, what)) = CALLING.try_lock().ok().and_then(|mut calling| calling.take()) {
            eprintln!("in {what}:");
        }
        hook(panic);
    }));
    thread::spawn(watch);
    ProcessState { context, of_identifiers, memory: Memory::new() }
}

/// State of the process, for one script at a time.
pub(super) fn process_state() -> &'static Mutex<ProcessState> {
    static PROCESS_STATE: OnceLock<Mutex<ProcessState>> = OnceLock::new();
    PROCESS_STATE.get_or_init(|| Mutex::new(start()))
}

/// Makes reads of a descriptor nonblocking.
pub(super) fn set_nonblocking(descriptor: i32) {
    // SAFETY: changes descriptor flags only; no memory is involved.
    let set = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(set, 0, "fcntl");
}

/// Waits until a descriptor is readable, or for `limit`. True if one is readable.
pub(super) fn is_readable(descriptors: &[i32], limit: Duration) -> bool {
    let poll = |fd: &i32| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = descriptors.iter().map(poll).collect();
    let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the list has this number of entries.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit) > 0 }
}

/// Records the call in progress.
pub(super) fn calling(what: Option<String>) {
    let mut calling = CALLING.lock().unwrap_or_else(PoisonError::into_inner);
    *calling = what.map(|what| (Instant::now(), what));
}

/// Watchdog: aborts the process if a call does not return.
fn watch() {
    loop {
        thread::park_timeout(CALL_LIMIT / 20);
        let calling = CALLING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, what)) = &*calling
            && since.elapsed() > CALL_LIMIT
        {
            eprintln!("{what} does not return");
            process::abort();
        }
    }
}

/// Panics of this process so far.
pub(super) fn panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// System resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ResourceUsage {
    descriptors: usize,
    threads: usize,
}

impl ResourceUsage {
    pub(super) fn now() -> Self {
        let count = |directory| fs::read_dir(directory).map_or(0, Iterator::count);
        Self { descriptors: count("/proc/self/fd"), threads: count("/proc/self/task") }
    }

    pub(super) fn is_within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// If the condition does not hold within the limit.
pub(super) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_LIMIT, "{what}: not within {} s", WAIT_LIMIT.as_secs());
        is_readable(&[], Duration::from_millis(1));
    }
}

/// Message of the crash handler.
static CRASH: AtomicPtr<String> = AtomicPtr::new(core::ptr::null_mut());

extern "C" fn crashed(signal: i32) {
    // SAFETY: messages are never freed, and only async-signal-safe functions are called.
    unsafe {
        if let Some(text) = CRASH.load(Ordering::Relaxed).as_ref() {
            libc::write(2, text.as_ptr().cast(), text.len());
        }
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// Sets the message that a crash of the process prints first. Messages are never freed.
pub fn watch_crashes(mut text: String) {
    text.push('\n');
    if CRASH.swap(Box::into_raw(Box::new(text)), Ordering::Relaxed).is_null() {
        let handler = crashed as extern "C" fn(i32) as libc::sighandler_t;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
            // SAFETY: the handler returns, and the default action follows.
            unsafe { libc::signal(signal, handler) };
        }
    }
}
