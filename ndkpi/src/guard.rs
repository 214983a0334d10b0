//! Statuses and panics at the C boundary.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdma_over_tcp::ndk::NtStatus;

use crate::{abi::types::NTSTATUS, fatal};

/// Calls `body`. If it panics, all adapters end, and this call returns INTERNAL_ERROR.
#[inline]
fn catch<R>(body: impl FnOnce() -> Result<R, NtStatus>) -> Result<R, NtStatus> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        fatal::panicked();
        Err(NtStatus::INTERNAL_ERROR)
    })
}

/// Calls `body`, or returns DEVICE_REMOVED after a panic.
#[inline]
fn run<R>(body: impl FnOnce() -> Result<R, NtStatus>) -> Result<R, NtStatus> {
    if fatal::has_panicked() {
        return Err(NtStatus::DEVICE_REMOVED);
    }
    catch(body)
}

const fn number(outcome: Result<NtStatus, NtStatus>) -> NTSTATUS {
    match outcome {
        Ok(status) | Err(status) => status.0.cast_signed(),
    }
}

/// Guards a function that may pend.
#[inline]
pub(crate) fn status(body: impl FnOnce() -> Result<NtStatus, NtStatus>) -> NTSTATUS {
    number(run(body))
}

/// Guards a function that does not pend: SUCCESS, or an error.
#[inline]
pub(crate) fn done(body: impl FnOnce() -> Result<(), NtStatus>) -> NTSTATUS {
    number(run(|| body().map(|()| NtStatus::SUCCESS)))
}

/// Guards a function that releases resources; it also runs after a panic.
pub(crate) fn clean_up(body: impl FnOnce() -> Result<NtStatus, NtStatus>) -> NTSTATUS {
    number(catch(body))
}

/// Guards a function that does not return a status; after an error it returns the default.
#[inline]
pub(crate) fn value<R: Default>(body: impl FnOnce() -> Result<R, NtStatus>) -> R {
    run(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::values::{
        STATUS_CANCELLED, STATUS_DEVICE_REMOVED, STATUS_INTERNAL_ERROR, STATUS_PENDING,
        STATUS_SUCCESS,
    };

    /// One test, since a panic ends the adapters of the whole process.
    #[test]
    fn panic_returns_internal_error_and_later_calls_device_removed() {
        assert_eq!(status(|| Ok(NtStatus::PENDING)), STATUS_PENDING);
        assert_eq!(done(|| Ok(())), STATUS_SUCCESS);
        assert_eq!(done(|| Err(NtStatus::CANCELLED)), STATUS_CANCELLED);
        assert_eq!(value(|| Ok(7)), 7);
        assert_eq!(value::<u32>(|| Err(NtStatus::CANCELLED)), 0);

        assert_eq!(done(|| panic!("a bug")), STATUS_INTERNAL_ERROR);
        assert_eq!(done(|| Ok(())), STATUS_DEVICE_REMOVED);
        assert_eq!(value(|| Ok(7)), 0);
        assert_eq!(clean_up(|| Ok(NtStatus::SUCCESS)), STATUS_SUCCESS);
    }
}
