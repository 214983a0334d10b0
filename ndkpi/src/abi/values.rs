//! Constants that the library defines itself; the others are those of [`rdma_over_tcp::ndk`].

use rdma_over_tcp::{
    error::ErrorNumber,
    ndk::{
        AdapterFlags, CqNotify, DisconnectReason, MrFlags, NtStatus, OpFlags, OperationType,
        PAGE_SIZE as PAGE,
    },
};

use super::types::{NDK_OBJECT_TYPE, NTSTATUS, ULONG};

const fn nt(status: NtStatus) -> NTSTATUS {
    status.0.cast_signed()
}

c_constants! {
    STATUS_SUCCESS: NTSTATUS = nt(NtStatus::SUCCESS);
    STATUS_PENDING: NTSTATUS = nt(NtStatus::PENDING);
    STATUS_BUFFER_OVERFLOW: NTSTATUS = nt(NtStatus::BUFFER_OVERFLOW);
    STATUS_DEVICE_BUSY: NTSTATUS = nt(NtStatus::DEVICE_BUSY);
    STATUS_NO_MORE_ENTRIES: NTSTATUS = nt(NtStatus::NO_MORE_ENTRIES);
    STATUS_ACCESS_VIOLATION: NTSTATUS = nt(NtStatus::ACCESS_VIOLATION);
    STATUS_INVALID_HANDLE: NTSTATUS = nt(NtStatus::INVALID_HANDLE);
    STATUS_INVALID_PARAMETER: NTSTATUS = nt(NtStatus::INVALID_PARAMETER);
    STATUS_INVALID_DEVICE_REQUEST: NTSTATUS = nt(NtStatus::INVALID_DEVICE_REQUEST);
    STATUS_BUFFER_TOO_SMALL: NTSTATUS = nt(NtStatus::BUFFER_TOO_SMALL);
    STATUS_INVALID_PARAMETER_MIX: NTSTATUS = nt(NtStatus::INVALID_PARAMETER_MIX);
    STATUS_DATA_OVERRUN: NTSTATUS = nt(NtStatus::DATA_OVERRUN);
    STATUS_DATA_ERROR: NTSTATUS = nt(NtStatus::DATA_ERROR);
    STATUS_SHARING_VIOLATION: NTSTATUS = nt(NtStatus::SHARING_VIOLATION);
    STATUS_INSUFFICIENT_RESOURCES: NTSTATUS = nt(NtStatus::INSUFFICIENT_RESOURCES);
    STATUS_IO_TIMEOUT: NTSTATUS = nt(NtStatus::IO_TIMEOUT);
    STATUS_NOT_SUPPORTED: NTSTATUS = nt(NtStatus::NOT_SUPPORTED);
    STATUS_INTERNAL_ERROR: NTSTATUS = nt(NtStatus::INTERNAL_ERROR);
    STATUS_CANCELLED: NTSTATUS = nt(NtStatus::CANCELLED);
    STATUS_REMOTE_RESOURCES: NTSTATUS = nt(NtStatus::REMOTE_RESOURCES);
    STATUS_INVALID_ADDRESS: NTSTATUS = nt(NtStatus::INVALID_ADDRESS);
    STATUS_INVALID_DEVICE_STATE: NTSTATUS = nt(NtStatus::INVALID_DEVICE_STATE);
    STATUS_INVALID_BUFFER_SIZE: NTSTATUS = nt(NtStatus::INVALID_BUFFER_SIZE);
    STATUS_TOO_MANY_ADDRESSES: NTSTATUS = nt(NtStatus::TOO_MANY_ADDRESSES);
    STATUS_ADDRESS_ALREADY_EXISTS: NTSTATUS = nt(NtStatus::ADDRESS_ALREADY_EXISTS);
    STATUS_CONNECTION_REFUSED: NTSTATUS = nt(NtStatus::CONNECTION_REFUSED);
    STATUS_ADDRESS_ALREADY_ASSOCIATED: NTSTATUS = nt(NtStatus::ADDRESS_ALREADY_ASSOCIATED);
    STATUS_CONNECTION_INVALID: NTSTATUS = nt(NtStatus::CONNECTION_INVALID);
    STATUS_CONNECTION_ACTIVE: NTSTATUS = nt(NtStatus::CONNECTION_ACTIVE);
    STATUS_NETWORK_UNREACHABLE: NTSTATUS = nt(NtStatus::NETWORK_UNREACHABLE);
    STATUS_HOST_UNREACHABLE: NTSTATUS = nt(NtStatus::HOST_UNREACHABLE);
    STATUS_CONNECTION_ABORTED: NTSTATUS = nt(NtStatus::CONNECTION_ABORTED);
    STATUS_DEVICE_REMOVED: NTSTATUS = nt(NtStatus::DEVICE_REMOVED);
    STATUS_IMPLEMENTATION_LIMIT: NTSTATUS = nt(NtStatus::IMPLEMENTATION_LIMIT);
    NDIS_STATUS_SUCCESS: NTSTATUS = 0;
    NDIS_STATUS_FAILURE: NTSTATUS = 0xC000_0001_u32.cast_signed();
    NDIS_STATUS_INVALID_PARAMETER: NTSTATUS = 0xC000_000D_u32.cast_signed();
    NDIS_STATUS_RESOURCES: NTSTATUS = 0xC000_009A_u32.cast_signed();
    NDIS_STATUS_BAD_VERSION: NTSTATUS = 0xC001_0004_u32.cast_signed();
    NDIS_STATUS_ADAPTER_NOT_READY: NTSTATUS = 0xC001_0011_u32.cast_signed();
    NDK_ADAPTER_FLAG_IN_ORDER_DMA_SUPPORTED: ULONG = AdapterFlags::IN_ORDER_DMA_SUPPORTED.bits();
    NDK_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED: ULONG = AdapterFlags::RDMA_READ_SINK_NOT_REQUIRED.bits();
    NDK_ADAPTER_FLAG_CQ_INTERRUPT_MODERATION_SUPPORTED: ULONG = AdapterFlags::CQ_INTERRUPT_MODERATION_SUPPORTED.bits();
    NDK_ADAPTER_FLAG_MULTI_ENGINE_SUPPORTED: ULONG = AdapterFlags::MULTI_ENGINE_SUPPORTED.bits();
    NDK_ADAPTER_FLAG_RDMA_READ_LOCAL_INVALIDATE_SUPPORTED: ULONG =
        AdapterFlags::RDMA_READ_LOCAL_INVALIDATE_SUPPORTED.bits();
    NDK_ADAPTER_FLAG_CQ_RESIZE_SUPPORTED: ULONG = AdapterFlags::CQ_RESIZE_SUPPORTED.bits();
    NDK_ADAPTER_FLAG_LOOPBACK_CONNECTIONS_SUPPORTED: ULONG = AdapterFlags::LOOPBACK_CONNECTIONS_SUPPORTED.bits();
    NDK_MR_FLAG_ALLOW_LOCAL_READ: ULONG = 0;
    NDK_MR_FLAG_ALLOW_LOCAL_WRITE: ULONG = MrFlags::ALLOW_LOCAL_WRITE.bits();
    NDK_MR_FLAG_ALLOW_REMOTE_READ: ULONG = MrFlags::ALLOW_REMOTE_READ.bits();
    NDK_MR_FLAG_ALLOW_REMOTE_WRITE: ULONG = MrFlags::ALLOW_REMOTE_WRITE.bits();
    NDK_MR_FLAG_RDMA_READ_SINK: ULONG = MrFlags::RDMA_READ_SINK.bits();
    NDK_OP_FLAG_SILENT_SUCCESS: ULONG = OpFlags::SILENT_SUCCESS.bits();
    NDK_OP_FLAG_READ_FENCE: ULONG = OpFlags::READ_FENCE.bits();
    NDK_OP_FLAG_SEND_AND_SOLICIT_EVENT: ULONG = OpFlags::SEND_AND_SOLICIT_EVENT.bits();
    NDK_OP_FLAG_ALLOW_REMOTE_READ: ULONG = OpFlags::ALLOW_REMOTE_READ.bits();
    NDK_OP_FLAG_ALLOW_LOCAL_WRITE: ULONG = OpFlags::ALLOW_LOCAL_WRITE.bits();
    NDK_OP_FLAG_ALLOW_REMOTE_WRITE: ULONG = OpFlags::ALLOW_REMOTE_WRITE.bits();
    NDK_OP_FLAG_INLINE: ULONG = OpFlags::INLINE.bits();
    NDK_OP_FLAG_RDMA_READ_SINK: ULONG = OpFlags::RDMA_READ_SINK.bits();
    NDK_OP_FLAG_RDMA_READ_LOCAL_INVALIDATE: ULONG = OpFlags::RDMA_READ_LOCAL_INVALIDATE.bits();
    NDK_OP_FLAG_DEFER: ULONG = OpFlags::DEFER.bits();
    NDK_CQ_NOTIFY_ERRORS: ULONG = CqNotify::Errors.value();
    NDK_CQ_NOTIFY_ANY: ULONG = CqNotify::Any.value();
    NDK_CQ_NOTIFY_SOLICITED: ULONG = CqNotify::Solicited.value();
    NdkObjectTypeUndefined: NDK_OBJECT_TYPE = 0;
    NdkObjectTypeAdapter: NDK_OBJECT_TYPE = 1;
    NdkObjectTypeQp: NDK_OBJECT_TYPE = 2;
    NdkObjectTypeCq: NDK_OBJECT_TYPE = 3;
    NdkObjectTypeMr: NDK_OBJECT_TYPE = 4;
    NdkObjectTypeMw: NDK_OBJECT_TYPE = 5;
    NdkObjectTypePd: NDK_OBJECT_TYPE = 6;
    NdkObjectTypeSharedEndpoint: NDK_OBJECT_TYPE = 7;
    NdkObjectTypeConnector: NDK_OBJECT_TYPE = 8;
    NdkObjectTypeListener: NDK_OBJECT_TYPE = 9;
    NdkObjectTypeSrq: NDK_OBJECT_TYPE = 10;
    NdkObjectTypeMax: NDK_OBJECT_TYPE = 11;
    NdkUndefined: u32 = 0;
    NdkiWarp: u32 = 1;
    NdkInfiniBand: u32 = 2;
    NdkRoCE: u32 = 3;
    NdkRoCEv2: u32 = 4;
    NdkMaxTechnology: u32 = 5;
    NdkOperationTypeReceive: u32 = OperationType::Receive as u32;
    NdkOperationTypeReceiveAndInvalidate: u32 = OperationType::ReceiveAndInvalidate as u32;
    NdkOperationTypeSend: u32 = OperationType::Send as u32;
    NdkOperationTypeFastRegister: u32 = OperationType::FastRegister as u32;
    NdkOperationTypeBind: u32 = OperationType::Bind as u32;
    NdkOperationTypeInvalidate: u32 = OperationType::Invalidate as u32;
    NdkOperationTypeRead: u32 = OperationType::Read as u32;
    NdkOperationTypeWrite: u32 = OperationType::Write as u32;
    FlueNdkDisconnectWithinFpdu: ULONG = DisconnectReason::WITHIN_FPDU.0;
    FlueNdkDisconnectWithinMessage: ULONG = DisconnectReason::WITHIN_MESSAGE.0;
    FlueNdkDisconnectTerminated: ULONG = DisconnectReason::terminated(ErrorNumber::from_code(0)).0;
    FlueNdkDisconnectLost: ULONG = DisconnectReason::LOST.0;
    FlueNdkDisconnectReset: ULONG = DisconnectReason::RESET.0;
    FlueNdkDisconnectNoAnswer: ULONG = DisconnectReason::NO_ANSWER.0;
    FlueNdkDisconnectDeviceLost: ULONG = DisconnectReason::DEVICE_LOST.0;
    FlueNdkDisconnectCqOverrun: ULONG = DisconnectReason::CQ_OVERRUN.0;
    FlueNdkDisconnectLocal: ULONG = DisconnectReason::LOCAL.0;
    FlueNdkDisconnectTerminatedUnnumbered: ULONG = DisconnectReason::TERMINATED_UNNUMBERED.0;
    MAXULONG: ULONG = ULONG::MAX;
    PAGE_SIZE: usize = PAGE;
}
