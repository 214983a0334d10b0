//! C interface: the function table that packetdrill requests, and the symbols for the dynamic loader.
//!
//! packetdrill loads the shared object, looks up `packetdrill_interface_init`, and has its table filled. From
//! then on every system call of a script and every packet passes through the table. This file converts pointers
//! to slices and results to `errno`; it decides nothing.
//!
//! packetdrill still calls two functions of the C library: `getsockopt` for `%{ }%` blocks, and `mlockall`,
//! which fails for an ordinary user. With the object in `LD_PRELOAD` too, both are implemented here. On virtual
//! time no page needs to be locked.

mod table;

use core::{
    ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};
use offload_engine::time::Duration;
use rustix::{event::PollFlags, io::Errno};

pub(crate) use self::table::Table;
use self::table::User;
use crate::{
    instance::Instance,
    settings::Settings,
    sockets::{Progress, Sockets},
};

/// Supported MSG_ flags: either without effect on a connection here, or implemented.
const FLAGS_KNOWN: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_TRUNC | libc::MSG_WAITALL;

/// Instance whose descriptors a preloaded `getsockopt` looks up.
static CURRENT: Mutex<Weak<Instance>> = Mutex::new(Weak::new());

/// Creates an adapter configured by `flags`, and its table.
pub(crate) fn make(flags: &str) -> Result<Table, String> {
    let instance = Arc::new(Instance::new(Settings::parse(flags)?));
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&instance);
    Ok(Table {
        userdata: Arc::into_raw(instance).cast_mut().cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt: getsockopt_of,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    })
}

/// Entry point for packetdrill: fills the table, or exits the process with the error in the flags.
///
/// # Safety
/// `flags` is null or a C string; `table` points to a writable `struct packetdrill_interface`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, table: *mut c_void) {
    let flags = if flags.is_null() {
        ""
    } else {
        // SAFETY: a C string, by contract.
        unsafe { CStr::from_ptr(flags) }.to_str().unwrap_or("not UTF-8")
    };
    match make(flags) {
        // SAFETY: the caller permits writing the table, by contract; its old contents own nothing.
        Ok(made) => unsafe { table.cast::<Table>().write(made) },
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

/// getsockopt(2) for a program that preloads this object: the adapter's descriptors, and the kernel's.
///
/// # Safety
/// As getsockopt(2): `value` has room for `*length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(instance) = current.filter(|it| it.now(|sockets| sockets.get(fd).is_ok())) {
        let option = instance.now(|sockets| sockets.option(fd, level, name));
        // SAFETY: room for `*length` bytes, by contract.
        return unsafe { give_option(option, value, length) };
    }
    // SAFETY: the kernel's own interface with the caller's arguments.
    let result = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length) };
    result as c_int
}

/// mlockall(2) for a program that preloads this object: no page is locked, and none needs to be.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(_flags: c_int) -> c_int {
    0
}

fn instance<'a>(user: User) -> &'a Instance {
    // SAFETY: `make` created this pointer from an Arc, and `free`, the last call, has not occurred.
    unsafe { &*user.cast::<Instance>() }
}

fn fail(error: Errno) -> c_int {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

fn done(result: Result<(), Errno>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn counted(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
        Err(error) => fail(error) as ssize_t,
    }
}

/// # Safety
/// `data` is valid for reads of `length` bytes, or `length` is 0.
unsafe fn slice<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { core::slice::from_raw_parts(data.cast(), length) }
}

/// # Safety
/// `target` is null or valid for writes of `room` bytes.
unsafe fn copy_out(data: &[u8], target: *mut c_void, room: usize) -> usize {
    let count = data.len().min(room);
    if !target.is_null() {
        // SAFETY: the caller's contract; Rust slices do not overlap with a C caller's buffer.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), target.cast(), count) };
    }
    count
}

/// Parses the bytes of a `struct sockaddr_in` or `sockaddr_in6`.
fn read_address(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk().ok_or(Errno::INVAL)?));
    let port = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
    match (family, bytes.len()) {
        (libc::AF_INET, 8..) => {
            let address: [u8; 4] = bytes[4..8].try_into().map_err(|_| Errno::INVAL)?;
            Ok((Ipv4Addr::from(address), port(bytes)).into())
        }
        (libc::AF_INET6, 24..) => {
            let address: [u8; 16] = bytes[8..24].try_into().map_err(|_| Errno::INVAL)?;
            Ok((Ipv6Addr::from(address), port(bytes)).into())
        }
        (libc::AF_INET | libc::AF_INET6, _) => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Bytes of a `struct sockaddr_in` or `sockaddr_in6`.
pub(crate) fn address_bytes(address: SocketAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend_from_slice(&v4.ip().octets());
            bytes.extend_from_slice(&[0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&v6.ip().octets());
            bytes.extend_from_slice(&[0; 4]);
        }
    }
    bytes
}

extern "C" fn free(user: User) {
    // SAFETY: `make` created this pointer from an Arc; packetdrill frees once, after all other calls.
    drop(unsafe { Arc::from_raw(user.cast::<Instance>().cast_const()) });
}

extern "C" fn socket(user: User, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let result = instance(user).now(|sockets| sockets.socket(domain, kind, protocol));
    result.unwrap_or_else(fail)
}

unsafe extern "C" fn bind(user: User, fd: c_int, at: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: bind(2)'s contract.
    let address = read_address(unsafe { slice(at.cast(), length as usize) });
    done(address.and_then(|address| instance(user).now(|sockets| sockets.bind(fd, address))))
}

extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    done(instance(user).now(|sockets| sockets.listen(fd, backlog)))
}

unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match instance(user).wait(None, |sockets, _| sockets.accept(fd)) {
        Ok((accepted, remote)) => {
            let bytes = address_bytes(remote);
            if !address.is_null() && !length.is_null() {
                // SAFETY: accept(2)'s contract: `*length` bytes at `address`.
                unsafe {
                    copy_out(&bytes, address.cast(), *length as usize);
                    *length = bytes.len() as socklen_t;
                }
            }
            accepted
        }
        Err(error) => fail(error),
    }
}

unsafe extern "C" fn connect(
    user: User,
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: connect(2)'s contract.
    let address = read_address(unsafe { slice(address.cast(), length as usize) });
    let instance = instance(user);
    let begun = address.and_then(|remote| instance.now(|sockets| sockets.connect(fd, remote)));
    done(begun.and_then(|()| instance.wait(None, |sockets, _| sockets.connected(fd))))
}

/// One read of at most `count` bytes.
fn receive(user: User, fd: c_int, count: usize, flags: c_int) -> Result<Bytes, Errno> {
    if flags & !FLAGS_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    instance(user).wait(None, |sockets, _| match sockets.read(fd, count) {
        Progress::Later if flags & libc::MSG_DONTWAIT != 0 => Progress::Done(Err(Errno::AGAIN)),
        progress => progress,
    })
}

/// Writes all of `data`; stops where a nonblocking call would block.
fn transmit(user: User, fd: c_int, data: &[u8], flags: c_int) -> ssize_t {
    if flags & !FLAGS_KNOWN != 0 {
        return counted(Err(Errno::OPNOTSUPP));
    }
    let mut sent = 0;
    let mut step = |sockets: &mut Sockets| loop {
        let nonblocking = flags & libc::MSG_DONTWAIT != 0
            || sockets.get(fd).is_ok_and(|socket| socket.nonblocking);
        match sockets.write(fd, &data[sent..]) {
            Progress::Done(Ok(count)) => {
                sent += count;
                if sent == data.len() {
                    return Progress::Done(Ok(sent));
                }
            }
            // A partial write is reported first; the error is kept for the next call.
            Progress::Done(Err(_)) if sent > 0 => return Progress::Done(Ok(sent)),
            Progress::Later if nonblocking && sent > 0 => return Progress::Done(Ok(sent)),
            Progress::Later if nonblocking => return Progress::Done(Err(Errno::AGAIN)),
            other => return other,
        }
    };
    counted(instance(user).wait(None, |sockets, _| step(sockets)))
}

/// # Safety
/// `target` is null or valid for writes of `count` bytes.
unsafe fn receive_to(
    user: User,
    fd: c_int,
    target: *mut c_void,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's contract.
    counted(receive(user, fd, count, flags).map(|data| unsafe { copy_out(&data, target, count) }))
}

/// # Safety
/// `vectors` is valid for `count` elements.
unsafe fn vectors_of<'a>(vectors: *const iovec, count: usize) -> &'a [iovec] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { core::slice::from_raw_parts(vectors, count) }
}

/// # Safety
/// `vectors` is valid for `count` elements, each of which refers to writable memory.
unsafe fn receive_scattered(
    user: User,
    fd: c_int,
    vectors: *const iovec,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's contract.
    let vectors = unsafe { vectors_of(vectors, count) };
    let room = vectors.iter().map(|vector| vector.iov_len).sum();
    counted(receive(user, fd, room, flags).map(|data| {
        let mut rest = &data[..];
        for vector in vectors {
            // SAFETY: the caller's contract.
            let taken = unsafe { copy_out(rest, vector.iov_base, vector.iov_len) };
            rest = &rest[taken..];
        }
        data.len()
    }))
}

/// # Safety
/// `vectors` is valid for `count` elements, each of which refers to readable memory.
unsafe fn gather(vectors: *const iovec, count: usize) -> Vec<u8> {
    // SAFETY: the caller's contract.
    let vectors = unsafe { vectors_of(vectors, count) };
    let mut data = Vec::new();
    for vector in vectors {
        // SAFETY: the caller's contract.
        data.extend_from_slice(unsafe { slice(vector.iov_base, vector.iov_len) });
    }
    data
}

unsafe extern "C" fn read(user: User, fd: c_int, data: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: read(2)'s contract.
    unsafe { receive_to(user, fd, data, count, 0) }
}

unsafe extern "C" fn readv(user: User, fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: readv(2)'s contract.
    unsafe { receive_scattered(user, fd, vectors, usize::try_from(count).unwrap_or(0), 0) }
}

unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    data: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: recv(2)'s contract.
    unsafe { receive_to(user, fd, data, count, flags) }
}

unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    data: *mut c_void,
    count: size_t,
    flags: c_int,
    _address: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    if !length.is_null() {
        // SAFETY: recvfrom(2)'s contract. A connected socket returns no address.
        unsafe { *length = 0 };
    }
    // SAFETY: recvfrom(2)'s contract.
    unsafe { receive_to(user, fd, data, count, flags) }
}

unsafe extern "C" fn recvmsg(user: User, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: recvmsg(2)'s contract.
    unsafe {
        (*message).msg_controllen = 0;
        (*message).msg_flags = 0;
        receive_scattered(user, fd, (*message).msg_iov, (*message).msg_iovlen, flags)
    }
}

unsafe extern "C" fn write(user: User, fd: c_int, data: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: write(2)'s contract.
    transmit(user, fd, unsafe { slice(data, count) }, 0)
}

unsafe extern "C" fn writev(user: User, fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: writev(2)'s contract.
    let data = unsafe { gather(vectors, usize::try_from(count).unwrap_or(0)) };
    transmit(user, fd, &data, 0)
}

unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    data: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: send(2)'s contract.
    transmit(user, fd, unsafe { slice(data, count) }, flags)
}

unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    data: *const c_void,
    count: size_t,
    flags: c_int,
    _address: *const sockaddr,
    _length: socklen_t,
) -> ssize_t {
    // SAFETY: sendto(2)'s contract. The address is ignored for a connected socket.
    transmit(user, fd, unsafe { slice(data, count) }, flags)
}

unsafe extern "C" fn sendmsg(
    user: User,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: sendmsg(2)'s contract.
    let data = unsafe { gather((*message).msg_iov, (*message).msg_iovlen) };
    transmit(user, fd, &data, flags)
}

/// Variadic in C. On every ABI of Linux, an integer or pointer argument after `...` is passed like a third
/// parameter.
extern "C" fn fcntl(user: User, fd: c_int, command: c_int, argument: c_int) -> c_int {
    let result = instance(user).now(|sockets| {
        let socket = sockets.get_mut(fd)?;
        match command {
            libc::F_GETFL => {
                Ok(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                socket.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        }
    });
    result.unwrap_or_else(fail)
}

/// Variadic in C, like `fcntl`.
unsafe extern "C" fn ioctl(user: User, fd: c_int, request: c_ulong, value: *mut c_int) -> c_int {
    match instance(user).now(|sockets| sockets.ioctl(fd, request)) {
        Ok(count) => {
            // SAFETY: all known requests write an int.
            unsafe { *value = count };
            0
        }
        Err(error) => fail(error),
    }
}

extern "C" fn close(user: User, fd: c_int) -> c_int {
    done(instance(user).now(|sockets| sockets.close(fd)))
}

extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    done(instance(user).now(|sockets| sockets.shutdown(fd, how)))
}

/// # Safety
/// `value` has room for `*length` bytes.
unsafe fn give_option(
    option: Result<Vec<u8>, Errno>,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    match option {
        Ok(bytes) => {
            // SAFETY: the caller's contract.
            unsafe { *length = copy_out(&bytes, value, *length as usize) as socklen_t };
            0
        }
        Err(error) => fail(error),
    }
}

unsafe extern "C" fn getsockopt_of(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let option = instance(user).now(|sockets| sockets.option(fd, level, name));
    // SAFETY: getsockopt(2)'s contract.
    unsafe { give_option(option, value, length) }
}

unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: setsockopt(2)'s contract.
    let value = unsafe { slice(value, length as usize) };
    done(instance(user).now(|sockets| sockets.set_option(fd, level, name, value)))
}

unsafe extern "C" fn poll(
    user: User,
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    let descriptors = if count == 0 {
        &mut []
    } else {
        // SAFETY: poll(2)'s contract.
        unsafe { core::slice::from_raw_parts_mut(descriptors, count as usize) }
    };
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    let ready = instance(user).wait(timeout, |sockets, over| {
        let mut ready = 0;
        for descriptor in &mut *descriptors {
            let events = PollFlags::from_bits_retain(descriptor.events as u16);
            descriptor.revents = sockets.ready(descriptor.fd, events).bits() as i16;
            ready += c_int::from(descriptor.revents != 0);
        }
        if ready > 0 || over { Progress::Done(Ok(ready)) } else { Progress::Later }
    });
    ready.unwrap_or_else(fail)
}

unsafe extern "C" fn netdev_send(user: User, packet: *const c_void, length: size_t) -> c_int {
    // SAFETY: the interface's contract: `length` bytes of an IP packet.
    instance(user).inject(unsafe { slice(packet, length) });
    0
}

/// An empty packet indicates that none will arrive, which ends the script with an error.
unsafe extern "C" fn netdev_receive(
    user: User,
    packet: *mut c_void,
    length: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    let (at, data) = instance(user).sniff().unwrap_or_default();
    // SAFETY: the interface's contract: room for `*length` bytes, and both results are writable.
    unsafe {
        *length = copy_out(&data, packet, *length);
        *time = at as c_longlong;
    }
    0
}

extern "C" fn usleep(user: User, micros: c_uint) -> c_int {
    instance(user).sleep_for(Duration::from_micros(micros.into()));
    0
}

unsafe extern "C" fn gettimeofday(user: User, time: *mut timeval, _zone: *mut c_void) -> c_int {
    let (seconds, micros) = instance(user).time();
    // SAFETY: gettimeofday(2)'s contract.
    unsafe { *time = timeval { tv_sec: seconds as c_long, tv_usec: micros as c_long } };
    0
}

extern "C" fn epoll_create(_user: User, _size: c_int) -> c_int {
    fail(Errno::NOSYS)
}

extern "C" fn epoll_ctl(_: User, _: c_int, _: c_int, _: c_int, _: *mut epoll_event) -> c_int {
    fail(Errno::NOSYS)
}

extern "C" fn epoll_wait(_: User, _: c_int, _: *mut epoll_event, _: c_int, _: c_int) -> c_int {
    fail(Errno::NOSYS)
}

extern "C" fn pipe(_user: User, _descriptors: *mut c_int) -> c_int {
    fail(Errno::NOSYS)
}

extern "C" fn splice(
    _user: User,
    _from: c_int,
    _from_offset: *mut loff_t,
    _to: c_int,
    _to_offset: *mut loff_t,
    _count: size_t,
    _flags: c_uint,
) -> ssize_t {
    counted(Err(Errno::NOSYS))
}
