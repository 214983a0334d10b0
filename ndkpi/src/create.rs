//! Handing out objects that were made, now or later.

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

/// Where a consumer is told of the object: at the end of the call, or by its completion (NDK-ASY-1).
pub(crate) struct Creation<T: Kind> {
    out: *mut *mut T::Seen,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
}

impl<T: Kind> Creation<T> {
    /// Of a call's arguments.
    pub(crate) const fn new(
        completion: NDK_FN_CREATE_COMPLETION,
        context: PVOID,
        out: *mut *mut T::Seen,
    ) -> Self {
        Self { out, completion, context }
    }

    /// Makes an object by `begin`, which is given its completion; `own` makes of a handle what belongs to the object.
    /// If it pends, the consumer's pointer is not written.
    ///
    /// # Errors
    /// As `begin`; INVALID_PARAMETER: no place for the pointer, or no completion; INSUFFICIENT_RESOURCES: no place for
    /// the object.
    ///
    /// # Safety
    /// The place for the pointer is null or can be written.
    pub(crate) unsafe fn begin<R>(
        self,
        own: impl FnOnce(R) -> T + Clone + Send + 'static,
        begin: impl FnOnce(Box<dyn FnOnce(Result<R, NtStatus>) + Send>) -> Result<Created<R>, NtStatus>,
    ) -> Result<NtStatus, NtStatus> {
        let Self { out, completion, context } = self;
        let completion = completion.filter(|_| !out.is_null());
        let completion = completion.ok_or(NtStatus::INVALID_PARAMETER)?;
        let context = Context::from(context);
        // One of two takes it: the call, or the completion.
        let place = Arc::new(Mutex::new(Some(objects::reserve()?)));
        let (later, own_later) = (place.clone(), own.clone());
        let complete = move |outcome: Result<R, NtStatus>| {
            let (status, object) = match outcome {
                Ok(handle) => match take(&later) {
                    Some(place) => (NtStatus::SUCCESS, place.fill(own_later(handle))),
                    None => return,
                },
                Err(status) => (status, ptr::null_mut()),
            };
            let status = status.0.cast_signed();
            // SAFETY: the consumer's function, with its context, a status and an object or null.
            callbacks::call(|| unsafe { completion(context.get(), status, object.cast()) });
        };
        let Created::Done(handle) = begin(Box::new(complete))? else {
            return Ok(NtStatus::PENDING);
        };
        let place = take(&place).ok_or(NtStatus::INTERNAL_ERROR)?;
        // SAFETY: as the caller says, and it is not null.
        unsafe { out.write(place.fill(own(handle))) };
        Ok(NtStatus::SUCCESS)
    }
}

fn take(place: &Mutex<Option<Reserved>>) -> Option<Reserved> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
