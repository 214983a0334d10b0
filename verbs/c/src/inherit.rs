//! C interface of inheritance by the child of a fork: fork handler, descriptors, thread.
//!
//! A child that calls the library has it at once. One that only polls the descriptor of a channel is woken by a thread:
//! when the parent has ended, and a connection waits. A node has one process: the thread takes it over when the parent
//! has ended.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use flue_verbs_core::{
    cm::{self, EventChannel},
    device::Device,
    event_queue::EventQueue,
};
use offload_engine::thread;
use rustix::event::{EventfdFlags, eventfd};

use crate::guard::{self, Errno};

/// Time in which a parent that has a node ends, and its launcher has reset its connections.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two attempts to have the node.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// Starts the adapter of a process. `EBUSY`: another process has the node.
type Start = fn() -> Result<&'static Device, Errno>;

static START: OnceLock<Start> = OnceLock::new();

/// Has children of this process take over what it leaves to them.
///
/// # Errors
/// No memory is left.
pub(crate) fn install_fork_handler(start: Start) -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let _ = START.set(start);
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: the handler counts, and may start a thread.
        match unsafe { libc::pthread_atfork(None, None, Some(forked)) } {
            0 => Ok(()),
            error => Err(error),
        }
    });
    installed.map_err(Errno)
}

unsafe extern "C" fn forked() {
    flue_verbs_core::process::forked();
    watch();
}

/// The adapter of this process, for what it takes over.
///
/// # Errors
/// `ENODEV`: the node is still the parent's.
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
                tracing::error!(%error, "node of the parent process not taken over: it ends with the parent");
                return Err(Errno(libc::ENODEV));
            }
            started => return started,
        }
    }
}

/// Has an inherited channel belong to this process.
///
/// # Errors
/// `ENODEV`: it cannot.
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
            "event channel of the parent process not taken over: its identifiers stay with the parent"
        );
        Errno(libc::ENODEV)
    })
}

/// Has an inherited queue of events belong to this process, which has an object whose events go there.
///
/// # Errors
/// `ENODEV`: another thread was using it at the fork.
pub(crate) fn take_queue<T>(queue: &EventQueue<T>) -> Result<(), Errno> {
    if queue.is_own() {
        return Ok(());
    }
    separate(queue)?;
    queue.take_over()
}

/// Has the descriptor of a queue count events of this process only. Until the parent has ended it counts those of both.
fn separate<T>(queue: &EventQueue<T>) -> Result<(), Errno> {
    let parent = Device::inherited().next();
    if parent.is_none_or(|parent| parent.wait_for_end_of_process(Some(Duration::ZERO))) {
        return Ok(());
    }
    queue.check_descriptor()?;
    let number = queue.descriptor().as_raw_fd();
    let own: OwnedFd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)
        .map_err(|error| Errno(error.raw_os_error()))?;
    // SAFETY: no memory is involved. The number is that of the channel, which this process has to itself.
    let replaced = unsafe {
        let flags = libc::fcntl(number, libc::F_GETFL);
        libc::fcntl(own.as_raw_fd(), libc::F_SETFL, flags);
        libc::dup3(own.as_raw_fd(), number, libc::O_CLOEXEC)
    };
    if replaced < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// In the child of a fork: wakes it when it is the only one left that can accept connections.
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
    // Without it a child that calls the library is served all the same.
    let _ = thread::start("flue-inherit", run);
}
