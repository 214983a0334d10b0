//! Functions of NDK_ADAPTER_DISPATCH.

use std::{
    ffi::c_void,
    slice,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use rdma_over_tcp::ndk::{Adapter, AdapterInfo, Connector, Created, NtStatus};

use crate::{
    abi::{
        dispatch::NDK_ADAPTER_DISPATCH,
        functions::{
            NDK_FN_CONNECT_EVENT_CALLBACK, NDK_FN_CQ_NOTIFICATION_CALLBACK,
            NDK_FN_CREATE_COMPLETION, NDK_FN_REQUEST_COMPLETION,
        },
        types::{
            GROUP_AFFINITY, MDL, NDK_ADAPTER, NDK_ADAPTER_INFO, NDK_CONNECTOR, NDK_CQ,
            NDK_LISTENER, NDK_LOGICAL_ADDRESS_MAPPING, NDK_OBJECT_TYPE, NDK_PD,
            NDK_SHARED_ENDPOINT, NDK_VERSION, NTSTATUS, PVOID, SIZE_T, SOCKADDR, ULONG,
        },
        values::NdkObjectTypeAdapter,
    },
    address,
    callbacks::{self, Context},
    close,
    create::Creation,
    fatal, guard, lam,
    objects::{self, Kind},
};

/// Adapter that the consumer has opened.
pub(crate) struct Opened {
    pub(crate) adapter: Adapter,
}

impl fatal::EndAdapter for Opened {
    fn abandon(&self) {
        self.adapter.abandon();
    }
}

impl Opened {
    /// Returns an identifier of the adapter, unique while it is open.
    fn name(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Closes the adapter and waits until it is closed.
    pub(crate) fn close(&self) {
        self.wait_for(|done| self.adapter.close(done));
    }

    /// Starts an operation with `begin`, and waits until it has called back if it pends. With manual progress this
    /// thread drives the adapter meanwhile. Must not be called in a callback.
    fn wait_for(&self, begin: impl FnOnce(Box<dyn FnOnce() + Send>) -> NtStatus) {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let has_ended =
            |it: &(Mutex<bool>, Condvar)| *it.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = ended.clone();
        let status = begin(Box::new(move || {
            *end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            end.1.notify_all();
        }));
        if status != NtStatus::PENDING {
            return;
        }
        if self.adapter.wait_while(None, &mut || has_ended(&ended)).is_err() {
            // The device was removed. Only the consumer can complete the operation now.
            let held = ended.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(ended.1.wait_while(held, |has_ended| !*has_ended));
        }
    }
}

/// State of an NDK_ADAPTER.
pub(crate) struct AdapterObject(pub(crate) Arc<Opened>);

impl Kind for AdapterObject {
    type Public = NDK_ADAPTER;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeAdapter;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_ADAPTER_DISPATCH = NDK_ADAPTER_DISPATCH {
    NdkQueryExtension: close::query_extension,
    NdkQueryAdapterInfo: query_adapter_info,
    NdkCreateCq: create_cq,
    NdkCreatePd: create_pd,
    NdkCreateSharedEndpoint: create_shared_endpoint,
    NdkCreateConnector: create_connector,
    NdkCreateListener: create_listener,
    NdkBuildLAM: build_lam,
    NdkReleaseLAM: release_lam,
};

/// Returns the adapter of a consumer's pointer.
///
/// # Errors
/// INVALID_HANDLE.
pub(crate) fn get(adapter: *mut NDK_ADAPTER) -> Result<Arc<Opened>, NtStatus> {
    Ok(objects::get::<AdapterObject>(adapter)?.0.clone())
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl From<AdapterInfo> for NDK_ADAPTER_INFO {
    #[expect(non_snake_case, reason = "names of ndkpi.h")]
    fn from(info: AdapterInfo) -> Self {
        let AdapterInfo {
            version,
            vendor_id: VendorId,
            device_id: DeviceId,
            max_registration_size,
            max_window_size,
            frmr_page_count: FRMRPageCount,
            max_initiator_request_sge: MaxInitiatorRequestSge,
            max_receive_request_sge: MaxReceiveRequestSge,
            max_read_request_sge: MaxReadRequestSge,
            max_transfer_length: MaxTransferLength,
            max_inline_data_size: MaxInlineDataSize,
            max_inbound_read_limit: MaxInboundReadLimit,
            max_outbound_read_limit: MaxOutboundReadLimit,
            max_receive_queue_depth: MaxReceiveQueueDepth,
            max_initiator_queue_depth: MaxInitiatorQueueDepth,
            max_srq_depth: MaxSrqDepth,
            max_cq_depth: MaxCqDepth,
            large_request_threshold: LargeRequestThreshold,
            max_caller_data: MaxCallerData,
            max_callee_data: MaxCalleeData,
            adapter_flags,
            rdma_technology,
        } = info;
        Self {
            Version: NDK_VERSION { Major: version.major, Minor: version.minor },
            VendorId,
            DeviceId,
            MaxRegistrationSize: size(max_registration_size),
            MaxWindowSize: size(max_window_size),
            FRMRPageCount,
            MaxInitiatorRequestSge,
            MaxReceiveRequestSge,
            MaxReadRequestSge,
            MaxTransferLength,
            MaxInlineDataSize,
            MaxInboundReadLimit,
            MaxOutboundReadLimit,
            MaxReceiveQueueDepth,
            MaxInitiatorQueueDepth,
            MaxSrqDepth,
            MaxCqDepth,
            LargeRequestThreshold,
            MaxCallerData,
            MaxCalleeData,
            AdapterFlags: adapter_flags.bits(),
            RdmaTechnology: rdma_technology as u32,
        }
    }
}

unsafe extern "C" fn query_adapter_info(
    adapter: *mut NDK_ADAPTER,
    info: *mut NDK_ADAPTER_INFO,
    size: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let opened = get(adapter)?;
        offload_engine::fault::inject("FLUE_NDKPI_TEST_PANIC", |panic| {
            opened.adapter.with(|_, _| panic());
        });
        if size.is_null() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        const BYTES: ULONG = size_of::<NDK_ADAPTER_INFO>() as ULONG;
        // SAFETY: the consumer passes a pointer to the size.
        let room = unsafe { size.replace(BYTES) };
        if room < BYTES {
            return Err(NtStatus::BUFFER_TOO_SMALL);
        }
        if info.is_null() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        // SAFETY: the consumer passes a buffer of at least this many bytes.
        unsafe { info.write(opened.adapter.info().into()) };
        Ok(())
    })
}

/// Affinity is only a preference, and there is one thread (NDK-CQ-16).
unsafe extern "C" fn create_cq(
    adapter: *mut NDK_ADAPTER,
    depth: ULONG,
    notification: NDK_FN_CQ_NOTIFICATION_CALLBACK,
    notification_context: PVOID,
    _affinity: *const GROUP_AFFINITY,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    cq: *mut *mut NDK_CQ,
) -> NTSTATUS {
    guard::status(|| {
        let opened = get(adapter)?;
        let notification = callbacks::notification(notification, notification_context);
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, cq)
                .begin(|cq| cq, |done| opened.adapter.begin_create_cq(depth, notification, done))
        }
    })
}

unsafe extern "C" fn create_pd(
    adapter: *mut NDK_ADAPTER,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    pd: *mut *mut NDK_PD,
) -> NTSTATUS {
    guard::status(|| {
        let opened = get(adapter)?;
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, pd)
                .begin(|pd| pd, |done| opened.adapter.begin_create_pd(done))
        }
    })
}

unsafe extern "C" fn create_connector(
    adapter: *mut NDK_ADAPTER,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    connector: *mut *mut NDK_CONNECTOR,
) -> NTSTATUS {
    guard::status(|| {
        let opened = get(adapter)?;
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, connector)
                .begin(|connector| connector, |done| opened.adapter.begin_create_connector(done))
        }
    })
}

unsafe extern "C" fn create_shared_endpoint(
    adapter: *mut NDK_ADAPTER,
    local: *const SOCKADDR,
    length: ULONG,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    endpoint: *mut *mut NDK_SHARED_ENDPOINT,
) -> NTSTATUS {
    guard::status(|| {
        let opened = get(adapter)?;
        // SAFETY: the consumer passes an address of the given length, and a pointer that receives the object.
        unsafe {
            let local = address::read(local, length)?;
            Creation::new(completion, context, endpoint).begin(
                |endpoint| endpoint,
                |done| match opened.adapter.create_shared_endpoint(local, done) {
                    NtStatus::PENDING => Ok(Created::Pending),
                    status => Err(status),
                },
            )
        }
    })
}

unsafe extern "C" fn create_listener(
    adapter: *mut NDK_ADAPTER,
    event: NDK_FN_CONNECT_EVENT_CALLBACK,
    event_context: PVOID,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    listener: *mut *mut NDK_LISTENER,
) -> NTSTATUS {
    guard::status(|| {
        let opened = get(adapter)?;
        let event = event.ok_or(NtStatus::INVALID_PARAMETER)?;
        let event_context = Context::from(event_context);
        let incoming = move |connector: Connector| match objects::reserve() {
            Ok(slot) => {
                let connector = slot.fill(connector);
                // SAFETY: a function of the consumer, called with its context and a connector.
                callbacks::call(|| unsafe { event(event_context.get(), connector) });
            }
            Err(_) => {
                // No object is available for the event, so refuse the peer.
                let _ = connector.reject(&[]);
                let _ = connector.close(|| {});
            }
        };
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, listener).begin(
                |listener| listener,
                |done| opened.adapter.begin_create_listener(incoming, done),
            )
        }
    })
}

/// Never pends. The pages are mapped for read and write access, or for read access only if the memory is read-only.
unsafe extern "C" fn build_lam(
    adapter: *mut NDK_ADAPTER,
    mdl: *mut MDL,
    length: SIZE_T,
    _completion: NDK_FN_REQUEST_COMPLETION,
    _context: PVOID,
    mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
    size: *mut ULONG,
    first_byte_offset: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let opened = get(adapter)?;
        let out = (mapping, size, first_byte_offset);
        let build = |memory: &_| opened.adapter.build_lam(slice::from_ref(memory), length);
        // SAFETY: the consumer passes an MDL chain, keeps its memory until it releases the mapping, and passes the
        // pointers.
        unsafe { lam::write_mapping(mdl, length, out, opened.name(), build) }
    })
}

/// No access to the memory follows the return. In a callback it does not wait, so requests in flight may still read.
unsafe extern "C" fn release_lam(
    adapter: *mut NDK_ADAPTER,
    mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
) {
    guard::clean_up(|| {
        let opened = get(adapter)?;
        // SAFETY: the consumer passes a mapping.
        let lam = unsafe { lam::take(mapping, opened.name()) }?;
        let mapping = &lam.mapping;
        if callbacks::is_in_callback() {
            return Ok(opened.adapter.release_lam(mapping, || {}));
        }
        opened.wait_for(|done| opened.adapter.release_lam(mapping, done));
        Ok(NtStatus::SUCCESS)
    });
}
