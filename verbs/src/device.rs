//! Devices: list, names, limits, ports and their tables.

use std::ffi::{c_char, c_int, c_uint};

use flue_verbs_abi::{
    attributes::{ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr},
    objects::{ibv_context, ibv_device},
};

use crate::guard::{self, Errno};

/// Without a device yet: an empty list. Any thread may call it, also before `main`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    guard::pointer(|| {
        if !num_devices.is_null() {
            // SAFETY: the caller passes a valid place or null.
            unsafe { num_devices.write(0) };
        }
        Err(Errno(libc::ENODEV))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(_list: *mut *mut ibv_device) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(_device: *mut ibv_device) -> *const c_char {
    std::ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(_device: *mut ibv_device) -> *mut ibv_context {
    guard::pointer(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(_context: *mut ibv_context) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(_context: *mut ibv_context, _attr: *mut ibv_device_attr) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(
    _context: *mut ibv_context,
    _port: u8,
    _attr: *mut ibv_port_attr,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    _port: u8,
    _index: c_int,
    _gid: *mut ibv_gid,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    _port: u8,
    _index: c_uint,
    _type: *mut c_uint,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    _context: *mut ibv_context,
    _port: u32,
    _index: u32,
    _entry: *mut ibv_gid_entry,
    _flags: u32,
    _entry_size: usize,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    _entries: *mut ibv_gid_entry,
    _max_entries: usize,
    _flags: u32,
    _entry_size: usize,
) -> isize {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP))) as isize
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    _port: u8,
    _index: c_int,
    _pkey: *mut u16,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, _port: u8, _pkey: u16) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_sysfs_file(
    _directory: *const c_char,
    _file: *const c_char,
    _buffer: *mut c_char,
    _size: usize,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENOENT)))
}
