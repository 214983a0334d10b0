//! Opening and closing of adapters: the functions of the header that stand in for NDIS.

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

/// Whether adapters may be opened (NDK-MGT-2).
static ENABLED: AtomicBool = AtomicBool::new(true);

thread_local! {
    /// Why this thread's last open has failed.
    static ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// A refused open: the status, and why.
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
/// The configuration is null or ends with NUL.
unsafe fn open(
    configuration: *const c_char,
    version: Version,
) -> Result<*mut NDK_ADAPTER, Refused> {
    // NDK-VER-1
    let lowest = NdkVersion { major: version.Major, minor: version.Minor };
    if !lowest.is_met_by(NDK_VERSION) {
        let told = format!("the version is {}.{}", NDK_VERSION.major, NDK_VERSION.minor);
        return Err(Refused(NDIS_STATUS_BAD_VERSION, told));
    }
    if !ENABLED.load(Ordering::Relaxed) {
        return Err(Refused(NDIS_STATUS_ADAPTER_NOT_READY, "NDK is turned off".into()));
    }
    let text = match configuration.is_null() {
        true => c"",
        // SAFETY: as the caller says.
        false => unsafe { CStr::from_ptr(configuration) },
    };
    let text =
        text.to_str().map_err(|_| Refused(NDIS_STATUS_INVALID_PARAMETER, "not UTF-8".into()))?;
    let place = objects::reserve()
        .map_err(|_| Refused(NDIS_STATUS_RESOURCES, "no place for another object".into()))?;
    let opened = Arc::new(Opened { adapter: Configuration::parse(text)?.open()? });
    let watched: Arc<dyn fatal::Abandon> = opened.clone();
    fatal::watch(Arc::downgrade(&watched));
    Ok(place.fill(AdapterObject(opened)))
}

/// Opens an adapter: see the header.
///
/// # Safety
/// `configuration` is null or ends with NUL; `adapter` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn FlueNdkOpenAdapter(
    configuration: *const c_char,
    version: Version,
    adapter: *mut *mut NDK_ADAPTER,
) -> NTSTATUS {
    let mut outcome = Err(Refused(NDIS_STATUS_FAILURE, "the library has failed".into()));
    guard::done(|| {
        outcome = match adapter.is_null() {
            true => Err(Refused(NDIS_STATUS_INVALID_PARAMETER, "no place for it".into())),
            // SAFETY: as the caller says.
            false => unsafe { open(configuration, version) },
        };
        Ok(())
    });
    let (status, error) = match outcome {
        Ok(opened) => {
            // SAFETY: it is not null, and as the caller says.
            unsafe { adapter.write(opened) };
            (NDIS_STATUS_SUCCESS, String::new())
        }
        Err(Refused(status, error)) => (status, error),
    };
    ERROR.set(CString::new(error.replace('\0', " ")).ok());
    status
}

/// Why this thread's last open has failed: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn FlueNdkOpenError() -> *const c_char {
    ERROR.with_borrow(|error| error.as_deref().unwrap_or_default().as_ptr())
}

/// Closes an adapter, and waits until it is closed: see the header.
///
/// # Safety
/// None: a pointer that is not an open adapter's is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn FlueNdkCloseAdapter(adapter: *mut NDK_ADAPTER) {
    guard::clean_up(|| {
        if callbacks::is_in_one() {
            tracing::error!("FlueNdkCloseAdapter in a callback, for whose end it would wait");
            return Err(NtStatus::INVALID_DEVICE_STATE);
        }
        let (opened, place) = objects::take::<AdapterObject>(adapter)?;
        opened.0.close();
        drop(place);
        Ok(NtStatus::SUCCESS)
    });
}

/// Turns NDK on or off: see the header.
#[unsafe(no_mangle)]
pub extern "C" fn FlueNdkSetState(enabled: BOOLEAN) {
    ENABLED.store(enabled != 0, Ordering::Relaxed);
}
