#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <pthread.h>
#include <signal.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)

struct side { struct rdma_cm_id *id; struct ibv_mr *mr; char *buffer; };
static const size_t BYTES = 1 << 20;

static struct rdma_addrinfo *addresses(int flags, const char *port)
{
	struct rdma_addrinfo hints, *found = NULL;
	memset(&hints, 0, sizeof hints);
	hints.ai_flags = flags | RAI_NUMERICHOST;
	hints.ai_port_space = RDMA_PS_TCP;
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	return found;
}

static void attributes(struct ibv_qp_init_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	attr->cap.max_send_wr = attr->cap.max_recv_wr = 16;
	attr->cap.max_send_sge = attr->cap.max_recv_sge = 2;
	attr->sq_sig_all = 0;
	attr->qp_type = IBV_QPT_RC;
}

static struct rdma_cm_id *listener;
static struct side server, client;

static void leave(void);

static void prepare(struct side *side, int access)
{
	side->buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(side->buffer, 1, BYTES);
	side->mr = ibv_reg_mr(side->id->pd, side->buffer, BYTES, access);
	CHECK(side->mr != NULL);
}

static void *serve(void *arg)
{
	CHECK(rdma_get_request(listener, &server.id) == 0);
	prepare(&server, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(rdma_accept(server.id, NULL) == 0);
	return arg;
}

/* A queue pair whose requests are built call by call. */
static void create_qp_ex(struct rdma_cm_id *id, const struct ibv_qp_init_attr *plain)
{
	struct ibv_qp_init_attr_ex attr = { .cap = plain->cap, .qp_type = plain->qp_type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = id->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND };
	CHECK(rdma_create_qp_ex(id, &attr) == 0);
}

static void establish_as(int is_ex, uint32_t max_send_wr)
{
	struct ibv_qp_init_attr attr;
	struct rdma_addrinfo *passive = addresses(RAI_PASSIVE, "0"), *active;
	pthread_t thread;
	char port[16];
	attributes(&attr);
	CHECK(rdma_create_ep(&listener, passive, NULL, &attr) == 0);
	CHECK(rdma_listen(listener, 0) == 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	pthread_create(&thread, NULL, serve, NULL);
	active = addresses(0, port);
	attributes(&attr);
	attr.cap.max_send_wr = max_send_wr;
	CHECK(rdma_create_ep(&client.id, active, NULL, is_ex ? NULL : &attr) == 0);
	CHECK(is_ex || attr.cap.max_inline_data >= 64);
	CHECK(attr.cap.max_send_wr == max_send_wr);
	if (is_ex)
		create_qp_ex(client.id, &attr);
	prepare(&client, IBV_ACCESS_LOCAL_WRITE);
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	CHECK(rdma_connect(client.id, &param) == 0);
	pthread_join(thread, NULL);
	rdma_freeaddrinfo(passive);
	rdma_freeaddrinfo(active);
}

static void establish(void) { establish_as(0, 16); }

static int completion(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int count;
	while ((count = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	return count;
}

/* The first request that is refused is told, and those before it are carried out. */
static void bad_requests(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey }, many[3] = { sge, sge, sge };
	struct ibv_send_wr third = { .wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } };
	struct ibv_send_wr second = third, first = third, *bad = NULL;
	struct ibv_recv_wr receive = { .wr_id = 9, .sg_list = many, .num_sge = 3 }, *bad_receive = NULL;
	struct ibv_wc wc;
	first.wr_id = 1, first.next = &second;
	second.wr_id = 2, second.next = &third, second.sg_list = many, second.num_sge = 3;
	CHECK(ibv_post_send(client.id->qp, &first, &bad) == EINVAL && bad == &second);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.qp_num == client.id->qp->qp_num && wc.opcode == IBV_WC_RDMA_WRITE);
	CHECK(ibv_poll_cq(client.id->send_cq, 1, &wc) == 0);
	second = third, second.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, bad = NULL;
	CHECK(ibv_post_send(client.id->qp, &second, &bad) == EOPNOTSUPP && bad == &second);
	second = third, second.opcode = IBV_WR_SEND_WITH_IMM, bad = NULL;
	CHECK(ibv_post_send(client.id->qp, &second, &bad) == EINVAL && bad == &second);
	second.opcode = IBV_WR_TSO;
	CHECK(ibv_post_send(client.id->qp, &second, &bad) == EINVAL);
	CHECK(ibv_post_recv(client.id->qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
	int posted = 0;
	receive.num_sge = 1;
	while (posted < 100 && ibv_post_recv(client.id->qp, &receive, &bad_receive) == 0)
		posted++;
	CHECK(posted == 16);
}

/* Of a list that is longer than the queue is deep the first that has no room is told, and those before it are carried
   out. */
static void long_lists(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr list[20], *bad = NULL;
	struct ibv_wc wc;
	for (int at = 0; at < 20; at++)
		list[at] = (struct ibv_send_wr) { .wr_id = at, .next = at < 19 ? &list[at + 1] : NULL, .sg_list = &sge,
			.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } };
	CHECK(ibv_post_send(client.id->qp, list, &bad) == ENOMEM && bad == &list[16]);
	for (uint64_t at = 0; at < 16; at++)
		CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == at && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(client.id->send_cq, 1, &wc) == 0);
}

enum odd { NONE, MANY_ENTRIES, INLINE_READ, LONG_INLINE, NOT_POSSIBLE };

/* Posts `count` requests together, of which the one at `place` is odd. They write to consecutive bytes. */
static int post_batch(int count, enum odd odd, int place)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(client.id->qp);
	struct ibv_sge sge = { (uintptr_t)client.buffer, 1, client.mr->lkey }, many[3] = { sge, sge, sge };
	uint64_t to = (uintptr_t)server.buffer;
	ibv_wr_start(qp);
	for (int at = 0; at < count; at++) {
		int is_odd = odd != NONE && at == place;
		qp->wr_id = at;
		qp->wr_flags = IBV_SEND_SIGNALED;
		if (is_odd && odd == NOT_POSSIBLE)
			ibv_wr_local_inv(qp, client.mr->rkey);
		if (is_odd && odd == INLINE_READ)
			ibv_wr_rdma_read(qp, server.mr->rkey, to + at);
		else
			ibv_wr_rdma_write(qp, server.mr->rkey, to + at);
		if (is_odd && odd == MANY_ENTRIES)
			ibv_wr_set_sge_list(qp, 3, many);
		else if (is_odd && odd == INLINE_READ)
			ibv_wr_set_inline_data(qp, client.buffer, 1);
		else if (is_odd && odd == LONG_INLINE)
			ibv_wr_set_inline_data(qp, client.buffer, 65536);
		else
			ibv_wr_set_sge(qp, client.mr->lkey, (uintptr_t)client.buffer, 1);
	}
	return ibv_wr_complete(qp);
}

/* Requests of ibv_wr_start to ibv_wr_complete are posted all or none. */
static void batches(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer + 64, 32, client.mr->lkey };
	struct ibv_send_wr read = { .wr_id = 99, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_cq *cq = client.id->send_cq;
	char before[32];
	struct ibv_wc wc;
	CHECK(ibv_qp_to_qp_ex(client.id->qp) != NULL);
	memset(client.buffer, 'x', 64);
	memcpy(before, server.buffer, sizeof before);
	for (enum odd odd = MANY_ENTRIES; odd <= NOT_POSSIBLE; odd++)
		for (int place = 0; place < 3; place++)
			CHECK(post_batch(3, odd, place) == EINVAL);
	CHECK(post_batch(17, NONE, 0) == ENOMEM);
	/* What had been posted would have come first. */
	CHECK(ibv_post_send(client.id->qp, &read, &bad) == 0);
	CHECK(completion(cq, &wc) == 1 && wc.wr_id == 99 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(client.buffer + 64, before, sizeof before) == 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(post_batch(16, NONE, 0) == 0);
	for (uint64_t at = 0; at < 16; at++)
		CHECK(completion(cq, &wc) == 1 && wc.wr_id == at && wc.status == IBV_WC_SUCCESS);
	/* Also where they are flushed. */
	CHECK(ibv_modify_qp(client.id->qp, &attr, IBV_QP_STATE) == 0);
	CHECK(post_batch(3, MANY_ENTRIES, 2) == EINVAL);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(post_batch(2, NONE, 0) == 0);
	for (uint64_t at = 0; at < 2; at++)
		CHECK(completion(cq, &wc) == 1 && wc.wr_id == at && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void registrations(void)
{
	struct ibv_pd *pd = client.id->pd;
	void *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *fixed = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	munmap((char *)gone + 4096, 4096);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, fixed, 8192, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK((mr = ibv_reg_mr(pd, fixed, 8192, 0)) && ibv_dereg_mr(mr) == 0);
	CHECK(!ibv_reg_mr(pd, client.buffer, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK((mr = ibv_reg_mr(pd, client.buffer + 1, 3, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING)) != NULL);
	/* Peers that have the key keep using it. */
	uint32_t key = mr->rkey;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ) == 0);
	CHECK(mr->rkey == key && mr->lkey == key);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, gone, 8192, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, client.buffer, 8, 0) == 0);
	CHECK(mr->rkey == key && mr->lkey == key && mr->addr == client.buffer && mr->length == 8);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq(client.id->send_cq) == EBUSY);
	munmap(gone, 4096);
	munmap(fixed, 8192);
}

/* Memory is unmapped as soon as ibv_dereg_mr has returned, while a request reads from it. Says whether the connection
   still stands: a request whose memory went away ends it. */
static int unmapped_at_once(uint64_t round)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(client.id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = round, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } }, *bad;
	struct ibv_wc wc;
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	munmap(memory, BYTES);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == round);
	CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_LOC_PROT_ERR);
	return wc.status == IBV_WC_SUCCESS;
}

static void children(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct ibv_wc wc;
		int bad = 0;
		bad |= ibv_poll_cq(client.id->send_cq, 1, &wc) != -ENODEV;
		errno = 0;
		bad |= (rdma_disconnect(client.id) != -1 || errno != ENODEV) << 1;
		bad |= (ibv_reg_mr(client.id->pd, client.buffer, 64, 0) != NULL || errno != ENODEV) << 2;
		/* What it makes itself works. */
		struct ibv_pd *pd = ibv_alloc_pd(client.id->verbs);
		struct ibv_mr *mr = pd ? ibv_reg_mr(pd, client.buffer, 64, 0) : NULL;
		bad |= (!pd || !mr || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd)) << 3;
		_exit(bad);
	}
	waitpid(child, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status)) printf("child %x\n", status);
}

static void nothing(int signal) { (void)signal; }

static void *get_event(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	int got = ibv_get_cq_event(channel, &cq, &context);
	return (void *)(intptr_t)(got ? errno : 0);
}

static void interruptions(void)
{
	struct sigaction action = { .sa_handler = nothing };
	struct ibv_comp_channel *channel = client.id->send_cq_channel;
	struct ibv_cq *cq;
	void *context, *result;
	pthread_t thread;
	sigaction(SIGALRM, &action, NULL);
	ualarm(50000, 0);
	errno = 0;
	CHECK(ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EINTR);
	pthread_create(&thread, NULL, get_event, channel);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	CHECK(result == PTHREAD_CANCELED);
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	CHECK(ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EAGAIN);
	fcntl(channel->fd, F_SETFL, flags);
}

/* Calls without end, in threads that can be canceled at any instruction, as those of iperf3 can. */
static int endless_socket;
static struct rdma_event_channel *endless_channel, *destroyed_channel;

static void query_port(void)
{
	struct ibv_port_attr port;
	ibv_query_port(client.id->verbs, 1, &port);
}

static void query_socket(void)
{
	int value;
	socklen_t length = sizeof value;
	rgetsockopt(endless_socket, SOL_SOCKET, SO_RCVBUF, &value, &length);
}

static void query_guid(void) { (void)ibv_get_device_guid(client.id->verbs->device); }

static void read_event(void)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(endless_channel, &event);
}

/* Blocks for a while. */
static void read_destroyed(void)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(destroyed_channel, &event);
}

static void read_completion_event(void)
{
	struct ibv_cq *cq;
	void *context;
	ibv_get_cq_event(client.id->send_cq_channel, &cq, &context);
}

static void read_async_event(void)
{
	struct ibv_async_event event;
	ibv_get_async_event(client.id->verbs, &event);
}

static void (*const endless[])(void) = { query_port, query_socket, query_guid, read_event, read_destroyed,
	read_completion_event, read_async_event };
enum { ENDLESS = sizeof endless / sizeof *endless };

/* Calls that have begun. */
static volatile int begun;

static void *call_for_ever(void *call)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		begun++;
		(*(void (*const *)(void))call)();
	}
	return NULL;
}

static void asynchronous_cancellations(void)
{
	enum { ROUNDS = 60 };
	int cancelled = 0;
	endless_socket = rsocket(AF_INET, SOCK_STREAM, 0);
	endless_channel = rdma_create_event_channel();
	destroyed_channel = rdma_create_event_channel();
	CHECK(endless_socket >= 0 && endless_channel && destroyed_channel);
	rdma_destroy_event_channel(destroyed_channel);
	int descriptors[] = { endless_channel->fd, client.id->send_cq_channel->fd, client.id->verbs->async_fd }, flags[3];
	for (int at = 0; at < 3; at++) {
		flags[at] = fcntl(descriptors[at], F_GETFL);
		fcntl(descriptors[at], F_SETFL, flags[at] | O_NONBLOCK);
	}
	for (int round = 0; round < ROUNDS * ENDLESS; round++) {
		pthread_t thread;
		void *result;
		begun = 0;
		pthread_create(&thread, NULL, call_for_ever, (void *)&endless[round % ENDLESS]);
		while (begun == 0) sched_yield();
		for (volatile int spin = round * 20; spin > 0; spin--) {}
		pthread_cancel(thread);
		pthread_join(thread, &result);
		cancelled += result == PTHREAD_CANCELED;
	}
	CHECK(cancelled == ROUNDS * ENDLESS);
	/* No canceled thread holds a lock. */
	for (int at = 0; at < ENDLESS; at++)
		if (endless[at] != read_destroyed) endless[at]();
	for (int at = 0; at < 3; at++)
		fcntl(descriptors[at], F_SETFL, flags[at]);
	rdma_destroy_event_channel(endless_channel);
	CHECK(rclose(endless_socket) == 0);
}

static void notifications(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } }, *bad;
	struct pollfd readable = { client.id->send_cq_channel->fd, POLLIN, 0 };
	struct ibv_cq *cq = NULL;
	void *context = NULL;
	struct ibv_wc wc;
	CHECK(poll(&readable, 1, 0) == 0);
	CHECK(ibv_req_notify_cq(client.id->send_cq, 0) == 0);
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == 0);
	CHECK(poll(&readable, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(client.id->send_cq_channel, &cq, &context) == 0 && cq == client.id->send_cq);
	CHECK(context == client.id);
	ibv_ack_cq_events(cq, 1);
	CHECK(poll(&readable, 1, 0) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 77);
}

/* Windows of type 1: what is bound is open to the peer, and a region with windows stays. */
static void windows(void)
{
	struct ibv_mr *mr = ibv_reg_mr(server.id->pd, server.buffer, 4096,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(server.id->pd, IBV_MW_TYPE_1);
	CHECK(mr && mw);
	if (!mr || !mw)
		return;
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)server.buffer, 64, IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_wc wc;
	CHECK(ibv_bind_mw(server.id->qp, mw, &bind) == 0);
	CHECK(completion(server.id->send_cq, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	memcpy(client.buffer, "window!", 8);
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)server.buffer + 8, mw->rkey } }, *bad;
	struct ibv_send_wr read = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } };
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == 0 && ibv_post_send(client.id->qp, &read, &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(server.buffer + 8, "window!", 8) == 0);
	CHECK(ibv_dealloc_mw(mw) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
}

/* A peer without the right ends the connection: the request fails, and each side hears of it. */
static void forbidden(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 11, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey ^ 0x100 } }, *bad;
	struct ibv_async_event event;
	struct ibv_wc wc;
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 11 && wc.status == IBV_WC_REM_ACCESS_ERR);
	CHECK(wc.vendor_err != 0 && wc.qp_num == client.id->qp->qp_num);
	for (int side = 0; side < 2; side++) {
		CHECK(ibv_get_async_event(client.id->verbs, &event) == 0);
		int is_server = event.element.qp == server.id->qp;
		CHECK(is_server || event.element.qp == client.id->qp);
		CHECK(event.event_type == (is_server ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_FATAL));
		ibv_ack_async_event(&event);
	}
}

static void flushes(void)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	CHECK(ibv_modify_qp(client.id->qp, &attr, IBV_QP_STATE) == 0);
	int flushed = 0;
	while (flushed < 16 && completion(client.id->recv_cq, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR)
		flushed++;
	CHECK(flushed == 16);
	CHECK(ibv_query_qp(client.id->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 8 && wc.status == IBV_WC_WR_FLUSH_ERR);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(client.id->qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(client.id->qp, &wr, &bad) == EINVAL);
}

/* A message that comes before its receive: returns whether it is delivered once that is posted, or ends the connection
   before. */
static int late_receive(void)
{
	struct ibv_sge from = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_sge to = { (uintptr_t)server.buffer, 8, server.mr->lkey };
	struct ibv_send_wr send = { .wr_id = 21, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr receive = { .wr_id = 22, .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct pollfd events = { client.id->verbs->async_fd, POLLIN, 0 };
	struct ibv_async_event event;
	struct ibv_wc wc;
	memcpy(client.buffer, "too soon", 8);
	CHECK(ibv_post_send(client.id->qp, &send, &bad) == 0);
	if (poll(&events, 1, 300) == 1) {
		CHECK(ibv_get_async_event(client.id->verbs, &event) == 0);
		ibv_ack_async_event(&event);
		return 0;
	}
	CHECK(ibv_post_recv(server.id->qp, &receive, &bad_receive) == 0);
	CHECK(completion(server.id->recv_cq, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 22);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 8 && memcmp(server.buffer, "too soon", 8) == 0);
	return 1;
}

/* A Write with immediate data: the data are there when the receive completes, which says nothing of their length. */
static void write_immediate(void)
{
	struct ibv_sge from = { (uintptr_t)client.buffer, 8, client.mr->lkey };
	struct ibv_send_wr write = { .wr_id = 31, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl(0x12345678), .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)server.buffer + 16, server.mr->rkey } }, *bad;
	struct ibv_recv_wr receive = { .wr_id = 32 }, *bad_receive;
	struct ibv_wc wc;
	memcpy(client.buffer, "immediat", 8);
	for (int i = 0; i < 16; i++)
		CHECK(ibv_post_recv(server.id->qp, &receive, &bad_receive) == 0);
	for (int i = 0; i < 16; i++)
		CHECK(ibv_post_send(client.id->qp, &write, &bad) == 0);
	for (int i = 0; i < 16; i++) {
		CHECK(completion(server.id->recv_cq, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 32);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM);
		CHECK(ntohl(wc.imm_data) == 0x12345678 && wc.byte_len == 0);
		CHECK(memcmp(server.buffer + 16, "immediat", 8) == 0);
		CHECK(completion(client.id->send_cq, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 31);
		CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
	}
	write.opcode = IBV_WR_SEND_WITH_IMM;
	CHECK(ibv_post_send(client.id->qp, &write, &bad) == EINVAL);
	/* One completion for each, too, when the first half fails, and when both are flushed. */
	struct ibv_send_wr late = write;
	write.opcode = late.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	write.wr_id = 33, late.wr_id = 34, write.next = &late;
	struct ibv_sge wrong = { (uintptr_t)client.buffer, 8, client.mr->lkey ^ 0x100 };
	write.sg_list = &wrong;
	CHECK(ibv_post_send(client.id->qp, &write, &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 33);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 34);
	CHECK(ibv_post_send(client.id->qp, &late, &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 34);
	CHECK(ibv_poll_cq(client.id->send_cq, 1, &wc) == 0);
}

static void leave(void);

/* The event of a disconnect comes by itself, once, when the connection has gone with its queue pair. */
static void disconnect_without_connection(void)
{
	for (enum ibv_qp_state state = IBV_QPS_RESET; state <= IBV_QPS_ERR; state++) {
		struct ibv_qp_attr attr = { .qp_state = state };
		establish();
		struct pollfd events = { client.id->channel->fd, POLLIN, 0 };
		CHECK(poll(&events, 1, 0) == 0);
		if (state == IBV_QPS_RESET || state == IBV_QPS_ERR)
			CHECK(ibv_modify_qp(client.id->qp, &attr, IBV_QP_STATE) == 0);
		else
			rdma_destroy_qp(client.id);
		CHECK(poll(&events, 1, 10000) == 1);
		CHECK(rdma_disconnect(client.id) == 0 && client.id->event->event == RDMA_CM_EVENT_DISCONNECTED);
		CHECK(poll(&events, 1, 0) == 0);
		leave();
	}
}

/* A destroyed channel has no events: EBADF for the thread that destroyed it. Another thread blocks, since a process
   that destroys a channel under its thread exits next. */
static struct rdma_event_channel *gone;
static pthread_barrier_t at_exit;

static void *read_early(void *arg)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(gone, &event);
	_exit(4);
	return arg;
}

static void *read_late(void *arg)
{
	struct rdma_cm_event *event;
	pthread_barrier_wait(&at_exit);
	rdma_get_cm_event(gone, &event);
	_exit(3);
	return arg;
}

static void wait_for_late_reader(void)
{
	pthread_barrier_wait(&at_exit);
	poll(NULL, 0, 200);
}

static void destroyed_channels(void)
{
	struct rdma_cm_event *event;
	pthread_t thread;
	for (int count = 0; count < 200; count++) {
		gone = rdma_create_event_channel();
		CHECK(gone && gone->fd >= 0);
		rdma_destroy_event_channel(gone);
		errno = 0;
		CHECK(rdma_get_cm_event(gone, &event) == -1 && errno == EBADF);
	}
	pthread_create(&thread, NULL, read_early, NULL);
	pthread_create(&thread, NULL, read_late, NULL);
}

/* As many of them are outstanding as of any other request, and each completes once, with its own number, whatever
   becomes of it. */
static void many_writes_immediate(uint32_t count)
{
	struct ibv_sge sge = { (uintptr_t)client.buffer, 4096, client.mr->lkey }, wrong = { sge.addr, 8, sge.lkey ^ 0x100 };
	struct ibv_send_wr *list = calloc(count + 1, sizeof *list), *bad = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	char *seen = calloc(count, 1);
	struct ibv_wc wc;
	for (uint32_t at = 0; at <= count; at++)
		list[at] = (struct ibv_send_wr) { .wr_id = at, .next = at < count ? &list[at + 1] : NULL, .sg_list = &sge,
			.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = at % 2 ? IBV_SEND_SIGNALED : 0,
			.wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } };
	/* The peer has no receive for them, and reads no more. */
	CHECK(ibv_post_send(client.id->qp, list, &bad) == ENOMEM && bad == &list[count]);
	CHECK(ibv_modify_qp(client.id->qp, &attr, IBV_QP_STATE) == 0);
	int flushed = 0;
	while (ibv_poll_cq(client.id->send_cq, 1, &wc) == 1) {
		CHECK(wc.wr_id < count && !seen[wc.wr_id]++);
		CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
		flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
	}
	CHECK(flushed > 0);
	for (uint32_t at = 0; at < count; at++)
		CHECK(seen[at] || at % 2 == 0);
	/* One that comes too late. */
	list[7].next = NULL;
	CHECK(ibv_post_send(client.id->qp, &list[7], &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(client.id->send_cq, 1, &wc) == 0);
	leave();

	/* The Write is to blame, and the request tells of it. */
	establish();
	list[3] = (struct ibv_send_wr) { .wr_id = 3, .sg_list = &wrong, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.wr.rdma = { (uintptr_t)server.buffer, server.mr->rkey } };
	CHECK(ibv_post_send(client.id->qp, &list[3], &bad) == 0);
	CHECK(completion(client.id->send_cq, &wc) == 1 && wc.wr_id == 3 && wc.status == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_poll_cq(client.id->send_cq, 1, &wc) == 0);
	leave();
	free(list);
	free(seen);
}

static void leave(void)
{
	CHECK(ibv_dereg_mr(client.mr) == 0 && ibv_dereg_mr(server.mr) == 0);
	munmap(client.buffer, BYTES);
	munmap(server.buffer, BYTES);
	rdma_destroy_ep(client.id);
	rdma_destroy_ep(server.id);
	rdma_destroy_ep(listener);
}

int main(int argc, char **argv)
{
	/* Before the library's own, so that it is called after that. */
	if (argc > 1 && strcmp(argv[1], "channels") == 0) {
		pthread_barrier_init(&at_exit, NULL, 2);
		atexit(wait_for_late_reader);
	}
	if (argc > 1 && strcmp(argv[1], "batches") == 0) {
		establish_as(1, 16);
		batches();
		leave();
		printf("%d failures\n", failures);
		return failures != 0;
	}
	if (argc > 1 && strcmp(argv[1], "many-writes-immediate") == 0) {
		establish_as(0, 16384);
		many_writes_immediate(16384);
		printf("%d failures\n", failures);
		return failures != 0;
	}
	establish();
	if (failures) return 1;
	if (argc > 1 && strcmp(argv[1], "channels") == 0) {
		destroyed_channels();
		leave();
		printf("%d failures\n", failures);
		return failures != 0;
	}
	if (argc > 1 && strcmp(argv[1], "late-receive") == 0) {
		puts(late_receive() ? "delivered" : "refused");
		return failures != 0;
	}
	if (argc > 1 && strcmp(argv[1], "write-immediate") == 0) {
		write_immediate();
		printf("%d failures\n", failures);
		return failures != 0;
	}
	CHECK(late_receive());
	bad_requests();
	long_lists();
	registrations();
	notifications();
	interruptions();
	asynchronous_cancellations();
	windows();
	children();
	forbidden();
	flushes();
	leave();
	disconnect_without_connection();
	establish();
	for (uint64_t round = 0; round < 40; round++) {
		if (!unmapped_at_once(round)) {
			leave();
			establish();
		}
	}
	leave();
	printf("%d failures\n", failures);
	return failures != 0;
}
