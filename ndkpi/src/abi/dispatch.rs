//! Dispatch tables, in the header's order.

use super::functions::*;

c_tables! {
    /// NDK_ADAPTER_DISPATCH.
    NDK_ADAPTER_DISPATCH {
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkQueryAdapterInfo: NDK_FN_QUERY_ADAPTER_INFO,
        NdkCreateCq: NDK_FN_CREATE_CQ,
        NdkCreatePd: NDK_FN_CREATE_PD,
        NdkCreateSharedEndpoint: NDK_FN_CREATE_SHARED_ENDPOINT,
        NdkCreateConnector: NDK_FN_CREATE_CONNECTOR,
        NdkCreateListener: NDK_FN_CREATE_LISTENER,
        NdkBuildLAM: NDK_FN_BUILD_LAM,
        NdkReleaseLAM: NDK_FN_RELEASE_LAM,
    }

    /// NDK_PD_DISPATCH.
    NDK_PD_DISPATCH {
        NdkClosePd: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkCreateMr: NDK_FN_CREATE_MR,
        NdkCreateMw: NDK_FN_CREATE_MW,
        NdkCreateSrq: NDK_FN_CREATE_SRQ,
        NdkCreateQp: NDK_FN_CREATE_QP,
        NdkCreateQpWithSrq: NDK_FN_CREATE_QP_WITH_SRQ,
        NdkGetPrivilegedMemoryRegionToken: NDK_FN_GET_PRIVILEGED_MEMORY_REGION_TOKEN,
    }

    /// NDK_CQ_DISPATCH.
    NDK_CQ_DISPATCH {
        NdkCloseCq: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkResizeCq: NDK_FN_RESIZE_CQ,
        NdkArmCq: NDK_FN_ARM_CQ,
        NdkGetCqResults: NDK_FN_GET_CQ_RESULTS,
        NdkControlCqInterruptModeration: NDK_FN_CONTROL_CQ_INTERRUPT_MODERATION,
        NdkGetCqResultsEx: NDK_FN_GET_CQ_RESULTS_EX,
    }

    /// NDK_QP_DISPATCH.
    NDK_QP_DISPATCH {
        NdkCloseQp: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkFlush: NDK_FN_FLUSH,
        NdkSend: NDK_FN_SEND,
        NdkReceive: NDK_FN_RECEIVE,
        NdkBind: NDK_FN_BIND,
        NdkFastRegister: NDK_FN_FAST_REGISTER,
        NdkInvalidate: NDK_FN_INVALIDATE,
        NdkRead: NDK_FN_READ,
        NdkWrite: NDK_FN_WRITE,
        NdkSendAndInvalidate: NDK_FN_SEND_AND_INVALIDATE,
    }

    /// NDK_MR_DISPATCH.
    NDK_MR_DISPATCH {
        NdkCloseMr: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkRegisterMr: NDK_FN_REGISTER_MR,
        NdkDeregisterMr: NDK_FN_DEREGISTER_MR,
        NdkInitializeFastRegisterMr: NDK_FN_INITIALIZE_FAST_REGISTER_MR,
        NdkGetRemoteTokenFromMr: NDK_FN_GET_REMOTE_TOKEN_FROM_MR,
        NdkGetLocalTokenFromMr: NDK_FN_GET_LOCAL_TOKEN_FROM_MR,
    }

    /// NDK_MW_DISPATCH.
    NDK_MW_DISPATCH {
        NdkCloseMw: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkGetRemoteTokenFromMw: NDK_FN_GET_REMOTE_TOKEN_FROM_MW,
    }

    /// NDK_SRQ_DISPATCH.
    NDK_SRQ_DISPATCH {
        NdkCloseSrq: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkModifySrq: NDK_FN_MODIFY_SRQ,
        NdkSrqReceive: NDK_FN_SRQ_RECEIVE,
    }

    /// NDK_CONNECTOR_DISPATCH.
    NDK_CONNECTOR_DISPATCH {
        NdkCloseConnector: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkConnect: NDK_FN_CONNECT,
        NdkConnectWithSharedEndpoint: NDK_FN_CONNECT_WITH_SHARED_ENDPOINT,
        NdkCompleteConnect: NDK_FN_COMPLETE_CONNECT,
        NdkAccept: NDK_FN_ACCEPT,
        NdkReject: NDK_FN_REJECT,
        NdkGetConnectionData: NDK_FN_GET_CONNECTION_DATA,
        NdkGetLocalAddress: NDK_FN_GET_LOCAL_ADDRESS,
        NdkGetPeerAddress: NDK_FN_GET_PEER_ADDRESS,
        NdkDisconnect: NDK_FN_DISCONNECT,
        NdkCompleteConnectEx: NDK_FN_COMPLETE_CONNECT_EX,
        NdkAcceptEx: NDK_FN_ACCEPT_EX,
    }

    /// NDK_LISTENER_DISPATCH.
    NDK_LISTENER_DISPATCH {
        NdkCloseListener: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkListen: NDK_FN_LISTEN,
        NdkGetLocalAddress: NDK_FN_GET_LISTENER_LOCAL_ADDRESS,
        NdkControlConnectEvents: NDK_FN_CONTROL_CONNECT_EVENTS,
    }

    /// NDK_SHARED_ENDPOINT_DISPATCH.
    NDK_SHARED_ENDPOINT_DISPATCH {
        NdkCloseSharedEndpoint: NDK_FN_CLOSE_OBJECT,
        NdkQueryExtension: NDK_FN_QUERY_EXTENSION_INTERFACE,
        NdkGetLocalAddress: NDK_FN_GET_SHARED_ENDPOINT_LOCAL_ADDRESS,
    }
}
