//! Event channels, and their events.

use std::{
    collections::VecDeque,
    ffi::c_int,
    os::fd::AsRawFd,
    ptr,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use flue_verbs_abi::cm::{rdma_cm_event, rdma_event_channel};
use flue_verbs_core::cm::EventChannel;

use super::deliver;
use crate::{
    config,
    guard::{self, Errno},
    heir,
    object::Object,
    read,
};

/// A channel; `None` when the program has destroyed it.
type ChannelObject = Object<rdma_event_channel, Mutex<Option<Arc<EventChannel>>>>;

/// Destroyed channels of which the object is kept. A thread of rping's asks for another event of a channel while its
/// main thread destroys that and ends the process: what it finds must say so.
const DESTROYED_MAX: usize = 64;
/// Their addresses, the oldest first.
static DESTROYED: Mutex<VecDeque<usize>> = Mutex::new(VecDeque::new());

pub(super) fn make() -> Result<*mut rdma_event_channel, Errno> {
    let channel = EventChannel::new()?;
    let fd = channel.events().descriptor().as_raw_fd();
    Ok(ChannelObject::make(rdma_event_channel { fd }, Mutex::new(Some(channel))).cast())
}

/// Our part of a channel. EBADF: it was destroyed.
///
/// # Safety
/// The pointer is null, or of a channel that was not destroyed long ago.
pub(super) unsafe fn events(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
    // SAFETY: as the caller says.
    let own = unsafe { ChannelObject::of(channel) }?;
    own.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno(libc::EBADF))
}

/// Ends a channel that no other thread knows.
///
/// # Safety
/// The pointer is of a channel, which nobody uses any more.
pub(super) unsafe fn remove(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller says.
    unsafe { ChannelObject::remove(channel) };
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guard::pointer(make)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    guard::nothing(|| {
        // SAFETY: the program's pointer is null or one of a channel.
        let Ok(own) = (unsafe { ChannelObject::of(channel) }) else { return };
        // SAFETY: as above; a reader that comes too late finds the old or the new descriptor.
        unsafe { ptr::write_volatile(&raw mut (*channel).fd, -1) };
        own.lock().unwrap_or_else(PoisonError::into_inner).take();
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

/// Whether the caller is to wait for the end of its process: the channel was destroyed, and the main thread is on its
/// way out. Without a node's last words, for which exit waits, the caller would not have come so far.
unsafe fn is_at_the_end(channel: *mut rdma_event_channel) -> bool {
    // SAFETY: as the caller of [`rdma_get_cm_event`] says.
    config::is_ending() && unsafe { events(channel) }.is_err()
}

/// Cancelled by `pthread_cancel` while it blocks: no value with `Drop` lives across its read.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the program's pointer is one of a channel.
    let own = guard::event(|| unsafe {
        // One that was destroyed has no descriptor.
        events(channel).map_or(Ok(0), |events| heir::take_over(&events).map(|()| 0))
    });
    if own != 0 {
        return -1;
    }
    // SAFETY: as above.
    let descriptor = unsafe { ptr::read_volatile(&raw const (*channel).fd) };
    loop {
        if !read::unit(descriptor) {
            // SAFETY: as above.
            let is_ours = read::would_block()
                && unsafe { events(channel) }.is_ok_and(|channel| channel.events().is_blocking());
            if is_ours {
                continue;
            }
            // SAFETY: as above.
            while unsafe { is_at_the_end(channel) } {
                thread::park();
            }
            return -1;
        }
        // SAFETY: as above; the program gives a place for the event.
        let taken = guard::event(|| unsafe {
            let Some(taken) = events(channel)?.take()? else { return Ok(0) };
            event.write_unaligned(deliver(taken)?);
            Ok(1)
        });
        match taken {
            0 => {}
            1 => return 0,
            _ => return -1,
        }
    }
}
