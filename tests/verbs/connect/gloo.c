/* Calls of Gloo's ibverbs transport: receives in INIT, memory regions by Send with immediate, data by Write with
 * immediate, and a thread with a completion channel that does not block.
 *
 *   gloo listen|connect PORT
 */
#include "ends.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
	PORT_NUMBER = 1,
	GID_INDEX = 0,
	RECEIVES = 8,          /* posted before the connection, and refilled */
	SLOTS = 4,             /* buffers in use at once */
	ROUNDS = 25,           /* messages of each slot in each direction */
	LENGTH_MAX = 1 << 20,
};

struct address {
	uint32_t lid, qpn, psn;
	union ibv_gid gid;
};

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr received_mrs[RECEIVES], *received_mrs_mr;
static struct ibv_mr *sources_mr, *sinks_mr;
static unsigned char sources[SLOTS][LENGTH_MAX], sinks[SLOTS][LENGTH_MAX];
static unsigned posted;
static atomic_int is_done;
/* Regions of the peer's buffers, and counts of completions, by slot. */
static struct ibv_mr regions[SLOTS];
static atomic_uint announced[SLOTS], sent[SLOTS], received[SLOTS], lengths[SLOTS], sends_of_regions;

static uint32_t size_of(unsigned round, unsigned slot)
{
	static const uint32_t sizes[] = { 1, 64, 1500, 4096, 65536, 300001, LENGTH_MAX };
	return sizes[(round * SLOTS + slot) % 7];
}

static void post_receive(void)
{
	struct ibv_sge to = {
		(uintptr_t)&received_mrs[posted++ % RECEIVES], sizeof received_mrs[0], received_mrs_mr->lkey,
	};
	struct ibv_recv_wr wr = { .sg_list = &to, .num_sge = 1 }, *bad;
	must_return_zero(ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

/* The completions do not name the receive: they are in the order of the posts. */
static unsigned consumed;

static void handle(struct ibv_wc *wc)
{
	errno = 0;
	must(wc->status == IBV_WC_SUCCESS, ibv_wc_status_str(wc->status));
	switch (wc->opcode) {
	case IBV_WC_RECV: {
		call = "receive of a memory region";
		unsigned slot = wc->imm_data;
		expect("byte_len", wc->byte_len, sizeof received_mrs[0]);
		expect("wc_flags", wc->wc_flags, IBV_WC_WITH_IMM);
		expect("imm_data below the number of slots", slot < SLOTS, 1);
		regions[slot] = received_mrs[consumed++ % RECEIVES];
		atomic_fetch_add(&announced[slot], 1);
		post_receive();
		break;
	}
	case IBV_WC_RECV_RDMA_WITH_IMM: {
		call = "receive of a Write with immediate";
		unsigned slot = wc->imm_data;
		expect("wc_flags", wc->wc_flags, IBV_WC_WITH_IMM);
		expect("imm_data below the number of slots", slot < SLOTS, 1);
		consumed++;
		atomic_store(&lengths[slot], wc->byte_len);
		atomic_fetch_add(&received[slot], 1);
		post_receive();
		break;
	}
	case IBV_WC_RDMA_WRITE:
		atomic_fetch_add(&sent[wc->wr_id], 1);
		break;
	case IBV_WC_SEND:
		atomic_fetch_add(&sends_of_regions, 1);
		break;
	default:
		call = "ibv_poll_cq";
		expect("opcode", wc->opcode, IBV_WC_RECV);
	}
}

static void *device_thread(void *context)
{
	(void)context;
	int flags = fcntl(channel->fd, F_GETFL);
	must(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), "fcntl of the completion channel");
	unsigned events = 0;
	while (!is_done) {
		struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
		int count = poll(&readable, 1, 10);
		must(count >= 0 || errno == EINTR, "poll of the completion channel");
		if (count <= 0)
			continue;
		struct ibv_cq *of;
		void *of_context;
		must(!ibv_get_cq_event(channel, &of, &of_context), "ibv_get_cq_event");
		expect("context of the queue", (uintptr_t)of_context, (uintptr_t)&cq);
		events++;
		must_return_zero(ibv_req_notify_cq(of, 0), "ibv_req_notify_cq");
		struct ibv_wc wcs[16];
		int found;
		do {
			found = ibv_poll_cq(of, 16, wcs);
			must(found >= 0, "ibv_poll_cq");
			for (int i = 0; i < found; i++)
				handle(&wcs[i]);
		} while (found == 16);
	}
	ibv_ack_cq_events(cq, events);
	return NULL;
}

static void wait_for(atomic_uint *count, unsigned value, const char *what)
{
	call = what;
	while (atomic_load(count) < value)
		sched_yield();
}

int main(int argc, char **argv)
{
	int is_server = argc == 3 && !strcmp(argv[1], "listen");
	if (argc != 3 || (!is_server && strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: gloo listen|connect PORT\n");
		return 2;
	}
	limit_time(60);
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	must(list && count > 0, "ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(list[0]);
	must(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	must_return_zero(ibv_query_device(context, &device), "ibv_query_device");
	must_return_zero(ibv_query_port(context, PORT_NUMBER, &port), "ibv_query_port");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	must(pd != NULL, "ibv_alloc_pd");
	channel = ibv_create_comp_channel(context);
	must(channel != NULL, "ibv_create_comp_channel");

	cq = ibv_create_cq(context, 2 * (RECEIVES + 2 * SLOTS), &cq, channel, 0);
	must(cq != NULL, "ibv_create_cq");
	must_return_zero(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	struct ibv_qp_init_attr attributes = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 2 * SLOTS, RECEIVES, 1, 1, 0 },
	};
	qp = ibv_create_qp(pd, &attributes);
	must(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = PORT_NUMBER,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	must_return_zero(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to INIT");

	struct address mine = { .lid = port.lid, .qpn = qp->qp_num, .psn = rand() & 0xffffff }, peer;
	must(!ibv_query_gid(context, PORT_NUMBER, GID_INDEX, &mine.gid), "ibv_query_gid");
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	received_mrs_mr = ibv_reg_mr(pd, received_mrs, sizeof received_mrs, access);
	sources_mr = ibv_reg_mr(pd, sources, sizeof sources, access);
	sinks_mr = ibv_reg_mr(pd, sinks, sizeof sinks, access);
	must(received_mrs_mr && sources_mr && sinks_mr, "ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
	pthread_t thread;
	must_return_zero(pthread_create(&thread, NULL, device_thread, NULL), "pthread_create");

	int peer_socket = out_of_band(is_server, argv[2]);
	tell(peer_socket, &mine, sizeof mine);
	learn(peer_socket, &peer, sizeof peer);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 20, .ah_attr = { .dlid = peer.lid, .port_num = PORT_NUMBER },
	};
	if (peer.gid.global.interface_id) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 1;
		attr.ah_attr.grh.dgid = peer.gid;
		attr.ah_attr.grh.sgid_index = GID_INDEX;
	}
	mask = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_AV
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	must_return_zero(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .ah_attr.is_global = 1, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1,
	};
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC;
	must_return_zero(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTS");

	/* Sends are posted at once, without a message that the peer is in RTR. */
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct ibv_mr announcements[SLOTS];
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			memset(sinks[slot], 0xee, sizeof sinks[slot]);
			announcements[slot] = *sinks_mr;
			announcements[slot].addr = sinks[slot];
			struct ibv_mr *mr = ibv_reg_mr(pd, &announcements[slot], sizeof announcements[slot], access);
			must(mr != NULL, "ibv_reg_mr");
			struct ibv_sge from = { (uintptr_t)&announcements[slot], sizeof announcements[slot], mr->lkey };
			struct ibv_send_wr wr = {
				.wr_id = slot, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				.send_flags = IBV_SEND_SIGNALED, .imm_data = slot,
			}, *bad;
			must_return_zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send of a region");
			wait_for(&sends_of_regions, round * SLOTS + slot + 1, "completion of a Send with immediate");
			must_return_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
		}
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			wait_for(&announced[slot], round + 1, "memory region of the peer");
			fill(sources[slot], size_of(round, slot), round * SLOTS + slot + !is_server);
			struct ibv_sge from = { (uintptr_t)sources[slot], size_of(round, slot), sources_mr->lkey };
			struct ibv_send_wr wr = {
				.wr_id = slot, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				.send_flags = IBV_SEND_SIGNALED, .imm_data = slot,
				.wr.rdma = { (uintptr_t)regions[slot].addr, regions[slot].rkey },
			}, *bad;
			must_return_zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send of data");
		}
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			uint32_t size = size_of(round, slot);
			wait_for(&received[slot], round + 1, "receive of a Write with immediate");
			wait_for(&sent[slot], round + 1, "completion of a Write with immediate");
			expect("byte_len", atomic_load(&lengths[slot]), size);
			compare("data of a slot", sinks[slot], size, round * SLOTS + slot + is_server);
			if (size < LENGTH_MAX)
				expect("octet after the data", sinks[slot][size], 0xee);
		}
	}
	meet(peer_socket);
	is_done = 1;
	must_return_zero(pthread_join(thread, NULL), "pthread_join");
	must_return_zero(ibv_destroy_qp(qp), "ibv_destroy_qp");
	must_return_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
	must_return_zero(ibv_dereg_mr(received_mrs_mr), "ibv_dereg_mr");
	must_return_zero(ibv_dereg_mr(sources_mr), "ibv_dereg_mr");
	must_return_zero(ibv_dereg_mr(sinks_mr), "ibv_dereg_mr");
	must_return_zero(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	must_return_zero(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	must_return_zero(ibv_close_device(context), "ibv_close_device");
	printf("%d messages sent, received and compared\n", ROUNDS * SLOTS);
	return 0;
}
