/* Common code of the test programs: checks that count failures, waits with a time limit, and adapters. */
#ifndef NDK_TEST_H
#define NDK_TEST_H

#include <ndkpi.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED); \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #what); \
			fflush(stdout); \
		} \
	} while (0)

/* Checks a status, given by name. */
#define EXPECT(status, what) \
	do { \
		NTSTATUS found_ = (what); \
		if (found_ != (status)) { \
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED); \
			printf("%s:%d: %s: 0x%08x, not %s\n", __FILE__, __LINE__, #what, (unsigned)found_, #status); \
			fflush(stdout); \
		} \
	} while (0)

/* Result of callbacks, for which threads wait. */
struct event {
	int count;
	NTSTATUS status;
	void *object;
	ULONG reason;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void record_event(struct event *event, NTSTATUS status, void *object, ULONG reason)
{
	pthread_mutex_lock(&lock);
	event->count++;
	event->status = status;
	event->object = object;
	event->reason = reason;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Waits until a callback has run `count` times, and returns the last status. Exits after a time limit. */
static inline NTSTATUS await_count(struct event *event, int count, const char *what, int line)
{
	struct timespec limit;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 20;
	pthread_mutex_lock(&lock);
	while (event->count < count) {
		if (pthread_cond_timedwait(&changed, &lock, &limit) != 0) {
			printf("%s:%d: no callback for %s\n", __FILE__, line, what);
			exit(1);
		}
	}
	NTSTATUS status = event->status;
	pthread_mutex_unlock(&lock);
	return status;
}

#define AWAIT(event) await_count(&(event), 1, #event, __LINE__)
#define AWAIT_COUNT(event, count) await_count(&(event), count, #event, __LINE__)

static inline VOID on_create(PVOID context, NTSTATUS status, NDK_OBJECT_HEADER *object) { record_event(context, status, object, 0); }
static inline VOID on_request(PVOID context, NTSTATUS status) { record_event(context, status, NULL, 0); }
static inline VOID on_close(PVOID context) { record_event(context, STATUS_SUCCESS, NULL, 0); }
static inline VOID on_notification(PVOID context, NTSTATUS status) { record_event(context, status, NULL, 0); }
static inline VOID on_connect(PVOID context, NDK_CONNECTOR *connector) { record_event(context, STATUS_SUCCESS, connector, 0); }
static inline VOID on_disconnect(PVOID context) { record_event(context, STATUS_SUCCESS, NULL, 0); }
static inline VOID on_disconnect_ex(PVOID context, ULONG reason) { record_event(context, STATUS_SUCCESS, NULL, reason); }

/* Makes an asynchronous request, given without its last two arguments. Waits for its status if it pends. */
#define REQUEST(function, ...) \
	({ \
		struct event event_ = { 0 }; \
		NTSTATUS status_ = function(__VA_ARGS__, on_request, &event_); \
		status_ == STATUS_PENDING ? AWAIT(event_) : status_; \
	})

/* Closes an object, and waits if the close pends. */
#define CLOSE(object, entry) \
	do { \
		struct event closed_ = { 0 }; \
		NTSTATUS status_ = (object)->Dispatch->entry(&(object)->Header, on_close, &closed_); \
		if (status_ == STATUS_PENDING) \
			AWAIT(closed_); \
		else \
			EXPECT(STATUS_SUCCESS, status_); \
	} while (0)

static const NDK_VERSION VERSION_WANTED = { 2, 0 };

static inline NDK_ADAPTER *open_adapter(const char *configuration)
{
	NDK_ADAPTER *adapter = NULL;
	NDIS_STATUS status = FlueNdkOpenAdapter(configuration, VERSION_WANTED, &adapter);
	if (status != NDIS_STATUS_SUCCESS) {
		printf("%s: 0x%08x: %s\n", configuration ? configuration : "kernel sockets", (unsigned)status, FlueNdkOpenError());
		exit(1);
	}
	return adapter;
}

static inline int finish(void)
{
	printf("%d failures\n", failures);
	return failures != 0;
}

#endif
