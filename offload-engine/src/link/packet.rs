//! Packet socket that receives frames written to an interface. With `tun.rs` the only unsafe code of the link, for
//! options and an address that no crate provides safely.
//!
//! [`Observer::begin`] is called in the sandbox of a node, which therefore permits bind(2), with any address. So the
//! socket itself is restricted to its purpose when it is created:
//!
//! - The filter rejects frames of other interfaces, and is locked.
//! - A transmission ring replaces the data of send(2) and write(2). The ring is empty, and the sandbox does not permit
//!   mapping it.

use std::{
    ffi::CString,
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use libc::{c_int, c_uint, c_void, sock_filter, sock_fprog, sockaddr_ll, socklen_t, tpacket_req};

use crate::descriptor::Guarded;

/// Packet socket for frames written to a TAP.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) socket: Guarded<OwnedFd>,
    /// Index of the TAP's interface.
    pub(super) index: c_int,
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
    let page_bytes = rustix::param::page_size() as u32;
    let ring = tpacket_req {
        tp_block_size: page_bytes,
        tp_block_nr: 1,
        tp_frame_size: page_bytes,
        tp_frame_nr: 1,
    };
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_TX_RING, &ring)?;
    let mut filter = filter(index, bytes_min);
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    let lock: c_int = 1;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &lock)?;

    Ok(Observer { socket: socket.into(), index: index as c_int })
}

impl Observer {
    /// Starts reception.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.bind_to(self.index)
    }

    pub(super) fn bind_to(&self, index: c_int) -> io::Result<()> {
        // SAFETY: `sockaddr_ll` is plain data, for which all bytes zero is a valid value.
        let mut address: sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // A bridge consumes frames before sockets of one protocol receive them.
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
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

/// Creates a filter that accepts frames of the interface `index` with at least `bytes_min`, complete.
fn filter(index: c_uint, bytes_min: u32) -> [sock_filter; 6] {
    let statement = |code: u32, k| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Continues if the comparison is true, otherwise skips `other` instructions.
    let continue_if = |comparison: u32, k, other| sock_filter {
        code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16,
        jt: 0,
        jf: other,
        k,
    };
    let interface = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned();
    [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0),
        continue_if(libc::BPF_JGE, bytes_min, 3),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, interface),
        continue_if(libc::BPF_JEQ, index, 1),
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

pub(super) fn set_option<T>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
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
