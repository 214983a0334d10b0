//! Return of new objects to the consumer, at the end of the call or by a completion.

use std::{
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use rdma_over_tcp::ndk::{Created, NtStatus};

use crate::{
    abi::{functions::NDK_FN_CREATE_COMPLETION, types::PVOID},
    callbacks::{self, Context},
    objects::{self, Kind, Reserved},
};

/// Arguments of a create call: the pointer that receives the object, and the completion (NDK-ASY-1).
pub(crate) struct Creation<T: Kind> {
    out: *mut *mut T::Public,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
}

impl<T: Kind> Creation<T> {
    /// Creates it from the arguments of a call.
    pub(crate) const fn new(
        completion: NDK_FN_CREATE_COMPLETION,
        context: PVOID,
        out: *mut *mut T::Public,
    ) -> Self {
        Self { out, completion, context }
    }

    /// Creates an object with `begin`, which gets its completion; `own` converts a handle to the object's state. If it
    /// pends, the consumer's pointer is not written.
    ///
    /// # Errors
    /// As `begin`; INVALID_PARAMETER: the pointer or the completion is null; INSUFFICIENT_RESOURCES: no slot is free
    /// for the object.
    ///
    /// # Safety
    /// The pointer is null or can be written.
    pub(crate) unsafe fn begin<R>(
        self,
        own: impl FnOnce(R) -> T + Clone + Send + 'static,
        begin: impl FnOnce(Box<dyn FnOnce(Result<R, NtStatus>) + Send>) -> Result<Created<R>, NtStatus>,
    ) -> Result<NtStatus, NtStatus> {
        let Self { out, completion, context } = self;
        let completion = completion.filter(|_| !out.is_null());
        let completion = completion.ok_or(NtStatus::INVALID_PARAMETER)?;
        let context = Context::from(context);
        // The slot is used once: by this call or by the completion.
        let slot = Arc::new(Mutex::new(Some(objects::reserve()?)));
        let (later, own_later) = (slot.clone(), own.clone());
        let complete = move |outcome: Result<R, NtStatus>| {
            let (status, object) = match outcome {
                Ok(handle) => match take(&later) {
                    Some(slot) => (NtStatus::SUCCESS, slot.fill(own_later(handle))),
                    None => return,
                },
                Err(status) => (status, ptr::null_mut()),
            };
            let status = status.0.cast_signed();
            // SAFETY: a function of the consumer, called with its context, a status and an object or null.
            callbacks::call(|| unsafe { completion(context.get(), status, object.cast()) });
        };
        let Created::Done(handle) = begin(Box::new(complete))? else {
            return Ok(NtStatus::PENDING);
        };
        let slot = take(&slot).ok_or(NtStatus::INTERNAL_ERROR)?;
        // SAFETY: the caller guarantees it, and the pointer is not null.
        unsafe { out.write(slot.fill(own(handle))) };
        Ok(NtStatus::SUCCESS)
    }
}

fn take(slot: &Mutex<Option<Reserved>>) -> Option<Reserved> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}
