//! Functions of NDK_CONNECTOR_DISPATCH.

use std::{ffi::c_void, net::SocketAddr, slice};

use rdma_over_tcp::ndk::{Connector, DisconnectEvent, NtStatus, ReadLimit, SharedEndpoint};

use crate::{
    abi::{
        dispatch::NDK_CONNECTOR_DISPATCH,
        functions::{
            NDK_FN_DISCONNECT_EVENT_CALLBACK, NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
            NDK_FN_REQUEST_COMPLETION,
        },
        types::{
            NDK_CONNECTOR, NDK_OBJECT_TYPE, NDK_QP, NDK_SHARED_ENDPOINT, NTSTATUS, PVOID, SOCKADDR,
            ULONG,
        },
        values::NdkObjectTypeConnector,
    },
    address, callbacks, close, guard,
    objects::{self, Kind},
    qp,
};

impl Kind for Connector {
    type Public = NDK_CONNECTOR;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeConnector;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_CONNECTOR_DISPATCH = NDK_CONNECTOR_DISPATCH {
    NdkCloseConnector: close::close::<Connector>,
    NdkQueryExtension: close::query_extension,
    NdkConnect: connect,
    NdkConnectWithSharedEndpoint: connect_with_shared_endpoint,
    NdkCompleteConnect: complete_connect,
    NdkAccept: accept,
    NdkReject: reject,
    NdkGetConnectionData: get_connection_data,
    NdkGetLocalAddress: get_local_address,
    NdkGetPeerAddress: get_peer_address,
    NdkDisconnect: disconnect,
    NdkCompleteConnectEx: complete_connect_ex,
    NdkAcceptEx: accept_ex,
};

/// Returns the consumer's private data.
///
/// # Errors
/// INVALID_PARAMETER: the pointer is null although the length is not 0.
///
/// # Safety
/// The pointer is null, or `length` bytes can be read from it and are not written meanwhile.
unsafe fn bytes<'a>(data: *const c_void, length: ULONG) -> Result<&'a [u8], NtStatus> {
    match (length as usize, data.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(NtStatus::INVALID_PARAMETER),
        // SAFETY: the caller guarantees it.
        (length, false) => Ok(unsafe { slice::from_raw_parts(data.cast(), length) }),
    }
}

const fn limits(inbound: ULONG, outbound: ULONG) -> ReadLimit {
    ReadLimit { inbound, outbound }
}

unsafe extern "C" fn connect(
    connector: *mut NDK_CONNECTOR,
    qp: *mut NDK_QP,
    source: *const SOCKADDR,
    source_length: ULONG,
    destination: *const SOCKADDR,
    destination_length: ULONG,
    inbound_read_limit: ULONG,
    outbound_read_limit: ULONG,
    private_data: *const c_void,
    private_data_length: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let (connector, own) = (objects::get::<Connector>(connector)?, qp::get(qp)?);
        // SAFETY: the consumer passes addresses and data of the given lengths.
        let (source, destination, data) = unsafe {
            (
                address::read(source, source_length)?,
                address::read(destination, destination_length)?,
                bytes(private_data, private_data_length)?,
            )
        };
        let limits = limits(inbound_read_limit, outbound_read_limit);
        let completion = callbacks::request(completion, context);
        Ok(connector.connect(&own.qp, Some(source), destination, limits, data, completion))
    })
}

unsafe extern "C" fn connect_with_shared_endpoint(
    connector: *mut NDK_CONNECTOR,
    qp: *mut NDK_QP,
    endpoint: *mut NDK_SHARED_ENDPOINT,
    destination: *const SOCKADDR,
    destination_length: ULONG,
    inbound_read_limit: ULONG,
    outbound_read_limit: ULONG,
    private_data: *const c_void,
    private_data_length: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let (connector, own) = (objects::get::<Connector>(connector)?, qp::get(qp)?);
        let endpoint = objects::get::<SharedEndpoint>(endpoint)?;
        // SAFETY: the consumer passes an address and data of the given lengths.
        let (destination, data) = unsafe {
            (
                address::read(destination, destination_length)?,
                bytes(private_data, private_data_length)?,
            )
        };
        let limits = limits(inbound_read_limit, outbound_read_limit);
        let completion = callbacks::request(completion, context);
        let (qp, endpoint) = (&own.qp, &*endpoint);
        Ok(connector.connect_with_shared_endpoint(
            qp,
            endpoint,
            destination,
            limits,
            data,
            completion,
        ))
    })
}

fn complete(
    connector: *mut NDK_CONNECTOR,
    event: Option<DisconnectEvent>,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let connector = objects::get::<Connector>(connector)?;
        Ok(connector.complete_connect(event, callbacks::request(completion, context)))
    })
}

unsafe extern "C" fn complete_connect(
    connector: *mut NDK_CONNECTOR,
    event: NDK_FN_DISCONNECT_EVENT_CALLBACK,
    event_context: PVOID,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    complete(connector, callbacks::disconnect(event, event_context), completion, context)
}

unsafe extern "C" fn complete_connect_ex(
    connector: *mut NDK_CONNECTOR,
    event: NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    event_context: PVOID,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    complete(connector, callbacks::disconnect_ex(event, event_context), completion, context)
}

/// # Safety
/// As [`bytes`].
unsafe fn accept_with(
    (connector, qp): (*mut NDK_CONNECTOR, *mut NDK_QP),
    limits: ReadLimit,
    (private_data, private_data_length): (*const c_void, ULONG),
    event: Option<DisconnectEvent>,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let (connector, own) = (objects::get::<Connector>(connector)?, qp::get(qp)?);
        // SAFETY: the caller guarantees it.
        let data = unsafe { bytes(private_data, private_data_length) }?;
        let completion = callbacks::request(completion, context);
        Ok(connector.accept(&own.qp, limits, data, event, completion))
    })
}

unsafe extern "C" fn accept(
    connector: *mut NDK_CONNECTOR,
    qp: *mut NDK_QP,
    inbound_read_limit: ULONG,
    outbound_read_limit: ULONG,
    private_data: *const c_void,
    private_data_length: ULONG,
    event: NDK_FN_DISCONNECT_EVENT_CALLBACK,
    event_context: PVOID,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    let limits = limits(inbound_read_limit, outbound_read_limit);
    let (data, event) =
        ((private_data, private_data_length), callbacks::disconnect(event, event_context));
    // SAFETY: the consumer passes data of the given length.
    unsafe { accept_with((connector, qp), limits, data, event, completion, context) }
}

unsafe extern "C" fn accept_ex(
    connector: *mut NDK_CONNECTOR,
    qp: *mut NDK_QP,
    inbound_read_limit: ULONG,
    outbound_read_limit: ULONG,
    private_data: *const c_void,
    private_data_length: ULONG,
    event: NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    event_context: PVOID,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    let limits = limits(inbound_read_limit, outbound_read_limit);
    let (data, event) =
        ((private_data, private_data_length), callbacks::disconnect_ex(event, event_context));
    // SAFETY: the consumer passes data of the given length.
    unsafe { accept_with((connector, qp), limits, data, event, completion, context) }
}

unsafe extern "C" fn reject(
    connector: *mut NDK_CONNECTOR,
    private_data: *const c_void,
    private_data_length: ULONG,
) -> NTSTATUS {
    guard::status(|| {
        let connector = objects::get::<Connector>(connector)?;
        // SAFETY: the consumer passes data of the given length.
        Ok(connector.reject(unsafe { bytes(private_data, private_data_length) }?))
    })
}

/// Implements the table of NDK-CD-3. If `length` is null, only the read limits are queried.
unsafe extern "C" fn get_connection_data(
    connector: *mut NDK_CONNECTOR,
    inbound_read_limit: *mut ULONG,
    outbound_read_limit: *mut ULONG,
    private_data: PVOID,
    length: *mut ULONG,
) -> NTSTATUS {
    guard::status(|| {
        let connector = objects::get::<Connector>(connector)?;
        // SAFETY: the consumer passes null or a pointer to the length.
        let room = unsafe { length.as_ref() }.map_or(0, |length| *length as usize);
        if private_data.is_null() && room > 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        // SAFETY: the consumer passes a buffer of this length, and does not use it meanwhile.
        let buffer = (!private_data.is_null() && !length.is_null())
            .then(|| unsafe { slice::from_raw_parts_mut(private_data.cast::<u8>(), room) });
        let (status, required, limits) = connector.connection_data(buffer);
        if status == NtStatus::CONNECTION_INVALID {
            return Err(status);
        }
        // SAFETY: each pointer is null or can be written.
        unsafe {
            for (place, found) in [
                (inbound_read_limit, limits.inbound),
                (outbound_read_limit, limits.outbound),
                (length, required as ULONG),
            ] {
                if !place.is_null() {
                    place.write(found);
                }
            }
        }
        Ok(status)
    })
}

/// # Safety
/// As [`address::write`].
unsafe fn write_address(
    connector: *mut NDK_CONNECTOR,
    of: impl FnOnce(&Connector) -> Option<SocketAddr>,
    to: *mut SOCKADDR,
    length: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let connector = objects::get::<Connector>(connector)?;
        let found = of(&connector).ok_or(NtStatus::CONNECTION_INVALID)?;
        // SAFETY: the caller guarantees it.
        unsafe { address::write(found, to, length) }
    })
}

unsafe extern "C" fn get_local_address(
    connector: *mut NDK_CONNECTOR,
    local: *mut SOCKADDR,
    length: *mut ULONG,
) -> NTSTATUS {
    // SAFETY: the consumer passes a buffer and its length.
    unsafe { write_address(connector, Connector::local_address, local, length) }
}

unsafe extern "C" fn get_peer_address(
    connector: *mut NDK_CONNECTOR,
    peer: *mut SOCKADDR,
    length: *mut ULONG,
) -> NTSTATUS {
    // SAFETY: as above.
    unsafe { write_address(connector, Connector::peer_address, peer, length) }
}

unsafe extern "C" fn disconnect(
    connector: *mut NDK_CONNECTOR,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let connector = objects::get::<Connector>(connector)?;
        Ok(connector.disconnect(callbacks::request(completion, context)))
    })
}
