//! C interface of inheritance by the child of a fork: fork handler, descriptors, thread.
//!
//! A child that calls the library takes its objects over in the call. A child that only polls the descriptor of a
//! channel is woken by a thread, once the parent has exited and a connection is in an accept queue. A node belongs to
//! one process: the thread takes it over once the parent has exited.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use flue_verbs_core::{
    cm::{self, EventChannel},
    device::Device,
    event_queue::EventQueue,
    process::{self, ForkGate},
};
use offload_engine::thread;
use rustix::event::{EventfdFlags, eventfd};

use crate::guard::{self, Errno};

/// Maximum time for the exit of a parent with a node, and for the reset of its connections by the launcher.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two attempts to open the node.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// Function that starts the device of a process. `EBUSY`: in use by another process.
type Start = fn() -> Result<&'static Device, Errno>;

static START: OnceLock<Start> = OnceLock::new();

/// Installs the fork handler, with which children take objects of this process over.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn install_fork_handler(start: Start) -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let _ = START.set(start);
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: the handlers set a flag, increment a counter, and may start a thread.
        match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(forked)) } {
            0 => Ok(()),
            error => Err(error),
        }
    });
    installed.map_err(Errno)
}

unsafe extern "C" fn before() {
    ForkGate::close();
}

unsafe extern "C" fn after() {
    ForkGate::open();
}

unsafe extern "C" fn forked() {
    ForkGate::open();
    process::forked();
    watch();
}

/// Returns the device of this process, for objects that it takes over.
///
/// # Errors
/// `ENODEV`: the parent still has the node.
pub(crate) fn device() -> Result<&'static Device, Errno> {
    let start = START.get().ok_or(Errno(libc::ENODEV))?;
    let parent = Device::inherited().next();
    let Some(parent) = parent.filter(|parent| parent.is_exclusive()) else {
        return start();
    };
    let deadline = Instant::now() + TAKE_OVER_LIMIT;
    parent.wait_for_end_of_process(Some(TAKE_OVER_LIMIT));
    loop {
        match start() {
            Err(Errno(libc::EBUSY)) if Instant::now() < deadline => {
                std::thread::park_timeout(ATTEMPT_PAUSE);
            }
            Err(error) => {
                tracing::error!(%error, "node of the parent process not inherited: it exits with the parent");
                return Err(Errno(libc::ENODEV));
            }
            started => return started,
        }
    }
}

/// Transfers an inherited channel to this process.
///
/// # Errors
/// `ENODEV`: not inheritable.
pub(crate) fn take_over(channel: &Arc<EventChannel>) -> Result<(), Errno> {
    if channel.events().is_own() {
        return Ok(());
    }
    let found = if channel.is_inheritable() { device() } else { Err(Errno(libc::ENODEV)) };
    let taken = found.and_then(|device| {
        separate(channel.events())?;
        channel.take_over(device)
    });
    taken.map_err(|error| {
        tracing::error!(
            %error,
            "event channel of the parent process not inherited: its identifiers remain with the parent"
        );
        Errno(libc::ENODEV)
    })
}

/// Transfers an inherited event queue to this process, for a new object.
///
/// # Errors
/// `ENODEV`: another thread held its lock at the fork.
pub(crate) fn take_queue<T>(queue: &EventQueue<T>) -> Result<(), Errno> {
    if queue.is_own() {
        return Ok(());
    }
    separate(queue)?;
    queue.take_over()
}

/// Replaces the open file behind a queue's descriptor, so that it counts events of this process only. It is shared
/// until the parent has exited.
fn separate<T>(queue: &EventQueue<T>) -> Result<(), Errno> {
    let parent = Device::inherited().next();
    if parent.is_none_or(|parent| parent.wait_for_end_of_process(Some(Duration::ZERO))) {
        return Ok(());
    }
    queue.check_descriptor()?;
    let number = queue.descriptor().as_raw_fd();
    let own: OwnedFd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)
        .map_err(|error| Errno(error.raw_os_error()))?;
    // SAFETY: no memory is involved. The number is that of the queue's descriptor, which only this process changes.
    let replaced = unsafe {
        let flags = libc::fcntl(number, libc::F_GETFL);
        libc::fcntl(own.as_raw_fd(), libc::F_SETFL, flags);
        libc::dup3(own.as_raw_fd(), number, libc::O_CLOEXEC)
    };
    if replaced < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// Starts the thread that wakes the child of a fork once it is the only process that can accept connections.
fn watch() {
    let Some(parent) = Device::inherited().find(|parent| parent.listening() > 0) else { return };
    let run = move || {
        if !parent.wait_for_end_of_process(None) {
            return;
        }
        if !parent.is_exclusive() {
            return cm::announce_connections();
        }
        for channel in cm::listening_channels() {
            guard::nothing(|| _ = take_over(&channel));
        }
    };
    // Without the thread, a child that calls the library still takes its objects over.
    let _ = thread::start("flue-inherit", run);
}
