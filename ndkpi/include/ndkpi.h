/* NDKPI: the interface between consumers and providers of RDMA in Windows' kernel, here for programs of Linux (LP64).
 *
 * Names, order of members and numbers are those of the documented interface, version 2.1. Types of other WDK headers
 * are defined here with the same sizes: ULONG has 32 bits. SOCKADDR is that of Linux. Additions of this library begin
 * with FlueNdk, at the end: functions that open and close an adapter.
 *
 * docs/reference/ndkpi.md has the statuses of each function, the decisions on cases that the interface does not
 * document, and the options to link a program.
 */
#ifndef FLUE_NDKPI_H
#define FLUE_NDKPI_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#define NDKPI_ASSERT static_assert
#else
#define NDKPI_ASSERT _Static_assert
#endif

NDKPI_ASSERT(sizeof(void *) == 8, "this header is for LP64");

/* ---- Types of the WDK ---- */

typedef void VOID, *PVOID;
typedef uint8_t BOOLEAN, UCHAR;
typedef uint16_t USHORT;
typedef int32_t LONG, NTSTATUS, NDIS_STATUS;
typedef uint32_t ULONG, UINT32;
typedef int64_t LONGLONG;
typedef uint64_t ULONG64, UINT64;
typedef uintptr_t ULONG_PTR;
typedef size_t SIZE_T;
typedef struct sockaddr SOCKADDR;

#define TRUE 1
#define FALSE 0
#define MAXULONG 0xffffffffu
#define PAGE_SIZE 4096

typedef struct _GUID {
	ULONG Data1;
	USHORT Data2;
	USHORT Data3;
	UCHAR Data4[8];
} GUID;

typedef struct _GROUP_AFFINITY {
	ULONG_PTR Mask;
	USHORT Group;
	USHORT Reserved[3];
} GROUP_AFFINITY;

typedef union _LARGE_INTEGER {
	struct {
		ULONG LowPart;
		LONG HighPart;
	} u;
	LONGLONG QuadPart;
} LARGE_INTEGER, PHYSICAL_ADDRESS;

typedef union _SOCKADDR_INET {
	struct sockaddr_in Ipv4;
	struct sockaddr_in6 Ipv6;
	sa_family_t si_family;
} SOCKADDR_INET;

/* Range of the consumer's memory, and a pointer to the next one. A chain that is registered or mapped is virtually
 * contiguous: each range begins at the end of the previous one (NDK-MEM-1). The structure is smaller than that of the
 * WDK; its accessors have the WDK's names. */
typedef struct _MDL {
	struct _MDL *Next;
	PVOID VirtualAddress;
	ULONG ByteCount;
} MDL, *PMDL;

#define MmInitializeMdl(Mdl, BaseVa, Length) \
	((Mdl)->Next = NULL, (Mdl)->VirtualAddress = (BaseVa), (Mdl)->ByteCount = (ULONG)(Length))
#define MmGetMdlVirtualAddress(Mdl) ((Mdl)->VirtualAddress)
#define MmGetMdlByteCount(Mdl) ((Mdl)->ByteCount)

/* ---- Statuses ---- */

#define NT_SUCCESS(Status) ((NTSTATUS)(Status) >= 0)

#define STATUS_SUCCESS ((NTSTATUS)0x00000000)
#define STATUS_PENDING ((NTSTATUS)0x00000103)
#define STATUS_BUFFER_OVERFLOW ((NTSTATUS)0x80000005)
#define STATUS_DEVICE_BUSY ((NTSTATUS)0x80000011)
#define STATUS_NO_MORE_ENTRIES ((NTSTATUS)0x8000001A)
#define STATUS_ACCESS_VIOLATION ((NTSTATUS)0xC0000005)
#define STATUS_INVALID_HANDLE ((NTSTATUS)0xC0000008)
#define STATUS_INVALID_PARAMETER ((NTSTATUS)0xC000000D)
#define STATUS_INVALID_DEVICE_REQUEST ((NTSTATUS)0xC0000010)
#define STATUS_BUFFER_TOO_SMALL ((NTSTATUS)0xC0000023)
#define STATUS_INVALID_PARAMETER_MIX ((NTSTATUS)0xC0000030)
#define STATUS_DATA_OVERRUN ((NTSTATUS)0xC000003C)
#define STATUS_DATA_ERROR ((NTSTATUS)0xC000003E)
#define STATUS_SHARING_VIOLATION ((NTSTATUS)0xC0000043)
#define STATUS_INSUFFICIENT_RESOURCES ((NTSTATUS)0xC000009A)
#define STATUS_IO_TIMEOUT ((NTSTATUS)0xC00000B5)
#define STATUS_NOT_SUPPORTED ((NTSTATUS)0xC00000BB)
#define STATUS_INTERNAL_ERROR ((NTSTATUS)0xC00000E5)
#define STATUS_CANCELLED ((NTSTATUS)0xC0000120)
#define STATUS_REMOTE_RESOURCES ((NTSTATUS)0xC000013D)
#define STATUS_INVALID_ADDRESS ((NTSTATUS)0xC0000141)
#define STATUS_INVALID_DEVICE_STATE ((NTSTATUS)0xC0000184)
#define STATUS_INVALID_BUFFER_SIZE ((NTSTATUS)0xC0000206)
#define STATUS_TOO_MANY_ADDRESSES ((NTSTATUS)0xC0000209)
#define STATUS_ADDRESS_ALREADY_EXISTS ((NTSTATUS)0xC000020A)
#define STATUS_CONNECTION_REFUSED ((NTSTATUS)0xC0000236)
#define STATUS_ADDRESS_ALREADY_ASSOCIATED ((NTSTATUS)0xC0000238)
#define STATUS_CONNECTION_INVALID ((NTSTATUS)0xC000023A)
#define STATUS_CONNECTION_ACTIVE ((NTSTATUS)0xC000023B)
#define STATUS_NETWORK_UNREACHABLE ((NTSTATUS)0xC000023C)
#define STATUS_HOST_UNREACHABLE ((NTSTATUS)0xC000023D)
#define STATUS_CONNECTION_ABORTED ((NTSTATUS)0xC0000241)
#define STATUS_DEVICE_REMOVED ((NTSTATUS)0xC00002B6)
#define STATUS_IMPLEMENTATION_LIMIT ((NTSTATUS)0xC000042B)

#define NDIS_STATUS_SUCCESS ((NDIS_STATUS)0x00000000)
#define NDIS_STATUS_FAILURE ((NDIS_STATUS)0xC0000001)
#define NDIS_STATUS_INVALID_PARAMETER ((NDIS_STATUS)0xC000000D)
#define NDIS_STATUS_RESOURCES ((NDIS_STATUS)0xC000009A)
#define NDIS_STATUS_BAD_VERSION ((NDIS_STATUS)0xC0010004)
#define NDIS_STATUS_ADAPTER_NOT_READY ((NDIS_STATUS)0xC0010011)

/* ---- Flags and enumerations ---- */

#define NDK_ADAPTER_FLAG_IN_ORDER_DMA_SUPPORTED 0x00000001
#define NDK_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED 0x00000002
#define NDK_ADAPTER_FLAG_CQ_INTERRUPT_MODERATION_SUPPORTED 0x00000004
#define NDK_ADAPTER_FLAG_MULTI_ENGINE_SUPPORTED 0x00000008
#define NDK_ADAPTER_FLAG_RDMA_READ_LOCAL_INVALIDATE_SUPPORTED 0x00000010
#define NDK_ADAPTER_FLAG_CQ_RESIZE_SUPPORTED 0x00000100
#define NDK_ADAPTER_FLAG_LOOPBACK_CONNECTIONS_SUPPORTED 0x00010000

#define NDK_MR_FLAG_ALLOW_LOCAL_READ 0x00000000
#define NDK_MR_FLAG_ALLOW_LOCAL_WRITE 0x00000001
#define NDK_MR_FLAG_ALLOW_REMOTE_READ 0x00000002
/* Includes local write (NDK-FLG-1). */
#define NDK_MR_FLAG_ALLOW_REMOTE_WRITE 0x00000005
#define NDK_MR_FLAG_RDMA_READ_SINK 0x00000008

#define NDK_OP_FLAG_SILENT_SUCCESS 0x00000001
#define NDK_OP_FLAG_READ_FENCE 0x00000002
#define NDK_OP_FLAG_SEND_AND_SOLICIT_EVENT 0x00000004
#define NDK_OP_FLAG_ALLOW_REMOTE_READ 0x00000008
#define NDK_OP_FLAG_ALLOW_LOCAL_WRITE 0x00000010
/* Includes local write (NDK-FLG-1). */
#define NDK_OP_FLAG_ALLOW_REMOTE_WRITE 0x00000030
#define NDK_OP_FLAG_INLINE 0x00000040
#define NDK_OP_FLAG_RDMA_READ_SINK 0x00000080
#define NDK_OP_FLAG_RDMA_READ_LOCAL_INVALIDATE 0x00000100
#define NDK_OP_FLAG_DEFER 0x00000200

#define NDK_CQ_NOTIFY_ERRORS 0
#define NDK_CQ_NOTIFY_ANY 1
#define NDK_CQ_NOTIFY_SOLICITED 2

typedef enum _NDK_OBJECT_TYPE {
	NdkObjectTypeUndefined = 0,
	NdkObjectTypeAdapter = 1,
	NdkObjectTypeQp = 2,
	NdkObjectTypeCq = 3,
	NdkObjectTypeMr = 4,
	NdkObjectTypeMw = 5,
	NdkObjectTypePd = 6,
	NdkObjectTypeSharedEndpoint = 7,
	NdkObjectTypeConnector = 8,
	NdkObjectTypeListener = 9,
	NdkObjectTypeSrq = 10,
	NdkObjectTypeMax = 11
} NDK_OBJECT_TYPE;

typedef enum _NDK_RDMA_TECHNOLOGY {
	NdkUndefined = 0,
	NdkiWarp = 1,
	NdkInfiniBand = 2,
	NdkRoCE = 3,
	NdkRoCEv2 = 4,
	NdkMaxTechnology = 5
} NDK_RDMA_TECHNOLOGY;

typedef enum _NDK_OPERATION_TYPE {
	NdkOperationTypeReceive = 1,
	NdkOperationTypeReceiveAndInvalidate = 32769,
	NdkOperationTypeSend = 2,
	NdkOperationTypeFastRegister = 4,
	NdkOperationTypeBind = 8,
	NdkOperationTypeInvalidate = 16,
	NdkOperationTypeRead = 32,
	NdkOperationTypeWrite = 64
} NDK_OPERATION_TYPE;

/* ---- Objects ---- */

typedef struct _NDK_VERSION {
	USHORT Major;
	USHORT Minor;
} NDK_VERSION;

typedef struct _NDK_OBJECT_HEADER_RESERVED_BLOCK {
	PVOID Reserved[4];
} NDK_OBJECT_HEADER_RESERVED_BLOCK;

typedef struct _NDK_OBJECT_HEADER {
	NDK_VERSION Version;
	NDK_OBJECT_TYPE ObjectType;
	NDK_OBJECT_HEADER_RESERVED_BLOCK NdkReserved;
} NDK_OBJECT_HEADER;

typedef struct _NDK_EXTENSION_INTERFACE {
	const VOID *Dispatch;
} NDK_EXTENSION_INTERFACE;

#define NDKPI_OBJECT(Name) \
	typedef struct _##Name##_DISPATCH Name##_DISPATCH; \
	typedef struct _##Name { \
		NDK_OBJECT_HEADER Header; \
		const Name##_DISPATCH *Dispatch; \
	} Name

NDKPI_OBJECT(NDK_ADAPTER);
NDKPI_OBJECT(NDK_PD);
NDKPI_OBJECT(NDK_CQ);
NDKPI_OBJECT(NDK_QP);
NDKPI_OBJECT(NDK_MR);
NDKPI_OBJECT(NDK_MW);
NDKPI_OBJECT(NDK_SRQ);
NDKPI_OBJECT(NDK_CONNECTOR);
NDKPI_OBJECT(NDK_LISTENER);
NDKPI_OBJECT(NDK_SHARED_ENDPOINT);

/* ---- Structures ---- */

typedef struct _NDK_ADAPTER_INFO {
	NDK_VERSION Version;
	UINT32 VendorId;
	UINT32 DeviceId;
	SIZE_T MaxRegistrationSize;
	SIZE_T MaxWindowSize;
	ULONG FRMRPageCount;
	ULONG MaxInitiatorRequestSge;
	ULONG MaxReceiveRequestSge;
	ULONG MaxReadRequestSge;
	ULONG MaxTransferLength;
	ULONG MaxInlineDataSize;
	ULONG MaxInboundReadLimit;
	ULONG MaxOutboundReadLimit;
	ULONG MaxReceiveQueueDepth;
	ULONG MaxInitiatorQueueDepth;
	ULONG MaxSrqDepth;
	ULONG MaxCqDepth;
	ULONG LargeRequestThreshold;
	ULONG MaxCallerData;
	ULONG MaxCalleeData;
	ULONG AdapterFlags;
	NDK_RDMA_TECHNOLOGY RdmaTechnology;
} NDK_ADAPTER_INFO;

typedef struct _NDK_RESULT {
	NTSTATUS Status;
	ULONG BytesTransferred;
	PVOID QPContext;
	PVOID RequestContext;
} NDK_RESULT;

typedef struct _NDK_RESULT_EX {
	NTSTATUS Status;
	ULONG BytesTransferred;
	PVOID QPContext;
	PVOID RequestContext;
	NDK_OPERATION_TYPE Type;
	/* Layer, type and code of the Terminate as 0xLTCC, 0x80000 for 0/0/00; 0: no error number. */
	ULONG ProviderErrorCode;
	ULONG_PTR TypeSpecificCompletionOutput;
} NDK_RESULT_EX;

typedef PHYSICAL_ADDRESS NDK_LOGICAL_ADDRESS;

typedef struct _NDK_SGE {
	union {
		PVOID VirtualAddress;
		NDK_LOGICAL_ADDRESS LogicalAddress;
	};
	ULONG Length;
	UINT32 MemoryRegionToken;
} NDK_SGE;

/* AdapterPageArray has AdapterPageCount entries: the size is offsetof(..., AdapterPageArray) + 8 * AdapterPageCount. */
typedef struct _NDK_LOGICAL_ADDRESS_MAPPING {
	PVOID AdapterContext;
	ULONG AdapterPageCount;
	NDK_LOGICAL_ADDRESS AdapterPageArray[];
} NDK_LOGICAL_ADDRESS_MAPPING;

/* ---- Callbacks of consumers ---- */

typedef VOID NDK_FN_CREATE_COMPLETION_ROUTINE(PVOID Context, NTSTATUS Status, NDK_OBJECT_HEADER *pNdkObject);
typedef VOID NDK_FN_REQUEST_COMPLETION_ROUTINE(PVOID Context, NTSTATUS Status);
typedef VOID NDK_FN_CLOSE_COMPLETION_ROUTINE(PVOID Context);
typedef VOID NDK_FN_CQ_NOTIFICATION_ROUTINE(PVOID CqNotificationContext, NTSTATUS CqStatus);
typedef VOID NDK_FN_SRQ_NOTIFICATION_ROUTINE(PVOID SrqNotificationContext, NTSTATUS SrqStatus);
typedef VOID NDK_FN_CONNECT_EVENT_ROUTINE(PVOID ConnectEventContext, NDK_CONNECTOR *pNdkConnector);
typedef VOID NDK_FN_DISCONNECT_EVENT_ROUTINE(PVOID DisconnectEventContext);
typedef VOID NDK_FN_DISCONNECT_EVENT_ROUTINE_EX(PVOID DisconnectEventContext, ULONG ProviderDisconnectReason);

typedef NDK_FN_CREATE_COMPLETION_ROUTINE *NDK_FN_CREATE_COMPLETION;
typedef NDK_FN_REQUEST_COMPLETION_ROUTINE *NDK_FN_REQUEST_COMPLETION;
typedef NDK_FN_CLOSE_COMPLETION_ROUTINE *NDK_FN_CLOSE_COMPLETION;
typedef NDK_FN_CQ_NOTIFICATION_ROUTINE *NDK_FN_CQ_NOTIFICATION_CALLBACK;
typedef NDK_FN_SRQ_NOTIFICATION_ROUTINE *NDK_FN_SRQ_NOTIFICATION_CALLBACK;
typedef NDK_FN_CONNECT_EVENT_ROUTINE *NDK_FN_CONNECT_EVENT_CALLBACK;
typedef NDK_FN_DISCONNECT_EVENT_ROUTINE *NDK_FN_DISCONNECT_EVENT_CALLBACK;
typedef NDK_FN_DISCONNECT_EVENT_ROUTINE_EX *NDK_FN_DISCONNECT_EVENT_CALLBACK_EX;

/* ---- Functions of providers ---- */

/* The first two are in every dispatch table, except that adapters do not have the first. */
typedef NTSTATUS (*NDK_FN_CLOSE_OBJECT)(NDK_OBJECT_HEADER *pNdkObject, NDK_FN_CLOSE_COMPLETION CloseCompletion,
	PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_QUERY_EXTENSION_INTERFACE)(NDK_OBJECT_HEADER *pNdkObject, const GUID *InterfaceId,
	NDK_VERSION Version, NDK_EXTENSION_INTERFACE *pExtension);

typedef NTSTATUS (*NDK_FN_QUERY_ADAPTER_INFO)(NDK_ADAPTER *pNdkAdapter, NDK_ADAPTER_INFO *pInfo, ULONG *pBufferSize);
typedef NTSTATUS (*NDK_FN_CREATE_CQ)(NDK_ADAPTER *pNdkAdapter, ULONG CqDepth,
	NDK_FN_CQ_NOTIFICATION_CALLBACK CqNotification, PVOID CqNotificationContext, const GROUP_AFFINITY *Affinity,
	NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext, NDK_CQ **ppNdkCq);
typedef NTSTATUS (*NDK_FN_CREATE_PD)(NDK_ADAPTER *pNdkAdapter, NDK_FN_CREATE_COMPLETION CreateCompletion,
	PVOID RequestContext, NDK_PD **ppNdkPd);
typedef NTSTATUS (*NDK_FN_CREATE_SHARED_ENDPOINT)(NDK_ADAPTER *pNdkAdapter, const SOCKADDR *pAddress,
	ULONG AddressLength, NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext,
	NDK_SHARED_ENDPOINT **ppNdkSharedEndpoint);
typedef NTSTATUS (*NDK_FN_CREATE_CONNECTOR)(NDK_ADAPTER *pNdkAdapter, NDK_FN_CREATE_COMPLETION CreateCompletion,
	PVOID RequestContext, NDK_CONNECTOR **ppNdkConnector);
typedef NTSTATUS (*NDK_FN_CREATE_LISTENER)(NDK_ADAPTER *pNdkAdapter, NDK_FN_CONNECT_EVENT_CALLBACK ConnectEvent,
	PVOID ConnectEventContext, NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext,
	NDK_LISTENER **ppNdkListener);
typedef NTSTATUS (*NDK_FN_BUILD_LAM)(NDK_ADAPTER *pNdkAdapter, MDL *pMdl, SIZE_T Length,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext, NDK_LOGICAL_ADDRESS_MAPPING *pNdkLAM,
	ULONG *pLAMSize, ULONG *pFBO);
typedef VOID (*NDK_FN_RELEASE_LAM)(NDK_ADAPTER *pNdkAdapter, NDK_LOGICAL_ADDRESS_MAPPING *pNdkLAM);

typedef NTSTATUS (*NDK_FN_CREATE_MR)(NDK_PD *pNdkPd, BOOLEAN FastRegister, NDK_FN_CREATE_COMPLETION CreateCompletion,
	PVOID RequestContext, NDK_MR **ppNdkMr);
typedef NTSTATUS (*NDK_FN_CREATE_MW)(NDK_PD *pNdkPd, NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext,
	NDK_MW **ppNdkMw);
typedef NTSTATUS (*NDK_FN_CREATE_SRQ)(NDK_PD *pNdkPd, ULONG SrqDepth, ULONG MaxReceiveRequestSge,
	ULONG NotifyThreshold, NDK_FN_SRQ_NOTIFICATION_CALLBACK SrqNotification, PVOID SrqNotificationContext,
	const GROUP_AFFINITY *Affinity, NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext,
	NDK_SRQ **ppNdkSrq);
typedef NTSTATUS (*NDK_FN_CREATE_QP)(NDK_PD *pNdkPd, NDK_CQ *pReceiveCq, NDK_CQ *pInitiatorCq, PVOID QPContext,
	ULONG ReceiveQueueDepth, ULONG InitiatorQueueDepth, ULONG MaxReceiveRequestSge, ULONG MaxInitiatorRequestSge,
	ULONG InlineDataSize, NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext, NDK_QP **ppNdkQp);
typedef NTSTATUS (*NDK_FN_CREATE_QP_WITH_SRQ)(NDK_PD *pNdkPd, NDK_CQ *pReceiveCq, NDK_CQ *pInitiatorCq, NDK_SRQ *pSrq,
	PVOID QPContext, ULONG InitiatorQueueDepth, ULONG MaxInitiatorRequestSge, ULONG InlineDataSize,
	NDK_FN_CREATE_COMPLETION CreateCompletion, PVOID RequestContext, NDK_QP **ppNdkQp);
typedef VOID (*NDK_FN_GET_PRIVILEGED_MEMORY_REGION_TOKEN)(NDK_PD *pNdkPd, UINT32 *pToken);

typedef NTSTATUS (*NDK_FN_RESIZE_CQ)(NDK_CQ *pNdkCq, ULONG CqDepth, NDK_FN_REQUEST_COMPLETION RequestCompletion,
	PVOID RequestContext);
typedef VOID (*NDK_FN_ARM_CQ)(NDK_CQ *pNdkCq, ULONG TriggerType);
typedef ULONG (*NDK_FN_GET_CQ_RESULTS)(NDK_CQ *pNdkCq, NDK_RESULT *pResults, ULONG nResults);
typedef NTSTATUS (*NDK_FN_CONTROL_CQ_INTERRUPT_MODERATION)(NDK_CQ *pNdkCq, ULONG ModerationInterval,
	ULONG ModerationCount);
typedef ULONG (*NDK_FN_GET_CQ_RESULTS_EX)(NDK_CQ *pNdkCq, NDK_RESULT_EX *pResults, ULONG nResults);

typedef VOID (*NDK_FN_FLUSH)(NDK_QP *pNdkQp);
typedef NTSTATUS (*NDK_FN_SEND)(NDK_QP *pNdkQp, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge, ULONG Flags);
typedef NTSTATUS (*NDK_FN_RECEIVE)(NDK_QP *pNdkQp, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge);
typedef NTSTATUS (*NDK_FN_BIND)(NDK_QP *pNdkQp, PVOID RequestContext, NDK_MR *pMr, NDK_MW *pMw, PVOID VirtualAddress,
	SIZE_T Length, ULONG Flags);
typedef NTSTATUS (*NDK_FN_FAST_REGISTER)(NDK_QP *pNdkQp, PVOID RequestContext, NDK_MR *pMr, ULONG AdapterPageCount,
	const NDK_LOGICAL_ADDRESS *AdapterPageArray, ULONG FBO, SIZE_T Length, PVOID BaseVirtualAddress, ULONG Flags);
typedef NTSTATUS (*NDK_FN_INVALIDATE)(NDK_QP *pNdkQp, PVOID RequestContext, NDK_OBJECT_HEADER *pNdkMrOrMw,
	ULONG Flags);
typedef NTSTATUS (*NDK_FN_READ)(NDK_QP *pNdkQp, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge,
	UINT64 RemoteAddress, UINT32 RemoteToken, ULONG Flags);
typedef NTSTATUS (*NDK_FN_WRITE)(NDK_QP *pNdkQp, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge,
	UINT64 RemoteAddress, UINT32 RemoteToken, ULONG Flags);
typedef NTSTATUS (*NDK_FN_SEND_AND_INVALIDATE)(NDK_QP *pNdkQp, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge,
	ULONG Flags, UINT32 RemoteToken);

typedef NTSTATUS (*NDK_FN_REGISTER_MR)(NDK_MR *pNdkMr, MDL *pMdl, SIZE_T Length, ULONG Flags,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_DEREGISTER_MR)(NDK_MR *pNdkMr, NDK_FN_REQUEST_COMPLETION RequestCompletion,
	PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_INITIALIZE_FAST_REGISTER_MR)(NDK_MR *pNdkMr, ULONG AdapterPageCount, BOOLEAN RemoteAccess,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef UINT32 (*NDK_FN_GET_REMOTE_TOKEN_FROM_MR)(NDK_MR *pNdkMr);
typedef UINT32 (*NDK_FN_GET_LOCAL_TOKEN_FROM_MR)(NDK_MR *pNdkMr);
typedef UINT32 (*NDK_FN_GET_REMOTE_TOKEN_FROM_MW)(NDK_MW *pNdkMw);

typedef NTSTATUS (*NDK_FN_MODIFY_SRQ)(NDK_SRQ *pNdkSrq, ULONG SrqDepth, ULONG NotifyThreshold,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_SRQ_RECEIVE)(NDK_SRQ *pNdkSrq, PVOID RequestContext, const NDK_SGE *pSgl, ULONG nSge);

typedef NTSTATUS (*NDK_FN_CONNECT)(NDK_CONNECTOR *pNdkConnector, NDK_QP *pNdkQp, const SOCKADDR *pSrcAddress,
	ULONG SrcAddressLength, const SOCKADDR *pDestAddress, ULONG DestAddressLength, ULONG InboundReadLimit,
	ULONG OutboundReadLimit, const VOID *pPrivateData, ULONG PrivateDataLength,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_CONNECT_WITH_SHARED_ENDPOINT)(NDK_CONNECTOR *pNdkConnector, NDK_QP *pNdkQp,
	NDK_SHARED_ENDPOINT *pNdkSharedEndpoint, const SOCKADDR *pDestAddress, ULONG DestAddressLength,
	ULONG InboundReadLimit, ULONG OutboundReadLimit, const VOID *pPrivateData, ULONG PrivateDataLength,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_COMPLETE_CONNECT)(NDK_CONNECTOR *pNdkConnector,
	NDK_FN_DISCONNECT_EVENT_CALLBACK DisconnectEvent, PVOID DisconnectEventContext,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_ACCEPT)(NDK_CONNECTOR *pNdkConnector, NDK_QP *pNdkQp, ULONG InboundReadLimit,
	ULONG OutboundReadLimit, const VOID *pPrivateData, ULONG PrivateDataLength,
	NDK_FN_DISCONNECT_EVENT_CALLBACK DisconnectEvent, PVOID DisconnectEventContext,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_REJECT)(NDK_CONNECTOR *pNdkConnector, const VOID *pPrivateData, ULONG PrivateDataLength);
typedef NTSTATUS (*NDK_FN_GET_CONNECTION_DATA)(NDK_CONNECTOR *pNdkConnector, ULONG *pInboundReadLimit,
	ULONG *pOutboundReadLimit, PVOID pPrivateData, ULONG *pPrivateDataLength);
typedef NTSTATUS (*NDK_FN_GET_LOCAL_ADDRESS)(NDK_CONNECTOR *pNdkConnector, SOCKADDR *pAddress, ULONG *pAddressLength);
typedef NTSTATUS (*NDK_FN_GET_PEER_ADDRESS)(NDK_CONNECTOR *pNdkConnector, SOCKADDR *pAddress, ULONG *pAddressLength);
typedef NTSTATUS (*NDK_FN_DISCONNECT)(NDK_CONNECTOR *pNdkConnector, NDK_FN_REQUEST_COMPLETION RequestCompletion,
	PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_COMPLETE_CONNECT_EX)(NDK_CONNECTOR *pNdkConnector,
	NDK_FN_DISCONNECT_EVENT_CALLBACK_EX DisconnectEvent, PVOID DisconnectEventContext,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_ACCEPT_EX)(NDK_CONNECTOR *pNdkConnector, NDK_QP *pNdkQp, ULONG InboundReadLimit,
	ULONG OutboundReadLimit, const VOID *pPrivateData, ULONG PrivateDataLength,
	NDK_FN_DISCONNECT_EVENT_CALLBACK_EX DisconnectEvent, PVOID DisconnectEventContext,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);

typedef NTSTATUS (*NDK_FN_LISTEN)(NDK_LISTENER *pNdkListener, const SOCKADDR *pAddress, ULONG AddressLength,
	NDK_FN_REQUEST_COMPLETION RequestCompletion, PVOID RequestContext);
typedef NTSTATUS (*NDK_FN_GET_LISTENER_LOCAL_ADDRESS)(NDK_LISTENER *pNdkListener, SOCKADDR *pAddress,
	ULONG *pAddressLength);
typedef VOID (*NDK_FN_CONTROL_CONNECT_EVENTS)(NDK_LISTENER *pNdkListener, BOOLEAN Pause);

typedef NTSTATUS (*NDK_FN_GET_SHARED_ENDPOINT_LOCAL_ADDRESS)(NDK_SHARED_ENDPOINT *pNdkSharedEndpoint,
	SOCKADDR *pAddress, ULONG *pAddressLength);

/* ---- Dispatch tables ---- */

struct _NDK_ADAPTER_DISPATCH {
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_QUERY_ADAPTER_INFO NdkQueryAdapterInfo;
	NDK_FN_CREATE_CQ NdkCreateCq;
	NDK_FN_CREATE_PD NdkCreatePd;
	NDK_FN_CREATE_SHARED_ENDPOINT NdkCreateSharedEndpoint;
	NDK_FN_CREATE_CONNECTOR NdkCreateConnector;
	NDK_FN_CREATE_LISTENER NdkCreateListener;
	NDK_FN_BUILD_LAM NdkBuildLAM;
	NDK_FN_RELEASE_LAM NdkReleaseLAM;
};

struct _NDK_PD_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkClosePd;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_CREATE_MR NdkCreateMr;
	NDK_FN_CREATE_MW NdkCreateMw;
	NDK_FN_CREATE_SRQ NdkCreateSrq;
	NDK_FN_CREATE_QP NdkCreateQp;
	NDK_FN_CREATE_QP_WITH_SRQ NdkCreateQpWithSrq;
	NDK_FN_GET_PRIVILEGED_MEMORY_REGION_TOKEN NdkGetPrivilegedMemoryRegionToken;
};

struct _NDK_CQ_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseCq;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_RESIZE_CQ NdkResizeCq;
	NDK_FN_ARM_CQ NdkArmCq;
	NDK_FN_GET_CQ_RESULTS NdkGetCqResults;
	NDK_FN_CONTROL_CQ_INTERRUPT_MODERATION NdkControlCqInterruptModeration;
	NDK_FN_GET_CQ_RESULTS_EX NdkGetCqResultsEx;
};

struct _NDK_QP_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseQp;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_FLUSH NdkFlush;
	NDK_FN_SEND NdkSend;
	NDK_FN_RECEIVE NdkReceive;
	NDK_FN_BIND NdkBind;
	NDK_FN_FAST_REGISTER NdkFastRegister;
	NDK_FN_INVALIDATE NdkInvalidate;
	NDK_FN_READ NdkRead;
	NDK_FN_WRITE NdkWrite;
	NDK_FN_SEND_AND_INVALIDATE NdkSendAndInvalidate;
};

struct _NDK_MR_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseMr;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_REGISTER_MR NdkRegisterMr;
	NDK_FN_DEREGISTER_MR NdkDeregisterMr;
	NDK_FN_INITIALIZE_FAST_REGISTER_MR NdkInitializeFastRegisterMr;
	NDK_FN_GET_REMOTE_TOKEN_FROM_MR NdkGetRemoteTokenFromMr;
	NDK_FN_GET_LOCAL_TOKEN_FROM_MR NdkGetLocalTokenFromMr;
};

struct _NDK_MW_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseMw;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_GET_REMOTE_TOKEN_FROM_MW NdkGetRemoteTokenFromMw;
};

struct _NDK_SRQ_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseSrq;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_MODIFY_SRQ NdkModifySrq;
	NDK_FN_SRQ_RECEIVE NdkSrqReceive;
};

struct _NDK_CONNECTOR_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseConnector;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_CONNECT NdkConnect;
	NDK_FN_CONNECT_WITH_SHARED_ENDPOINT NdkConnectWithSharedEndpoint;
	NDK_FN_COMPLETE_CONNECT NdkCompleteConnect;
	NDK_FN_ACCEPT NdkAccept;
	NDK_FN_REJECT NdkReject;
	NDK_FN_GET_CONNECTION_DATA NdkGetConnectionData;
	NDK_FN_GET_LOCAL_ADDRESS NdkGetLocalAddress;
	NDK_FN_GET_PEER_ADDRESS NdkGetPeerAddress;
	NDK_FN_DISCONNECT NdkDisconnect;
	NDK_FN_COMPLETE_CONNECT_EX NdkCompleteConnectEx;
	NDK_FN_ACCEPT_EX NdkAcceptEx;
};

struct _NDK_LISTENER_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseListener;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_LISTEN NdkListen;
	NDK_FN_GET_LISTENER_LOCAL_ADDRESS NdkGetLocalAddress;
	NDK_FN_CONTROL_CONNECT_EVENTS NdkControlConnectEvents;
};

struct _NDK_SHARED_ENDPOINT_DISPATCH {
	NDK_FN_CLOSE_OBJECT NdkCloseSharedEndpoint;
	NDK_FN_QUERY_EXTENSION_INTERFACE NdkQueryExtension;
	NDK_FN_GET_SHARED_ENDPOINT_LOCAL_ADDRESS NdkGetLocalAddress;
};

NDKPI_ASSERT(sizeof(ULONG) == 4 && sizeof(NDK_OBJECT_TYPE) == 4, "32 bits as on Windows");
NDKPI_ASSERT(sizeof(NDK_OBJECT_HEADER) == 40 && sizeof(NDK_ADAPTER) == 48, "objects");
NDKPI_ASSERT(sizeof(NDK_ADAPTER_INFO) == 104, "NDK_ADAPTER_INFO");
NDKPI_ASSERT(sizeof(NDK_RESULT) == 24 && sizeof(NDK_RESULT_EX) == 40, "results");
NDKPI_ASSERT(sizeof(NDK_SGE) == 16, "NDK_SGE");
NDKPI_ASSERT(offsetof(NDK_LOGICAL_ADDRESS_MAPPING, AdapterPageArray) == 16, "NDK_LOGICAL_ADDRESS_MAPPING");

/* ---- Opening and closing: replacement of NDIS ---- */

/* Opens an adapter, as OPEN_NDK_ADAPTER_HANDLER does.
 *
 * Configuration is JSON; docs/libraries/ndkpi.md has its members. NULL, "" and "{}" open an adapter on the kernel's
 * TCP sockets; {"node": {"tap": "flue0", "addresses": ["10.77.0.2/24"]}} opens one on a TAP, in the network namespace of
 * the calling thread.
 *
 * Version is the major version and the lowest minor version that the consumer accepts; the adapter uses its highest
 * (NDK-VER-1).
 *
 * NDIS_STATUS_BAD_VERSION; NDIS_STATUS_ADAPTER_NOT_READY: FlueNdkSetState has disabled NDK;
 * NDIS_STATUS_INVALID_PARAMETER: the configuration; NDIS_STATUS_RESOURCES: no object is available; NDIS_STATUS_FAILURE:
 * a missing prerequisite or a failed operation. FlueNdkOpenError returns the reason. */
NDIS_STATUS FlueNdkOpenAdapter(const char *Configuration, NDK_VERSION Version, NDK_ADAPTER **ppNdkAdapter);

/* Returns the error text of the last FlueNdkOpenAdapter of this thread; "" after a success. Valid until the next one. */
const char *FlueNdkOpenError(VOID);

/* Closes an adapter, as CLOSE_NDK_ADAPTER_HANDLER does: returns when all its objects are closed, and all callbacks have
 * returned (NDK-LIFE-9). Ignored in a callback, where it would deadlock. */
VOID FlueNdkCloseAdapter(NDK_ADAPTER *pNdkAdapter);

/* Enables or disables NDK of this process, as OID_NDK_SET_STATE does. While it is disabled, no adapter can be opened;
 * open adapters stay open until the consumer closes them (NDK-MGT-2). Enabled at the start. */
VOID FlueNdkSetState(BOOLEAN Enabled);

/* ---- Reasons of disconnects ---- */

/* Values of ProviderDisconnectReason. 0: the peer has closed the connection in order. A value below 0x10000 is an error
 * detected by this side: layer, type and code of the Terminate as 0xLTCC. */
enum {
	/* TCP has aborted the connection on this side. */
	FlueNdkDisconnectLost = 0x2001,
	/* The peer's FIN arrived within an FPDU, or before the last segment of a message. */
	FlueNdkDisconnectWithinFpdu = 0x12001,
	FlueNdkDisconnectWithinMessage = 0x22001,
	/* The peer has sent a Terminate; the lower 16 bits are its 0xLTCC. */
	FlueNdkDisconnectTerminated = 0x30000,
	/* The peer has reset the connection, or does not respond. */
	FlueNdkDisconnectReset = 0x42001,
	FlueNdkDisconnectNoAnswer = 0x52001,
	/* The device of this side was removed. */
	FlueNdkDisconnectDeviceLost = 0x62001,
	/* A completion queue has overflowed. */
	FlueNdkDisconnectCqOverrun = 0x70000,
	/* RDMAP failed on this side (0/0/00), for example on a request that violates the access rights of its memory. */
	FlueNdkDisconnectLocal = 0x80000,
	/* The peer has sent a Terminate without an error number. */
	FlueNdkDisconnectTerminatedUnnumbered = 0x90000
};

#ifdef __cplusplus
}
#endif

#endif
