//! C interface of memory windows: pointers, errno.

use std::ffi::c_int;

use flue_verbs_abi::{
    enums::{IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw_type},
    objects::{ibv_mw, ibv_mw_bind_info, ibv_pd},
};
use flue_verbs_core::{
    mr::Mr,
    mw::{Mw, mw_rights},
    qp::{MwBind, SendPoster},
};
use rdma_over_tcp::rnic::{Bind, WindowType, WrFlags};

use crate::{
    guard::{self, Errno},
    mr,
    object::Object,
    pd::PdObject,
};

pub(crate) type MwObject = Object<ibv_mw, Mw>;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    guard::pointer(|| {
        let of = match kind {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno(libc::EINVAL)),
        };
        // SAFETY: the program passes a pointer to a domain.
        let (domain, context) = unsafe { (PdObject::of(pd)?, (*pd).context) };
        let window = Mw::new(domain, of)?;
        let mut seen = ibv_mw::zeroed();
        seen.context = context;
        seen.pd = pd;
        seen.rkey = window.key()?;
        seen.r#type = kind;
        Ok(MwObject::make(seen, window).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the program passes a pointer to a window, which it no longer uses.
    guard::status(|| unsafe {
        MwObject::of(mw)?.destroy()?;
        MwObject::remove(mw);
        Ok(())
    })
}

/// Returns the bind request of a window.
///
/// # Safety
/// Pointers are those of the program.
pub(crate) unsafe fn request(
    mw: *mut ibv_mw,
    rkey: Option<u32>,
    info: &ibv_mw_bind_info,
) -> Result<Bind, Errno> {
    let ibv_mw_bind_info { mr, addr, length, mw_access_flags } = *info;
    // SAFETY: guaranteed by the caller.
    let window = unsafe { MwObject::of(mw) }?;
    let rights = mw_rights(mw_access_flags)?;
    let request = |region: &Mr| {
        let bind = MwBind {
            window,
            region,
            key: rkey.filter(|_| window.kind() == WindowType::Two).map(|rkey| rkey as u8),
            address: addr,
            length,
            is_zero_based: mw_access_flags & IBV_ACCESS_ZERO_BASED != 0,
            rights,
        };
        Ok(bind.request())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { mr::with_mr(mr, request) }
}

/// Posts the bind of a window, and writes its key to the program's structure.
///
/// # Safety
/// Pointers are those of the program.
pub(crate) unsafe fn post_bind(
    poster: &mut SendPoster<'_>,
    wr_id: u64,
    mw: *mut ibv_mw,
    rkey: Option<u32>,
    info: &ibv_mw_bind_info,
    flags: WrFlags,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let bind = unsafe { request(mw, rkey, info) }?;
    let key = poster.bind(wr_id, bind, flags)?;
    // SAFETY: guaranteed by the caller; the program reads the key when this has returned.
    unsafe { (*mw).rkey = key };
    Ok(())
}
