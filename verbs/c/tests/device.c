/* The end of the device: whoever waits for an event hears of it, and nobody waits any more.
     device call|core|thread   the library panics: in a call, with the adapter's lock, on another thread
     device link FROM TO       the link goes while this waits: FROM is the node's address, at TO an rping server listens;
                               SIGUSR1 asks for a Send, which the peer does not acknowledge any more */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)

enum { RPING_PORT = 7174, RECEIVES = 4 };

struct connection { struct rdma_cm_id *id; struct ibv_comp_channel *channel; struct ibv_cq *cq; };

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static struct connection client, server;
static struct ibv_mr *mr;
/* Larger than what a node has in flight: the rest of a Send waits. */
static char buffer[8 << 20];
static int is_link;

static struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &found.sin_addr);
	return found;
}

static struct rdma_cm_event *expect(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = NULL;
	CHECK(rdma_get_cm_event(events, &event) == 0 && event->event == kind);
	if (!event || event->event != kind) {
		printf("%s instead of %s\n", event ? rdma_event_str(event->event) : "no event", rdma_event_str(kind));
		exit(1);
	}
	return event;
}

static void await(enum rdma_cm_event_type kind) { rdma_ack_cm_event(expect(kind)); }

static void prepare(struct connection *end)
{
	struct ibv_context *verbs = end->id->verbs;
	end->channel = ibv_create_comp_channel(verbs);
	end->cq = ibv_create_cq(verbs, 32, NULL, end->channel, 0);
	struct ibv_qp_init_attr attr = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(rdma_create_qp(end->id, NULL, &attr) == 0);
	if (!mr)
		mr = ibv_reg_mr(end->id->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)buffer, 16, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	for (int i = 0; i < RECEIVES; i++)
		CHECK(ibv_post_recv(end->id->qp, &receive, &bad) == 0);
	CHECK(ibv_req_notify_cq(end->cq, 0) == 0);
}

static void establish(const char *from, const char *to)
{
	struct sockaddr_in own = address(from, 0), peer = address(to ? to : from, RPING_PORT);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	events = rdma_create_event_channel();
	CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&own) == 0 && rdma_listen(listener, 0) == 0);
	if (!to)
		peer.sin_port = rdma_get_src_port(listener);
	CHECK(rdma_create_id(events, &client.id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client.id, NULL, (struct sockaddr *)&peer, 2000) == 0);
	await(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(client.id, 2000) == 0);
	await(RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(&client);
	CHECK(rdma_connect(client.id, &param) == 0);
	if (!to) {
		struct rdma_cm_event *request = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		server.id = request->id;
		rdma_ack_cm_event(request);
		prepare(&server);
		CHECK(rdma_accept(server.id, &param) == 0);
		await(RDMA_CM_EVENT_ESTABLISHED);
	}
	await(RDMA_CM_EVENT_ESTABLISHED);
}

/* What a thread waits for, and what it has heard until it was told that nothing will come. */
struct waiter { void *object; void (*wait)(struct waiter *); int stat; int heard, other, error; pthread_t handle; };

static void wait_async(struct waiter *own)
{
	struct ibv_async_event event;
	while (ibv_get_async_event(own->object, &event) == 0) {
		*(event.event_type == IBV_EVENT_DEVICE_FATAL ? &own->heard : &own->other) += 1;
		ibv_ack_async_event(&event);
	}
}

static void wait_completion(struct waiter *own)
{
	struct ibv_cq *cq;
	void *context;
	struct ibv_wc wc;
	while (ibv_get_cq_event(own->object, &cq, &context) == 0) {
		own->other++;
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			own->heard += wc.status == IBV_WC_WR_FLUSH_ERR;
		ibv_ack_cq_events(cq, 1);
		ibv_req_notify_cq(cq, 0);
	}
}

static void wait_connection(struct waiter *own)
{
	struct rdma_cm_event *event;
	while (rdma_get_cm_event(own->object, &event) == 0) {
		if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
			own->heard++;
		else if (event->event == RDMA_CM_EVENT_DISCONNECTED)
			own->other++;
		else
			printf("%s\n", rdma_event_str(event->event));
		rdma_ack_cm_event(event);
	}
}

static void wait_accept(struct waiter *own)
{
	own->heard = raccept((int)(intptr_t)own->object, NULL, NULL) == -1 && (errno == ENODEV || errno == EIO);
}

static void wait_poll(struct waiter *own)
{
	struct pollfd socket = { (int)(intptr_t)own->object, POLLIN, 0 };
	own->heard = rpoll(&socket, 1, -1) != 0;
}

static void *run(void *arg)
{
	struct waiter *own = arg;
	__atomic_store_n(&own->stat, open("/proc/thread-self/stat", O_RDONLY), __ATOMIC_RELEASE);
	own->wait(own);
	own->error = errno;
	return NULL;
}

static int sleeps(struct waiter *waiter)
{
	char text[256] = "", state = 0;
	int stat = __atomic_load_n(&waiter->stat, __ATOMIC_ACQUIRE);
	if (stat > 0 && pread(stat, text, sizeof text - 1, 0) > 0)
		sscanf(text, "%*d (%*[^)]) %c", &state);
	return state == 'S';
}

static void start(struct waiter *waiter)
{
	pthread_create(&waiter->handle, NULL, run, waiter);
	while (!sleeps(waiter))
		sched_yield();
}

static int listening_socket(void)
{
	struct sockaddr_in any = address("0.0.0.0", 0);
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(socket >= 0 && rbind(socket, (struct sockaddr *)&any, sizeof any) == 0 && rlisten(socket, 1) == 0);
	return socket;
}

static void fail_by(const char *where, struct ibv_context *verbs)
{
	struct ibv_device_attr attr;
	setenv("FLUE_VERBS_TEST_PANIC", where, 1);
	int status = ibv_query_device(verbs, &attr);
	unsetenv("FLUE_VERBS_TEST_PANIC");
	if (status == 0) {
		puts("skipped: the library has no debug assertions");
		puts("0 failures");
		exit(0);
	}
	CHECK(status == EIO);
}

/* After a panic every call is an error. */
static void nothing_works(void)
{
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(client.cq, 1, &wc) == -EIO);
	errno = 0;
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == -1 && errno == EIO);
	errno = 0;
	CHECK(!ibv_reg_mr(client.id->pd, buffer, 16, 0) && errno == EIO);
	CHECK(rdma_disconnect(client.id) == -1 && errno == EIO);
}

/* Without a link all ends in order, and nothing begins. */
static void all_ends(struct ibv_context *verbs, struct ibv_device *device)
{
	struct sockaddr_in any = address("0.0.0.0", 0);
	struct rdma_cm_id *id;
	struct ibv_sge sge = { (uintptr_t)buffer, 16, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	CHECK(ibv_post_send(client.id->qp, &send, &bad) == 0);
	CHECK(ibv_poll_cq(client.cq, 1, &wc) == 1 && wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_open_device(device) && errno == ENODEV);
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
	CHECK(rdma_listen(id, 0) == -1 && errno == ENODEV);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	rdma_destroy_qp(client.id);
	CHECK(rdma_destroy_id(client.id) == 0 && rdma_destroy_id(listener) == 0);
	CHECK(ibv_destroy_cq(client.cq) == 0 && ibv_destroy_comp_channel(client.channel) == 0);
	rdma_destroy_event_channel(events);
	CHECK(ibv_close_device(verbs) == 0);
}

static void send_one(void)
{
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	sigset_t set;
	int signal;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	puts("ready");
	fflush(stdout);
	sigwait(&set, &signal);
	CHECK(ibv_post_send(client.id->qp, &send, &bad) == 0);
	puts("sent");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	is_link = argc == 4;
	establish(is_link ? argv[2] : "127.0.0.1", is_link ? argv[3] : NULL);
	if (failures) return 1;
	struct ibv_device **devices = ibv_get_device_list(NULL), *device = devices[0];
	struct ibv_context *verbs = ibv_open_device(device);
	struct ibv_comp_channel *idle = ibv_create_comp_channel(verbs);
	struct rdma_event_channel *unused = rdma_create_event_channel();
	struct waiter of_device = { verbs, wait_async }, of_ids = { client.id->verbs, wait_async };
	struct waiter of_cq = { client.channel, wait_completion }, of_idle = { idle, wait_completion };
	struct waiter of_channel = { events, wait_connection }, of_unused = { unused, wait_connection };
	struct waiter of_accept = { (void *)(intptr_t)listening_socket(), wait_accept };
	struct waiter of_poll = { (void *)(intptr_t)listening_socket(), wait_poll };
	struct waiter *all[] = { &of_device, &of_ids, &of_cq, &of_idle, &of_channel, &of_unused, &of_accept, &of_poll };
	int count = sizeof all / sizeof *all;
	for (int i = 0; i < count; i++)
		start(all[i]);

	if (is_link)
		send_one();
	else
		fail_by(argv[1], verbs);

	for (int i = 0; i < count; i++) {
		pthread_join(all[i]->handle, NULL);
		CHECK(i >= 6 || all[i]->error == EIO);
	}
	CHECK(of_device.heard == 1 && of_device.other == 0);
	CHECK(of_ids.heard == 1);
	CHECK(of_cq.other >= 1);
	/* Of a library that has panicked nothing is polled. */
	CHECK(of_cq.heard == (is_link ? RECEIVES + 1 : 0));
	CHECK(of_idle.heard == 0 && of_idle.other == 0);
	CHECK(of_channel.heard == (is_link ? 2 : 3) && of_channel.other == (is_link ? 1 : 2));
	CHECK(of_unused.heard == 0 && of_unused.other == 0);
	CHECK(of_accept.heard && of_poll.heard);

	/* Descriptors say so, too. */
	struct pollfd readable[] = { { verbs->async_fd, POLLIN, 0 }, { idle->fd, POLLIN, 0 }, { events->fd, POLLIN, 0 } };
	CHECK(poll(readable, 3, 0) == 3);
	struct rdma_event_channel *later = is_link ? rdma_create_event_channel() : NULL;
	struct rdma_cm_event *event;
	CHECK(!later || (rdma_get_cm_event(later, &event) == -1 && errno == EIO));

	if (is_link)
		all_ends(verbs, device);
	else
		nothing_works();
	printf("%d failures\n", failures);
	return failures != 0;
}
