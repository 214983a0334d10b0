//! C interface of waiting: `rpoll` and `rselect`, over rsockets and descriptors of the kernel.

use std::{
    ffi::{c_int, c_short},
    mem,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use flue_verbs_core::rsocket::{Readiness, Socket};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, fd_set, pollfd};

use super::table;
use crate::guard::{self, Errno};

/// Time for which a call polls before it blocks.
const POLL_TIME: Duration = Duration::from_micros(20);

const READABLE: c_short = POLLIN | libc::POLLRDNORM;
const WRITABLE: c_short = POLLOUT | libc::POLLWRNORM;

fn events(wanted: c_short, readiness: Readiness) -> c_short {
    let Readiness { is_readable, is_writable, has_error, is_finished, is_over } = readiness;
    let if_set = |is: bool, events: c_short| if is { events } else { 0 };
    if_set(is_readable, wanted & READABLE)
        | if_set(is_writable, wanted & WRITABLE)
        | if_set(is_finished, wanted & POLLRDHUP)
        | if_set(is_over, POLLHUP)
        | if_set(has_error, POLLERR)
}

/// Descriptors of a call: rsockets, and others in the form of the kernel.
struct PollSet<'a> {
    all: &'a mut [pollfd],
    sockets: Vec<(usize, Arc<Socket>)>,
    /// rsockets of another process.
    inherited: Vec<usize>,
    places: Vec<usize>,
    /// Descriptors of the kernel, in the order of `places`.
    kernel: Vec<pollfd>,
}

impl<'a> PollSet<'a> {
    /// `None`: no rsocket.
    fn new(all: &'a mut [pollfd]) -> Option<Self> {
        let (mut sockets, mut places, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        let mut inherited = Vec::new();
        for (at, descriptor) in all.iter().enumerate() {
            match table::find(descriptor.fd) {
                Ok(socket) => sockets.push((at, socket)),
                Err(Errno(libc::ENODEV)) => inherited.push(at),
                Err(_) => {
                    places.push(at);
                    kernel.push(*descriptor);
                }
            }
        }
        let is_any = !inherited.is_empty() || !sockets.is_empty();
        is_any.then_some(Self { all, sockets, inherited, places, kernel })
    }

    /// Reads the readiness of the rsockets, and returns the number of descriptors with events. rsockets of another
    /// process are invalid.
    fn check(&mut self) -> usize {
        for at in &self.inherited {
            self.all[*at].revents = POLLNVAL;
        }
        for (at, socket) in &self.sockets {
            let descriptor = &mut self.all[*at];
            descriptor.revents = socket
                .readiness()
                .map_or(POLLNVAL, |readiness| events(descriptor.events, readiness));
        }
        for (at, kernel) in self.places.iter().zip(&self.kernel) {
            self.all[*at].revents = kernel.revents;
        }
        self.all.iter().filter(|descriptor| descriptor.revents != 0).count()
    }

    /// Calls poll(2); `extra` is readable to end it.
    fn poll_kernel(
        &mut self,
        extra: Option<c_int>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        let count = self.kernel.len();
        if let Some(fd) = extra {
            self.kernel.push(pollfd { fd, events: POLLIN, revents: 0 });
        }
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let descriptors = self.kernel.as_mut_ptr();
        // SAFETY: the array has this many entries, and the time is null or a time.
        let found = unsafe {
            libc::ppoll(descriptors, self.kernel.len() as libc::nfds_t, time, std::ptr::null())
        };
        let result = if found < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) };
        if result.is_err() {
            self.kernel.iter_mut().for_each(|descriptor| descriptor.revents = 0);
        }
        self.kernel.truncate(count);
        result
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Errno> {
        let begun = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        loop {
            if !self.kernel.is_empty() {
                self.poll_kernel(None, Some(Duration::ZERO))?;
            }
            let polled = Instant::now();
            loop {
                let count = self.check();
                if count > 0 {
                    return Ok(count);
                }
                let Some((_, first)) = self.sockets.first() else { break };
                first.progress();
                if polled.elapsed() > POLL_TIME || left().is_some_and(|left| left.is_zero()) {
                    break;
                }
            }
            let count = self.check();
            if count > 0 || left().is_some_and(|left| left.is_zero()) {
                return Ok(count);
            }
            let Some((_, first)) = self.sockets.first().cloned() else { return Ok(0) };
            let waker = first.waker()?;
            self.sockets.iter().for_each(|(_, socket)| socket.add_waker(&waker));
            let count = self.check();
            let slept = match count {
                0 => self.poll_kernel(Some(waker.descriptor().as_raw_fd()), left()),
                _ => Ok(()),
            };
            self.sockets.iter().for_each(|(_, socket)| socket.remove_waker(&waker));
            first.put_back(waker);
            let count = self.check();
            if count > 0 {
                return Ok(count);
            }
            slept?;
        }
    }
}

pub(crate) unsafe extern "C" fn rpoll(
    descriptors: *mut pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    let mut is_mixed = false;
    let found = guard::number(|| {
        let Ok(count) = usize::try_from(count) else { return Err(Errno(libc::EINVAL)) };
        if count == 0 || descriptors.is_null() {
            return Ok(0);
        }
        // SAFETY: the program passes this many.
        let all = unsafe { std::slice::from_raw_parts_mut(descriptors, count) };
        let Some(mut watched) = PollSet::new(all) else { return Ok(0) };
        is_mixed = true;
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        watched.wait(timeout).map(|count| c_int::try_from(count).unwrap_or(c_int::MAX))
    });
    if is_mixed || found < 0 {
        return found;
    }
    // SAFETY: the caller's arguments, unchanged. It can be cancelled, as poll(2).
    unsafe { libc::poll(descriptors, count, timeout) }
}

/// Returns true if a descriptor is in a set.
unsafe fn has(set: *const fd_set, fd: c_int) -> bool {
    // SAFETY: guaranteed by the caller; the descriptor is below FD_SETSIZE.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    let mut is_mixed = false;
    let found = guard::number(|| {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
            return Ok(0);
        }
        let mut all = Vec::new();
        for fd in 0..count {
            // SAFETY: the program passes sets, or null.
            let wanted = unsafe { [has(read, fd), has(write, fd), has(except, fd)] };
            let events = [POLLIN, POLLOUT, POLLPRI];
            let events = wanted.iter().zip(events).filter(|(is, _)| **is);
            let events = events.fold(0, |all, (_, event)| all | event);
            if events != 0 {
                all.push(pollfd { fd, events, revents: 0 });
            }
        }
        let begun = Instant::now();
        // SAFETY: the program passes a time, or null.
        let time = unsafe { timeout.as_ref() }.map(|time| {
            let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno(libc::EINVAL))?;
            let micros = u64::try_from(time.tv_usec).map_err(|_| Errno(libc::EINVAL))?;
            let whole = Duration::from_secs(seconds);
            Ok::<_, Errno>(whole.saturating_add(Duration::from_micros(micros)))
        });
        let time = time.transpose()?;
        let Some(mut watched) = PollSet::new(&mut all) else { return Ok(0) };
        is_mixed = true;
        watched.wait(time)?;
        if all.iter().any(|descriptor| descriptor.revents & POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let mut found = 0;
        for (set, wanted, seen) in [
            (read, POLLIN, POLLIN | POLLHUP | POLLERR),
            (write, POLLOUT, POLLOUT | POLLERR),
            (except, POLLPRI, POLLPRI),
        ] {
            // SAFETY: the program passes a set, or null.
            let Some(set) = (unsafe { set.as_mut() }) else { continue };
            // SAFETY: zero octets are an empty set.
            *set = unsafe { mem::zeroed() };
            for descriptor in &all {
                if descriptor.events & wanted != 0 && descriptor.revents & seen != 0 {
                    // SAFETY: the descriptor is below FD_SETSIZE.
                    unsafe { libc::FD_SET(descriptor.fd, set) };
                    found += 1;
                }
            }
        }
        // SAFETY: the program passes a time, or null. As with select(2), the remaining time is written.
        if let (Some(left), Some(time)) = (unsafe { timeout.as_mut() }, time) {
            let rest = time.saturating_sub(begun.elapsed());
            left.tv_sec = rest.as_secs().try_into().unwrap_or(libc::time_t::MAX);
            left.tv_usec = rest.subsec_micros().into();
        }
        Ok(found)
    });
    if is_mixed || found < 0 {
        return found;
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { libc::select(count, read, write, except, timeout) }
}
