/* Memory that program and library share: structures at any address, identifiers that are complete when the event that
 * announces them is taken, and payload that changes while it is sent. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)

/* Address of a structure in a packed one: no alignment at all. */
#define ODD (1 + 2)

static struct rdma_cm_id *listener, *server, *client;
static char received[64], source[64];

static struct rdma_addrinfo *addresses(int flags, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found = NULL;
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	return found;
}

static void *unaligned(void *place, const void *from, size_t size)
{
	return memcpy((char *)place + ODD, from, size);
}

static void *serve(void *arg)
{
	static char entries[64], requests[128], completions[256];
	CHECK(rdma_get_request(listener, &server) == 0);
	struct ibv_mr *mr = ibv_reg_mr(server->pd, received, sizeof received, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)received, .length = sizeof received, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 7, .num_sge = 1 };
	wr.sg_list = unaligned(entries, &sge, sizeof sge);
	CHECK(ibv_post_recv(server->qp, unaligned(requests, &wr, sizeof wr), &bad) == 0);
	CHECK(rdma_accept(server, NULL) == 0);
	struct ibv_wc *wc = (void *)(completions + ODD), taken;
	while (ibv_poll_cq(server->recv_cq, 2, wc) == 0)
		;
	memcpy(&taken, wc, sizeof taken);
	CHECK(taken.wr_id == 7 && taken.status == IBV_WC_SUCCESS && taken.byte_len == sizeof received);
	return arg;
}

/* As in libiscsi, whose descriptors are packed. */
static void at_any_address(void)
{
	static char entries[64], requests[2][256], attributes[128], parameters[128];
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 } };
	struct rdma_addrinfo *passive = addresses(RAI_PASSIVE, "0"), *active;
	char port[16];
	pthread_t thread;
	CHECK(rdma_create_ep(&listener, passive, NULL, unaligned(attributes, &attr, sizeof attr)) == 0);
	CHECK(rdma_listen(listener, 0) == 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	pthread_create(&thread, NULL, serve, NULL);
	active = addresses(0, port);
	CHECK(rdma_create_ep(&client, active, NULL, unaligned(attributes, &attr, sizeof attr)) == 0);
	memcpy(&attr, attributes + ODD, sizeof attr);
	CHECK(attr.cap.max_inline_data >= 64);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(rdma_connect(client, unaligned(parameters, &param, sizeof param)) == 0);

	memset(source, 'x', sizeof source);
	struct ibv_mr *mr = ibv_reg_mr(client->pd, source, sizeof source, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = sizeof source, .lkey = mr->lkey };
	struct ibv_send_wr *bad, first = { .wr_id = 1, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	struct ibv_send_wr second = { .wr_id = 2, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	first.sg_list = second.sg_list = unaligned(entries, &sge, sizeof sge);
	second.num_sge = 99; /* too many: it is refused, and named */
	first.next = unaligned(requests[1], &second, sizeof second);
	CHECK(ibv_post_send(client->qp, unaligned(requests[0], &first, sizeof first), &bad) == EINVAL);
	CHECK(bad == first.next);
	pthread_join(thread, NULL);
	CHECK(memcmp(source, received, sizeof source) == 0);
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

enum { ROUNDS = 300 };

/* Takes the events of identifiers and uses what they announce, as libiscsi's thread does. */
static void *use(void *channel)
{
	for (int resolved = 0; resolved < ROUNDS;) {
		struct rdma_cm_event *event;
		CHECK(rdma_get_cm_event(channel, &event) == 0);
		struct rdma_cm_id *id = event->id;
		CHECK(id->verbs != NULL && id->pd != NULL && id->port_num == 1);
		CHECK(rdma_get_local_addr(id)->sa_family == AF_INET);
		if (event->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
			CHECK(rdma_resolve_route(id, 1000) == 0);
		} else {
			CHECK(event->event == RDMA_CM_EVENT_ROUTE_RESOLVED && id->route.num_paths == 1);
			resolved++;
		}
		rdma_ack_cm_event(event);
	}
	return NULL;
}

static void complete_with_the_event(void)
{
	static struct rdma_cm_id *ids[ROUNDS];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	pthread_t thread;
	CHECK(channel != NULL);
	pthread_create(&thread, NULL, use, channel);
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(rdma_create_id(channel, &ids[round], NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(ids[round], NULL, (struct sockaddr *)&to, 1000) == 0);
		CHECK(((struct sockaddr_in *)rdma_get_peer_addr(ids[round]))->sin_port == htons(9));
	}
	pthread_join(thread, NULL);
	for (int round = 0; round < ROUNDS; round++)
		CHECK(rdma_destroy_id(ids[round]) == 0);
	rdma_destroy_event_channel(channel);
}

enum { WRITES = 200, LARGE = 1 << 20 };
static char changing[LARGE], target[LARGE];
static volatile int is_over;

static void *change(void *arg)
{
	for (char value = 0; !is_over; value++)
		memset(changing, value, LARGE);
	return arg;
}

/* As a guest's whose memory QEMU migrates. The target has one value or another; the connection lives. */
static void memory_that_changes_while_it_is_sent(void)
{
	struct ibv_mr *from = ibv_reg_mr(client->pd, changing, LARGE, 0);
	struct ibv_mr *to = ibv_reg_mr(server->pd, target, LARGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)changing, .length = LARGE, .lkey = from->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)target, .rkey = to->rkey } };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	pthread_t thread;
	while (ibv_poll_cq(client->send_cq, 1, &wc) == 0) /* the Send of before */
		;
	pthread_create(&thread, NULL, change, NULL);
	for (int count = 0; count < WRITES && wc.status == IBV_WC_SUCCESS; count++) {
		CHECK(ibv_post_send(client->qp, &wr, &bad) == 0);
		while (ibv_poll_cq(client->send_cq, 1, &wc) == 0)
			;
	}
	is_over = 1;
	pthread_join(thread, NULL);
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_query_qp(server->qp, &(struct ibv_qp_attr){ 0 }, IBV_QP_STATE, &(struct ibv_qp_init_attr){ 0 }) == 0);
	CHECK(server->qp->state == IBV_QPS_RTS);
}

int main(void)
{
	complete_with_the_event();
	at_any_address();
	memory_that_changes_while_it_is_sent();
	printf("%d failures\n", failures);
	return failures != 0;
}
