//! C interface of event channels: pointers, blocking reads, destroyed channels.

use std::{
    collections::VecDeque,
    ffi::c_int,
    os::fd::AsRawFd,
    ptr,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use flue_verbs_abi::cm::{rdma_cm_event, rdma_event_channel};
use flue_verbs_core::cm::EventChannel;

use super::deliver;
use crate::{
    config, event_queue,
    guard::{self, Errno},
    inherit,
    object::Object,
};

/// State of a channel.
enum ChannelState {
    Open(Arc<EventChannel>),
    /// Destroyed by this thread.
    Destroyed(ThreadId),
}

type EventChannelObject = Object<rdma_event_channel, Mutex<ChannelState>>;

/// Maximum number of destroyed channels whose objects are kept. rping's event thread reads another event while its main
/// thread destroys the channel and exits.
const DESTROYED_MAX: usize = 64;
/// Addresses of destroyed channels, oldest first.
static DESTROYED: Mutex<VecDeque<usize>> = Mutex::new(VecDeque::new());

pub(super) fn make() -> Result<*mut rdma_event_channel, Errno> {
    // The log is opened before descriptors may run out.
    config::open_log();
    let channel = EventChannel::new()?;
    let fd = channel.events().descriptor().as_raw_fd();
    Ok(EventChannelObject::make(rdma_event_channel { fd }, Mutex::new(ChannelState::Open(channel)))
        .cast())
}

/// Returns the private part of a channel. EBADF: it was destroyed.
///
/// # Safety
/// The pointer is null, or refers to a channel that is open or among the last [`DESTROYED_MAX`] destroyed ones.
pub(super) unsafe fn events(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { EventChannelObject::of(channel) }?;
    match &*own.lock().unwrap_or_else(PoisonError::into_inner) {
        ChannelState::Open(channel) => Ok(channel.clone()),
        ChannelState::Destroyed(_) => Err(Errno(libc::EBADF)),
    }
}

/// Frees a channel.
///
/// # Safety
/// The pointer refers to a channel that is no longer used.
pub(super) unsafe fn remove(channel: *mut rdma_event_channel) {
    // SAFETY: guaranteed by the caller.
    unsafe { EventChannelObject::remove(channel) };
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guard::pointer(make)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    guard::nothing(|| {
        // SAFETY: the program passes null or a pointer to a channel.
        let Ok(own) = (unsafe { EventChannelObject::of(channel) }) else { return };
        // SAFETY: as above; a late reader reads the old or the new descriptor.
        unsafe { ptr::write_volatile(&raw mut (*channel).fd, -1) };
        *own.lock().unwrap_or_else(PoisonError::into_inner) =
            ChannelState::Destroyed(thread::current().id());
        let mut destroyed = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
        destroyed.push_back(channel as usize);
        if destroyed.len() > DESTROYED_MAX
            && let Some(oldest) = destroyed.pop_front()
        {
            // SAFETY: it was destroyed that many channels ago.
            unsafe { remove(oldest as *mut rdma_event_channel) };
        }
    });
}

/// Maximum time for which [`fail`] blocks in a process that does not exit.
const FAIL_BLOCK_MAX: Duration = Duration::from_secs(1);

/// Returns true if another thread has destroyed the channel.
///
/// # Safety
/// As for [`events`].
unsafe fn is_destroyed_by_other(channel: *mut rdma_event_channel) -> bool {
    // SAFETY: as for the caller.
    unsafe { EventChannelObject::of(channel) }.is_ok_and(|own| {
        match *own.lock().unwrap_or_else(PoisonError::into_inner) {
            ChannelState::Destroyed(by) => by != thread::current().id(),
            ChannelState::Open(_) => false,
        }
    })
}

/// Returns -1 with errno unchanged. If another thread has destroyed the channel, it blocks before: the kernel does not
/// wake a reader whose descriptor is closed, so programs exit with that thread blocked. A later call must not return
/// either: rping exits on its error, with another status than that of its main thread.
///
/// # Safety
/// As for [`events`].
unsafe fn fail(channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the C library returns a valid pointer to the errno of the thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: as for the caller.
    let since = guard::value(|| unsafe { is_destroyed_by_other(channel) }.then(Instant::now), None);
    if let Some(since) = since {
        // The channel's object may be freed meanwhile.
        while guard::value(|| since.elapsed() < FAIL_BLOCK_MAX || config::is_ending(), false) {
            event_queue::pause();
        }
    }
    guard::set_errno(Errno(errno));
    -1
}

/// `pthread_cancel` may end it while it blocks: no value with `Drop` is live across its read.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the program passes a pointer to a channel.
    let own = guard::event(|| unsafe {
        // A destroyed channel has no descriptor.
        events(channel).map_or(Ok(0), |channel| {
            inherit::take_over(&channel)?;
            channel.events().check_descriptor().map(|()| 0)
        })
    });
    if own != 0 {
        return -1;
    }
    // SAFETY: as above.
    let descriptor = unsafe { ptr::read_volatile(&raw const (*channel).fd) };
    loop {
        if !event_queue::unit(descriptor) {
            // SAFETY: as above.
            let is_blocking =
                || unsafe { events(channel) }.is_ok_and(|it| it.events().is_blocking());
            if event_queue::was_withdrawn(is_blocking) {
                continue;
            }
            // SAFETY: as above.
            return unsafe { fail(channel) };
        }
        // SAFETY: as above; the program passes writable memory for the event.
        let taken = guard::event(|| unsafe {
            let Some(taken) = events(channel)?.take()? else { return Ok(0) };
            event.write_unaligned(deliver(taken)?);
            Ok(1)
        });
        match taken {
            0 => {}
            1 => return 0,
            // SAFETY: as above.
            _ => return unsafe { fail(channel) },
        }
    }
}
