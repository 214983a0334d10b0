//! Protection domains and memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    fs,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use flue_verbs_abi::{
    enums::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS,
        IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_INPUT,
    },
    objects::{ibv_context, ibv_dm, ibv_mr, ibv_pd},
};
use flue_verbs_core::{
    engine::Engine,
    memory::{Pd, Region, rights},
};
use offload_engine::memory::SharedSpan;
use rdma_over_tcp::rnic::RegisteredBuffer;

use crate::{
    config,
    guard::{self, Errno},
    object::Object,
};

pub(crate) type PdObject = Object<ibv_pd, Arc<Pd>>;

/// What a region was registered with.
#[derive(Clone, Copy)]
struct Registered {
    address: usize,
    length: usize,
    iova: u64,
    access: u32,
}

type RegionObject = Object<ibv_mr, Mutex<(Region, Registered)>>;

/// Makes a domain.
pub(crate) fn make_pd(
    context: *mut ibv_context,
    engine: &'static Engine,
) -> Result<*mut ibv_pd, Errno> {
    Ok(PdObject::make(ibv_pd { context, handle: 0 }, Pd::new(engine)?).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer(|| make_pd(context, config::engine()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::status(|| {
        // SAFETY: the program's pointer is one of `ibv_alloc_pd`.
        unsafe {
            PdObject::of(pd)?.destroy()?;
            PdObject::remove(pd);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// `madvise(2)`: have pages there, to be read or to be written (Linux 5.14).
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// Whether the program could read, or write, this memory itself. What it could not would end it by a signal when the
/// adapter does.
///
/// The pages are there afterwards, as they are with an adapter that pins them.
pub(crate) fn check_mapped(address: usize, length: usize, is_written: bool) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(4096);
    let start = address / page * page;
    let end = address.checked_add(length).ok_or(Errno(libc::EINVAL))?;
    let end = end.checked_next_multiple_of(page).ok_or(Errno(libc::EINVAL))?;
    let advice = if is_written { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: the advice changes no byte; an address that is not mapped is an error.
    if unsafe { libc::madvise(start as *mut c_void, end - start, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // The kernel does not know it, or the mapping is special: then what is mapped must do.
        Some(libc::EINVAL) => {
            let maps = fs::read_to_string("/proc/self/maps")?;
            match is_covered(&maps, address, address + length, is_written) {
                true => Ok(()),
                false => Err(Errno(libc::EFAULT)),
            }
        }
        Some(libc::EAGAIN) => Err(Errno(libc::ENOMEM)),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Whether mappings (`/proc/PID/maps`, which are in order) cover the bytes of a range without a gap.
fn is_covered(maps: &str, mut at: usize, end: usize, is_written: bool) -> bool {
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((first, last)) = range.split_once('-') else { continue };
        let (Ok(first), Ok(last)) =
            (usize::from_str_radix(first, 16), usize::from_str_radix(last, 16))
        else {
            continue;
        };
        if last <= at {
            continue;
        }
        if first > at || !rights.starts_with('r') || is_written && !rights[1..].starts_with('w') {
            return false;
        }
        at = last;
        if at >= end {
            return true;
        }
    }
    false
}

fn region(pd: &Arc<Pd>, wanted: Registered) -> Result<Region, Errno> {
    let Registered { address, length, iova, access } = wanted;
    let granted = rights(access)?;
    let start = NonNull::new(address as *mut u8).ok_or(Errno(libc::EFAULT))?;
    if length == 0 || isize::try_from(length).is_err() {
        return Err(Errno(libc::EINVAL));
    }
    let is_written = access & IBV_ACCESS_LOCAL_WRITE != 0;
    check_mapped(address, length, is_written)?;
    // SAFETY: the pages are there, and may be written if they are to be; the program, which is not Rust, keeps them
    // until `ibv_dereg_mr` has returned, when nothing uses the span any more.
    let span = unsafe { SharedSpan::from_raw(start, length, is_written, ()) };
    let base = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    Ok(Region::new(pd, &RegisteredBuffer::from(span).at_address(base), granted)?)
}

fn register(pd: *mut ibv_pd, wanted: Registered) -> *mut ibv_mr {
    guard::pointer(|| {
        // SAFETY: the program's pointer is one of `ibv_alloc_pd`.
        let domain = unsafe { PdObject::of(pd) }?;
        let region = region(domain, wanted)?;
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
        Ok(RegionObject::make(seen, Mutex::new((region, wanted))).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let (address, iova) = (addr as usize, addr as u64);
    register(pd, Registered { address, length, iova, access: access as u32 })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, Registered { address: addr as usize, length, iova, access: access as u32 })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(pd, Registered { address: addr as usize, length, iova, access })
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

/// The new registration is made before the old one ends: a failure changes nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
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
        // SAFETY: the program's pointer is one of a region.
        let own = unsafe { RegionObject::of(mr) }?;
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = own.1;
        let domain = match flags & IBV_REREG_MR_CHANGE_PD != 0 {
            // SAFETY: the program's pointer is one of `ibv_alloc_pd`.
            true => unsafe { PdObject::of(pd) }?.clone(),
            false => own.0.pd().clone(),
        };
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            wanted = Registered { address: addr as usize, length, iova: addr as u64, ..wanted };
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            wanted.access = access as u32;
        }
        let region = region(&domain, wanted)?;
        if let Err(error) = own.0.destroy() {
            region.destroy()?;
            return Err(error.into());
        }
        let key = region.key();
        *own = (region, wanted);
        // SAFETY: as above; the program does not read them meanwhile.
        unsafe {
            if flags & IBV_REREG_MR_CHANGE_PD != 0 {
                (*mr).pd = pd;
            }
            (*mr).addr = wanted.address as *mut c_void;
            (*mr).length = wanted.length;
            (*mr).lkey = key;
            (*mr).rkey = key;
        }
        Ok(())
    });
    if changed == 0 { 0 } else { IBV_REREG_MR_ERR_INPUT.0 }
}

/// When it returns nothing reads or writes the memory any more: the program may unmap it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard::status(|| {
        // SAFETY: the program's pointer is one of a region.
        unsafe {
            let own = RegionObject::of(mr)?;
            own.lock().unwrap_or_else(PoisonError::into_inner).0.destroy()?;
            RegionObject::remove(mr);
        }
        Ok(())
    })
}

/// Calls `work` with the region behind the program's pointer.
///
/// # Safety
/// The pointer is null or of a region.
pub(crate) unsafe fn with_region<R>(
    mr: *mut ibv_mr,
    work: impl FnOnce(&Region) -> Result<R, Errno>,
) -> Result<R, Errno> {
    // SAFETY: as the caller says.
    let own = unsafe { RegionObject::of(mr) }?;
    work(&own.lock().unwrap_or_else(PoisonError::into_inner).0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
3000-4000 r--p 00000000 00:00 0
5000-6000 rw-s 00000000 00:01 9 /dev/shm/x
7000-8000 ---p 00000000 00:00 0
";

    #[test]
    fn ranges_without_a_gap_are_covered() {
        for (from, to, is_written, expected) in [
            (0x1000, 0x3000, true, true),
            (0x1fff, 0x2001, true, true),
            (0x1000, 0x4000, false, true),
            (0x1000, 0x4000, true, false),
            (0x3fff, 0x4001, false, false),
            (0x5800, 0x6000, true, true),
            (0x7000, 0x7001, false, false),
            (0x0, 0x1001, false, false),
            (0x9000, 0x9001, false, false),
        ] {
            assert_eq!(is_covered(MAPS, from, to, is_written), expected, "{from:x} to {to:x}");
        }
    }

    // Memory of the program is taken; a page that is not there, or may not be written, is not.
    #[test]
    fn memory_is_looked_for() {
        let mut own = vec![1_u8; 10_000];
        check_mapped(own.as_mut_ptr() as usize, own.len(), true).unwrap();
        static CONSTANT: [u8; 8192] = [7; 8192];
        check_mapped(CONSTANT.as_ptr() as usize, CONSTANT.len(), false).unwrap();
        let read_only = check_mapped(CONSTANT.as_ptr() as usize, CONSTANT.len(), true);
        assert_eq!(read_only, Err(Errno(libc::EFAULT)));
        assert_eq!(check_mapped(0x1000, 10, false), Err(Errno(libc::EFAULT)));
        assert_eq!(check_mapped(usize::MAX - 5, 10, false), Err(Errno(libc::EINVAL)));
    }
}
