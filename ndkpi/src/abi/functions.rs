//! Function types: the callbacks of consumers, which may be null, and the functions of the dispatch tables.

use std::ffi::c_void;

use super::types::*;

/// `NDK_FN_CREATE_COMPLETION`.
pub type NDK_FN_CREATE_COMPLETION =
    Option<unsafe extern "C" fn(PVOID, NTSTATUS, *mut NDK_OBJECT_HEADER)>;
/// `NDK_FN_REQUEST_COMPLETION`.
pub type NDK_FN_REQUEST_COMPLETION = Option<unsafe extern "C" fn(PVOID, NTSTATUS)>;
/// `NDK_FN_CLOSE_COMPLETION`.
pub type NDK_FN_CLOSE_COMPLETION = Option<unsafe extern "C" fn(PVOID)>;
/// `NDK_FN_CQ_NOTIFICATION_CALLBACK`.
pub type NDK_FN_CQ_NOTIFICATION_CALLBACK = Option<unsafe extern "C" fn(PVOID, NTSTATUS)>;
/// `NDK_FN_SRQ_NOTIFICATION_CALLBACK`.
pub type NDK_FN_SRQ_NOTIFICATION_CALLBACK = Option<unsafe extern "C" fn(PVOID, NTSTATUS)>;
/// `NDK_FN_CONNECT_EVENT_CALLBACK`.
pub type NDK_FN_CONNECT_EVENT_CALLBACK = Option<unsafe extern "C" fn(PVOID, *mut NDK_CONNECTOR)>;
/// `NDK_FN_DISCONNECT_EVENT_CALLBACK`.
pub type NDK_FN_DISCONNECT_EVENT_CALLBACK = Option<unsafe extern "C" fn(PVOID)>;
/// `NDK_FN_DISCONNECT_EVENT_CALLBACK_EX`.
pub type NDK_FN_DISCONNECT_EVENT_CALLBACK_EX = Option<unsafe extern "C" fn(PVOID, ULONG)>;
/// `NDK_FN_CLOSE_OBJECT`.
pub type NDK_FN_CLOSE_OBJECT =
    unsafe extern "C" fn(*mut NDK_OBJECT_HEADER, NDK_FN_CLOSE_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_QUERY_EXTENSION_INTERFACE`.
pub type NDK_FN_QUERY_EXTENSION_INTERFACE = unsafe extern "C" fn(
    *mut NDK_OBJECT_HEADER,
    *const GUID,
    NDK_VERSION,
    *mut NDK_EXTENSION_INTERFACE,
) -> NTSTATUS;
/// `NDK_FN_QUERY_ADAPTER_INFO`.
pub type NDK_FN_QUERY_ADAPTER_INFO =
    unsafe extern "C" fn(*mut NDK_ADAPTER, *mut NDK_ADAPTER_INFO, *mut ULONG) -> NTSTATUS;
/// `NDK_FN_CREATE_CQ`.
pub type NDK_FN_CREATE_CQ = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    ULONG,
    NDK_FN_CQ_NOTIFICATION_CALLBACK,
    PVOID,
    *const GROUP_AFFINITY,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_CQ,
) -> NTSTATUS;
/// `NDK_FN_CREATE_PD`.
pub type NDK_FN_CREATE_PD = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_PD,
) -> NTSTATUS;
/// `NDK_FN_CREATE_SHARED_ENDPOINT`.
pub type NDK_FN_CREATE_SHARED_ENDPOINT = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    *const SOCKADDR,
    ULONG,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_SHARED_ENDPOINT,
) -> NTSTATUS;
/// `NDK_FN_CREATE_CONNECTOR`.
pub type NDK_FN_CREATE_CONNECTOR = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_CONNECTOR,
) -> NTSTATUS;
/// `NDK_FN_CREATE_LISTENER`.
pub type NDK_FN_CREATE_LISTENER = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    NDK_FN_CONNECT_EVENT_CALLBACK,
    PVOID,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_LISTENER,
) -> NTSTATUS;
/// `NDK_FN_BUILD_LAM`.
pub type NDK_FN_BUILD_LAM = unsafe extern "C" fn(
    *mut NDK_ADAPTER,
    *mut MDL,
    SIZE_T,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
    *mut NDK_LOGICAL_ADDRESS_MAPPING,
    *mut ULONG,
    *mut ULONG,
) -> NTSTATUS;
/// `NDK_FN_RELEASE_LAM`.
pub type NDK_FN_RELEASE_LAM =
    unsafe extern "C" fn(*mut NDK_ADAPTER, *mut NDK_LOGICAL_ADDRESS_MAPPING);
/// `NDK_FN_CREATE_MR`.
pub type NDK_FN_CREATE_MR = unsafe extern "C" fn(
    *mut NDK_PD,
    BOOLEAN,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_MR,
) -> NTSTATUS;
/// `NDK_FN_CREATE_MW`.
pub type NDK_FN_CREATE_MW = unsafe extern "C" fn(
    *mut NDK_PD,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_MW,
) -> NTSTATUS;
/// `NDK_FN_CREATE_SRQ`.
pub type NDK_FN_CREATE_SRQ = unsafe extern "C" fn(
    *mut NDK_PD,
    ULONG,
    ULONG,
    ULONG,
    NDK_FN_SRQ_NOTIFICATION_CALLBACK,
    PVOID,
    *const GROUP_AFFINITY,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_SRQ,
) -> NTSTATUS;
/// `NDK_FN_CREATE_QP`.
pub type NDK_FN_CREATE_QP = unsafe extern "C" fn(
    *mut NDK_PD,
    *mut NDK_CQ,
    *mut NDK_CQ,
    PVOID,
    ULONG,
    ULONG,
    ULONG,
    ULONG,
    ULONG,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_QP,
) -> NTSTATUS;
/// `NDK_FN_CREATE_QP_WITH_SRQ`.
pub type NDK_FN_CREATE_QP_WITH_SRQ = unsafe extern "C" fn(
    *mut NDK_PD,
    *mut NDK_CQ,
    *mut NDK_CQ,
    *mut NDK_SRQ,
    PVOID,
    ULONG,
    ULONG,
    ULONG,
    NDK_FN_CREATE_COMPLETION,
    PVOID,
    *mut *mut NDK_QP,
) -> NTSTATUS;
/// `NDK_FN_GET_PRIVILEGED_MEMORY_REGION_TOKEN`.
pub type NDK_FN_GET_PRIVILEGED_MEMORY_REGION_TOKEN = unsafe extern "C" fn(*mut NDK_PD, *mut u32);
/// `NDK_FN_RESIZE_CQ`.
pub type NDK_FN_RESIZE_CQ =
    unsafe extern "C" fn(*mut NDK_CQ, ULONG, NDK_FN_REQUEST_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_ARM_CQ`.
pub type NDK_FN_ARM_CQ = unsafe extern "C" fn(*mut NDK_CQ, ULONG);
/// `NDK_FN_GET_CQ_RESULTS`.
pub type NDK_FN_GET_CQ_RESULTS = unsafe extern "C" fn(*mut NDK_CQ, *mut NDK_RESULT, ULONG) -> ULONG;
/// `NDK_FN_CONTROL_CQ_INTERRUPT_MODERATION`.
pub type NDK_FN_CONTROL_CQ_INTERRUPT_MODERATION =
    unsafe extern "C" fn(*mut NDK_CQ, ULONG, ULONG) -> NTSTATUS;
/// `NDK_FN_GET_CQ_RESULTS_EX`.
pub type NDK_FN_GET_CQ_RESULTS_EX =
    unsafe extern "C" fn(*mut NDK_CQ, *mut NDK_RESULT_EX, ULONG) -> ULONG;
/// `NDK_FN_FLUSH`.
pub type NDK_FN_FLUSH = unsafe extern "C" fn(*mut NDK_QP);
/// `NDK_FN_SEND`.
pub type NDK_FN_SEND =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *const NDK_SGE, ULONG, ULONG) -> NTSTATUS;
/// `NDK_FN_RECEIVE`.
pub type NDK_FN_RECEIVE =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *const NDK_SGE, ULONG) -> NTSTATUS;
/// `NDK_FN_BIND`.
pub type NDK_FN_BIND = unsafe extern "C" fn(
    *mut NDK_QP,
    PVOID,
    *mut NDK_MR,
    *mut NDK_MW,
    PVOID,
    SIZE_T,
    ULONG,
) -> NTSTATUS;
/// `NDK_FN_FAST_REGISTER`.
pub type NDK_FN_FAST_REGISTER = unsafe extern "C" fn(
    *mut NDK_QP,
    PVOID,
    *mut NDK_MR,
    ULONG,
    *const NDK_LOGICAL_ADDRESS,
    ULONG,
    SIZE_T,
    PVOID,
    ULONG,
) -> NTSTATUS;
/// `NDK_FN_INVALIDATE`.
pub type NDK_FN_INVALIDATE =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *mut NDK_OBJECT_HEADER, ULONG) -> NTSTATUS;
/// `NDK_FN_READ`.
pub type NDK_FN_READ =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *const NDK_SGE, ULONG, u64, u32, ULONG) -> NTSTATUS;
/// `NDK_FN_WRITE`.
pub type NDK_FN_WRITE =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *const NDK_SGE, ULONG, u64, u32, ULONG) -> NTSTATUS;
/// `NDK_FN_SEND_AND_INVALIDATE`.
pub type NDK_FN_SEND_AND_INVALIDATE =
    unsafe extern "C" fn(*mut NDK_QP, PVOID, *const NDK_SGE, ULONG, ULONG, u32) -> NTSTATUS;
/// `NDK_FN_REGISTER_MR`.
pub type NDK_FN_REGISTER_MR = unsafe extern "C" fn(
    *mut NDK_MR,
    *mut MDL,
    SIZE_T,
    ULONG,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_DEREGISTER_MR`.
pub type NDK_FN_DEREGISTER_MR =
    unsafe extern "C" fn(*mut NDK_MR, NDK_FN_REQUEST_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_INITIALIZE_FAST_REGISTER_MR`.
pub type NDK_FN_INITIALIZE_FAST_REGISTER_MR =
    unsafe extern "C" fn(*mut NDK_MR, ULONG, BOOLEAN, NDK_FN_REQUEST_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_GET_REMOTE_TOKEN_FROM_MR`.
pub type NDK_FN_GET_REMOTE_TOKEN_FROM_MR = unsafe extern "C" fn(*mut NDK_MR) -> u32;
/// `NDK_FN_GET_LOCAL_TOKEN_FROM_MR`.
pub type NDK_FN_GET_LOCAL_TOKEN_FROM_MR = unsafe extern "C" fn(*mut NDK_MR) -> u32;
/// `NDK_FN_GET_REMOTE_TOKEN_FROM_MW`.
pub type NDK_FN_GET_REMOTE_TOKEN_FROM_MW = unsafe extern "C" fn(*mut NDK_MW) -> u32;
/// `NDK_FN_MODIFY_SRQ`.
pub type NDK_FN_MODIFY_SRQ =
    unsafe extern "C" fn(*mut NDK_SRQ, ULONG, ULONG, NDK_FN_REQUEST_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_SRQ_RECEIVE`.
pub type NDK_FN_SRQ_RECEIVE =
    unsafe extern "C" fn(*mut NDK_SRQ, PVOID, *const NDK_SGE, ULONG) -> NTSTATUS;
/// `NDK_FN_CONNECT`.
pub type NDK_FN_CONNECT = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    *mut NDK_QP,
    *const SOCKADDR,
    ULONG,
    *const SOCKADDR,
    ULONG,
    ULONG,
    ULONG,
    *const c_void,
    ULONG,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_CONNECT_WITH_SHARED_ENDPOINT`.
pub type NDK_FN_CONNECT_WITH_SHARED_ENDPOINT = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    *mut NDK_QP,
    *mut NDK_SHARED_ENDPOINT,
    *const SOCKADDR,
    ULONG,
    ULONG,
    ULONG,
    *const c_void,
    ULONG,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_COMPLETE_CONNECT`.
pub type NDK_FN_COMPLETE_CONNECT = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    NDK_FN_DISCONNECT_EVENT_CALLBACK,
    PVOID,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_ACCEPT`.
pub type NDK_FN_ACCEPT = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    *mut NDK_QP,
    ULONG,
    ULONG,
    *const c_void,
    ULONG,
    NDK_FN_DISCONNECT_EVENT_CALLBACK,
    PVOID,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_REJECT`.
pub type NDK_FN_REJECT = unsafe extern "C" fn(*mut NDK_CONNECTOR, *const c_void, ULONG) -> NTSTATUS;
/// `NDK_FN_GET_CONNECTION_DATA`.
pub type NDK_FN_GET_CONNECTION_DATA =
    unsafe extern "C" fn(*mut NDK_CONNECTOR, *mut ULONG, *mut ULONG, PVOID, *mut ULONG) -> NTSTATUS;
/// `NDK_FN_GET_LOCAL_ADDRESS`.
pub type NDK_FN_GET_LOCAL_ADDRESS =
    unsafe extern "C" fn(*mut NDK_CONNECTOR, *mut SOCKADDR, *mut ULONG) -> NTSTATUS;
/// `NDK_FN_GET_PEER_ADDRESS`.
pub type NDK_FN_GET_PEER_ADDRESS =
    unsafe extern "C" fn(*mut NDK_CONNECTOR, *mut SOCKADDR, *mut ULONG) -> NTSTATUS;
/// `NDK_FN_DISCONNECT`.
pub type NDK_FN_DISCONNECT =
    unsafe extern "C" fn(*mut NDK_CONNECTOR, NDK_FN_REQUEST_COMPLETION, PVOID) -> NTSTATUS;
/// `NDK_FN_COMPLETE_CONNECT_EX`.
pub type NDK_FN_COMPLETE_CONNECT_EX = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    PVOID,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_ACCEPT_EX`.
pub type NDK_FN_ACCEPT_EX = unsafe extern "C" fn(
    *mut NDK_CONNECTOR,
    *mut NDK_QP,
    ULONG,
    ULONG,
    *const c_void,
    ULONG,
    NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    PVOID,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_LISTEN`.
pub type NDK_FN_LISTEN = unsafe extern "C" fn(
    *mut NDK_LISTENER,
    *const SOCKADDR,
    ULONG,
    NDK_FN_REQUEST_COMPLETION,
    PVOID,
) -> NTSTATUS;
/// `NDK_FN_GET_LISTENER_LOCAL_ADDRESS`.
pub type NDK_FN_GET_LISTENER_LOCAL_ADDRESS =
    unsafe extern "C" fn(*mut NDK_LISTENER, *mut SOCKADDR, *mut ULONG) -> NTSTATUS;
/// `NDK_FN_CONTROL_CONNECT_EVENTS`.
pub type NDK_FN_CONTROL_CONNECT_EVENTS = unsafe extern "C" fn(*mut NDK_LISTENER, BOOLEAN);
/// `NDK_FN_GET_SHARED_ENDPOINT_LOCAL_ADDRESS`.
pub type NDK_FN_GET_SHARED_ENDPOINT_LOCAL_ADDRESS =
    unsafe extern "C" fn(*mut NDK_SHARED_ENDPOINT, *mut SOCKADDR, *mut ULONG) -> NTSTATUS;
