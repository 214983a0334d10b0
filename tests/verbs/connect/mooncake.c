/* Calls of Mooncake's transfer engine: a device with its character device and its path in sysfs, endpoints that are
 * reset before each connection and connected again after an error, Reads and Writes, and an endpoint that is connected
 * to itself.
 *
 *   mooncake listen|connect PORT      the second one transfers to and from memory of the first one
 */
#include "ends.h"

#include <limits.h>
#include <sys/stat.h>

enum {
	PORT_NUMBER = 1,
	QUEUE_PAIRS = 2,       /* of an endpoint */
	DEPTH = 64,            /* requests of a queue pair */
	SLICES = 48,           /* requests of one list */
	SLICE = 64 << 10,
	LIVES = 6,             /* connections of the same queue pairs */
	LENGTH = QUEUE_PAIRS * SLICES * SLICE,
};

struct handshake {
	union ibv_gid gid;
	uint32_t lid, qpn[QUEUE_PAIRS];
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_port_attr port;
static union ibv_gid gid;
static int gid_index;
static unsigned char *memory[2];     /* what is transferred from, and to */
static struct ibv_mr *mr[2];

/* True if the files that the engine reads exist for the device. */
static int has_files(struct ibv_device *device)
{
	static char path[PATH_MAX], resolved[PATH_MAX];
	struct stat found;
	snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
	must(!stat(path, &found), path);
	errno = 0;
	must(S_ISCHR(found.st_mode), "st_mode of the character device");
	must(!access(path, R_OK | W_OK), path);
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/../..", ibv_get_device_name(device));
	must(realpath(path, resolved) != NULL, path);
	return 1;
}

static void select_gid(void)
{
	int found = -1;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;
		int error = ibv_query_gid_ex(context, PORT_NUMBER, i, &entry, 0);
		if (error == ENODATA)
			continue;
		must_return_zero(error, "ibv_query_gid_ex");
		int is_ipv4 = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)entry.gid.raw);
		if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && (found < 0 || is_ipv4)) {
			found = i;
			gid = entry.gid;
			if (is_ipv4)
				break;
		}
	}
	errno = 0;
	must(found >= 0, "search of a GID of RoCE v2");
	gid_index = found;
	union ibv_gid again;
	must(!ibv_query_gid(context, PORT_NUMBER, gid_index, &again), "ibv_query_gid");
	must(!memcmp(&again, &gid, sizeof gid), "comparison of ibv_query_gid and ibv_query_gid_ex");
}

static void construct(struct ibv_qp **qps)
{
	for (int i = 0; i < QUEUE_PAIRS; i++) {
		struct ibv_qp_init_attr attributes = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 4, 4, 64 },
		};
		qps[i] = ibv_create_qp(pd, &attributes);
		must(qps[i] != NULL, "ibv_create_qp");
	}
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	uint32_t qpn = qp->qp_num;
	must_return_zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp to RESET");
	expect("qp_num", qp->qp_num, qpn);
}

/* Connects each queue pair, from any state. */
static void set_up(struct ibv_qp **qps, const struct handshake *peer)
{
	for (int i = 0; i < QUEUE_PAIRS; i++) {
		reset(qps[i]);
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT, .port_num = PORT_NUMBER,
			.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
				| IBV_ACCESS_REMOTE_ATOMIC,
		};
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		must_return_zero(ibv_modify_qp(qps[i], &attr, mask), "ibv_modify_qp to INIT");
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = peer->qpn[i], .rq_psn = 0,
			.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
			.ah_attr = {
				.is_global = 1, .dlid = peer->lid, .port_num = PORT_NUMBER,
				.grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 16 },
			},
		};
		mask = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV
			| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		must_return_zero(ibv_modify_qp(qps[i], &attr, mask), "ibv_modify_qp to RTR");
		attr = (struct ibv_qp_attr){
			.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 0,
			.max_rd_atomic = 16,
		};
		mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
			| IBV_QP_MAX_QP_RD_ATOMIC;
		must_return_zero(ibv_modify_qp(qps[i], &attr, mask), "ibv_modify_qp to RTS");
	}
}

/* Posts a list of requests on each queue pair: slices between local memory and that of the peer. */
static void submit(struct ibv_qp **qps, enum ibv_wr_opcode opcode, int from, uint64_t address, uint32_t rkey)
{
	for (int q = 0; q < QUEUE_PAIRS; q++) {
		struct ibv_send_wr list[SLICES], *bad;
		struct ibv_sge slices[SLICES];
		memset(list, 0, sizeof list);
		for (int i = 0; i < SLICES; i++) {
			size_t at = ((size_t)q * SLICES + i) * SLICE;
			slices[i] = (struct ibv_sge){ (uintptr_t)memory[from] + at, SLICE, mr[from]->lkey };
			list[i] = (struct ibv_send_wr){
				.wr_id = at, .opcode = opcode, .sg_list = &slices[i], .num_sge = 1,
				.send_flags = IBV_SEND_SIGNALED, .next = i + 1 < SLICES ? &list[i + 1] : NULL,
				.wr.rdma = { address + at, rkey },
			};
		}
		must_return_zero(ibv_post_send(qps[q], list, &bad), "ibv_post_send");
	}
}

/* Polls until all posted slices are complete: in order on each queue pair. */
static void collect(struct ibv_qp **qps, enum ibv_wc_opcode opcode, const char *name)
{
	uint64_t next[QUEUE_PAIRS];
	for (int q = 0; q < QUEUE_PAIRS; q++)
		next[q] = (uint64_t)q * SLICES * SLICE;
	for (int done = 0; done < QUEUE_PAIRS * SLICES; done++) {
		struct ibv_wc wc = completed(cq, name);
		int q = 0;
		while (q < QUEUE_PAIRS - 1 && qps[q]->qp_num != wc.qp_num)
			q++;
		expect("qp_num", wc.qp_num, qps[q]->qp_num);
		expect("opcode", wc.opcode, opcode);
		expect("wr_id", wc.wr_id, next[q]);
		next[q] += SLICE;
	}
}

/* A Write with a key that the peer does not have: the queue pair is in ERR afterward, and the rest is flushed. */
static void fail(struct ibv_qp **qps, uint64_t address, uint32_t rkey)
{
	struct ibv_sge from = { (uintptr_t)memory[0], SLICE, mr[0]->lkey };
	struct ibv_send_wr wr[2] = {
		{ .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		  .next = &wr[1], .wr.rdma = { address, rkey ^ 0x5a5a5a00 } },
		{ .wr_id = 2, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		  .wr.rdma = { address, rkey } },
	}, *bad;
	must_return_zero(ibv_post_send(qps[0], wr, &bad), "ibv_post_send");
	static const enum ibv_wc_status expected[] = { IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR };
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		call = "completion of a Write with a wrong key";
		while (!ibv_poll_cq(cq, 1, &wc))
			;
		expect("wr_id", wc.wr_id, i + 1);
		expect("status", wc.status, expected[i]);
	}
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	must_return_zero(ibv_query_qp(qps[0], &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	expect("state after an error", attr.qp_state, IBV_QPS_ERR);
}

int main(int argc, char **argv)
{
	int is_passive = argc == 3 && !strcmp(argv[1], "listen");
	if (argc != 3 || (!is_passive && strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: mooncake listen|connect PORT\n");
		return 2;
	}
	limit_time(60);
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	must(list && count > 0, "ibv_get_device_list");
	for (int i = 0; i < count && !context; i++)
		if (has_files(list[i]))
			context = ibv_open_device(list[i]);
	must(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	must_return_zero(ibv_query_port(context, PORT_NUMBER, &port), "ibv_query_port");
	expect("state of the port", port.state, IBV_PORT_ACTIVE);
	struct ibv_device_attr device;
	must_return_zero(ibv_query_device(context, &device), "ibv_query_device");
	select_gid();
	pd = ibv_alloc_pd(context);
	must(pd != NULL, "ibv_alloc_pd");
	cq = ibv_create_cq(context, 4 * QUEUE_PAIRS * DEPTH, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	for (int i = 0; i < 2; i++) {
		memory[i] = malloc(LENGTH);
		must(memory[i] != NULL, "malloc");
		memset(memory[i], 0xee, LENGTH);
		mr[i] = ibv_reg_mr(pd, memory[i], LENGTH, access);
		must(mr[i] != NULL, "ibv_reg_mr");
	}
	struct ibv_qp *qps[QUEUE_PAIRS];
	construct(qps);
	struct handshake mine = { .gid = gid, .lid = port.lid }, peer;
	for (int i = 0; i < QUEUE_PAIRS; i++)
		mine.qpn[i] = qps[i]->qp_num;

	/* Endpoint for this process's own segment: each queue pair is its own peer. */
	set_up(qps, &mine);
	fill(memory[0], LENGTH, 99);
	submit(qps, IBV_WR_RDMA_WRITE, 0, (uintptr_t)memory[1], mr[1]->rkey);
	collect(qps, IBV_WC_RDMA_WRITE, "completion of a Write to the queue pair itself");
	compare("memory after Writes to the queue pair itself", memory[1], LENGTH, 99);
	memset(memory[0], 0, LENGTH);
	submit(qps, IBV_WR_RDMA_READ, 0, (uintptr_t)memory[1], mr[1]->rkey);
	collect(qps, IBV_WC_RDMA_READ, "completion of a Read from the queue pair itself");
	compare("memory after Reads from the queue pair itself", memory[0], LENGTH, 99);
	for (int i = 0; i < QUEUE_PAIRS; i++)
		reset(qps[i]);

	int peer_socket = out_of_band(is_passive, argv[2]);
	struct segment {
		uint64_t address;
		uint32_t rkey;
	} segment = { (uintptr_t)memory[0], mr[0]->rkey };
	if (is_passive)
		tell(peer_socket, &segment, sizeof segment);
	else
		learn(peer_socket, &segment, sizeof segment);

	for (unsigned life = 0; life < LIVES; life++) {
		/* The passive end is connected before it answers. */
		if (is_passive) {
			learn(peer_socket, &peer, sizeof peer);
			set_up(qps, &peer);
			tell(peer_socket, &mine, sizeof mine);
		} else {
			tell(peer_socket, &mine, sizeof mine);
			learn(peer_socket, &peer, sizeof peer);
			set_up(qps, &peer);
		}
		if (is_passive) {
			/* The message follows the completions of the Writes, which mean that the data is here. */
			meet(peer_socket);
			compare("memory after the peer's Writes", memory[0], LENGTH, life);
			meet(peer_socket);
			meet(peer_socket);
			memset(memory[0], 0xee, LENGTH);
			continue;
		}
		fill(memory[0], LENGTH, life);
		submit(qps, IBV_WR_RDMA_WRITE, 0, segment.address, segment.rkey);
		collect(qps, IBV_WC_RDMA_WRITE, "completion of a Write");
		meet(peer_socket);
		memset(memory[1], 0xdd, LENGTH);
		submit(qps, IBV_WR_RDMA_READ, 1, segment.address, segment.rkey);
		collect(qps, IBV_WC_RDMA_READ, "completion of a Read");
		compare("memory after Reads", memory[1], LENGTH, life);
		meet(peer_socket);
		if (life % 3 == 1)
			fail(qps, segment.address, segment.rkey);
		if (life % 3 == 2) {
			/* A connection that is discarded with requests outstanding: they do not complete. */
			submit(qps, IBV_WR_RDMA_READ, 1, segment.address, segment.rkey);
		}
		for (int i = 0; i < QUEUE_PAIRS; i++)
			reset(qps[i]);
		/* Completions from before RESET. One that arrives later has an unexpected wr_id in the next life. */
		struct ibv_wc wc;
		while (ibv_poll_cq(cq, 1, &wc))
			;
		meet(peer_socket);
	}
	for (int i = 0; i < QUEUE_PAIRS; i++)
		must_return_zero(ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
	for (int i = 0; i < 2; i++) {
		must_return_zero(ibv_dereg_mr(mr[i]), "ibv_dereg_mr");
		free(memory[i]);
	}
	must_return_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
	must_return_zero(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	must_return_zero(ibv_close_device(context), "ibv_close_device");
	printf("%d connections of %d queue pairs, data compared\n", LIVES + 1, QUEUE_PAIRS);
	return 0;
}
