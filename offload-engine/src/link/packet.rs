//! Packet socket that receives frames written to an interface. With `tun.rs` the only unsafe code of the link, for two
//! options and an address that no crate provides safely.

use std::{
    ffi::CString,
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use libc::{c_int, c_void, sock_filter, sock_fprog, sockaddr_ll, socklen_t};

use crate::descriptor::Guarded;

/// Packet socket for frames written to a TAP.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) socket: Guarded<OwnedFd>,
    /// Index of the TAP's interface.
    index: c_int,
}

/// Creates a non-blocking packet socket for the interface `name`. After [`Observer::begin`] it receives every frame of
/// at least `bytes_min` that is written to its TAP. It does not receive frames sent to the TAP, or shorter ones, which
/// cost a check of their length.
pub(super) fn observer(name: &str, bytes_min: u32) -> io::Result<Observer> {
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the name ends with its zero byte and lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed. Protocol 0: nothing arrives before an address is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    check(fd)?;
    // SAFETY: the call returned a new descriptor without another owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };

    let ignore: c_int = 1;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &ignore)?;
    let mut filter = length_filter(bytes_min);
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;

    Ok(Observer { socket: socket.into(), index: index as c_int })
}

impl Observer {
    /// Starts reception.
    pub(super) fn begin(&self) -> io::Result<()> {
        // SAFETY: `sockaddr_ll` is plain data, for which all bytes zero is a valid value.
        let mut address: sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // A bridge consumes frames before sockets of one protocol receive them.
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = self.index;
        // SAFETY: the descriptor is open, and the address is one `sockaddr_ll` of the length given.
        check(unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<sockaddr_ll>() as socklen_t,
            )
        })
    }
}

/// Creates a filter that accepts frames of at least `bytes_min`, complete.
fn length_filter(bytes_min: u32) -> [sock_filter; 4] {
    let statement = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    [
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16, 0),
        sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: bytes_min,
        },
        statement((libc::BPF_RET | libc::BPF_K) as u16, u32::MAX),
        statement((libc::BPF_RET | libc::BPF_K) as u16, 0),
    ]
}

fn set_option<T>(socket: impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads one `T` of the length passed. It also reads
    // the instructions that a filter program points to, which the caller keeps alive during the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast::<c_void>(),
            size_of::<T>() as socklen_t,
        )
    })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
