//! Opening and closing of adapters: functions of the header that replace those of NDIS.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use flue_adapter::{Cause, Error};
use offload_engine::descriptor::log_shortage;
use rdma_over_tcp::ndk::{NDK_VERSION, NdkVersion, NtStatus};

use crate::{
    abi::{
        types::{BOOLEAN, NDK_ADAPTER, NDK_VERSION as Version, NTSTATUS},
        values::{
            NDIS_STATUS_ADAPTER_NOT_READY, NDIS_STATUS_BAD_VERSION, NDIS_STATUS_FAILURE,
            NDIS_STATUS_INVALID_PARAMETER, NDIS_STATUS_RESOURCES, NDIS_STATUS_SUCCESS,
        },
    },
    adapter::{AdapterObject, Opened},
    callbacks,
    config::Configuration,
    fatal, guard, objects,
};

/// True if adapters may be opened (NDK-MGT-2).
static ENABLED: AtomicBool = AtomicBool::new(true);

thread_local! {
    /// Error of this thread's last failed open.
    static ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Refused open: status and reason.
struct Refused(NTSTATUS, String);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let status = match error.cause() {
            _ if matches!(error, Error::Descriptors(_)) => {
                log_shortage();
                NDIS_STATUS_RESOURCES
            }
            Cause::Option => NDIS_STATUS_INVALID_PARAMETER,
            Cause::Operation | Cause::Prerequisite => NDIS_STATUS_FAILURE,
        };
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        Self(status, format!("{}{hint}", error.message()))
    }
}

/// # Safety
/// The configuration is null or terminated by NUL.
unsafe fn open(
    configuration: *const c_char,
    version: Version,
) -> Result<*mut NDK_ADAPTER, Refused> {
    // NDK-VER-1
    let lowest = NdkVersion { major: version.Major, minor: version.Minor };
    if !lowest.is_met_by(NDK_VERSION) {
        let message =
            format!("version not supported: expected {}.{}", NDK_VERSION.major, NDK_VERSION.minor);
        return Err(Refused(NDIS_STATUS_BAD_VERSION, message));
    }
    if !ENABLED.load(Ordering::Relaxed) {
        return Err(Refused(NDIS_STATUS_ADAPTER_NOT_READY, "NDK is disabled".into()));
    }
    let text = match configuration.is_null() {
        true => c"",
        // SAFETY: the caller guarantees it.
        false => unsafe { CStr::from_ptr(configuration) },
    };
    let text =
        text.to_str().map_err(|_| Refused(NDIS_STATUS_INVALID_PARAMETER, "not UTF-8".into()))?;
    let place = objects::reserve()
        .map_err(|_| Refused(NDIS_STATUS_RESOURCES, "object table is full".into()))?;
    let opened = Arc::new(Opened { adapter: Configuration::parse(text)?.open()? });
    let watched: Arc<dyn fatal::EndAdapter> = opened.clone();
    fatal::watch(Arc::downgrade(&watched));
    Ok(place.fill(AdapterObject(opened)))
}

/// Opens an adapter: see the header.
///
/// # Safety
/// `configuration` is null or terminated by NUL; `adapter` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn FlueNdkOpenAdapter(
    configuration: *const c_char,
    version: Version,
    adapter: *mut *mut NDK_ADAPTER,
) -> NTSTATUS {
    let mut outcome = Err(Refused(NDIS_STATUS_FAILURE, "the library panicked".into()));
    guard::done(|| {
        outcome = match adapter.is_null() {
            true => {
                Err(Refused(NDIS_STATUS_INVALID_PARAMETER, "null pointer for the result".into()))
            }
            // SAFETY: the caller guarantees it.
            false => unsafe { open(configuration, version) },
        };
        Ok(())
    });
    let (status, error) = match outcome {
        Ok(opened) => {
            // SAFETY: the caller guarantees it, and the pointer is not null.
            unsafe { adapter.write(opened) };
            (NDIS_STATUS_SUCCESS, String::new())
        }
        Err(Refused(status, error)) => (status, error),
    };
    ERROR.set(CString::new(error.replace('\0', " ")).ok());
    status
}

/// Returns the reason of this thread's last failed open: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn FlueNdkOpenError() -> *const c_char {
    ERROR.with_borrow(|error| error.as_deref().unwrap_or_default().as_ptr())
}

/// Closes an adapter, and waits until it is closed: see the header.
///
/// # Safety
/// None: a pointer that is not an open adapter is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn FlueNdkCloseAdapter(adapter: *mut NDK_ADAPTER) {
    guard::clean_up(|| {
        if callbacks::is_in_callback() {
            tracing::error!("FlueNdkCloseAdapter called in a callback: deadlock");
            return Err(NtStatus::INVALID_DEVICE_STATE);
        }
        let (opened, place) = objects::take::<AdapterObject>(adapter)?;
        opened.0.close();
        drop(place);
        Ok(NtStatus::SUCCESS)
    });
}

/// Enables or disables NDK: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn FlueNdkSetState(enabled: BOOLEAN) {
    ENABLED.store(enabled != 0, Ordering::Relaxed);
}
