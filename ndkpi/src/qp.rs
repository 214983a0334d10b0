//! Functions of NDK_QP_DISPATCH: posting.

use std::{ffi::c_void, slice, sync::Arc};

use rdma_over_tcp::ndk::{Data, Mr, Mw, NtStatus, OpFlags, Qp};

use crate::{
    abi::{
        dispatch::NDK_QP_DISPATCH,
        types::{
            NDK_LOGICAL_ADDRESS, NDK_MR, NDK_MW, NDK_OBJECT_HEADER, NDK_OBJECT_TYPE, NDK_QP,
            NDK_SGE, NTSTATUS, PVOID, SIZE_T, ULONG,
        },
        values::NdkObjectTypeQp,
    },
    close::{self, Closable},
    guard,
    objects::{self, Kind},
    sgl,
};

/// State of an NDK_QP.
pub(crate) struct QpObject {
    pub(crate) qp: Qp,
    /// InlineDataSize.
    pub(crate) inline_bytes_max: u32,
}

impl Kind for QpObject {
    type Public = NDK_QP;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeQp;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

impl Closable for QpObject {
    fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        self.qp.close(completion)
    }
}

static DISPATCH: NDK_QP_DISPATCH = NDK_QP_DISPATCH {
    NdkCloseQp: close::close::<QpObject>,
    NdkQueryExtension: close::query_extension,
    NdkFlush: flush,
    NdkSend: send,
    NdkReceive: receive,
    NdkBind: bind,
    NdkFastRegister: fast_register,
    NdkInvalidate: invalidate,
    NdkRead: read,
    NdkWrite: write,
    NdkSendAndInvalidate: send_and_invalidate,
};

/// Returns the queue pair of a consumer's pointer.
///
/// # Errors
/// INVALID_HANDLE.
#[inline]
pub(crate) fn get(qp: *mut NDK_QP) -> Result<Arc<QpObject>, NtStatus> {
    objects::get::<QpObject>(qp)
}

fn number(context: PVOID) -> u64 {
    context.expose_provenance() as u64
}

impl QpObject {
    /// Posts on the initiator queue. If the post fails before it reaches the adapter, earlier deferred requests are
    /// still indicated (NDK-DEF-3).
    #[inline]
    fn initiate(&self, post: impl FnOnce(&Qp) -> Result<(), Refusal>) -> Result<(), NtStatus> {
        post(&self.qp).map_err(|refusal| match refusal {
            Refusal::Adapter(status) => status,
            Refusal::Library(status) => {
                // No request supports these flags, so this post only fails and indicates the deferred requests.
                let _ = self.qp.send(0, Data::Inline(&[]), OpFlags::from_bits_retain(u32::MAX));
                status
            }
        })
    }

    /// Posts the memory of a list: registered memory, or with INLINE a copy.
    ///
    /// # Safety
    /// As [`sgl::with_copy`].
    #[inline]
    unsafe fn initiate_with(
        &self,
        list: *const NDK_SGE,
        count: ULONG,
        flags: OpFlags,
        post: impl FnOnce(&Qp, Data<'_>) -> Result<(), NtStatus>,
    ) -> Result<(), NtStatus> {
        self.initiate(|qp| {
            let mut outcome = Ok(());
            let listed = match flags.contains(OpFlags::INLINE) {
                // SAFETY: the caller guarantees it.
                true => unsafe {
                    sgl::with_copy(list, count, self.inline_bytes_max, |copy| {
                        outcome = post(qp, Data::Inline(&[copy]));
                        Ok(())
                    })
                },
                // SAFETY: the caller guarantees it.
                false => unsafe {
                    sgl::with_sges(list, count, |sges| {
                        outcome = post(qp, Data::Registered(sges));
                        Ok(())
                    })
                },
            };
            listed.map_err(Refusal::Library)?;
            outcome.map_err(Refusal::Adapter)
        })
    }
}

/// Layer that refused a post, and the status.
enum Refusal {
    Adapter(NtStatus),
    Library(NtStatus),
}

unsafe extern "C" fn flush(qp: *mut NDK_QP) {
    guard::value(|| {
        get(qp)?.qp.flush();
        Ok(())
    });
}

unsafe extern "C" fn send(
    qp: *mut NDK_QP,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let (own, flags) = (get(qp)?, OpFlags::from_bits_retain(flags));
        // SAFETY: the consumer passes a list of `count` entries; with INLINE their memory can be read.
        unsafe {
            own.initiate_with(list, count, flags, |qp, data| qp.send(number(context), data, flags))
        }
    })
}

unsafe extern "C" fn send_and_invalidate(
    qp: *mut NDK_QP,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
    flags: ULONG,
    remote_token: u32,
) -> NTSTATUS {
    guard::done(|| {
        let (own, flags) = (get(qp)?, OpFlags::from_bits_retain(flags));
        // SAFETY: as in `send`.
        unsafe {
            own.initiate_with(list, count, flags, |qp, data| {
                qp.send_and_invalidate(number(context), data, remote_token, flags)
            })
        }
    })
}

unsafe extern "C" fn write(
    qp: *mut NDK_QP,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
    remote_address: u64,
    remote_token: u32,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let (own, flags) = (get(qp)?, OpFlags::from_bits_retain(flags));
        // SAFETY: as in `send`.
        unsafe {
            own.initiate_with(list, count, flags, |qp, data| {
                qp.write(number(context), data, remote_address, remote_token, flags)
            })
        }
    })
}

unsafe extern "C" fn read(
    qp: *mut NDK_QP,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
    remote_address: u64,
    remote_token: u32,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let (own, flags) = (get(qp)?, OpFlags::from_bits_retain(flags));
        // INLINE is not a flag of reads: pass the list as registered memory, and the adapter refuses the flag.
        let as_registered = flags.difference(OpFlags::INLINE);
        // SAFETY: the consumer passes a list of `count` entries.
        unsafe {
            own.initiate_with(list, count, as_registered, |qp, data| match data {
                Data::Registered(sges) => {
                    qp.read(number(context), sges, remote_address, remote_token, flags)
                }
                _ => Err(NtStatus::INVALID_PARAMETER),
            })
        }
    })
}

unsafe extern "C" fn receive(
    qp: *mut NDK_QP,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let own = get(qp)?;
        // SAFETY: the consumer passes a list of `count` entries.
        unsafe { sgl::with_sges(list, count, |sges| own.qp.receive(number(context), sges)) }
    })
}

unsafe extern "C" fn bind(
    qp: *mut NDK_QP,
    context: PVOID,
    mr: *mut NDK_MR,
    mw: *mut NDK_MW,
    address: PVOID,
    length: SIZE_T,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        get(qp)?.initiate(|qp| {
            let (mr, mw) = (objects::get::<Mr>(mr), objects::get::<Mw>(mw));
            let (mr, mw) = (mr.map_err(Refusal::Library)?, mw.map_err(Refusal::Library)?);
            // The address is an index, from which no memory is read (NDK-MEM-11).
            let (address, length) = (address.addr() as u64, length as u64);
            let posted = qp.bind(
                number(context),
                &mr,
                &mw,
                address,
                length,
                OpFlags::from_bits_retain(flags),
            );
            posted.map(|_token| ()).map_err(Refusal::Adapter)
        })
    })
}

unsafe extern "C" fn fast_register(
    qp: *mut NDK_QP,
    context: PVOID,
    mr: *mut NDK_MR,
    page_count: ULONG,
    page_array: *const NDK_LOGICAL_ADDRESS,
    first_byte_offset: ULONG,
    length: SIZE_T,
    base: PVOID,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        get(qp)?.initiate(|qp| {
            let mr = objects::get::<Mr>(mr).map_err(Refusal::Library)?;
            let pages = match (page_count as usize, page_array.is_null()) {
                (0, _) => &[],
                (_, true) => return Err(Refusal::Library(NtStatus::INVALID_PARAMETER)),
                // SAFETY: the consumer passes an array of `count` pages, which is not written meanwhile.
                (count, false) => unsafe { slice::from_raw_parts(page_array, count) },
            };
            let (base, flags) = (base.addr() as u64, OpFlags::from_bits_retain(flags));
            let posted = qp.fast_register_pages(
                number(context),
                &mr,
                pages,
                first_byte_offset,
                length,
                base,
                flags,
            );
            posted.map(|_token| ()).map_err(Refusal::Adapter)
        })
    })
}

unsafe extern "C" fn invalidate(
    qp: *mut NDK_QP,
    context: PVOID,
    object: *mut NDK_OBJECT_HEADER,
    flags: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        get(qp)?.initiate(|qp| {
            let (context, flags) = (number(context), OpFlags::from_bits_retain(flags));
            let object = objects::get_any(object).map_err(Refusal::Library)?;
            let posted = match (object.downcast_ref::<Mr>(), object.downcast_ref::<Mw>()) {
                (Some(mr), _) => qp.invalidate(context, mr, flags),
                (_, Some(mw)) => qp.invalidate(context, mw, flags),
                (None, None) => return Err(Refusal::Library(NtStatus::INVALID_HANDLE)),
            };
            posted.map_err(Refusal::Adapter)
        })
    })
}
