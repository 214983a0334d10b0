/* Opening and closing: versions, states, configurations, adapter information, objects that need no connection. */
#include "ndk.h"

static void versions(void)
{
	NDK_ADAPTER *adapter = NULL;
	static const NDK_VERSION good[] = { { 2, 0 }, { 2, 1 } }, bad[] = { { 2, 2 }, { 1, 2 }, { 3, 0 }, { 0, 0 } };
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		EXPECT(NDIS_STATUS_SUCCESS, FlueNdkOpenAdapter(NULL, good[i], &adapter));
		CHECK(adapter->Header.Version.Major == 2 && adapter->Header.Version.Minor == 1);
		CHECK(FlueNdkOpenError()[0] == 0);
		FlueNdkCloseAdapter(adapter);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		adapter = NULL;
		EXPECT(NDIS_STATUS_BAD_VERSION, FlueNdkOpenAdapter(NULL, bad[i], &adapter));
		CHECK(adapter == NULL && strcmp(FlueNdkOpenError(), "version not supported: expected 2.1") == 0);
	}
}

static void refusals(void)
{
	NDK_ADAPTER *adapter = NULL;
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter("{", VERSION_WANTED, &adapter));
	CHECK(strstr(FlueNdkOpenError(), "configuration") != NULL);
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter("{\"nodes\": {}}", VERSION_WANTED, &adapter));
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter("{\"node\": {\"tap\": \"a/b\"}}", VERSION_WANTED, &adapter));
	CHECK(strstr(FlueNdkOpenError(), "a/b") != NULL);
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter("{\"node\": {\"queues\": 2}}", VERSION_WANTED, &adapter));
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter("\xff", VERSION_WANTED, &adapter));
	EXPECT(NDIS_STATUS_INVALID_PARAMETER, FlueNdkOpenAdapter(NULL, VERSION_WANTED, NULL));
	CHECK(adapter == NULL);
	FlueNdkSetState(FALSE);
	EXPECT(NDIS_STATUS_ADAPTER_NOT_READY, FlueNdkOpenAdapter(NULL, VERSION_WANTED, &adapter));
	FlueNdkSetState(TRUE);
}

static void information(NDK_ADAPTER *adapter)
{
	NDK_ADAPTER_INFO info;
	ULONG size = sizeof info - 1;
	EXPECT(STATUS_BUFFER_TOO_SMALL, adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size));
	CHECK(size == sizeof info);
	size = 0;
	EXPECT(STATUS_BUFFER_TOO_SMALL, adapter->Dispatch->NdkQueryAdapterInfo(adapter, NULL, &size));
	EXPECT(STATUS_INVALID_PARAMETER, adapter->Dispatch->NdkQueryAdapterInfo(adapter, NULL, &size));
	EXPECT(STATUS_INVALID_PARAMETER, adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, NULL));
	size = 1000;
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size));
	CHECK(size == sizeof info && info.Version.Major == 2 && info.Version.Minor == 1);
	CHECK(info.RdmaTechnology == NdkiWarp && info.FRMRPageCount >= 16);
	CHECK(info.MaxInlineDataSize == 1024 && info.MaxCallerData == 508 && info.MaxCalleeData == 508);
	CHECK(info.AdapterFlags & NDK_ADAPTER_FLAG_IN_ORDER_DMA_SUPPORTED);
	CHECK(info.AdapterFlags & NDK_ADAPTER_FLAG_RDMA_READ_SINK_NOT_REQUIRED);
	CHECK(info.AdapterFlags & NDK_ADAPTER_FLAG_CQ_RESIZE_SUPPORTED);
}

static void objects(NDK_ADAPTER *adapter)
{
	struct event event = { 0 };
	NDK_CQ *cq = NULL;
	NDK_PD *pd = NULL;
	GROUP_AFFINITY affinity = { .Mask = 1 };
	NDK_EXTENSION_INTERFACE extension;
	GUID guid = { .Data1 = 1 };
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreateCq(adapter, 16, on_notification, &event, &affinity, on_create, &event, &cq));
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, &pd));
	CHECK(cq->Header.ObjectType == NdkObjectTypeCq && pd->Header.ObjectType == NdkObjectTypePd);
	CHECK(cq->Header.Version.Major == 2 && cq->Header.Version.Minor == 1);
	for (int i = 0; i < 4; i++)
		CHECK(cq->Header.NdkReserved.Reserved[i] == NULL);
	EXPECT(STATUS_INVALID_PARAMETER, adapter->Dispatch->NdkCreateCq(adapter, MAXULONG, on_notification, NULL, NULL, on_create, &event, &cq));
	EXPECT(STATUS_INVALID_PARAMETER, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, NULL));
	EXPECT(STATUS_NOT_SUPPORTED, adapter->Dispatch->NdkQueryExtension(&adapter->Header, &guid, VERSION_WANTED, &extension));
	EXPECT(STATUS_NOT_SUPPORTED, cq->Dispatch->NdkQueryExtension(&cq->Header, &guid, VERSION_WANTED, &extension));
	EXPECT(STATUS_NOT_SUPPORTED, pd->Dispatch->NdkQueryExtension(&pd->Header, &guid, VERSION_WANTED, &extension));

	/* NDK-OBJ-2: the consumer may put a table of its own there. */
	NDK_CQ_DISPATCH own = *cq->Dispatch;
	cq->Dispatch = &own;
	own.NdkArmCq(cq, NDK_CQ_NOTIFY_ANY);
	CHECK(event.count == 0);
	CLOSE(cq, NdkCloseCq);

	/* Stale, foreign and invalid handles are refused before the memory behind them is read. */
	NDK_CQ *stale[] = { cq, NULL, (NDK_CQ *)pd, (NDK_CQ *)&event, (NDK_CQ *)8, (NDK_CQ *)-16, (NDK_CQ *)((char *)pd + 64) };
	for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
		NDK_RESULT result;
		NDK_QP *qp = NULL;
		EXPECT(STATUS_INVALID_HANDLE, REQUEST(own.NdkResizeCq, stale[i], 4));
		EXPECT(STATUS_INVALID_HANDLE, own.NdkCloseCq((NDK_OBJECT_HEADER *)stale[i], on_close, &event));
		own.NdkArmCq(stale[i], NDK_CQ_NOTIFY_ANY);
		CHECK(own.NdkGetCqResults(stale[i], &result, 1) == 0);
		EXPECT(STATUS_INVALID_HANDLE, pd->Dispatch->NdkCreateQp(pd, stale[i], stale[i], NULL, 1, 1, 1, 1, 0, on_create, &event, &qp));
	}
	CHECK(event.count == 0);
	CLOSE(pd, NdkClosePd);
}

int main(void)
{
	versions();
	refusals();
	NDK_ADAPTER *adapter = open_adapter(""), *other = open_adapter("{}");
	const NDK_ADAPTER_DISPATCH *table = adapter->Dispatch;
	NDK_ADAPTER_INFO info;
	ULONG size = sizeof info;
	information(adapter);
	objects(adapter);
	FlueNdkCloseAdapter(adapter);
	EXPECT(STATUS_INVALID_HANDLE, table->NdkQueryAdapterInfo(adapter, &info, &size));
	EXPECT(STATUS_INVALID_HANDLE, table->NdkQueryAdapterInfo(NULL, &info, &size));
	EXPECT(STATUS_SUCCESS, table->NdkQueryAdapterInfo(other, &info, &size));
	FlueNdkCloseAdapter(adapter);
	FlueNdkCloseAdapter(NULL);
	FlueNdkCloseAdapter(other);
	return finish();
}
