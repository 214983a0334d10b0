//! Ioctls of the TUN driver. With `packet.rs` the only unsafe code of the link.
//!
//! No crate provides them safely. The functions do not retain the descriptor, and return the kernel's error unchanged.
//! `attach.rs` maps it to an error for users.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    string::String,
};

use libc::{c_int, c_short, c_uint, c_ulong};
use rustix::fs::{Mode, OFlags};

/// Maximum number of bytes of an interface name: the kernel's IFNAMSIZ minus the terminating zero.
pub(super) const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// Opens the TUN node, non-blocking, closed on exec.
pub(super) fn open_node(node: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(node, flags, Mode::empty())?)
}

/// TUNGETFEATURES: returns the IFF_ flags that TUNSETIFF supports.
pub(super) fn features(fd: impl AsFd) -> io::Result<c_uint> {
    let mut features: c_uint = 0;
    // SAFETY: the descriptor is open while it is borrowed, and the request writes one c_uint,
    // which `features` is.
    let request =
        || unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNGETFEATURES, &raw mut features) };
    call(request).map(|()| features)
}

/// TUNSETIFF: attaches to the interface `name` or creates it. Returns its actual name, which
/// differs when `name` is a pattern such as `tap%d`.
pub(super) fn attach(fd: impl AsFd, name: &str, flags: c_int) -> io::Result<String> {
    let mut request = interface_request(name)?;
    // The flags fit: the driver reads them from this 16-bit field.
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: the descriptor is open while it is borrowed; the request reads and writes one
    // `ifreq`, which `request` is, with every byte initialized.
    call(|| unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(name_of(&request))
}

/// TUNGETIFF: returns the name of the interface that the descriptor is attached to, and its IFF_ flags.
pub(super) fn interface(fd: impl AsFd) -> io::Result<(String, c_int)> {
    let mut request = interface_request("")?;
    // SAFETY: the descriptor is open while it is borrowed, and the request writes one `ifreq`, which `request` is.
    call(|| unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    // SAFETY: the request has written this member; every byte was initialized before.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok((name_of(&request), c_int::from(flags)))
}

/// TUNSETOFFLOAD: sets the offloads that the kernel may leave to the reader of its frames.
pub(super) fn set_offload(fd: impl AsFd, offloads: c_uint) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; the argument of this request is a
    // number, not a pointer.
    call(|| unsafe {
        libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(offloads))
    })
}

/// TUNSETVNETHDRSZ: sets the bytes of header before each frame.
pub(super) fn set_vnet_header_len(fd: impl AsFd, bytes: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed, and the request reads one c_int.
    call(|| unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) })
}

/// TUNSETVNETLE: makes the header's fields little endian on any machine.
pub(super) fn set_vnet_little_endian(fd: impl AsFd) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the descriptor is open while it is borrowed, and the request reads one c_int.
    call(|| unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETVNETLE, &raw const on) })
}

/// Borrows the descriptor of an interface that `tun_tap` opened. That crate predates `AsFd`.
pub(super) fn borrow(interface: &tun_tap::Iface) -> BorrowedFd<'_> {
    // SAFETY: the interface owns the descriptor and closes it only when dropped, which the
    // borrow, as long as the result, rules out.
    unsafe { BorrowedFd::borrow_raw(interface.as_raw_fd()) }
}

/// Makes a request, and repeats it if a signal of the program has interrupted it.
fn call(mut request: impl FnMut() -> c_int) -> io::Result<()> {
    loop {
        if request() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0);
    String::from_utf8_lossy(&bytes.collect::<std::vec::Vec<u8>>()).into_owned()
}

/// Creates an `ifreq` with a name only.
fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    if name.len() > NAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (target, &byte) in ifr_name.iter_mut().zip(name.as_bytes()) {
        *target = byte as libc::c_char;
    }
    // SAFETY: `ifreq` is plain data (arrays, integers and a pointer that may be null), for which
    // all bytes zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = ifr_name;
    Ok(request)
}
