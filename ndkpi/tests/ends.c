/* How adapters end, and on which thread callbacks run.
     ends threads                    callbacks: of a thread of the adapter, or of the caller
     ends call|core|thread           a panic of the library: in a call, with the adapter's lock, on another thread */
#include "ndk.h"

struct told {
	struct event event;
	pthread_t thread;
	NDK_ADAPTER *adapter;
};

static VOID on_notified(PVOID context, NTSTATUS status)
{
	struct told *told = context;
	told->thread = pthread_self();
	/* Would wait for the end of this very callback: ignored (NDK-LIFE-9). */
	FlueNdkCloseAdapter(told->adapter);
	happened(&told->event, status, NULL, 0);
}

struct queues {
	NDK_CQ *cq;
	NDK_PD *pd;
	NDK_QP *qp;
};

static struct queues make(NDK_ADAPTER *adapter, struct told *told)
{
	struct queues made;
	struct event event = { 0 };
	told->adapter = adapter;
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreateCq(adapter, 8, on_notified, told, NULL, on_create, &event, &made.cq));
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, &made.pd));
	EXPECT(STATUS_SUCCESS, made.pd->Dispatch->NdkCreateQp(made.pd, made.cq, made.cq, NULL, 4, 4, 1, 1, 0, on_create, &event,
		&made.qp));
	made.cq->Dispatch->NdkArmCq(made.cq, NDK_CQ_NOTIFY_ANY);
	EXPECT(STATUS_SUCCESS, made.qp->Dispatch->NdkReceive(made.qp, NULL, NULL, 0));
	return made;
}

static void unmake(struct queues *made)
{
	CLOSE(made->qp, NdkCloseQp);
	CLOSE(made->cq, NdkCloseCq);
	CLOSE(made->pd, NdkClosePd);
}

static void threads(const char *configuration, int is_caller)
{
	struct told told = { 0 };
	NDK_ADAPTER *adapter = open_adapter(configuration);
	struct queues made = make(adapter, &told);
	made.qp->Dispatch->NdkFlush(made.qp);
	EXPECT(STATUS_SUCCESS, AWAIT(told.event));
	CHECK(!pthread_equal(told.thread, pthread_self()) == !is_caller);
	unmake(&made);
	FlueNdkCloseAdapter(adapter);
}

static void panic(const char *where)
{
	struct told told = { 0 };
	struct event event = { 0 };
	NDK_ADAPTER *adapter = open_adapter(NULL), *none = NULL;
	struct queues made = make(adapter, &told);
	NDK_ADAPTER_INFO info;
	ULONG size = sizeof info;
	setenv("FLUE_NDKPI_TEST_PANIC", where, 1);
	NTSTATUS status = adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size);
	/* That of another thread is none of this call's. */
	if (strcmp(where, "thread") != 0)
		EXPECT(STATUS_INTERNAL_ERROR, status);

	/* NDK-CQ-14: every armed queue is told, and what was posted is lost with it. */
	EXPECT(STATUS_INTERNAL_ERROR, AWAIT(told.event));
	EXPECT(STATUS_DEVICE_REMOVED, adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size));
	EXPECT(STATUS_DEVICE_REMOVED, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, &made.pd));
	EXPECT(STATUS_DEVICE_REMOVED, made.qp->Dispatch->NdkReceive(made.qp, NULL, NULL, 0));
	EXPECT(NDIS_STATUS_FAILURE, FlueNdkOpenAdapter(NULL, VERSION_WANTED, &none));
	CHECK(none == NULL && FlueNdkOpenError()[0] != 0);
	/* What cleans up still works. */
	unmake(&made);
	FlueNdkCloseAdapter(adapter);
}

int main(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "threads") == 0) {
		threads(NULL, 0);
		threads("{\"callbacks\": \"own\"}", 0);
		threads("{\"callbacks\": \"caller\"}", 1);
	} else {
		panic(argv[1]);
	}
	return finish();
}
