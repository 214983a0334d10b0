//! Interface for a caller in Rust: the same function table that packetdrill calls.

use core::{ffi::c_void, net::SocketAddr, ptr};
use std::io;

use libc::{pollfd, sockaddr, socklen_t, timeval};

use crate::abi::{self, Table, address_bytes};

/// `struct pollfd` of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollDescriptor {
    /// File descriptor.
    pub fd: i32,
    /// Requested events, such as POLLIN.
    pub events: i16,
    /// Returned events.
    pub revents: i16,
}

/// Adapter under test. The thread that creates it drives its clock.
#[derive(Debug)]
pub struct Adapter {
    table: Table,
}

// SAFETY: packetdrill itself calls the table from two threads; all state is protected by a lock.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn check_fd(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Adapter {
    /// Creates an adapter configured by `--so_flags`.
    ///
    /// # Errors
    /// The flag that is not supported.
    pub fn new(flags: &str) -> Result<Self, String> {
        abi::make(flags).map(|table| Self { table })
    }

    /// socket(2).
    ///
    /// # Errors
    /// As the system call; the same applies to all calls below.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> io::Result<i32> {
        check_fd((self.table.socket)(self.table.userdata, domain, kind, protocol))
    }

    /// bind(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn bind(&self, fd: i32, address: SocketAddr) -> io::Result<i32> {
        let bytes = address_bytes(address);
        let length = bytes.len() as socklen_t;
        // SAFETY: the address has `length` bytes.
        check_fd(unsafe {
            (self.table.bind)(self.table.userdata, fd, bytes.as_ptr().cast::<sockaddr>(), length)
        })
    }

    /// listen(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn listen(&self, fd: i32, backlog: i32) -> io::Result<i32> {
        check_fd((self.table.listen)(self.table.userdata, fd, backlog))
    }

    /// accept(2), without the address.
    ///
    /// # Errors
    /// As the system call.
    pub fn accept(&self, fd: i32) -> io::Result<i32> {
        // SAFETY: null is allowed.
        check_fd(unsafe {
            (self.table.accept)(self.table.userdata, fd, ptr::null_mut(), ptr::null_mut())
        })
    }

    /// connect(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn connect(&self, fd: i32, address: SocketAddr) -> io::Result<i32> {
        let bytes = address_bytes(address);
        let length = bytes.len() as socklen_t;
        // SAFETY: the address has `length` bytes.
        check_fd(unsafe {
            (self.table.connect)(self.table.userdata, fd, bytes.as_ptr().cast::<sockaddr>(), length)
        })
    }

    /// recv(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn recv(&self, fd: i32, data: &mut [u8], flags: i32) -> io::Result<usize> {
        // SAFETY: the slice is writable.
        check(unsafe {
            (self.table.recv)(
                self.table.userdata,
                fd,
                data.as_mut_ptr().cast::<c_void>(),
                data.len(),
                flags,
            )
        })
    }

    /// send(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn send(&self, fd: i32, data: &[u8], flags: i32) -> io::Result<usize> {
        // SAFETY: the slice is readable.
        check(unsafe {
            (self.table.send)(
                self.table.userdata,
                fd,
                data.as_ptr().cast::<c_void>(),
                data.len(),
                flags,
            )
        })
    }

    /// fcntl(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn fcntl(&self, fd: i32, command: i32, argument: i32) -> io::Result<i32> {
        check_fd((self.table.fcntl)(self.table.userdata, fd, command, argument))
    }

    /// ioctl(2) of a request that returns an int.
    ///
    /// # Errors
    /// As the system call.
    pub fn ioctl(&self, fd: i32, request: u64) -> io::Result<i32> {
        let mut value = 0;
        // SAFETY: the request writes an int.
        check_fd(unsafe { (self.table.ioctl)(self.table.userdata, fd, request, &raw mut value) })?;
        Ok(value)
    }

    /// close(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn close(&self, fd: i32) -> io::Result<i32> {
        check_fd((self.table.close)(self.table.userdata, fd))
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn shutdown(&self, fd: i32, how: i32) -> io::Result<i32> {
        check_fd((self.table.shutdown)(self.table.userdata, fd, how))
    }

    /// getsockopt(2): at most `room` bytes of the value.
    ///
    /// # Errors
    /// As the system call.
    pub fn getsockopt(&self, fd: i32, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        let mut value = vec![0; room];
        let mut length = room as socklen_t;
        // SAFETY: `length` bytes are writable.
        check_fd(unsafe {
            (self.table.getsockopt)(
                self.table.userdata,
                fd,
                level,
                name,
                value.as_mut_ptr().cast::<c_void>(),
                &raw mut length,
            )
        })?;
        value.truncate(length as usize);
        Ok(value)
    }

    /// setsockopt(2).
    ///
    /// # Errors
    /// As the system call.
    pub fn setsockopt(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> io::Result<i32> {
        let length = value.len() as socklen_t;
        // SAFETY: `length` bytes are readable.
        check_fd(unsafe {
            (self.table.setsockopt)(
                self.table.userdata,
                fd,
                level,
                name,
                value.as_ptr().cast::<c_void>(),
                length,
            )
        })
    }

    /// poll(2); `timeout` in milliseconds, negative: none.
    ///
    /// # Errors
    /// As the system call.
    pub fn poll(&self, descriptor: &mut PollDescriptor, timeout: i32) -> io::Result<i32> {
        let PollDescriptor { fd, events, revents: _ } = *descriptor;
        let mut raw = pollfd { fd, events, revents: 0 };
        // SAFETY: one descriptor, which is writable.
        let ready = unsafe { (self.table.poll)(self.table.userdata, &raw mut raw, 1, timeout) };
        descriptor.revents = raw.revents;
        check_fd(ready)
    }

    /// Passes an IP packet to the adapter.
    pub fn inject(&self, packet: &[u8]) {
        // SAFETY: the slice is readable. The result is always 0.
        unsafe {
            (self.table.netdev_send)(
                self.table.userdata,
                packet.as_ptr().cast::<c_void>(),
                packet.len(),
            )
        };
    }

    /// Next IP packet of the adapter and its time in microseconds. Advances the time until there is one. `None`
    /// if no packet is sent.
    pub fn sniff(&self) -> Option<(i64, Vec<u8>)> {
        let mut packet = vec![0; 65_536];
        let mut length = packet.len();
        let mut time = 0;
        // SAFETY: `length` bytes, and both results, are writable. The result is always 0.
        unsafe {
            (self.table.netdev_receive)(
                self.table.userdata,
                packet.as_mut_ptr().cast::<c_void>(),
                &raw mut length,
                &raw mut time,
            )
        };
        packet.truncate(length);
        (length > 0).then_some((time, packet))
    }

    /// Advances the time by `micros` microseconds.
    pub fn sleep(&self, micros: u32) {
        (self.table.usleep)(self.table.userdata, micros);
    }

    /// Time in microseconds. Each call of the driving thread advances it by one.
    pub fn time(&self) -> i64 {
        let mut time = timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: the result is writable; the time zone is not read.
        unsafe { (self.table.gettimeofday)(self.table.userdata, &raw mut time, ptr::null_mut()) };
        time.tv_sec * 1_000_000 + time.tv_usec
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        (self.table.free)(self.table.userdata);
    }
}
