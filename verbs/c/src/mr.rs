//! C interface of memory regions: pointers, mapped pages, errno.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

use flue_verbs_abi::{
    enums::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS,
        IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_INPUT,
    },
    objects::{ibv_context, ibv_dm, ibv_mr, ibv_pd},
};
use flue_verbs_core::mr::{Mr, rights};
use offload_engine::memory::{SharedSpan, mapped};
use rdma_over_tcp::rnic::{Access, RegisteredBuffer};

use crate::{
    guard::{self, Errno},
    object::Object,
    pd::PdObject,
};

/// Arguments of a registration.
#[derive(Clone, Copy)]
struct Registered {
    address: usize,
    length: usize,
    iova: u64,
    access: u32,
}

type MrObject = Object<ibv_mr, Mutex<(Mr, Registered)>>;

/// Checks the arguments, and returns the memory and the rights.
fn checked(wanted: Registered) -> Result<(RegisteredBuffer, Access), Errno> {
    let Registered { address, length, iova, access } = wanted;
    let granted = rights(access)?;
    let start = NonNull::new(address as *mut u8).ok_or(Errno(libc::EFAULT))?;
    if length == 0 || isize::try_from(length).is_err() {
        return Err(Errno(libc::EINVAL));
    }
    let is_written = access & IBV_ACCESS_LOCAL_WRITE != 0;
    mapped::check(address, length, is_written)?;
    // SAFETY: the pages are mapped, and writable if `is_written`. The program, which is not Rust, keeps them until
    // `ibv_dereg_mr` has returned; after that the span is not used.
    let span = unsafe { SharedSpan::from_raw(start, length, is_written, ()) };
    let base = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    Ok((RegisteredBuffer::from(span).at_address(base), granted))
}

fn register(pd: *mut ibv_pd, wanted: Registered) -> *mut ibv_mr {
    guard::pointer(|| {
        // SAFETY: the program passes a pointer returned by `ibv_alloc_pd`.
        let domain = unsafe { PdObject::of(pd) }?;
        let (buffer, rights) = checked(wanted)?;
        let region = Mr::new(domain, &buffer, rights)?;
        let key = region.key();
        let seen = ibv_mr {
            // SAFETY: as above, and it is not null.
            context: unsafe { (*pd).context },
            pd,
            addr: wanted.address as *mut c_void,
            length: wanted.length,
            handle: 0,
            lkey: key,
            rkey: key,
        };
        Ok(MrObject::make(seen, Mutex::new((region, wanted))).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let (address, iova) = (addr as usize, addr as u64);
    register(pd, Registered { address, length, iova, access: access as u32 })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, Registered { address: addr as usize, length, iova, access: access as u32 })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(pd, Registered { address: addr as usize, length, iova, access })
}

pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// The key remains. A failure changes nothing.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let changed = guard::done(|| {
        let flags = flags as u32;
        if flags == 0 || flags & !known != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the program passes a pointer to a region.
        let own = unsafe { MrObject::of(mr) }?;
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = own.1;
        let domain = match flags & IBV_REREG_MR_CHANGE_PD != 0 {
            // SAFETY: the program passes a pointer returned by `ibv_alloc_pd`.
            true => unsafe { PdObject::of(pd) }?.clone(),
            false => own.0.pd().clone(),
        };
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            wanted = Registered { address: addr as usize, length, iova: addr as u64, ..wanted };
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            wanted.access = access as u32;
        }
        let (buffer, rights) = checked(wanted)?;
        own.0.replace(&domain, &buffer, rights)?;
        own.1 = wanted;
        // SAFETY: as above; the program does not read them meanwhile.
        unsafe {
            if flags & IBV_REREG_MR_CHANGE_PD != 0 {
                (*mr).pd = pd;
            }
            (*mr).addr = wanted.address as *mut c_void;
            (*mr).length = wanted.length;
        }
        Ok(())
    });
    if changed == 0 { 0 } else { IBV_REREG_MR_ERR_INPUT.0 }
}

/// After the return the adapter does not access the memory: the program may unmap it.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer to a region.
        unsafe {
            let own = MrObject::of(mr)?;
            own.lock().unwrap_or_else(PoisonError::into_inner).0.destroy()?;
            MrObject::remove(mr);
        }
        Ok(())
    })
}

/// Calls `work` with the region of the program's pointer.
///
/// # Safety
/// The pointer is null or refers to a region.
pub(crate) unsafe fn with_mr<R>(
    mr: *mut ibv_mr,
    work: impl FnOnce(&Mr) -> Result<R, Errno>,
) -> Result<R, Errno> {
    // SAFETY: guaranteed by the caller.
    let own = unsafe { MrObject::of(mr) }?;
    work(&own.lock().unwrap_or_else(PoisonError::into_inner).0)
}

pub(crate) extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

pub(crate) extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}
