/* Calls of NCCL's net_ib transport: symbols by dlvsym, a walk over the GIDs, receives without buffers, a FIFO that the
 * receiver writes into polled memory, Writes that end with a Write with immediate, and a flush by Read on a queue pair
 * that is connected to itself.
 *
 *   nccl listen PORT      receiver
 *   nccl connect PORT     sender
 */
#include "ends.h"

#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>

/* Functions as bound by NCCL: each at version IBVERBS_1.1, all of them required. */
#undef ibv_query_port
#undef ibv_reg_mr
#define FUNCTIONS(X) \
	X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) X(ibv_close_device) \
	X(ibv_get_async_event) X(ibv_ack_async_event) X(ibv_query_device) X(ibv_query_port) X(ibv_query_gid) \
	X(ibv_query_qp) X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_dereg_mr) \
	X(ibv_create_cq) X(ibv_destroy_cq) X(ibv_create_qp) X(ibv_modify_qp) \
	X(ibv_destroy_qp) X(ibv_fork_init) X(ibv_event_type_str)
#define POINTER(name) __typeof__(name) *name;
static struct {
	FUNCTIONS(POINTER)
} verbs;

enum {
	QUEUE_PAIRS = 2,       /* of a connection; messages alternate between them */
	REQUESTS = 64,
	PARTS = 4,             /* receives that one message serves */
	PART_MAX = 256 << 10,
	MESSAGES = 60,
};

/* Element of the FIFO: buffer of one part. The sender polls `index`, which is written last. */
struct fifo {
	uint64_t address;
	uint32_t rkey, size, parts, tag;
	uint64_t index;
};

/* Data that the ends exchange by TCP. */
struct meta {
	union ibv_gid gid;
	uint32_t qpn[QUEUE_PAIRS], rkey, mtu;
	uint64_t address;
};

static void bind_functions(void)
{
	static const char *const names[] = { "libibverbs.so", "libibverbs.so.1" };
	void *library = NULL;
	for (int i = 0; i < 2 && !library; i++)
		library = dlopen(names[i], RTLD_NOW);
	must(library != NULL, "dlopen of libibverbs.so and libibverbs.so.1");
#define BIND(name) \
	verbs.name = (__typeof__(verbs.name))dlvsym(library, #name, "IBVERBS_1.1"); \
	must(verbs.name != NULL, "dlvsym " #name " IBVERBS_1.1");
	FUNCTIONS(BIND)
}

static void *read_events(void *context)
{
	struct ibv_async_event event;
	while (!verbs.ibv_get_async_event(context, &event)) {
		switch (event.event_type) {
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			fprintf(stderr, "event %s of queue pair %#x\n", verbs.ibv_event_type_str(event.event_type),
				event.element.qp->qp_num);
			_exit(1);
		default:
			verbs.ibv_ack_async_event(&event);
		}
	}
	return NULL;
}

/* Device with an active port. */
static struct ibv_context *open_device(struct ibv_port_attr *port)
{
	int count = 0;
	struct ibv_device **list = verbs.ibv_get_device_list(&count);
	must(list && count > 0, "ibv_get_device_list");
	struct ibv_context *found = NULL;
	for (int i = 0; i < count && !found; i++) {
		struct ibv_context *context = verbs.ibv_open_device(list[i]);
		struct ibv_device_attr attributes;
		must(context != NULL, "ibv_open_device");
		must_return_zero(verbs.ibv_query_device(context, &attributes), "ibv_query_device");
		memset(port, 0, sizeof *port);
		must_return_zero(verbs.ibv_query_port(context, 1, (void *)port), "ibv_query_port");
		if (port->state == IBV_PORT_ACTIVE && port->link_layer == IBV_LINK_LAYER_ETHERNET)
			found = context;
		else
			verbs.ibv_close_device(context);
	}
	verbs.ibv_free_device_list(list);
	errno = 0;
	must(found != NULL, "search of an active Ethernet port");
	return found;
}

static int is_ipv4(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);
}

static int is_valid(const union ibv_gid *gid)
{
	return gid->global.interface_id && gid->global.subnet_prefix != htobe64(0xfe80000000000000);
}

/* RoCE version of a GID, from its file; -1 for an entry without a type. */
static int version_of(struct ibv_context *context, int index)
{
	static char path[200];
	char text[32] = "";
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
		verbs.ibv_get_device_name(context->device), index);
	int file = open(path, O_RDONLY);
	must(file >= 0, path);
	ssize_t length = read(file, text, sizeof text - 1);
	must(length >= 0 || errno == EINVAL, "read of a GID type");
	close(file);
	if (length < 0)
		return -1;
	return !strncmp(text, "RoCE v2", 7) ? 2 : !strncmp(text, "IB/RoCE v1", 10) ? 1 : -1;
}

/* Index of the GID in use: of IPv4 if there is one, then of version 2. */
static int select_gid(struct ibv_context *context, int count, union ibv_gid *gid)
{
	int index = 0;
	must(!verbs.ibv_query_gid(context, 1, 0, gid), "ibv_query_gid");
	for (int next = 1; next < count; next++) {
		union ibv_gid other;
		must(!verbs.ibv_query_gid(context, 1, next, &other), "ibv_query_gid");
		int replaces = is_ipv4(&other) && !is_ipv4(gid);
		if (!replaces && is_ipv4(&other) && is_valid(&other)) {
			int versions[] = { version_of(context, index), version_of(context, next) };
			replaces = versions[1] == 2 && (versions[0] != 2 || !is_valid(gid));
		}
		if (replaces) {
			index = next;
			*gid = other;
		}
	}
	return index;
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq, int access)
{
	struct ibv_qp_init_attr attributes = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { 2 * REQUESTS, REQUESTS, 1, 1, PARTS * sizeof(struct fifo) },
	};
	struct ibv_qp *qp = verbs.ibv_create_qp(pd, &attributes);
	must(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	must_return_zero(verbs.ibv_modify_qp(qp, &init, mask), "ibv_modify_qp to INIT");
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t qpn, const union ibv_gid *gid, int gid_index, uint32_t mtu)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = qpn, .rq_psn = 0, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 255 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	must_return_zero(verbs.ibv_modify_qp(qp, &rtr, mask), "ibv_modify_qp to RTR");
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 0, .max_rd_atomic = 1,
	};
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC;
	must_return_zero(verbs.ibv_modify_qp(qp, &rts, mask), "ibv_modify_qp to RTS");
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	must_return_zero(ibv_post_send(qp, wr, &bad), "ibv_post_send");
}

/* Parts of a message, and the size of each: from 1 octet to the maximum, and empty ones. */
static uint32_t parts_of(unsigned message)
{
	return message % 3 == 0 ? PARTS : 1;
}

static uint32_t size_of(unsigned message, uint32_t part)
{
	static const uint32_t sizes[] = { 1, 7, 4096, 0, 65536, PART_MAX, 1000, PART_MAX - 3 };
	return sizes[(message + part) % 8];
}

/* Immediate of a message: the size, in network order. */
static uint32_t immediate_of(unsigned message)
{
	return htobe32(size_of(message, 0));
}

int main(int argc, char **argv)
{
	int is_receiver = argc == 3 && !strcmp(argv[1], "listen");
	if (argc != 3 || (!is_receiver && strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: nccl listen|connect PORT\n");
		return 2;
	}
	limit_time(60);
	bind_functions();
	must_return_zero(verbs.ibv_fork_init(), "ibv_fork_init");
	struct ibv_port_attr port;
	struct ibv_context *context = open_device(&port);
	pthread_t events;
	must_return_zero(pthread_create(&events, NULL, read_events, context), "pthread_create");
	pthread_detach(events);
	struct meta mine = { .mtu = port.active_mtu }, peer;
	int gid_index = select_gid(context, port.gid_tbl_len, &mine.gid);

	struct ibv_pd *pd = verbs.ibv_alloc_pd(context);
	must(pd != NULL, "ibv_alloc_pd");
	struct ibv_cq *cq = verbs.ibv_create_cq(context, 2 * REQUESTS * QUEUE_PAIRS, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	struct ibv_qp *qps[QUEUE_PAIRS];
	for (int i = 0; i < QUEUE_PAIRS; i++) {
		qps[i] = create(pd, cq, IBV_ACCESS_REMOTE_WRITE);
		mine.qpn[i] = qps[i]->qp_num;
	}
	/* At the sender, the FIFO. At the receiver, sizes of parts. */
	static struct fifo fifo[REQUESTS][PARTS];
	static uint32_t sizes[PARTS];
	void *told = is_receiver ? (void *)sizes : (void *)fifo;
	size_t told_length = is_receiver ? sizeof sizes : sizeof fifo;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *told_mr = verbs.ibv_reg_mr(pd, told, told_length, access);
	must(told_mr != NULL, "ibv_reg_mr");
	mine.address = (uintptr_t)told;
	mine.rkey = told_mr->rkey;

	static unsigned char data[PARTS][PART_MAX];
	struct ibv_mr *data_mr = verbs.ibv_reg_mr(pd, data, sizeof data, access);
	must(data_mr != NULL, "ibv_reg_mr");

	/* The receiver is in RTS before the sender has its numbers. */
	int peer_socket = out_of_band(is_receiver, argv[2]);
	if (!is_receiver)
		tell(peer_socket, &mine, sizeof mine);
	learn(peer_socket, &peer, sizeof peer);
	uint32_t mtu = peer.mtu < mine.mtu ? peer.mtu : mine.mtu;
	for (int i = 0; i < QUEUE_PAIRS; i++)
		connect_to(qps[i], peer.qpn[i], &peer.gid, gid_index, mtu);

	if (is_receiver) {
		struct ibv_qp *flush = create(pd, cq, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
		connect_to(flush, flush->qp_num, &mine.gid, gid_index, mine.mtu);
		tell(peer_socket, &mine, sizeof mine);
		meet(peer_socket);

		static int flushed;
		struct ibv_mr *flushed_mr = verbs.ibv_reg_mr(pd, &flushed, sizeof flushed, IBV_ACCESS_LOCAL_WRITE);
		must(flushed_mr != NULL, "ibv_reg_mr");
		for (unsigned message = 0; message < MESSAGES; message++) {
			struct ibv_qp *qp = qps[message % QUEUE_PAIRS];
			uint32_t parts = parts_of(message);
			struct ibv_recv_wr receive = { .wr_id = 1000 + message }, *bad_receive;
			memset(data, 0xee, sizeof data);
			must_return_zero(ibv_post_recv(qp, &receive, &bad_receive), "ibv_post_recv without a buffer");

			struct fifo elements[PARTS];
			for (uint32_t i = 0; i < parts; i++)
				elements[i] = (struct fifo){ (uintptr_t)data[i], data_mr->rkey, PART_MAX, parts, message, message + 1 };
			struct ibv_sge from = { (uintptr_t)elements, parts * sizeof *elements, 0 };
			struct ibv_send_wr write = {
				.wr_id = message, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .num_sge = 1,
				.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
				.wr.rdma = { peer.address + message % REQUESTS * sizeof fifo[0], peer.rkey },
			};
			post(qp, &write);
			memset(elements, 0, sizeof elements);

			int is_written = 0, is_received = 0;
			while (!is_written || !is_received) {
				struct ibv_wc wc = completed(cq, "completions of a FIFO Write and a receive");
				expect("qp_num", wc.qp_num, qp->qp_num);
				if (wc.opcode == IBV_WC_RDMA_WRITE) {
					expect("wr_id", wc.wr_id, message);
					is_written = 1;
					continue;
				}
				expect("opcode", wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
				expect("wr_id", wc.wr_id, 1000 + message);
				expect("wc_flags", wc.wc_flags, IBV_WC_WITH_IMM);
				expect("imm_data", wc.imm_data, parts == 1 ? immediate_of(message) : 0);
				uint32_t length = message % 3 == 1 ? size_of(message, 0) : message % 3 == 2 ? 0 : sizeof sizes;
				expect("byte_len", wc.byte_len, length);
				is_received = 1;
			}
			/* A Read by the queue pair that is connected to itself, after which the data is in memory. */
			struct ibv_sge to = { (uintptr_t)&flushed, 1, flushed_mr->lkey };
			struct ibv_send_wr read = {
				.wr_id = 7, .opcode = IBV_WR_RDMA_READ, .sg_list = &to, .num_sge = 1,
				.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)data, data_mr->rkey },
			};
			flushed = 0;
			post(flush, &read);
			struct ibv_wc wc = completed(cq, "completion of a Read by the queue pair itself");
			expect("opcode", wc.opcode, IBV_WC_RDMA_READ);
			expect("qp_num", wc.qp_num, flush->qp_num);
			expect("octet read by the queue pair itself", flushed, data[0][0]);
			for (uint32_t i = 0; i < parts; i++) {
				uint32_t size = size_of(message, i);
				if (parts > 1)
					expect("size of a part", sizes[i], size);
				compare("data of a part", data[i], size, message + i);
				expect("octet after a part", size < PART_MAX ? data[i][size] : 0xee, 0xee);
			}
		}
		must_return_zero(verbs.ibv_destroy_qp(flush), "ibv_destroy_qp");
		verbs.ibv_dereg_mr(flushed_mr);
	} else {
		meet(peer_socket);
		for (unsigned message = 0; message < MESSAGES; message++) {
			struct ibv_qp *qp = qps[message % QUEUE_PAIRS];
			uint32_t parts = parts_of(message);
			volatile struct fifo *to = fifo[message % REQUESTS];
			call = "FIFO element in polled memory";
			for (uint32_t i = 0; i < parts; i++)
				while (to[i].index != message + 1)
					;
			__sync_synchronize();
			struct ibv_send_wr writes[PARTS + 1] = { 0 };
			struct ibv_sge from[PARTS + 1];
			for (uint32_t i = 0; i < parts; i++) {
				expect("tag of a FIFO element", to[i].tag, message);
				expect("parts of a FIFO element", to[i].parts, parts);
				fill(data[i], size_of(message, i), message + i);
				from[i] = (struct ibv_sge){ (uintptr_t)data[i], size_of(message, i), data_mr->lkey };
				writes[i] = (struct ibv_send_wr){
					.opcode = IBV_WR_RDMA_WRITE, .sg_list = &from[i], .num_sge = 1, .next = &writes[i + 1],
					.wr.rdma = { to[i].address, to[i].rkey },
				};
			}
			/* Last request: the data itself; empty, after the data; or the sizes of all parts. */
			struct ibv_send_wr *last = &writes[parts];
			if (message % 3 == 1) {
				last = &writes[0];
				last->next = NULL;
			} else if (parts > 1) {
				for (uint32_t i = 0; i < parts; i++)
					sizes[i] = size_of(message, i);
				from[parts] = (struct ibv_sge){ (uintptr_t)sizes, sizeof sizes, 0 };
				last->sg_list = &from[parts];
				last->num_sge = 1;
				last->send_flags = IBV_SEND_INLINE;
				last->wr.rdma.remote_addr = peer.address;
				last->wr.rdma.rkey = peer.rkey;
			}
			last->wr_id = message;
			last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			last->send_flags |= IBV_SEND_SIGNALED;
			last->imm_data = parts == 1 ? immediate_of(message) : 0;
			post(qp, writes);
			struct ibv_wc wc = completed(cq, "completion of a Write with immediate");
			expect("opcode", wc.opcode, IBV_WC_RDMA_WRITE);
			expect("wr_id", wc.wr_id, message);
			expect("qp_num", wc.qp_num, qp->qp_num);
		}
	}
	meet(peer_socket);
	for (int i = 0; i < QUEUE_PAIRS; i++)
		must_return_zero(verbs.ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
	must_return_zero(verbs.ibv_destroy_cq(cq), "ibv_destroy_cq");
	must_return_zero(verbs.ibv_dereg_mr(data_mr), "ibv_dereg_mr");
	must_return_zero(verbs.ibv_dereg_mr(told_mr), "ibv_dereg_mr");
	must_return_zero(verbs.ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	printf("%d messages %s\n", MESSAGES, is_receiver ? "received and compared" : "sent");
	return 0;
}
