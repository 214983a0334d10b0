/* Queue pairs that the program connects itself, on a RoCE device: both ends are in this process. */
#define _GNU_SOURCE
#include "ends.h"

#include <rdma/rdma_cma.h>
#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time by which the clock is ahead of the kernel's, in nanoseconds. */
static atomic_long ahead;

/* Clock of the test and of the library. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = syscall(SYS_clock_gettime, clock, now);
	if (result == 0 && clock == CLOCK_MONOTONIC) {
		long nanos = now->tv_nsec + atomic_load(&ahead);
		now->tv_sec += nanos / 1000000000;
		now->tv_nsec = nanos % 1000000000;
	}
	return result;
}

/* Node type, GID table, partition, address handles. */
static void identity(void)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[64], one;
	union ibv_gid found;
	uint16_t pkey = 0;
	CHECK(device->device->node_type == IBV_NODE_CA && device->device->transport_type == IBV_TRANSPORT_IB);
	CHECK(ibv_query_device(device, &attr) == 0 && attr.atomic_cap == IBV_ATOMIC_HCA && attr.max_ah > 0);
	CHECK(ibv_query_port(device, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.lid == 0);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len >= 2 && port.pkey_tbl_len == 1);
	for (int at = 0; at < port.gid_tbl_len; at++)
		CHECK(ibv_query_gid(device, 1, at, &found) == 0);
	CHECK(ibv_query_gid(device, 1, port.gid_tbl_len, &found) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid(device, 1, -1, &found) == -1 && ibv_query_gid(device, 2, 0, &found) == -1);
	CHECK(ibv_query_gid_ex(device, 1, 0, &one, 0) == 0 && one.gid_type == IBV_GID_TYPE_ROCE_V2 && one.ndev_ifindex);
	CHECK(memcmp(&one.gid, &gid, 16) == 0 && one.gid_index == 0 && one.port_num == 1);
	CHECK(ibv_query_gid_ex(device, 1, port.gid_tbl_len, &one, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(device, 1, 0, &one, 1) == EOPNOTSUPP);
	CHECK(ibv_query_gid_table(device, entries, 64, 0) == port.gid_tbl_len);
	CHECK(ibv_query_gid_table(device, entries, 1, 0) == -EINVAL);
	CHECK(ibv_query_pkey(device, 1, 0, &pkey) == 0 && pkey == 0xffff && ibv_query_pkey(device, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(device, 1, 0xffff) == 0 && ibv_get_pkey_index(device, 1, 0) == -1);
	struct ibv_ah_attr address = { .grh = { .dgid = gid, .hop_limit = 255, .flow_label = 1 }, .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &address);
	CHECK(ah != NULL && ah->context == device && ah->pd == pd && ibv_destroy_ah(ah) == 0);
	address.is_global = 0;
	CHECK(ibv_create_ah(pd, &address) == NULL && errno == EINVAL);
	address.is_global = 1, address.grh.sgid_index = port.gid_tbl_len;
	CHECK(ibv_create_ah(pd, &address) == NULL && errno == EINVAL);
}

/* Returned errors leave state and attributes as they were. */
static void refused_changes(void)
{
	struct end end;
	struct ibv_qp_attr attr, found;
	struct ibv_qp_init_attr created;
	make(&end, 1);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == EINVAL && end.qp->state == IBV_QPS_RESET);
	CHECK(receive(&end, 1, 64) == EINVAL && post(&end, 1, IBV_WR_SEND, NULL) == EINVAL);
	CHECK(ibv_post_recv(end.qp, NULL, NULL) == EINVAL || 1);
	CHECK(init(&end) == 0 && end.qp->state == IBV_QPS_INIT && init(&end) == 0);
	CHECK(receive(&end, 1, 64) == 0 && post(&end, 1, IBV_WR_SEND, NULL) == EINVAL);
	rtr_attributes(&attr, &end, 0x123456, 1);
	CHECK(ibv_modify_qp(end.qp, &attr, RTR_MASK & ~IBV_QP_MIN_RNR_TIMER) == EINVAL);
	CHECK(ibv_modify_qp(end.qp, &attr, RTR_MASK | IBV_QP_TIMEOUT) == EINVAL);
	CHECK(ibv_modify_qp(end.qp, &attr, RTR_MASK | 1 << 21) == EOPNOTSUPP);
	attr.ah_attr.is_global = 0;
	CHECK(ibv_modify_qp(end.qp, &attr, RTR_MASK) == EINVAL && end.qp->state == IBV_QPS_INIT);
	CHECK(rtr(&end, 0x123456, 7) == 0 && post(&end, 1, IBV_WR_SEND, NULL) == EINVAL);
	CHECK(rtr(&end, 0x123456, 7) == EINVAL && init(&end) == EINVAL);
	CHECK(ibv_query_qp(end.qp, &found, 0, &created) == 0);
	CHECK(found.qp_state == IBV_QPS_RTR && found.cur_qp_state == IBV_QPS_RTR && found.dest_qp_num == 0x123456);
	CHECK(found.rq_psn == 7 && found.path_mtu == IBV_MTU_1024 && found.min_rnr_timer == 12 && found.timeout == 0);
	CHECK(memcmp(&found.ah_attr.grh.dgid, &gid, 16) == 0 && found.ah_attr.is_global == 1 && found.port_num == 1);
	CHECK(rts(&end) == 0 && ibv_query_qp(end.qp, &found, 0, &created) == 0 && found.timeout == 14 && found.sq_psn == 1);
	attr.min_rnr_timer = 20;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(ibv_query_qp(end.qp, &found, 0, &created) == 0 && found.min_rnr_timer == 20);
	attr.cur_qp_state = IBV_QPS_SQD;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_CUR_STATE) == EINVAL);
	end.qp->handle++;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_MIN_RNR_TIMER) == EINVAL && ibv_destroy_qp(end.qp) == EINVAL);
	CHECK(ibv_query_qp(end.qp, &found, 0, &created) == EINVAL);
	end.qp->handle--;
	uint32_t number = end.qp->qp_num;
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0);
	expect(&end, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(post(&end, 2, IBV_WR_SEND, NULL) == 0);
	expect(&end, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK(rts(&end) == EINVAL);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0 && ibv_query_qp(end.qp, &found, 0, &created) == 0);
	CHECK(found.dest_qp_num == 0 && found.timeout == 0 && found.path_mtu == IBV_MTU_256 && end.qp->qp_num == number);
	struct ibv_qp_init_attr big = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 1 << 20 } };
	CHECK(ibv_create_qp(pd, &big) == NULL && errno == EINVAL);
	destroy(&end);
}

/* Every operation between two ends. */
static void operations(struct end *one, struct end *other)
{
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct ibv_send_wr wr, *bad;
	strcpy(one->buffer, "sent");
	CHECK(receive(other, 10, 64) == 0 && receive(other, 11, 64) == 0);
	CHECK(post(one, 1, IBV_WR_SEND, NULL) == 0);
	expect(one, 1, IBV_WC_SUCCESS);
	/* A completion means that the peer has executed the request. */
	CHECK(strcmp(other->buffer, "sent") == 0);
	expect(other, 10, IBV_WC_SUCCESS);
	wr = request(one, &sge, 2, IBV_WR_SEND_WITH_IMM);
	wr.imm_data = 0x12345678;
	CHECK(ibv_post_send(one->qp, &wr, &bad) == 0);
	expect(one, 2, IBV_WC_SUCCESS);
	CHECK(completion(other, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 64);
	CHECK(wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 0x12345678 && wc.qp_num == other->qp->qp_num);
	strcpy(one->buffer, "written");
	CHECK(post(one, 3, IBV_WR_RDMA_WRITE, other) == 0);
	expect(one, 3, IBV_WC_SUCCESS);
	CHECK(strcmp(other->buffer + 4096, "written") == 0);
	CHECK(receive(other, 12, 0) == 0);
	wr = request(one, &sge, 4, IBV_WR_RDMA_WRITE_WITH_IMM);
	wr.imm_data = 0x87654321, wr.wr.rdma.remote_addr = (uintptr_t)other->buffer, wr.wr.rdma.rkey = other->mr->rkey;
	CHECK(ibv_post_send(one->qp, &wr, &bad) == 0);
	expect(one, 4, IBV_WC_SUCCESS);
	CHECK(completion(other, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(wc.byte_len == 64 && wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 0x87654321 && wc.wr_id == 12);
	strcpy(other->buffer + 4096, "read");
	CHECK(post(one, 5, IBV_WR_RDMA_READ, other) == 0);
	expect(one, 5, IBV_WC_SUCCESS);
	CHECK(strcmp(one->buffer, "read") == 0);
	uint64_t *target = (uint64_t *)(other->buffer + 8192);
	*target = 40;
	wr = request(one, &sge, 6, IBV_WR_ATOMIC_FETCH_AND_ADD);
	sge.length = 8;
	wr.wr.atomic.remote_addr = (uintptr_t)target, wr.wr.atomic.rkey = other->mr->rkey, wr.wr.atomic.compare_add = 2;
	CHECK(ibv_post_send(one->qp, &wr, &bad) == 0);
	expect(one, 6, IBV_WC_SUCCESS);
	CHECK(*target == 42 && *(uint64_t *)one->buffer == 40);
	wr.wr_id = 7, wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, wr.wr.atomic.compare_add = 42, wr.wr.atomic.swap = 7;
	CHECK(ibv_post_send(one->qp, &wr, &bad) == 0);
	expect(one, 7, IBV_WC_SUCCESS);
	CHECK(*target == 7 && *(uint64_t *)one->buffer == 42);
	/* The flush of UCX. */
	wr = request(one, &sge, 8, IBV_WR_RDMA_WRITE);
	wr.num_sge = 0, wr.send_flags |= IBV_SEND_INLINE;
	CHECK(ibv_post_send(one->qp, &wr, &bad) == 0);
	expect(one, 8, IBV_WC_SUCCESS);
}

static void pair(void)
{
	struct end one, other;
	make(&one, 0x111111), make(&other, 0x222222);
	connect_pair(&one, &other);
	operations(&one, &other);
	operations(&other, &one);
	struct ibv_qp_attr attr;
	/* A reset pair connects again under its numbers. */
	for (int round = 0; round < 3; round++) {
		attr.qp_state = IBV_QPS_RESET;
		CHECK(ibv_modify_qp(other.qp, &attr, IBV_QP_STATE) == 0);
		CHECK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE) == 0);
		connect_pair(round % 2 ? &one : &other, round % 2 ? &other : &one);
		operations(&one, &other);
	}
	destroy(&one), destroy(&other);
}

static void with_srq(void)
{
	struct end one, other;
	make_with(&one, 1, 1), make_with(&other, 2, 1);
	connect_pair(&one, &other);
	operations(&one, &other);
	operations(&other, &one);
	destroy(&one), destroy(&other);
}

static void itself(void)
{
	struct end end;
	make(&end, 5);
	CHECK(init(&end) == 0 && rtr(&end, end.qp->qp_num, 5) == 0 && rts(&end) == 0);
	strcpy(end.buffer, "to itself");
	CHECK(receive(&end, 9, 64) == 0 && post(&end, 1, IBV_WR_RDMA_WRITE, &end) == 0);
	expect(&end, 1, IBV_WC_SUCCESS);
	CHECK(strcmp(end.buffer + 4096, "to itself") == 0);
	struct ibv_wc wc[2];
	CHECK(post(&end, 2, IBV_WR_SEND, NULL) == 0);
	CHECK(completion(&end, &wc[0]) == 1 && completion(&end, &wc[1]) == 1);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS && wc[0].wr_id + wc[1].wr_id == 11);
	CHECK(wc[0].qp_num == end.qp->qp_num && wc[1].qp_num == end.qp->qp_num);
	destroy(&end);
}

/* One end is ready long before the other, whichever dials, and posts before. */
static void early(void)
{
	for (int which = 0; which < 2; which++) {
		struct end ends[2];
		make(&ends[0], 1), make(&ends[1], 2);
		struct end *first = &ends[which], *second = &ends[!which];
		CHECK(init(first) == 0 && init(second) == 0);
		CHECK(rtr(first, second->qp->qp_num, second->psn) == 0 && rts(first) == 0);
		strcpy(first->buffer, "early");
		for (int at = 0; at < 8; at++)
			CHECK(post(first, at, IBV_WR_RDMA_WRITE, second) == 0);
		double until = seconds() + 0.15;
		struct ibv_wc wc;
		while (seconds() < until)
			CHECK(ibv_poll_cq(first->cq, 1, &wc) == 0);
		/* The other end never leaves RTR. */
		CHECK(rtr(second, first->qp->qp_num, first->psn) == 0);
		for (int at = 0; at < 8; at++)
			expect(first, at, IBV_WC_SUCCESS);
		CHECK(strcmp(second->buffer + 4096, "early") == 0);
		destroy(&ends[0]), destroy(&ends[1]);
	}
}

/* More queue pairs than numbers of one port; each sends to its peer. */
static void many(void)
{
	enum { COUNT = 300 };
	static struct end ends[COUNT];
	struct end shared;
	make(&shared, 0);
	for (int at = 0; at < COUNT; at++) {
		ends[at] = shared, ends[at].psn = at;
		create_qp(&ends[at]);
		CHECK(init(&ends[at]) == 0);
		for (int before = 0; before < at; before++)
			CHECK(ends[before].qp->qp_num != ends[at].qp->qp_num);
	}
	for (int at = 0; at < COUNT; at++) {
		struct end *peer = &ends[COUNT - 1 - at];
		CHECK(rtr(&ends[at], peer->qp->qp_num, peer->psn) == 0 && rts(&ends[at]) == 0);
		CHECK(post(&ends[at], at, IBV_WR_RDMA_WRITE, &shared) == 0);
	}
	for (int at = 0; at < COUNT; at++) {
		struct ibv_wc wc = { 0 };
		CHECK(completion(&shared, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(wc.wr_id < COUNT && wc.qp_num == ends[wc.wr_id % COUNT].qp->qp_num);
	}
	for (int at = 0; at < COUNT; at++)
		CHECK(ibv_destroy_qp(ends[at].qp) == 0);
	destroy(&shared);
}

/* A port of a QP number is open to strangers, who get nothing. */
static void strangers(struct end *end)
{
	union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; } address = { .v6 = { .sin6_family = AF_INET6 } };
	memcpy(&address.v6.sin6_addr, &gid, 16);
	address.v6.sin6_port = htons(end->qp->qp_num & 0xffff);
	for (int at = 0; at < 64; at++) {
		int socket_ = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(connect(socket_, &address.any, sizeof address.v6) == 0);
		char junk[96];
		memset(junk, at, sizeof junk);
		if (at % 3)
			CHECK(send(socket_, junk, sizeof junk, MSG_NOSIGNAL) > 0);
		if (at % 2)
			close(socket_);
	}
}

/* Requests to a peer that does not exist, is in INIT, has other PSNs, is destroyed, or dies end after the budget; the
   others are untouched. All wait at the same time. */
static void absent(void)
{
	enum { CASES = 5 };
	struct end ends[CASES], peers[CASES], gone;
	struct ibv_wc wc;
	make(&gone, 1);
	uint32_t stale = gone.qp->qp_num;
	destroy(&gone);
	for (int at = 0; at < CASES; at++) {
		make(&ends[at], at), make(&peers[at], 100 + at);
		if (at < 4)
			CHECK(init(&ends[at]) == 0);
	}
	/* A stale number; a peer in INIT; one with another PSN; one whose peer is another; one that is destroyed. */
	CHECK(rtr(&ends[0], stale, 100) == 0 && rts(&ends[0]) == 0);
	CHECK(init(&peers[1]) == 0 && rtr(&ends[1], peers[1].qp->qp_num, 101) == 0 && rts(&ends[1]) == 0);
	CHECK(init(&peers[2]) == 0 && rtr(&ends[2], peers[2].qp->qp_num, 102) == 0 && rts(&ends[2]) == 0);
	CHECK(rtr(&peers[2], ends[2].qp->qp_num, 999) == 0 && rts(&peers[2]) == 0);
	CHECK(init(&peers[3]) == 0 && rtr(&ends[3], peers[3].qp->qp_num, 103) == 0 && rts(&ends[3]) == 0);
	CHECK(rtr(&peers[3], ends[0].qp->qp_num, 0) == 0 && rts(&peers[3]) == 0);
	connect_pair(&ends[4], &peers[4]);
	CHECK(receive(&ends[4], 40, 64) == 0);
	CHECK(post(&ends[4], 3, IBV_WR_RDMA_WRITE, &peers[4]) == 0);
	expect(&ends[4], 3, IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(peers[4].qp) == 0);
	strangers(&ends[0]);
	double begin = seconds();
	for (int at = 0; at < CASES; at++)
		CHECK(post(&ends[at], 1, IBV_WR_RDMA_WRITE, &peers[at]) == 0 && post(&ends[at], 2, IBV_WR_SEND, NULL) == 0);
	/* Silence: no event, no completion, and the state of all ends is RTS. */
	struct pollfd events = { .fd = device->async_fd, .events = POLLIN };
	CHECK(poll(&events, 1, 300) == 0);
	for (int at = 0; at < CASES; at++) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr created;
		CHECK(ibv_poll_cq(ends[at].cq, 1, &wc) == 0);
		CHECK(ibv_query_qp(ends[at].qp, &attr, 0, &created) == 0 && attr.qp_state == IBV_QPS_RTS);
	}
	/* Most of the budget of 5 s is skipped. */
	atomic_store(&ahead, 4300000000);
	for (int at = 0; at < CASES; at++) {
		expect(&ends[at], 1, IBV_WC_RETRY_EXC_ERR);
		expect(&ends[at], 2, IBV_WC_WR_FLUSH_ERR);
		CHECK(seconds() - begin > 4.9 && seconds() - begin < 8);
	}
	CHECK(poll(&events, 1, 0) == 0);
	expect(&ends[4], 40, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(peers[2].cq, 1, &wc) == 0 && ibv_poll_cq(peers[3].cq, 1, &wc) == 0);
	for (int at = 0; at < CASES; at++) {
		destroy(&ends[at]);
		if (at == 4)
			create_qp(&peers[at]);
		destroy(&peers[at]);
	}
}

static void event(struct ibv_qp *qp, enum ibv_event_type kind)
{
	struct pollfd events = { .fd = device->async_fd, .events = POLLIN };
	struct ibv_async_event found;
	CHECK(poll(&events, 1, 10000) == 1);
	if (!(events.revents & POLLIN) || ibv_get_async_event(device, &found) != 0)
		return;
	CHECK(found.element.qp == qp && found.event_type == kind);
	ibv_ack_async_event(&found);
}

static void no_event(void)
{
	struct pollfd events = { .fd = device->async_fd, .events = POLLIN };
	CHECK(poll(&events, 1, 0) == 0);
}

/* Errors as the program of each end gets them. */
static void errors(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct ibv_wc wc;
	for (int at = 0; at < 9; at++) {
		struct end one, other;
		make(&one, 1), make(&other, 2);
		CHECK(init(&one) == 0 && init_with(&other, at == 5 ? IBV_ACCESS_LOCAL_WRITE : ALL) == 0);
		CHECK(rtr(&one, other.qp->qp_num, 2) == 0 && rts_with(&one, 1) == 0);
		CHECK(rtr(&other, one.qp->qp_num, 1) == 0 && rts(&other) == 0);
		enum ibv_wc_status expected = IBV_WC_REM_ACCESS_ERR;
		enum ibv_event_type kind = IBV_EVENT_QP_ACCESS_ERR;
		int is_silent = 0;
		wr = request(&one, &sge, 1, IBV_WR_RDMA_WRITE);
		wr.send_flags = 0;
		wr.wr.rdma.remote_addr = (uintptr_t)other.buffer, wr.wr.rdma.rkey = other.mr->rkey;
		switch (at) {
		case 0:
			wr.wr.rdma.rkey ^= 0x100;
			break;
		case 1:
			wr.wr.rdma.remote_addr += BYTES - 8;
			break;
		case 2:
			wr.opcode = IBV_WR_RDMA_READ, wr.wr.rdma.rkey ^= 0x100;
			break;
		case 3:
			wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, sge.length = 8;
			wr.wr.atomic.remote_addr = (uintptr_t)other.buffer + 4, wr.wr.atomic.rkey = other.mr->rkey;
			expected = IBV_WC_REM_INV_REQ_ERR, kind = IBV_EVENT_QP_REQ_ERR;
			break;
		case 4:
			CHECK(receive(&other, 7, 8) == 0);
			wr.opcode = IBV_WR_SEND;
			expected = IBV_WC_REM_INV_REQ_ERR, is_silent = 1;
			break;
		case 5:
			expected = IBV_WC_REM_INV_REQ_ERR, kind = IBV_EVENT_QP_REQ_ERR;
			break;
		case 6:
			wr.opcode = IBV_WR_SEND;
			expected = IBV_WC_RNR_RETRY_EXC_ERR, is_silent = 1;
			break;
		case 7:
			sge.lkey ^= 0x100;
			expected = IBV_WC_LOC_PROT_ERR, is_silent = 1;
			break;
		case 8:
			/* Earlier requests succeed, also those that are not signaled. */
			CHECK(receive(&other, 7, 64) == 0 && receive(&other, 8, 64) == 0);
			CHECK(post(&one, 20, IBV_WR_SEND, NULL) == 0);
			wr.opcode = IBV_WR_SEND, wr.wr_id = 0;
			CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
			wr.opcode = IBV_WR_RDMA_WRITE, wr.wr_id = 1, wr.wr.rdma.rkey ^= 0x100;
			break;
		}
		CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
		CHECK(post(&one, 2, IBV_WR_SEND, NULL) == 0);
		if (at == 8)
			expect(&one, 20, IBV_WC_SUCCESS);
		int before = failures;
		expect(&one, 1, expected);
		expect(&one, 2, IBV_WC_WR_FLUSH_ERR);
		if (at == 4)
			expect(&other, 7, IBV_WC_LOC_LEN_ERR);
		if (at == 8)
			expect(&other, 7, IBV_WC_SUCCESS), expect(&other, 8, IBV_WC_SUCCESS);
		if (!is_silent)
			event(other.qp, kind);
		no_event();
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr created;
		CHECK(ibv_query_qp(one.qp, &attr, 0, &created) == 0 && attr.qp_state == IBV_QPS_ERR);
		CHECK(ibv_query_qp(other.qp, &attr, 0, &created) == 0);
		CHECK(attr.qp_state == (at == 6 || at == 7 ? IBV_QPS_RTS : IBV_QPS_ERR));
		CHECK(ibv_poll_cq(one.cq, 1, &wc) == 0);
		if (failures != before)
			printf("in case %d\n", at);
		destroy(&one), destroy(&other);
	}
}

/* A message without a receive waits without limit if the sender retries without limit. */
static void not_ready(void)
{
	struct end one, other;
	struct ibv_wc wc;
	make(&one, 1), make(&other, 2);
	connect_pair(&one, &other);
	strcpy(one.buffer, "late");
	CHECK(post(&one, 1, IBV_WR_SEND, NULL) == 0 && post(&one, 2, IBV_WR_RDMA_WRITE, &other) == 0);
	/* The other end reads while the message waits, and both wait for the other. */
	CHECK(post(&other, 3, IBV_WR_SEND, NULL) == 0 && post(&other, 4, IBV_WR_RDMA_READ, &one) == 0);
	double until = seconds() + 0.1;
	while (seconds() < until)
		CHECK(ibv_poll_cq(one.cq, 1, &wc) == 0);
	CHECK(receive(&other, 10, 64) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	expect(&one, 2, IBV_WC_SUCCESS);
	expect(&other, 10, IBV_WC_SUCCESS);
	CHECK(receive(&one, 11, 64) == 0);
	struct ibv_wc both[2];
	CHECK(completion(&other, &both[0]) == 1 && completion(&other, &both[1]) == 1);
	CHECK(both[0].status == IBV_WC_SUCCESS && both[1].status == IBV_WC_SUCCESS);
	CHECK(both[0].wr_id == 3 && both[1].wr_id == 4);
	expect(&one, 11, IBV_WC_SUCCESS);
	destroy(&one), destroy(&other);
}

/* A changed timer applies to the connection that exists: one retry of 655 ms instead of 0.64 ms. */
static void not_ready_timer(void)
{
	struct end one, other;
	make(&one, 1), make(&other, 2);
	CHECK(init(&one) == 0 && init(&other) == 0);
	CHECK(rtr(&one, other.qp->qp_num, 2) == 0 && rts_with(&one, 1) == 0);
	CHECK(rtr(&other, one.qp->qp_num, 1) == 0 && rts(&other) == 0);
	CHECK(receive(&other, 10, 64) == 0 && post(&one, 1, IBV_WR_SEND, NULL) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	expect(&other, 10, IBV_WC_SUCCESS);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = 0 };
	CHECK(ibv_modify_qp(other.qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
	double begin = seconds();
	CHECK(post(&one, 2, IBV_WR_SEND, NULL) == 0);
	expect(&one, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(seconds() - begin > 0.6);
	destroy(&one), destroy(&other);
}

/* In SQD requests are held that were not started, and the end of the others is an event. */
static void drained(void)
{
	struct end one, other;
	struct ibv_wc wc;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	make(&one, 1), make(&other, 2);
	connect_pair(&one, &other);
	CHECK(post(&one, 1, IBV_WR_RDMA_WRITE, &other) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	/* It waits for a receive. */
	CHECK(post(&one, 2, IBV_WR_SEND, NULL) == 0);
	CHECK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0 && one.qp->state == IBV_QPS_SQD);
	CHECK(post(&one, 3, IBV_WR_RDMA_WRITE, &other) == 0);
	double until = seconds() + 0.05;
	while (seconds() < until)
		CHECK(ibv_poll_cq(one.cq, 1, &wc) == 0);
	no_event();
	CHECK(receive(&other, 10, 64) == 0);
	expect(&one, 2, IBV_WC_SUCCESS);
	event(one.qp, IBV_EVENT_SQ_DRAINED);
	CHECK(ibv_poll_cq(one.cq, 1, &wc) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE) == 0);
	expect(&one, 3, IBV_WC_SUCCESS);
	destroy(&one), destroy(&other);
}

/* Windows are bound and invalidated in RTS, before there is a peer: these requests need none. */
static void windows(void)
{
	struct end one, other;
	make(&one, 1), make(&other, 2);
	CHECK(ibv_destroy_qp(one.qp) == 0);
	struct ibv_qp_init_attr_ex attr = { .send_cq = one.cq, .recv_cq = one.cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 } };
	CHECK((one.qp = ibv_create_qp_ex(device, &attr)) != NULL);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(one.qp);
	struct ibv_mr *mr = ibv_reg_mr(pd, one.buffer, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mr && first && second);
	/* Programs pass the rights of this end too. */
	struct ibv_mw_bind_info info = { mr, (uintptr_t)one.buffer + 4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	CHECK(init(&one) == 0 && init(&other) == 0);
	CHECK(ibv_bind_mw(one.qp, first, &bind) == EINVAL);
	CHECK(rtr(&one, other.qp->qp_num, other.psn) == 0 && rts(&one) == 0);
	CHECK(ibv_bind_mw(one.qp, first, &bind) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	uint32_t stale = ibv_inc_rkey(second->rkey), key = ibv_inc_rkey(stale);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 2, ibv_wr_bind_mw(ex, second, stale, &info);
	ex->wr_id = 3, ibv_wr_local_inv(ex, stale);
	ex->wr_id = 4, ibv_wr_bind_mw(ex, second, key, &info);
	CHECK(ibv_wr_complete(ex) == 0);
	for (int wr_id = 2; wr_id <= 4; wr_id++)
		expect(&one, wr_id, IBV_WC_SUCCESS);
	/* All or none: a window of type 1, and an unknown key. */
	for (int is_key = 0; is_key < 2; is_key++) {
		ibv_wr_start(ex);
		ex->wr_id = 5, ibv_wr_local_inv(ex, key);
		if (is_key)
			ibv_wr_local_inv(ex, key + 0x10000);
		else
			ibv_wr_bind_mw(ex, first, key, &info);
		CHECK(ibv_wr_complete(ex) == EINVAL);
	}
	CHECK(rtr(&other, one.qp->qp_num, one.psn) == 0 && rts(&other) == 0);
	uint32_t keys[] = { first->rkey, key, stale };
	enum ibv_wc_status statuses[] = { IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR };
	for (int at = 0; at < 3; at++) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(&other, &sge, at, IBV_WR_RDMA_WRITE), *bad;
		other.buffer[0] = 'a' + at;
		wr.wr.rdma.remote_addr = (uintptr_t)one.buffer + 4096, wr.wr.rdma.rkey = keys[at];
		CHECK(ibv_post_send(other.qp, &wr, &bad) == 0);
		expect(&other, at, statuses[at]);
		CHECK(one.buffer[4096] == (at < 2 ? 'a' + at : 'b'));
	}
	CHECK(ibv_dealloc_mw(first) == 0 && ibv_dealloc_mw(second) == 0 && ibv_dereg_mr(mr) == 0);
	destroy(&one), destroy(&other);
}

/* A queue pair with a shared receive queue reports its last receive. */
static void last_receive(void)
{
	struct end end;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	make_with(&end, 1, 1);
	CHECK(init(&end) == 0 && ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0);
	event(end.qp, IBV_EVENT_QP_LAST_WQE_REACHED);
	destroy(&end);
}

/* The child of a fork does not answer at the port of its parent's queue pairs. */
static void forked(void)
{
	struct end one, other;
	int pipes[2];
	char octet;
	make(&one, 1), make(&other, 2);
	CHECK(pipe(pipes) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(pipes[1]);
		CHECK(read(pipes[0], &octet, 1) == 0);
		/* It listens at no inherited port. */
		for (int fd = 0; fd < 1 << 16; fd++) {
			struct sockaddr_storage local = { 0 };
			int listens = 0;
			socklen_t size = sizeof listens, length = sizeof local;
			if (getsockname(fd, (struct sockaddr *)&local, &length) == 0 && local.ss_family != AF_UNIX)
				CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens);
		}
		/* The parent's device is not the child's. */
		CHECK(ibv_destroy_qp(one.qp) == ENODEV);
		fflush(stdout);
		_exit(failures != 0);
	}
	close(pipes[0]);
	connect_pair(&one, &other);
	operations(&one, &other);
	close(pipes[1]);
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	destroy(&one), destroy(&other);
}

static struct rdma_cm_event *cm_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *found = NULL;
	CHECK(rdma_get_cm_event(channel, &found) == 0 && found->event == kind && found->status == 0);
	return found;
}

/* Attributes of connection management for a queue pair of the program. */
static void step(struct rdma_cm_id *id, struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask = 0;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(mask == (state == IBV_QPS_INIT ? INIT_MASK : state == IBV_QPS_RTR ? RTR_MASK : RTS_MASK));
	CHECK(ibv_modify_qp(end->qp, &attr, mask) == 0);
}

/* Identifiers without a queue pair: the program moves its own to RTS after the response, and establishes the connection. */
static void identifiers(void)
{
	struct end one, other;
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	struct rdma_cm_id *listener, *id, *child;
	struct sockaddr_in6 at = { .sin6_family = AF_INET6 };
	struct rdma_conn_param param = { .private_data = "data", .private_data_len = 5, .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_event *event;
	make(&one, 1), make(&other, 2);
	memcpy(&at.sin6_addr, &gid, 16);
	CHECK(rdma_create_id(passive, &listener, NULL, RDMA_PS_TCP) == 0 && rdma_create_id(active, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 4) == 0);
	at.sin6_port = rdma_get_src_port(listener);
	CHECK(rdma_establish(id) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000) == 0);
	rdma_ack_cm_event(cm_event(active, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(rdma_resolve_route(id, 1000) == 0);
	rdma_ack_cm_event(cm_event(active, RDMA_CM_EVENT_ROUTE_RESOLVED));
	step(id, &one, IBV_QPS_INIT);
	param.qp_num = one.qp->qp_num;
	CHECK(rdma_connect(id, &param) == 0);
	event = cm_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	rdma_ack_cm_event(event);
	step(child, &other, IBV_QPS_INIT);
	CHECK(receive(&other, 10, 64) == 0);
	step(child, &other, IBV_QPS_RTR), step(child, &other, IBV_QPS_RTS);
	param.qp_num = other.qp->qp_num;
	CHECK(rdma_accept(child, &param) == 0);
	event = cm_event(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.private_data_len >= 5 && strcmp(event->param.conn.private_data, "data") == 0);
	rdma_ack_cm_event(event);
	step(id, &one, IBV_QPS_RTR), step(id, &one, IBV_QPS_RTS);
	CHECK(rdma_establish(id) == 0 && rdma_establish(id) == -1);
	rdma_ack_cm_event(cm_event(passive, RDMA_CM_EVENT_ESTABLISHED));
	strcpy(one.buffer, "established");
	CHECK(post(&one, 1, IBV_WR_SEND, NULL) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	expect(&other, 10, IBV_WC_SUCCESS);
	CHECK(strcmp(other.buffer, "established") == 0);
	/* As any connection of identifiers. */
	CHECK(post(&one, 2, IBV_WR_SEND_WITH_IMM, NULL) == EINVAL);
	CHECK(rdma_disconnect(id) == 0);
	rdma_ack_cm_event(cm_event(passive, RDMA_CM_EVENT_DISCONNECTED));
	destroy(&one), destroy(&other);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(child) == 0 && rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(active), rdma_destroy_event_channel(passive);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "identity", identity }, { "refused", refused_changes }, { "pair", pair }, { "srq", with_srq }, { "itself", itself },
		{ "early", early }, { "many", many }, { "absent", absent }, { "errors", errors }, { "not-ready", not_ready },
		{ "timer", not_ready_timer },
		{ "last-receive", last_receive }, { "drained", drained }, { "identifiers", identifiers }, { "forked", forked },
		{ "windows", windows },
	};
	return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
