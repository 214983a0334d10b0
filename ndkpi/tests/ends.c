/* End of adapters, and thread of callbacks.
     ends threads                    callbacks on a thread of the adapter, or of the caller
     ends call|core|thread           a panic of the library: in a call, with the adapter's lock, on another thread */
#include "ndk.h"

struct notification {
	struct event event;
	pthread_t thread;
	NDK_ADAPTER *adapter;
};

static VOID on_notified(PVOID context, NTSTATUS status)
{
	struct notification *notification = context;
	notification->thread = pthread_self();
	/* Ignored, because it would wait for the end of this callback (NDK-LIFE-9). */
	FlueNdkCloseAdapter(notification->adapter);
	record_event(&notification->event, status, NULL, 0);
}

struct queues {
	NDK_CQ *cq;
	NDK_PD *pd;
	NDK_QP *qp;
};

static struct queues create_queues(NDK_ADAPTER *adapter, struct notification *notification)
{
	struct queues made;
	struct event event = { 0 };
	notification->adapter = adapter;
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreateCq(adapter, 8, on_notified, notification, NULL, on_create, &event, &made.cq));
	EXPECT(STATUS_SUCCESS, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, &made.pd));
	EXPECT(STATUS_SUCCESS, made.pd->Dispatch->NdkCreateQp(made.pd, made.cq, made.cq, NULL, 4, 4, 1, 1, 0, on_create, &event,
		&made.qp));
	made.cq->Dispatch->NdkArmCq(made.cq, NDK_CQ_NOTIFY_ANY);
	EXPECT(STATUS_SUCCESS, made.qp->Dispatch->NdkReceive(made.qp, NULL, NULL, 0));
	return made;
}

static void close_queues(struct queues *made)
{
	CLOSE(made->qp, NdkCloseQp);
	CLOSE(made->cq, NdkCloseCq);
	CLOSE(made->pd, NdkClosePd);
}

static void threads(const char *configuration, int is_caller)
{
	struct notification notification = { 0 };
	NDK_ADAPTER *adapter = open_adapter(configuration);
	struct queues made = create_queues(adapter, &notification);
	made.qp->Dispatch->NdkFlush(made.qp);
	EXPECT(STATUS_SUCCESS, AWAIT(notification.event));
	CHECK(!pthread_equal(notification.thread, pthread_self()) == !is_caller);
	close_queues(&made);
	FlueNdkCloseAdapter(adapter);
}

static void panic(const char *where)
{
	struct notification notification = { 0 };
	struct event event = { 0 };
	NDK_ADAPTER *adapter = open_adapter(NULL), *none = NULL;
	struct queues made = create_queues(adapter, &notification);
	NDK_ADAPTER_INFO info;
	ULONG size = sizeof info;
	setenv("FLUE_NDKPI_TEST_PANIC", where, 1);
	NTSTATUS status = adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size);
	/* A panic on another thread does not affect the result of this call. */
	if (strcmp(where, "thread") != 0)
		EXPECT(STATUS_INTERNAL_ERROR, status);

	/* NDK-CQ-14: every armed queue is notified, and posted requests are dropped. */
	EXPECT(STATUS_INTERNAL_ERROR, AWAIT(notification.event));
	EXPECT(STATUS_DEVICE_REMOVED, adapter->Dispatch->NdkQueryAdapterInfo(adapter, &info, &size));
	EXPECT(STATUS_DEVICE_REMOVED, adapter->Dispatch->NdkCreatePd(adapter, on_create, &event, &made.pd));
	EXPECT(STATUS_DEVICE_REMOVED, made.qp->Dispatch->NdkReceive(made.qp, NULL, NULL, 0));
	EXPECT(NDIS_STATUS_FAILURE, FlueNdkOpenAdapter(NULL, VERSION_WANTED, &none));
	CHECK(none == NULL && FlueNdkOpenError()[0] != 0);
	/* Functions that release resources still work. */
	close_queues(&made);
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
