//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};

use flue_verbs_abi::objects::{ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(_context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(_pd: *mut ibv_pd) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _iova: u64,
    _access: c_int,
) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _iova: u64,
    _access: c_uint,
) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    guard::number(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(_mr: *mut ibv_mr) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {
    guard::nothing(|| {});
}
