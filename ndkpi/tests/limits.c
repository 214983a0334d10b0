/* Limits of descriptors, from the three standard ones to enough for a listener: each call succeeds or fails for lack of
 * resources, and none hangs. */
#include "ndk.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Number of calls that must succeed with the largest limit. */
enum { CALLS = 7 };

static int succeeded;

/* Returns true if a call has succeeded. Exits if it has failed for another reason than the limit. */
static int is_made(const char *call, NTSTATUS status)
{
	if (status != STATUS_SUCCESS && status != STATUS_INSUFFICIENT_RESOURCES) {
		printf("%s: 0x%08x\n", call, (unsigned)status);
		fflush(stdout);
		_exit(100);
	}
	succeeded += status == STATUS_SUCCESS;
	return status == STATUS_SUCCESS;
}

/* Returns the object of a create, or NULL. */
static void *made(const char *call, NTSTATUS status, struct event *event, void *object)
{
	if (status == STATUS_PENDING) {
		status = await_count(event, 1, call, __LINE__);
		object = event->object;
	}
	return is_made(call, status) ? object : NULL;
}

#define CREATE(parent, entry, ...) \
	({ \
		struct event event_ = { 0 }; \
		void *out_ = NULL; \
		NTSTATUS status_ = (parent)->Dispatch->entry(parent, __VA_ARGS__ __VA_OPT__(,) on_create, &event_, (void *)&out_); \
		made(#entry, status_, &event_, out_); \
	})

static int calls(rlim_t limit)
{
	struct rlimit files = { limit, limit };
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	/* Port 1 refuses. */
	struct sockaddr_in refusing = any;
	struct event incoming = { 0 };
	NDK_ADAPTER *adapter = NULL;
	alarm(60);
	refusing.sin_port = htons(1);
	if (setrlimit(RLIMIT_NOFILE, &files)) return 101;
	if (!is_made("FlueNdkOpenAdapter", (NTSTATUS)FlueNdkOpenAdapter(NULL, VERSION_WANTED, &adapter)))
		return FlueNdkOpenError()[0] ? 0 : 102;
	NDK_CQ *cq = CREATE(adapter, NdkCreateCq, 16, on_notification, &incoming, NULL);
	NDK_PD *pd = CREATE(adapter, NdkCreatePd);
	NDK_QP *qp = cq && pd ? CREATE(pd, NdkCreateQp, cq, cq, NULL, 4, 4, 1, 1, 0) : NULL;
	NDK_LISTENER *listener = CREATE(adapter, NdkCreateListener, on_connect, &incoming);
	if (listener)
		is_made("NdkListen", REQUEST(listener->Dispatch->NdkListen, listener, (SOCKADDR *)&any, sizeof any));
	NDK_CONNECTOR *connector = CREATE(adapter, NdkCreateConnector);
	if (connector && qp) {
		NTSTATUS status = REQUEST(connector->Dispatch->NdkConnect, connector, qp, (SOCKADDR *)&any, sizeof any,
			(SOCKADDR *)&refusing, sizeof refusing, 1, 1, NULL, 0);
		if (status != STATUS_CONNECTION_REFUSED) is_made("NdkConnect", status);
	}
	if (connector) CLOSE(connector, NdkCloseConnector);
	if (listener) CLOSE(listener, NdkCloseListener);
	if (qp) CLOSE(qp, NdkCloseQp);
	if (pd) CLOSE(pd, NdkClosePd);
	if (cq) CLOSE(cq, NdkCloseCq);
	FlueNdkCloseAdapter(adapter);
	return failures ? 103 : succeeded;
}

int main(void)
{
	int first = -1, last = -1;
	for (rlim_t limit = 3; limit <= 40; limit++) {
		int status = 0;
		pid_t child = fork();
		if (child == 0) _exit(calls(limit));
		waitpid(child, &status, 0);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= CALLS);
		if (!WIFEXITED(status) || WEXITSTATUS(status) > CALLS)
			printf("RLIMIT_NOFILE %lu: status 0x%x\n", (unsigned long)limit, status);
		last = WEXITSTATUS(status);
		if (first < 0) first = last;
	}
	CHECK(first == 0 && last == CALLS);
	return finish();
}
