//! C interface of inheritance by the child of a fork: fork handler, descriptors, thread.
//!
//! A child closes its copies of the descriptors of connections, and of listeners for queue pairs that programs connect.
//! A child that calls the library takes its objects over in the call. A child that only polls the descriptor of a
//! channel is woken by a thread, once the parent has exited and a connection is in an accept queue. A node belongs to
//! one process: the thread takes it over once the parent has exited.

use std::{
    cell::Cell,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use flue_verbs_core::{
    cm::{self, EventChannel},
    device::Device,
    event_queue::EventQueue,
    process::{self, ForkGate, GATE_WAIT_MAX},
    rendezvous,
};
use offload_engine::thread;
use rdma_over_tcp::transport::ConnectionDescriptors;
use rustix::event::{EventfdFlags, eventfd};

use crate::guard::{self, Errno};

/// Maximum time for the exit of a parent with a node, and for the reset of its connections by the launcher.
const INHERIT_LIMIT: Duration = Duration::from_secs(3);
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

thread_local! {
    /// Connections of this process, during a fork by this thread.
    static CONNECTIONS: Cell<Option<ConnectionDescriptors>> = const { Cell::new(None) };
}

unsafe extern "C" fn before() {
    ForkGate::close();
    // Without it, the child keeps its copies of the descriptors.
    let _ = CONNECTIONS.try_with(|held| held.set(ConnectionDescriptors::hold(GATE_WAIT_MAX)));
}

/// Returns the connections that [`before`] has held.
fn held_connections() -> Option<ConnectionDescriptors> {
    CONNECTIONS.try_with(Cell::take).ok().flatten()
}

unsafe extern "C" fn after() {
    drop(held_connections());
    ForkGate::open();
}

unsafe extern "C" fn forked() {
    match held_connections() {
        Some(mut connections) => {
            for number in connections.take() {
                // SAFETY: no memory is involved. The descriptor is a copy of the parent's, whose adapter this process
                // does not run.
                unsafe { libc::close(number) };
            }
        }
        None => ConnectionDescriptors::abandon(),
    }
    ForkGate::open();
    process::forked();
    rendezvous::close_inherited();
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
    let deadline = Instant::now() + INHERIT_LIMIT;
    parent.wait_for_end_of_process(Some(INHERIT_LIMIT));
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

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier, Mutex,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    /// Time in the gate, in which a fork that does not wait takes place. A run in which a thread took more than twice
    /// as long, on a busy machine, has no result.
    const HOLD: Duration = GATE_WAIT_MAX.checked_div(4).unwrap();

    /// Lock that a thread takes only in the gate.
    static LOCK: Mutex<()> = Mutex::new(());

    /// Forks. The child calls `run` and exits with the result, which is returned.
    fn fork(run: fn() -> i32, forked: impl FnOnce()) -> i32 {
        let mut status = 0;
        // SAFETY: the child calls functions that take no lock of another thread, and does not return.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(run());
            }
            forked();
            assert!(child > 0);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status)
    }

    const LOCK_IS_HELD: i32 = 1;
    const GATE_IS_CLOSED: i32 = 2;

    /// Child: takes the lock, and enters the gate.
    fn enter_both() -> i32 {
        let lock_is_held = LOCK.try_lock().is_err();
        let since = Instant::now();
        drop(ForkGate::enter());
        let gate_is_closed = since.elapsed() >= GATE_WAIT_MAX;
        i32::from(lock_is_held) * LOCK_IS_HELD + i32::from(gate_is_closed) * GATE_IS_CLOSED
    }

    /// One thread is in the gate and holds the lock, while another one forks. Returns the child's result, or `None` if
    /// the thread was in the gate for too long.
    fn fork_beside_a_thread_in_the_gate() -> Option<i32> {
        let (entered, has_forked) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let gate = ForkGate::enter();
                let since = Instant::now();
                let locked = LOCK.lock().expect("no test panics with it");
                entered.wait();
                while since.elapsed() < HOLD && !has_forked.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let was_forked_meanwhile = has_forked.load(Ordering::Acquire);
                drop(locked);
                let time = since.elapsed();
                drop(gate);
                assert!(time > 2 * HOLD || !was_forked_meanwhile, "a fork has not waited");
                time <= 2 * HOLD
            });
            entered.wait();
            let found = fork(enter_both, || has_forked.store(true, Ordering::Release));
            inside.join().expect("the fork waits").then_some(found)
        })
    }

    // The bound is for a signal handler that forks, of a thread in the gate.
    #[test]
    fn fork_waits_for_a_thread_in_the_gate_but_not_for_itself() {
        install_fork_handler(|| Err(Errno(libc::ENODEV))).expect("memory for the handlers");
        let deadline = Instant::now() + LIMIT;
        loop {
            match fork_beside_a_thread_in_the_gate() {
                Some(0) => break,
                Some(found) => assert_eq!(found & LOCK_IS_HELD, 0, "fork with the lock held"),
                None => {}
            }
            assert!(Instant::now() < deadline, "the gate is closed in the child");
        }

        let gate = ForkGate::enter();
        let since = Instant::now();
        assert_eq!(fork(|| 0, || ()), 0);
        assert!(since.elapsed() >= GATE_WAIT_MAX);
        drop(gate);
    }
}
