/* Consumer with two ends in one process, each with its own adapter.
     consumer sockets                 over the kernel's TCP sockets of 127.0.0.1
     consumer taps                    over two TAPs on the bridge br0: nodes 10.9.0.1 and 10.9.0.2
     consumer deferral                over the kernel's sockets, with operations that pend although they need not */
#include "ndk.h"

enum { RECEIVES = 8, INITIATED = 16, BYTES = 65536, PORT = 7174 };

/* One end: an adapter with one object of each kind, and memory. */
struct end {
	NDK_ADAPTER *adapter;
	NDK_PD *pd;
	NDK_CQ *cq;
	NDK_QP *qp;
	NDK_MR *mr;
	NDK_CONNECTOR *connector;
	struct event notified, disconnected;
	unsigned char *memory;
	UINT32 token;
	struct sockaddr_in own;
};

static int may_pend;
static struct end ends[2];
static struct end *const active = &ends[0], *const passive = &ends[1];

/* Checks the result of a create: an object immediately, or by its completion. */
static void *made(NTSTATUS status, struct event *event, void *const *out, NDK_OBJECT_TYPE type, const char *what, int line)
{
	void *object = *out;
	if (status == STATUS_PENDING) {
		CHECK(may_pend || type == NdkObjectTypeSharedEndpoint);
		CHECK(*out == NULL);
		status = await_count(event, 1, what, line);
		object = event->object;
	}
	if (status != STATUS_SUCCESS || object == NULL) {
		printf("%s:%d: %s: 0x%08x\n", __FILE__, line, what, (unsigned)status);
		exit(1);
	}
	NDK_OBJECT_HEADER *header = object;
	CHECK(header->ObjectType == type && header->Version.Major == 2 && header->Version.Minor == 1);
	return object;
}

#define CREATE(type, variable, parent, entry, ...) \
	do { \
		struct event event_ = { 0 }; \
		void *out_ = NULL; \
		NTSTATUS status_ = (parent)->Dispatch->entry(parent, __VA_ARGS__ __VA_OPT__(,) on_create, &event_, (void *)&out_); \
		(variable) = made(status_, &event_, &out_, type, #entry, __LINE__); \
	} while (0)

static struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &found.sin_addr);
	return found;
}

static NDK_SGE sge(struct end *end, size_t offset, ULONG length)
{
	return (NDK_SGE){ .VirtualAddress = end->memory + offset, .Length = length, .MemoryRegionToken = end->token };
}

/* Returns the next completion: arms, polls, waits for the notification. */
static NDK_RESULT_EX next_on(NDK_CQ *cq, struct event *notified)
{
	NDK_RESULT_EX result;
	for (;;) {
		pthread_mutex_lock(&lock);
		int before = notified->count;
		pthread_mutex_unlock(&lock);
		if (cq->Dispatch->NdkGetCqResultsEx(cq, &result, 1) == 1)
			return result;
		cq->Dispatch->NdkArmCq(cq, NDK_CQ_NOTIFY_ANY);
		if (cq->Dispatch->NdkGetCqResultsEx(cq, &result, 1) == 1)
			return result;
		EXPECT(STATUS_SUCCESS, await_count(notified, before + 1, "a notification", __LINE__));
	}
}

static NDK_RESULT_EX next(struct end *end) { return next_on(end->cq, &end->notified); }

#define COMPLETES(end, status, type, context) \
	do { \
		NDK_RESULT_EX result_ = next(end); \
		EXPECT(status, result_.Status); \
		CHECK(result_.Type == (type) && result_.RequestContext == (void *)(context) && result_.QPContext == (end)); \
	} while (0)

static void *const ONE = (void *)1, *const TWO = (void *)2, *const THREE = (void *)3;

/* Creates a queue pair. Each connection needs a new one. */
static NDK_QP *fresh_qp(struct end *end)
{
	NDK_QP *qp;
	CREATE(NdkObjectTypeQp, qp, end->pd, NdkCreateQp, end->cq, end->cq, end, RECEIVES, INITIATED, 2, 4, 256);
	return qp;
}

static void open_end(struct end *end, const char *configuration, const char *ip)
{
	end->adapter = open_adapter(configuration);
	end->own = address(ip, 0);
	CREATE(NdkObjectTypePd, end->pd, end->adapter, NdkCreatePd);
	CREATE(NdkObjectTypeCq, end->cq, end->adapter, NdkCreateCq, 64, on_notification, &end->notified, NULL);
	end->qp = fresh_qp(end);
	CREATE(NdkObjectTypeMr, end->mr, end->pd, NdkCreateMr, FALSE);
	end->memory = aligned_alloc(PAGE_SIZE, BYTES);
	memset(end->memory, 0, BYTES);
	MDL second, first;
	MmInitializeMdl(&first, end->memory, 10000);
	MmInitializeMdl(&second, end->memory + 10000, BYTES - 10000);
	first.Next = &second;
	CHECK(MmGetMdlVirtualAddress(&second) == end->memory + 10000 && MmGetMdlByteCount(&first) == 10000);
	ULONG rights = NDK_MR_FLAG_ALLOW_REMOTE_READ | NDK_MR_FLAG_ALLOW_REMOTE_WRITE;
	CHECK(end->mr->Dispatch->NdkGetLocalTokenFromMr(end->mr) == 0);
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &first, BYTES + 1, rights));
	second.VirtualAddress = end->memory + 10001;
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &first, BYTES, rights));
	second.VirtualAddress = end->memory + 10000;
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &first, 0, rights));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, NULL, 1, rights));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &first, BYTES, 0x4));
	MDL constant;
	MmInitializeMdl(&constant, (void *)(uintptr_t)0x1000, 10);
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &constant, 10, rights));
	EXPECT(STATUS_SUCCESS, REQUEST(end->mr->Dispatch->NdkRegisterMr, end->mr, &first, BYTES, rights));
	end->token = end->mr->Dispatch->NdkGetLocalTokenFromMr(end->mr);
	CHECK(end->token != 0 && end->token == end->mr->Dispatch->NdkGetRemoteTokenFromMr(end->mr));
}

static struct event incoming;
static NDK_LISTENER *listener;
static struct sockaddr_in listening;

static void listen_on(struct end *end)
{
	struct sockaddr_in reported = { 0 }, foreign = address("192.0.2.77", 7);
	ULONG length = sizeof reported;
	CREATE(NdkObjectTypeListener, listener, end->adapter, NdkCreateListener, on_connect, &incoming);
	EXPECT(STATUS_INVALID_DEVICE_STATE, listener->Dispatch->NdkGetLocalAddress(listener, (SOCKADDR *)&reported, &length));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(listener->Dispatch->NdkListen, listener, (SOCKADDR *)&end->own, 4));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(listener->Dispatch->NdkListen, listener, NULL, 16));
	EXPECT(STATUS_INVALID_ADDRESS, REQUEST(listener->Dispatch->NdkListen, listener, (SOCKADDR *)&foreign, sizeof foreign));
	EXPECT(STATUS_SUCCESS, REQUEST(listener->Dispatch->NdkListen, listener, (SOCKADDR *)&end->own, sizeof end->own));
	length = 4;
	EXPECT(STATUS_BUFFER_TOO_SMALL, listener->Dispatch->NdkGetLocalAddress(listener, (SOCKADDR *)&reported, &length));
	CHECK(length == sizeof reported);
	EXPECT(STATUS_SUCCESS, listener->Dispatch->NdkGetLocalAddress(listener, (SOCKADDR *)&reported, &length));
	CHECK(reported.sin_port != 0 && reported.sin_addr.s_addr == end->own.sin_addr.s_addr);
	listening = reported;
	EXPECT(STATUS_ADDRESS_ALREADY_ASSOCIATED,
		REQUEST(listener->Dispatch->NdkListen, listener, (SOCKADDR *)&end->own, sizeof end->own));

	NDK_LISTENER *second;
	CREATE(NdkObjectTypeListener, second, end->adapter, NdkCreateListener, on_connect, &incoming);
	EXPECT(STATUS_SHARING_VIOLATION, REQUEST(second->Dispatch->NdkListen, second, (SOCKADDR *)&reported, sizeof reported));
	CLOSE(second, NdkCloseListener);

	/* An IPv6 listener on the wildcard address does not accept IPv4. */
	NDK_LISTENER *third;
	struct sockaddr_in all = { .sin_family = AF_INET };
	struct sockaddr_in6 all6 = { .sin6_family = AF_INET6 };
	CREATE(NdkObjectTypeListener, second, end->adapter, NdkCreateListener, on_connect, &incoming);
	EXPECT(STATUS_SUCCESS, REQUEST(second->Dispatch->NdkListen, second, (SOCKADDR *)&all, sizeof all));
	length = sizeof reported;
	EXPECT(STATUS_SUCCESS, second->Dispatch->NdkGetLocalAddress(second, (SOCKADDR *)&reported, &length));
	all6.sin6_port = reported.sin_port;
	CREATE(NdkObjectTypeListener, third, end->adapter, NdkCreateListener, on_connect, &incoming);
	EXPECT(STATUS_SUCCESS, REQUEST(third->Dispatch->NdkListen, third, (SOCKADDR *)&all6, sizeof all6));
	CLOSE(third, NdkCloseListener);
	CLOSE(second, NdkCloseListener);
}

/* Starts a connect from the active end; `event` receives its completion. */
static NTSTATUS begin_connect(NDK_CONNECTOR *connector, NDK_QP *qp, struct event *event, const void *data, ULONG length)
{
	return connector->Dispatch->NdkConnect(connector, qp, (SOCKADDR *)&active->own, sizeof active->own,
		(SOCKADDR *)&listening, sizeof listening, 4, 8, data, length, on_request, event);
}

static void refuse(void)
{
	NDK_CONNECTOR *connector;
	struct event connected = { 0 };
	static const char private_data[600];
	CREATE(NdkObjectTypeConnector, connector, active->adapter, NdkCreateConnector);
	EXPECT(STATUS_INVALID_BUFFER_SIZE, begin_connect(connector, active->qp, &connected, private_data, 509));
	EXPECT(STATUS_INVALID_PARAMETER, begin_connect(connector, active->qp, &connected, NULL, 5));
	EXPECT(STATUS_INVALID_HANDLE, begin_connect(connector, (NDK_QP *)active->pd, &connected, NULL, 0));
	EXPECT(STATUS_INVALID_HANDLE, begin_connect(connector, NULL, &connected, NULL, 0));
	EXPECT(STATUS_INVALID_PARAMETER, begin_connect(connector, passive->qp, &connected, NULL, 0));
	EXPECT(STATUS_CONNECTION_INVALID, REQUEST(connector->Dispatch->NdkDisconnect, connector));
	EXPECT(STATUS_CONNECTION_INVALID, REQUEST(connector->Dispatch->NdkCompleteConnect, connector, NULL, NULL));
	EXPECT(STATUS_CONNECTION_INVALID, connector->Dispatch->NdkReject(connector, NULL, 0));
	EXPECT(STATUS_INVALID_PARAMETER, connector->Dispatch->NdkReject(connector, NULL, 1));
	ULONG length = 0;
	EXPECT(STATUS_CONNECTION_INVALID, connector->Dispatch->NdkGetConnectionData(connector, NULL, NULL, NULL, &length));
	struct sockaddr_in none;
	length = sizeof none;
	EXPECT(STATUS_CONNECTION_INVALID, connector->Dispatch->NdkGetLocalAddress(connector, (SOCKADDR *)&none, &length));
	EXPECT(STATUS_CONNECTION_INVALID, connector->Dispatch->NdkGetPeerAddress(connector, (SOCKADDR *)&none, &length));

	/* NDK-EP-6: a paused listener refuses connections. */
	listener->Dispatch->NdkControlConnectEvents(listener, TRUE);
	EXPECT(STATUS_PENDING, begin_connect(connector, active->qp, &connected, NULL, 0));
	EXPECT(STATUS_CONNECTION_REFUSED, AWAIT(connected));
	CHECK(incoming.count == 0);
	listener->Dispatch->NdkControlConnectEvents(listener, FALSE);

	/* Rejected with private data, which can be read (NDK-CD-7). */
	memset(&connected, 0, sizeof connected);
	EXPECT(STATUS_PENDING, begin_connect(connector, active->qp, &connected, "why?", 4));
	AWAIT(incoming);
	NDK_CONNECTOR *arrived = incoming.object;
	EXPECT(STATUS_SUCCESS, arrived->Dispatch->NdkReject(arrived, "because", 7));
	CLOSE(arrived, NdkCloseConnector);
	EXPECT(STATUS_CONNECTION_REFUSED, AWAIT(connected));
	char answer[16];
	length = sizeof answer;
	EXPECT(STATUS_SUCCESS, connector->Dispatch->NdkGetConnectionData(connector, NULL, NULL, answer, &length));
	CHECK(length == 7 && memcmp(answer, "because", 7) == 0);
	CLOSE(connector, NdkCloseConnector);
	memset(&incoming, 0, sizeof incoming);
}

/* Connects the two ends, from `endpoint` if it is not NULL, otherwise from the address of the active end. */
static void establish(NDK_SHARED_ENDPOINT *endpoint)
{
	struct event connected = { 0 }, accepted = { 0 };
	ULONG inbound = 0, outbound = 0, length = 0;
	char data[16];
	memset(&active->disconnected, 0, sizeof active->disconnected);
	memset(&passive->disconnected, 0, sizeof passive->disconnected);
	CREATE(NdkObjectTypeConnector, active->connector, active->adapter, NdkCreateConnector);
	if (endpoint)
		EXPECT(STATUS_PENDING, active->connector->Dispatch->NdkConnectWithSharedEndpoint(active->connector, active->qp,
			endpoint, (SOCKADDR *)&listening, sizeof listening, 4, 8, "hello", 5, on_request, &connected));
	else
		EXPECT(STATUS_PENDING, begin_connect(active->connector, active->qp, &connected, "hello", 5));
	AWAIT(incoming);
	passive->connector = incoming.object;
	CHECK(passive->connector->Header.ObjectType == NdkObjectTypeConnector);
	const NDK_CONNECTOR_DISPATCH *to = passive->connector->Dispatch;

	/* NDK-CD-3 */
	EXPECT(STATUS_SUCCESS, to->NdkGetConnectionData(passive->connector, &inbound, &outbound, NULL, &length));
	CHECK(length == 5 && inbound <= 8 && outbound <= 4);
	length = 2;
	EXPECT(STATUS_INVALID_PARAMETER, to->NdkGetConnectionData(passive->connector, NULL, NULL, NULL, &length));
	EXPECT(STATUS_BUFFER_TOO_SMALL, to->NdkGetConnectionData(passive->connector, NULL, NULL, data, &length));
	CHECK(length == 5 && memcmp(data, "he", 2) == 0);
	length = sizeof data;
	EXPECT(STATUS_SUCCESS, to->NdkGetConnectionData(passive->connector, NULL, NULL, data, &length));
	CHECK(length == 5 && memcmp(data, "hello", 5) == 0);
	EXPECT(STATUS_SUCCESS, to->NdkGetConnectionData(passive->connector, &inbound, NULL, NULL, NULL));

	EXPECT(STATUS_PENDING, to->NdkAcceptEx(passive->connector, passive->qp, 2, 3, "welcome", 7, on_disconnect_ex,
		&passive->disconnected, on_request, &accepted));
	EXPECT(STATUS_SUCCESS, AWAIT(connected));
	length = sizeof data;
	EXPECT(STATUS_SUCCESS, active->connector->Dispatch->NdkGetConnectionData(active->connector, &inbound, &outbound, data,
		&length));
	CHECK(length == 7 && memcmp(data, "welcome", 7) == 0);
	/* NDK-CD-1: the least of both sides. */
	CHECK(inbound == 3 && outbound == 2);

	/* NDK-CON-11 */
	NDK_SGE list = sge(active, 0, 8);
	EXPECT(STATUS_CONNECTION_INVALID, active->qp->Dispatch->NdkSend(active->qp, ONE, &list, 1, 0));
	EXPECT(STATUS_SUCCESS, REQUEST(active->connector->Dispatch->NdkCompleteConnect, active->connector, on_disconnect,
		&active->disconnected));
	EXPECT(STATUS_SUCCESS, AWAIT(accepted));
	struct sockaddr_in local, peer;
	length = sizeof local;
	EXPECT(STATUS_SUCCESS, active->connector->Dispatch->NdkGetLocalAddress(active->connector, (SOCKADDR *)&local, &length));
	EXPECT(STATUS_SUCCESS, to->NdkGetPeerAddress(passive->connector, (SOCKADDR *)&peer, &length));
	CHECK(local.sin_port == peer.sin_port && local.sin_addr.s_addr == peer.sin_addr.s_addr);
	EXPECT(STATUS_SUCCESS, active->connector->Dispatch->NdkGetPeerAddress(active->connector, (SOCKADDR *)&peer, &length));
	CHECK(peer.sin_port == listening.sin_port);
	memset(&incoming, 0, sizeof incoming);
}

/* Disconnects the active end, and creates queue pairs for the next connection. */
static void part(void)
{
	EXPECT(STATUS_SUCCESS, REQUEST(active->connector->Dispatch->NdkDisconnect, active->connector));
	AWAIT(passive->disconnected);
	EXPECT(STATUS_SUCCESS, REQUEST(passive->connector->Dispatch->NdkDisconnect, passive->connector));
	CHECK(active->disconnected.count == 0 && passive->disconnected.count == 1 && passive->disconnected.reason == 0);
	for (int i = 0; i < 2; i++) {
		NDK_RESULT ignored[16];
		while (ends[i].cq->Dispatch->NdkGetCqResults(ends[i].cq, ignored, 16) == 16)
			;
		CLOSE(ends[i].connector, NdkCloseConnector);
		CLOSE(ends[i].qp, NdkCloseQp);
		ends[i].qp = fresh_qp(&ends[i]);
	}
}

/* Waits for the end of a connection by an error, and creates queue pairs as `part`. */
static void lose(void)
{
	for (int i = 0; i < 2; i++) {
		NDK_RESULT ignored[16];
		AWAIT(ends[i].disconnected);
		CLOSE(ends[i].connector, NdkCloseConnector);
		CLOSE(ends[i].qp, NdkCloseQp);
		while (ends[i].cq->Dispatch->NdkGetCqResults(ends[i].cq, ignored, 16) == 16)
			;
		ends[i].qp = fresh_qp(&ends[i]);
	}
}

static void send_and_receive(void)
{
	NDK_SGE to[] = { sge(passive, 0, 3), sge(passive, 100, 1000) }, from = sge(active, 0, 8), empty = sge(active, 0, 0);
	const NDK_QP_DISPATCH *out = active->qp->Dispatch, *in = passive->qp->Dispatch;
	memcpy(active->memory, "abcdefgh", 8);
	EXPECT(STATUS_SUCCESS, in->NdkReceive(passive->qp, ONE, to, 2));
	EXPECT(STATUS_SUCCESS, out->NdkSend(active->qp, TWO, &from, 1, NDK_OP_FLAG_SEND_AND_SOLICIT_EVENT));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
	NDK_RESULT_EX got = next(passive);
	EXPECT(STATUS_SUCCESS, got.Status);
	CHECK(got.BytesTransferred == 8 && got.Type == NdkOperationTypeReceive && got.RequestContext == ONE);
	CHECK(memcmp(passive->memory, "abc", 3) == 0 && memcmp(passive->memory + 100, "defgh", 5) == 0);

	/* NDK-SGE-4: no entry and no list. */
	EXPECT(STATUS_SUCCESS, in->NdkReceive(passive->qp, ONE, NULL, 0));
	EXPECT(STATUS_SUCCESS, out->NdkSend(active->qp, TWO, NULL, 0, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);

	/* NDK-SGE-2: ordinary entries with any token, more than the queue pair has; captured before the call returns. */
	char words[10][3];
	NDK_SGE inlined[10];
	for (int i = 0; i < 10; i++) {
		memset(words[i], 'A' + i, 3);
		inlined[i] = (NDK_SGE){ .VirtualAddress = words[i], .Length = 3, .MemoryRegionToken = 0xdeadbeef };
	}
	EXPECT(STATUS_SUCCESS, in->NdkReceive(passive->qp, ONE, to + 1, 1));
	EXPECT(STATUS_SUCCESS, out->NdkSend(active->qp, TWO, inlined, 10, NDK_OP_FLAG_INLINE));
	memset(words, 0, sizeof words);
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);
	CHECK(memcmp(passive->memory + 100, "AAABBBCCCDDDEEEFFFGGGHHHIIIJJJ", 30) == 0);

	/* A refused post has no completion. */
	char big[300] = { 0 };
	NDK_SGE five[5] = { from, from, from, from, from }, much = { .VirtualAddress = big, .Length = 257 };
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkSend(active->qp, THREE, &much, 1, NDK_OP_FLAG_INLINE));
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkSend(active->qp, THREE, NULL, 1, 0));
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkSend(active->qp, THREE, &from, 1, 0x400));
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkSend(active->qp, THREE, &from, 1, NDK_OP_FLAG_ALLOW_REMOTE_READ));
	EXPECT(STATUS_DATA_OVERRUN, out->NdkSend(active->qp, THREE, five, 5, 0));
	EXPECT(STATUS_DATA_OVERRUN, out->NdkSend(active->qp, THREE, five, MAXULONG, 0));
	EXPECT(STATUS_DATA_OVERRUN, in->NdkReceive(passive->qp, THREE, five, 3));
	EXPECT(STATUS_INVALID_HANDLE, out->NdkSend(NULL, THREE, &from, 1, 0));
	EXPECT(STATUS_INVALID_HANDLE, out->NdkSend((NDK_QP *)active->cq, THREE, &from, 1, 0));

	/* NDK-DEF-3: a failed post indicates the requests that were deferred before it. */
	EXPECT(STATUS_SUCCESS, in->NdkReceive(passive->qp, ONE, to, 2));
	EXPECT(STATUS_SUCCESS, out->NdkSend(active->qp, TWO, &empty, 1, NDK_OP_FLAG_DEFER));
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkSend(active->qp, THREE, NULL, 1, 0));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);

	/* NDK-SIL-1 */
	EXPECT(STATUS_SUCCESS, in->NdkReceive(passive->qp, ONE, to, 2));
	EXPECT(STATUS_SUCCESS, out->NdkSend(active->qp, TWO, &from, 1, NDK_OP_FLAG_SILENT_SUCCESS));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);
	NDK_RESULT none;
	CHECK(active->cq->Dispatch->NdkGetCqResults(active->cq, &none, 1) == 0);
}

static void read_and_write(void)
{
	const NDK_QP_DISPATCH *out = active->qp->Dispatch;
	NDK_SGE list = sge(active, 1000, 4000);
	for (int i = 0; i < 4000; i++)
		active->memory[1000 + i] = (unsigned char)(i * 7);
	UINT64 target = (uintptr_t)passive->memory + 20000;
	EXPECT(STATUS_SUCCESS, out->NdkWrite(active->qp, ONE, &list, 1, target, passive->token, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeWrite, ONE);
	memset(active->memory + 1000, 0, 4000);
	/* After the write, into two entries. */
	NDK_SGE back[] = { sge(active, 1000, 1), sge(active, 1001, 3999) };
	EXPECT(STATUS_SUCCESS, out->NdkRead(active->qp, TWO, back, 2, target, passive->token, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeRead, TWO);
	int same = 1;
	for (int i = 0; i < 4000; i++)
		same &= active->memory[1000 + i] == (unsigned char)(i * 7);
	CHECK(same && memcmp(passive->memory + 20000, active->memory + 1000, 4000) == 0);
	EXPECT(STATUS_SUCCESS, out->NdkRead(active->qp, TWO, NULL, 0, target, passive->token, NDK_OP_FLAG_READ_FENCE));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeRead, TWO);
	NDK_SGE inlined = { .VirtualAddress = "inline", .Length = 6 };
	EXPECT(STATUS_SUCCESS, out->NdkWrite(active->qp, ONE, &inlined, 1, target, passive->token, NDK_OP_FLAG_INLINE));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeWrite, ONE);
	EXPECT(STATUS_INVALID_PARAMETER, out->NdkRead(active->qp, ONE, &inlined, 1, target, passive->token, NDK_OP_FLAG_INLINE));

	/* Outside the region: an error of the initiator, which ends the connection (NDK-ERR-2). */
	EXPECT(STATUS_SUCCESS, out->NdkRead(active->qp, ONE, &list, 1, (uintptr_t)passive->memory + BYTES - 3999, passive->token, 0));
	COMPLETES(active, STATUS_ACCESS_VIOLATION, NdkOperationTypeRead, ONE);
	CHECK(memcmp(passive->memory + 20000, "inline", 6) == 0);
	lose();
}

/* NDK-DISC-7: a local error in a request has another reason than an orderly disconnect. */
static void disconnect_reasons(void)
{
	NDK_SGE beyond = sge(passive, BYTES - 4, 8);
	EXPECT(STATUS_SUCCESS, passive->qp->Dispatch->NdkSend(passive->qp, ONE, &beyond, 1, 0));
	COMPLETES(passive, STATUS_ACCESS_VIOLATION, NdkOperationTypeSend, ONE);
	AWAIT(passive->disconnected);
	CHECK(passive->disconnected.reason == FlueNdkDisconnectLocal);
	lose();
}

static void windows(void)
{
	NDK_MW *window;
	NDK_QP *qp = passive->qp;
	const NDK_QP_DISPATCH *bind = qp->Dispatch, *out = active->qp->Dispatch;
	CREATE(NdkObjectTypeMw, window, passive->pd, NdkCreateMw);
	ULONG rights = NDK_OP_FLAG_ALLOW_REMOTE_READ | NDK_OP_FLAG_ALLOW_REMOTE_WRITE;
	unsigned char *start = passive->memory + 30000;
	EXPECT(STATUS_INVALID_HANDLE, bind->NdkBind(qp, ONE, (NDK_MR *)window, window, start, 100, rights));
	EXPECT(STATUS_INVALID_HANDLE, bind->NdkBind(qp, ONE, passive->mr, NULL, start, 100, rights));
	EXPECT(STATUS_INVALID_PARAMETER, bind->NdkBind(qp, ONE, active->mr, window, start, 100, rights));
	EXPECT(STATUS_INVALID_PARAMETER, bind->NdkBind(qp, ONE, passive->mr, window, start, BYTES, rights));
	EXPECT(STATUS_INVALID_PARAMETER, bind->NdkBind(qp, ONE, passive->mr, window, start, 100, NDK_OP_FLAG_INLINE));
	EXPECT(STATUS_SUCCESS, bind->NdkBind(qp, ONE, passive->mr, window, start, 100, rights));
	UINT32 token = window->Dispatch->NdkGetRemoteTokenFromMw(window);
	CHECK(token != 0 && token != passive->token);
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeBind, ONE);
	EXPECT(STATUS_DEVICE_BUSY, REQUEST(passive->mr->Dispatch->NdkDeregisterMr, passive->mr));
	memcpy(start, "window", 6);
	NDK_SGE to = sge(active, 0, 6);
	EXPECT(STATUS_SUCCESS, out->NdkRead(active->qp, TWO, &to, 1, (uintptr_t)start, token, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeRead, TWO);
	CHECK(memcmp(active->memory, "window", 6) == 0);

	/* NDK-RI-1: the peer's token is invalidated before its receive completes. */
	EXPECT(STATUS_SUCCESS, bind->NdkReceive(qp, ONE, NULL, 0));
	EXPECT(STATUS_SUCCESS, out->NdkSendAndInvalidate(active->qp, TWO, NULL, 0, 0, token));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
	NDK_RESULT_EX got = next(passive);
	EXPECT(STATUS_SUCCESS, got.Status);
	CHECK(got.Type == NdkOperationTypeReceiveAndInvalidate && got.TypeSpecificCompletionOutput == token);

	/* Bind again, and invalidate locally. */
	EXPECT(STATUS_SUCCESS, bind->NdkBind(qp, ONE, passive->mr, window, start, 100, NDK_OP_FLAG_ALLOW_REMOTE_READ));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeBind, ONE);
	token = window->Dispatch->NdkGetRemoteTokenFromMw(window);
	EXPECT(STATUS_INVALID_HANDLE, bind->NdkInvalidate(qp, ONE, &passive->pd->Header, 0));
	EXPECT(STATUS_SUCCESS, bind->NdkInvalidate(qp, ONE, &window->Header, 0));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeInvalidate, ONE);
	EXPECT(STATUS_SUCCESS, out->NdkRead(active->qp, TWO, &to, 1, (uintptr_t)start, token, 0));
	COMPLETES(active, STATUS_ACCESS_VIOLATION, NdkOperationTypeRead, TWO);
	lose();
	CLOSE(window, NdkCloseMw);
}

/* Logical addresses of an end's memory: 9000 bytes, from byte 100 of page 8. */
enum { LAM_START = 8 * PAGE_SIZE + 100, LAM_BYTES = 9000, LAM_PAGES = 3, LAM_SIZE = 16 + 8 * LAM_PAGES };

struct mapped {
	ULONG offset;
	union {
		NDK_LOGICAL_ADDRESS_MAPPING lam;
		unsigned char room[LAM_SIZE];
	};
};

static void build(struct end *end, struct mapped *mapped)
{
	const NDK_ADAPTER_DISPATCH *table = end->adapter->Dispatch;
	ULONG size = 0;
	MDL mdl;
	MmInitializeMdl(&mdl, end->memory + LAM_START, LAM_BYTES);
	EXPECT(STATUS_BUFFER_TOO_SMALL,
		table->NdkBuildLAM(end->adapter, &mdl, LAM_BYTES, on_request, NULL, &mapped->lam, &size, &mapped->offset));
	CHECK(size == LAM_SIZE);
	EXPECT(STATUS_INVALID_PARAMETER,
		table->NdkBuildLAM(end->adapter, &mdl, LAM_BYTES + 1, on_request, NULL, &mapped->lam, &size, &mapped->offset));
	EXPECT(STATUS_INVALID_PARAMETER,
		table->NdkBuildLAM(end->adapter, &mdl, 0, on_request, NULL, &mapped->lam, &size, &mapped->offset));
	EXPECT(STATUS_INVALID_PARAMETER, table->NdkBuildLAM(end->adapter, &mdl, 1, on_request, NULL, NULL, &size, &mapped->offset));
	size = LAM_SIZE;
	EXPECT(STATUS_SUCCESS,
		table->NdkBuildLAM(end->adapter, &mdl, LAM_BYTES, on_request, NULL, &mapped->lam, &size, &mapped->offset));
	CHECK(mapped->lam.AdapterPageCount == LAM_PAGES && mapped->offset == 100 && size == LAM_SIZE);
	for (int i = 0; i < LAM_PAGES; i++)
		CHECK(mapped->lam.AdapterPageArray[i].QuadPart % PAGE_SIZE == 0);
}

static void logical_addresses(void)
{
	struct mapped here, there;
	UINT32 privileged[2] = { 0, 0 };
	build(active, &here);
	build(passive, &there);
	for (int i = 0; i < 2; i++) {
		ends[i].pd->Dispatch->NdkGetPrivilegedMemoryRegionToken(ends[i].pd, &privileged[i]);
		CHECK(privileged[i] != 0);
	}

	/* NDK-SGE-1: within the first page, and the rest of the second. */
	memcpy(active->memory + LAM_START, "logical", 7);
	memcpy(active->memory + 9 * PAGE_SIZE, "address", 7);
	NDK_SGE from[] = { { .Length = 7, .MemoryRegionToken = privileged[0] }, { .Length = 7, .MemoryRegionToken = privileged[0] } };
	from[0].LogicalAddress.QuadPart = here.lam.AdapterPageArray[0].QuadPart + here.offset;
	from[1].LogicalAddress = here.lam.AdapterPageArray[1];
	NDK_SGE to = { .Length = 20, .MemoryRegionToken = privileged[1] };
	to.LogicalAddress = there.lam.AdapterPageArray[1];
	EXPECT(STATUS_SUCCESS, passive->qp->Dispatch->NdkReceive(passive->qp, ONE, &to, 1));
	EXPECT(STATUS_SUCCESS, active->qp->Dispatch->NdkSend(active->qp, TWO, from, 2, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);
	CHECK(memcmp(passive->memory + 9 * PAGE_SIZE, "logicaladdress", 14) == 0);

	/* NDK-MEM-6, -7 */
	NDK_MR *mr, *local;
	NDK_QP *qp = passive->qp;
	CREATE(NdkObjectTypeMr, mr, passive->pd, NdkCreateMr, TRUE);
	CREATE(NdkObjectTypeMr, local, passive->pd, NdkCreateMr, TRUE);
	MDL mdl;
	MmInitializeMdl(&mdl, passive->memory, 100);
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(mr->Dispatch->NdkRegisterMr, mr, &mdl, 100, 0));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(passive->mr->Dispatch->NdkInitializeFastRegisterMr, passive->mr, 3, TRUE));
	EXPECT(STATUS_IMPLEMENTATION_LIMIT, REQUEST(mr->Dispatch->NdkInitializeFastRegisterMr, mr, 1000000, TRUE));
	EXPECT(STATUS_SUCCESS, REQUEST(mr->Dispatch->NdkInitializeFastRegisterMr, mr, LAM_PAGES, TRUE));
	EXPECT(STATUS_SUCCESS, REQUEST(local->Dispatch->NdkInitializeFastRegisterMr, local, LAM_PAGES, FALSE));
	const NDK_LOGICAL_ADDRESS *pages = there.lam.AdapterPageArray;
	NDK_LOGICAL_ADDRESS crooked[LAM_PAGES + 1];
	memcpy(crooked, pages, sizeof *pages * LAM_PAGES);
	crooked[1].QuadPart += 8;
	ULONG rights = NDK_OP_FLAG_ALLOW_REMOTE_READ;
	char *const base = (char *)0x100000;
	struct { NDK_MR *mr; ULONG count; const NDK_LOGICAL_ADDRESS *pages; ULONG offset; SIZE_T length; PVOID base; ULONG flags; NTSTATUS expected; } rows[] = {
		{ mr, 3, crooked, 100, LAM_BYTES, base + 100, rights, STATUS_INVALID_PARAMETER },
		{ mr, 4, crooked, 100, LAM_BYTES, base + 100, rights, STATUS_INVALID_PARAMETER },
		{ mr, 3, NULL, 100, LAM_BYTES, base + 100, rights, STATUS_INVALID_PARAMETER },
		{ mr, 3, pages, PAGE_SIZE, LAM_BYTES, base, rights, STATUS_INVALID_PARAMETER },
		{ mr, 3, pages, 100, LAM_BYTES, base, rights, STATUS_INVALID_PARAMETER },
		{ mr, 3, pages, 100, 3 * PAGE_SIZE - 99, base + 100, rights, STATUS_INVALID_PARAMETER },
		{ mr, 0, NULL, 100, 1, base + 100, rights, STATUS_INVALID_PARAMETER },
		{ mr, 3, pages, 100, LAM_BYTES, base + 100, NDK_OP_FLAG_INLINE, STATUS_INVALID_PARAMETER },
		{ local, 3, pages, 100, LAM_BYTES, base + 100, rights, STATUS_ACCESS_VIOLATION },
		{ (NDK_MR *)passive->pd, 3, pages, 100, LAM_BYTES, base + 100, rights, STATUS_INVALID_HANDLE },
		{ mr, 3, pages, 100, LAM_BYTES, base + 100, rights, STATUS_SUCCESS },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		NTSTATUS status = qp->Dispatch->NdkFastRegister(qp, ONE, rows[i].mr, rows[i].count, rows[i].pages, rows[i].offset,
			rows[i].length, rows[i].base, rows[i].flags);
		if (status != rows[i].expected) {
			printf("row %zu: ", i);
			EXPECT(rows[i].expected, status);
		}
	}
	UINT32 token = mr->Dispatch->NdkGetRemoteTokenFromMr(mr);
	CHECK(token != 0);
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeFastRegister, ONE);
	NDK_SGE sink = sge(active, 0, 7);
	EXPECT(STATUS_SUCCESS, active->qp->Dispatch->NdkRead(active->qp, TWO, &sink, 1, 0x100000 + PAGE_SIZE, token, 0));
	COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeRead, TWO);
	CHECK(memcmp(active->memory, "logical", 7) == 0);
	EXPECT(STATUS_SUCCESS, qp->Dispatch->NdkInvalidate(qp, ONE, &mr->Header, 0));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeInvalidate, ONE);

	/* A released mapping is invalid, and a second release is ignored. */
	passive->adapter->Dispatch->NdkReleaseLAM(active->adapter, &there.lam);
	EXPECT(STATUS_SUCCESS, qp->Dispatch->NdkFastRegister(qp, ONE, mr, 3, pages, 100, LAM_BYTES, base + 100, rights));
	COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeFastRegister, ONE);
	for (int i = 0; i < 2; i++)
		passive->adapter->Dispatch->NdkReleaseLAM(passive->adapter, &there.lam);
	passive->adapter->Dispatch->NdkReleaseLAM(passive->adapter, NULL);
	EXPECT(STATUS_ACCESS_VIOLATION, qp->Dispatch->NdkFastRegister(qp, ONE, local, 3, pages, 100, LAM_BYTES, base + 100, 0));

	/* The privileged token is never accepted from a peer. */
	EXPECT(STATUS_SUCCESS, active->qp->Dispatch->NdkRead(active->qp, TWO, &sink, 1, pages[0].QuadPart, privileged[1], 0));
	COMPLETES(active, STATUS_ACCESS_VIOLATION, NdkOperationTypeRead, TWO);
	lose();
	active->adapter->Dispatch->NdkReleaseLAM(active->adapter, &here.lam);
	CLOSE(mr, NdkCloseMr);
	CLOSE(local, NdkCloseMr);
}

/* Flush without a connection: every receive is canceled, and a notification is indicated (NDK-FL-3). */
static void flush(void)
{
	NDK_QP *qp = active->qp;
	NDK_SGE list = sge(active, 0, 8);
	EXPECT(STATUS_SUCCESS, qp->Dispatch->NdkReceive(qp, ONE, &list, 1));
	EXPECT(STATUS_SUCCESS, qp->Dispatch->NdkReceive(qp, TWO, &list, 1));
	EXPECT(STATUS_CONNECTION_INVALID, qp->Dispatch->NdkWrite(qp, ONE, &list, 1, 0, 0, 0));
	EXPECT(STATUS_CONNECTION_INVALID, qp->Dispatch->NdkInvalidate(qp, ONE, &active->mr->Header, 0));
	qp->Dispatch->NdkFlush(qp);
	COMPLETES(active, STATUS_CANCELLED, NdkOperationTypeReceive, ONE);
	COMPLETES(active, STATUS_CANCELLED, NdkOperationTypeReceive, TWO);
	CLOSE(qp, NdkCloseQp);
	active->qp = fresh_qp(active);
}

static void shared_receives(void)
{
	struct event low = { 0 };
	NDK_SRQ *srq;
	NDK_SGE list = sge(passive, 500, 100);
	CREATE(NdkObjectTypeSrq, srq, passive->pd, NdkCreateSrq, 4, 1, 0, on_notification, &low, NULL);
	CLOSE(passive->qp, NdkCloseQp);
	CREATE(NdkObjectTypeQp, passive->qp, passive->pd, NdkCreateQpWithSrq, passive->cq, passive->cq, srq, passive, INITIATED, 4, 0);
	EXPECT(STATUS_INVALID_PARAMETER, passive->qp->Dispatch->NdkReceive(passive->qp, ONE, &list, 1));
	NDK_SGE two[] = { list, list };
	EXPECT(STATUS_DATA_OVERRUN, srq->Dispatch->NdkSrqReceive(srq, ONE, two, 2));
	for (int i = 0; i < 4; i++)
		EXPECT(STATUS_SUCCESS, srq->Dispatch->NdkSrqReceive(srq, ONE, &list, 1));
	EXPECT(STATUS_NO_MORE_ENTRIES, srq->Dispatch->NdkSrqReceive(srq, ONE, &list, 1));
	EXPECT(STATUS_BUFFER_OVERFLOW, REQUEST(srq->Dispatch->NdkModifySrq, srq, 3, 0));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(srq->Dispatch->NdkModifySrq, srq, MAXULONG, 0));
	EXPECT(STATUS_SUCCESS, REQUEST(srq->Dispatch->NdkModifySrq, srq, 8, 3));
	establish(NULL);
	for (int i = 1; i <= 2; i++) {
		/* NDK-SRQ-2: fewer than three are left after the second. */
		CHECK(low.count == 0);
		EXPECT(STATUS_SUCCESS, active->qp->Dispatch->NdkSend(active->qp, TWO, NULL, 0, 0));
		COMPLETES(active, STATUS_SUCCESS, NdkOperationTypeSend, TWO);
		COMPLETES(passive, STATUS_SUCCESS, NdkOperationTypeReceive, ONE);
	}
	EXPECT(STATUS_SUCCESS, AWAIT(low));
	/* Closed before its queue pair: the close completes after that of the queue pair (NDK-LIFE-5). */
	struct event closed = { 0 };
	EXPECT(STATUS_PENDING, srq->Dispatch->NdkCloseSrq(&srq->Header, on_close, &closed));
	EXPECT(STATUS_INVALID_HANDLE, srq->Dispatch->NdkSrqReceive(srq, ONE, &list, 1));
	CHECK(closed.count == 0);
	part();
	AWAIT(closed);
	CHECK(low.count == 1);
}

static void shared_endpoint(void)
{
	NDK_SHARED_ENDPOINT *endpoint, *none = NULL;
	struct event event = { 0 };
	struct sockaddr_in reported, foreign = address("192.0.2.77", 7);
	ULONG length = sizeof reported;
	CREATE(NdkObjectTypeSharedEndpoint, endpoint, active->adapter, NdkCreateSharedEndpoint, (SOCKADDR *)&active->own,
		sizeof active->own);
	EXPECT(STATUS_SUCCESS, endpoint->Dispatch->NdkGetLocalAddress(endpoint, (SOCKADDR *)&reported, &length));
	CHECK(reported.sin_port != 0);
	NTSTATUS status = active->adapter->Dispatch->NdkCreateSharedEndpoint(active->adapter, (SOCKADDR *)&reported, sizeof reported,
		on_create, &event, &none);
	EXPECT(STATUS_SHARING_VIOLATION, status == STATUS_PENDING ? AWAIT(event) : status);
	memset(&event, 0, sizeof event);
	status = active->adapter->Dispatch->NdkCreateSharedEndpoint(active->adapter, (SOCKADDR *)&foreign, sizeof foreign,
		on_create, &event, &none);
	EXPECT(STATUS_INVALID_ADDRESS, status == STATUS_PENDING ? AWAIT(event) : status);
	CHECK(none == NULL && event.object == NULL);
	establish(endpoint);
	struct sockaddr_in local;
	length = sizeof local;
	EXPECT(STATUS_SUCCESS, active->connector->Dispatch->NdkGetLocalAddress(active->connector, (SOCKADDR *)&local, &length));
	CHECK(local.sin_port == reported.sin_port);
	/* NDK-EP-3: the same two addresses. */
	NDK_CONNECTOR *second;
	NDK_QP *qp = fresh_qp(active);
	CREATE(NdkObjectTypeConnector, second, active->adapter, NdkCreateConnector);
	EXPECT(STATUS_ADDRESS_ALREADY_EXISTS, REQUEST(second->Dispatch->NdkConnectWithSharedEndpoint, second, qp, endpoint,
		(SOCKADDR *)&listening, sizeof listening, 1, 1, NULL, 0));
	EXPECT(STATUS_INVALID_HANDLE, REQUEST(second->Dispatch->NdkConnectWithSharedEndpoint, second, qp, NULL,
		(SOCKADDR *)&listening, sizeof listening, 1, 1, NULL, 0));
	CLOSE(second, NdkCloseConnector);
	CLOSE(qp, NdkCloseQp);
	struct event closed = { 0 };
	EXPECT(STATUS_PENDING, endpoint->Dispatch->NdkCloseSharedEndpoint(&endpoint->Header, on_close, &closed));
	part();
	AWAIT(closed);
}

static void completion_queues(void)
{
	struct event failed = { 0 };
	NDK_CQ *cq;
	NDK_QP *qp, *late = NULL;
	NDK_RESULT results[4];
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(active->cq->Dispatch->NdkResizeCq, active->cq, MAXULONG));
	EXPECT(STATUS_SUCCESS, REQUEST(active->cq->Dispatch->NdkResizeCq, active->cq, 128));
	EXPECT(STATUS_SUCCESS, active->cq->Dispatch->NdkControlCqInterruptModeration(active->cq, 100, 4));
	EXPECT(STATUS_INVALID_PARAMETER_MIX, active->cq->Dispatch->NdkControlCqInterruptModeration(active->cq, MAXULONG, MAXULONG));
	EXPECT(STATUS_SUCCESS, active->cq->Dispatch->NdkControlCqInterruptModeration(active->cq, 0, 0));
	CHECK(active->cq->Dispatch->NdkGetCqResults(active->cq, NULL, 4) == 0);

	/* NDK-CQ-13, -18: one completion more than the queue has entries. */
	CREATE(NdkObjectTypeCq, cq, active->adapter, NdkCreateCq, 2, on_notification, &failed, NULL);
	CREATE(NdkObjectTypeQp, qp, active->pd, NdkCreateQp, cq, cq, NULL, 4, 4, 1, 1, 0);
	cq->Dispatch->NdkArmCq(cq, NDK_CQ_NOTIFY_ERRORS);
	for (int i = 0; i < 3; i++)
		EXPECT(STATUS_SUCCESS, qp->Dispatch->NdkReceive(qp, ONE, NULL, 0));
	qp->Dispatch->NdkFlush(qp);
	EXPECT(STATUS_BUFFER_OVERFLOW, AWAIT(failed));
	CHECK(cq->Dispatch->NdkGetCqResults(cq, results, 4) == 0);
	EXPECT(STATUS_INVALID_PARAMETER, active->pd->Dispatch->NdkCreateQp(active->pd, cq, cq, NULL, 1, 1, 1, 1, 0, on_create,
		&failed, &late));
	CHECK(late == NULL);
	CLOSE(qp, NdkCloseQp);
	CLOSE(cq, NdkCloseCq);
}

/* Limits of creates, exceeded one at a time. */
static void limits(void)
{
	NDK_ADAPTER_INFO info;
	ULONG size = sizeof info;
	struct event event = { 0 };
	NDK_QP *qp = NULL;
	NDK_SRQ *srq = NULL;
	EXPECT(STATUS_SUCCESS, active->adapter->Dispatch->NdkQueryAdapterInfo(active->adapter, &info, &size));
	ULONG most[] = { info.MaxReceiveQueueDepth, info.MaxInitiatorQueueDepth, info.MaxReceiveRequestSge,
		info.MaxInitiatorRequestSge, info.MaxInlineDataSize };
	for (int over = 0; over < 5; over++) {
		ULONG with[5] = { 1, 1, 1, 1, 1 };
		with[over] = most[over] + 1;
		EXPECT(STATUS_INVALID_PARAMETER, active->pd->Dispatch->NdkCreateQp(active->pd, active->cq, active->cq, NULL, with[0],
			with[1], with[2], with[3], with[4], on_create, &event, &qp));
	}
	EXPECT(STATUS_INVALID_PARAMETER, active->pd->Dispatch->NdkCreateSrq(active->pd, info.MaxSrqDepth + 1, 1, 0, NULL, NULL, NULL,
		on_create, &event, &srq));
	EXPECT(STATUS_INVALID_PARAMETER, active->pd->Dispatch->NdkCreateQp(active->pd, active->cq, active->cq, NULL, 1, 1, 1, 1, 1,
		NULL, NULL, &qp));
	EXPECT(STATUS_INVALID_PARAMETER, active->pd->Dispatch->NdkCreateQp(passive->pd, active->cq, active->cq, NULL, 1, 1, 1, 1, 1,
		on_create, &event, &qp));
	CHECK(qp == NULL && srq == NULL && event.count == 0);
	CREATE(NdkObjectTypeQp, qp, active->pd, NdkCreateQp, active->cq, active->cq, NULL, most[0], most[1], most[2], most[3], most[4]);
	CLOSE(qp, NdkCloseQp);
}

/* Antecedents first: each close pends until its successors are closed (NDK-LIFE-5); that of the adapter blocks. */
static void close_in_the_wrong_order(void)
{
	struct event pd = { 0 }, cq = { 0 }, mr = { 0 };
	NDK_CONNECTOR *connector = active->connector;
	const NDK_QP_DISPATCH *table = active->qp->Dispatch;
	NDK_QP *qp = active->qp;
	NDK_SGE list = sge(active, 0, 8);
	EXPECT(STATUS_PENDING, active->pd->Dispatch->NdkClosePd(&active->pd->Header, on_close, &pd));
	EXPECT(STATUS_PENDING, active->cq->Dispatch->NdkCloseCq(&active->cq->Header, on_close, &cq));
	NTSTATUS status = active->mr->Dispatch->NdkCloseMr(&active->mr->Header, on_close, &mr);
	CHECK(status == STATUS_SUCCESS || status == STATUS_PENDING);
	EXPECT(STATUS_INVALID_HANDLE, active->cq->Dispatch->NdkCloseCq(&active->cq->Header, on_close, &cq));
	CHECK(pd.count == 0 && cq.count == 0);
	struct event closed = { 0 };
	NTSTATUS pends = qp->Dispatch->NdkCloseQp(&qp->Header, on_close, &closed);
	EXPECT(STATUS_PENDING, pends);
	EXPECT(STATUS_INVALID_HANDLE, table->NdkSend(qp, ONE, &list, 1, 0));
	CHECK(pd.count == 0 && cq.count == 0 && closed.count == 0);
	CLOSE(connector, NdkCloseConnector);
	AWAIT(closed);
	AWAIT(cq);
	AWAIT(pd);
	FlueNdkCloseAdapter(active->adapter);
	CHECK(pd.count == 1 && cq.count == 1 && closed.count == 1);
	EXPECT(STATUS_INVALID_HANDLE, table->NdkSend(qp, ONE, &list, 1, 0));
	EXPECT(STATUS_INVALID_HANDLE, connector->Dispatch->NdkDisconnect(connector, on_request, &closed));
	free(active->memory);

	/* The peer is notified of the reset (NDK-LIFE-11). */
	AWAIT(passive->disconnected);
	CLOSE(passive->connector, NdkCloseConnector);
	CLOSE(passive->qp, NdkCloseQp);
	CLOSE(listener, NdkCloseListener);
	EXPECT(STATUS_SUCCESS, REQUEST(passive->mr->Dispatch->NdkDeregisterMr, passive->mr));
	EXPECT(STATUS_INVALID_PARAMETER, REQUEST(passive->mr->Dispatch->NdkDeregisterMr, passive->mr));
	free(passive->memory);
	CLOSE(passive->mr, NdkCloseMr);
	CLOSE(passive->cq, NdkCloseCq);
	CLOSE(passive->pd, NdkClosePd);
	FlueNdkCloseAdapter(passive->adapter);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "sockets";
	may_pend = strcmp(mode, "deferral") == 0;
	if (strcmp(mode, "taps") == 0) {
		open_end(active, "{\"node\": {\"tap\": \"tap0\", \"addresses\": [\"10.9.0.1/24\"], \"bridge\": \"br0\"}}", "10.9.0.1");
		open_end(passive, "{\"node\": {\"tap\": \"tap1\", \"addresses\": [\"10.9.0.2/24\"], \"bridge\": \"br0\"}}", "10.9.0.2");
	} else {
		const char *configuration = may_pend ? "{\"deferral\": {\"seed\": 7, \"delay_max_microseconds\": 2000}}" : NULL;
		open_end(active, configuration, "127.0.0.1");
		open_end(passive, configuration, "127.0.0.1");
	}
	listen_on(passive);
	refuse();
	flush();
	limits();
	establish(NULL);
	send_and_receive();
	read_and_write();
	establish(NULL);
	disconnect_reasons();
	establish(NULL);
	windows();
	establish(NULL);
	logical_addresses();
	shared_receives();
	shared_endpoint();
	completion_queues();
	establish(NULL);
	close_in_the_wrong_order();
	return finish();
}
