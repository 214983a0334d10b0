/* Queue pairs of type UD, on a RoCE device: both ends are in this process, on one UDP port. */
#define _GNU_SOURCE
#include "ends.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

enum { QKEY = 0x11111111, GRH = 40, PLACE = 4096 };
enum { UD_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY };

static int modify(struct end *end, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr;
	memset(&attr, 0xee, sizeof attr);
	attr.qp_state = state;
	attr.pkey_index = 0;
	attr.port_num = 1;
	attr.qkey = QKEY;
	attr.sq_psn = end->psn;
	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | mask);
}

static void make_ud(struct end *end, struct ibv_comp_channel *channel, int is_extended)
{
	memset(end, 0, sizeof *end);
	end->psn = 0xffffff;
	end->cq = ibv_create_cq(device, 256, NULL, channel, 0);
	end->buffer = aligned_alloc(4096, BYTES);
	memset(end->buffer, 0, BYTES);
	end->mr = ibv_reg_mr(pd, end->buffer, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr_ex attr = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (is_extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	end->qp = ibv_create_qp_ex(device, &attr);
	CHECK(end->cq && end->mr && end->qp && end->qp->qp_type == IBV_QPT_UD && end->qp->state == IBV_QPS_RESET);
}

static void start(struct end *end)
{
	CHECK(modify(end, IBV_QPS_INIT, UD_INIT) == 0 && modify(end, IBV_QPS_RTR, 0) == 0);
	CHECK(modify(end, IBV_QPS_RTS, IBV_QP_SQ_PSN) == 0);
}

static struct ibv_ah *handle(void)
{
	struct ibv_ah_attr address = { .grh = { .dgid = gid, .hop_limit = 1 }, .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &address);
	CHECK(ah != NULL);
	return ah;
}

static struct ibv_send_wr datagram(struct end *from, struct ibv_sge *sge, uint64_t wr_id, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_send_wr wr = request(from, sge, wr_id, IBV_WR_SEND);
	wr.wr.ud.ah = ah, wr.wr.ud.remote_qpn = qpn, wr.wr.ud.remote_qkey = QKEY;
	return wr;
}

static int receive_at(struct end *end, uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer + PLACE, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(end->qp, &wr, &bad);
}

/* Masks, errors and attributes of each state. */
static void states(void)
{
	struct end end;
	struct ibv_qp_attr found;
	struct ibv_qp_init_attr created;
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	struct ibv_ah *ah = handle();
	make_ud(&end, NULL, 0);
	struct ibv_send_wr wr = datagram(&end, &sge, 1, ah, end.qp->qp_num);
	CHECK(modify(&end, IBV_QPS_INIT, UD_INIT & ~IBV_QP_QKEY) == EINVAL);
	CHECK(modify(&end, IBV_QPS_INIT, UD_INIT | IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(receive_at(&end, 1, 64) == EINVAL && ibv_post_send(end.qp, &wr, &bad) == EINVAL);
	CHECK(modify(&end, IBV_QPS_INIT, UD_INIT) == 0 && receive_at(&end, 10, 256) == 0);
	CHECK(modify(&end, IBV_QPS_RTR, IBV_QP_DEST_QPN) == EINVAL && modify(&end, IBV_QPS_RTR, 0) == 0);
	CHECK(ibv_post_send(end.qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(modify(&end, IBV_QPS_RTS, 0) == EINVAL && modify(&end, IBV_QPS_RTS, IBV_QP_SQ_PSN) == 0);
	CHECK(ibv_query_qp(end.qp, &found, 0, &created) == 0 && created.qp_type == IBV_QPT_UD);
	CHECK(found.qp_state == IBV_QPS_RTS && found.qkey == QKEY && found.sq_psn == 0xffffff && found.port_num == 1);
	/* Held requests are sent when the program leaves SQD. */
	CHECK(modify(&end, IBV_QPS_SQD, 0) == 0 && ibv_post_send(end.qp, &wr, &bad) == 0);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0);
	CHECK(modify(&end, IBV_QPS_RTS, 0) == 0);
	expect(&end, 1, IBV_WC_SUCCESS);
	expect(&end, 10, IBV_WC_SUCCESS);
	/* Longer than the active MTU: SQE, in which receives continue. */
	sge.length = 8192;
	CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
	expect(&end, 1, IBV_WC_LOC_LEN_ERR);
	CHECK(ibv_query_qp(end.qp, &found, 0, &created) == 0 && found.qp_state == IBV_QPS_SQE && end.qp->state == IBV_QPS_SQE);
	sge.length = 64;
	CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
	expect(&end, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(receive_at(&end, 11, 256) == 0 && modify(&end, IBV_QPS_RTS, 0) == 0 && ibv_post_send(end.qp, &wr, &bad) == 0);
	expect(&end, 1, IBV_WC_SUCCESS);
	expect(&end, 11, IBV_WC_SUCCESS);
	CHECK(receive_at(&end, 12, 256) == 0 && modify(&end, IBV_QPS_ERR, 0) == 0);
	expect(&end, 12, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_post_send(end.qp, &wr, &bad) == 0);
	expect(&end, 1, IBV_WC_WR_FLUSH_ERR);
	uint32_t number = end.qp->qp_num;
	CHECK(modify(&end, IBV_QPS_RESET, 0) == 0 && end.qp->qp_num == number);
	start(&end);
	CHECK(receive_at(&end, 13, 256) == 0 && ibv_post_send(end.qp, &wr, &bad) == 0);
	expect(&end, 1, IBV_WC_SUCCESS);
	expect(&end, 13, IBV_WC_SUCCESS);
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy(&end);
}

/* Header, immediate data, and a reply to the source of a completion. */
static void messages(void)
{
	struct end one, other;
	struct ibv_sge sges[2];
	struct ibv_wc wc;
	struct ibv_send_wr *bad;
	struct ibv_ah *ah = handle();
	make_ud(&one, NULL, 0), make_ud(&other, NULL, 0);
	start(&one), start(&other);
	CHECK(receive_at(&other, 10, 1000) == 0 && receive_at(&other, 11, 1000) == 0);
	strcpy(one.buffer, "left"), strcpy(one.buffer + 100, "right");
	struct ibv_send_wr wr = datagram(&one, sges, 1, ah, other.qp->qp_num);
	sges[0].length = 4;
	sges[1] = (struct ibv_sge) { (uintptr_t)one.buffer + 100, 6, one.mr->lkey };
	wr.num_sge = 2, wr.opcode = IBV_WR_SEND_WITH_IMM, wr.imm_data = 0x12345678;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(completion(&one, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 1);
	CHECK(completion(&other, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 10);
	CHECK(wc.byte_len == GRH + 10 && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == 0x12345678);
	CHECK(wc.src_qp == one.qp->qp_num && wc.qp_num == other.qp->qp_num && wc.slid == 0 && wc.sl == 10);
	CHECK(strcmp(other.buffer + PLACE + GRH, "leftright") == 0);
	/* The reply, with inline data and the own key. */
	struct ibv_ah_attr address;
	struct ibv_grh *grh = (void *)(other.buffer + PLACE);
	CHECK(ibv_init_ah_from_wc(device, 1, &wc, grh, &address) == 0);
	CHECK(address.is_global == 1 && memcmp(&address.grh.dgid, &gid, 16) == 0);
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
	CHECK(back != NULL && receive_at(&one, 12, GRH + 5) == 0);
	char text[] = "reply";
	wr = datagram(&other, sges, 2, back, wc.src_qp);
	sges[0] = (struct ibv_sge) { (uintptr_t)text, 5, 0 };
	wr.send_flags |= IBV_SEND_INLINE, wr.wr.ud.remote_qkey = 0x80000000;
	CHECK(ibv_post_send(other.qp, &wr, &bad) == 0);
	expect(&other, 2, IBV_WC_SUCCESS);
	CHECK(completion(&one, &wc) == 1 && wc.wr_id == 12 && wc.byte_len == GRH + 5 && wc.wc_flags == IBV_WC_GRH);
	CHECK(memcmp(one.buffer + PLACE + GRH, "reply", 5) == 0);
	/* No data at all. */
	wr.num_sge = 0, wr.sg_list = NULL, wr.wr.ud.remote_qpn = other.qp->qp_num;
	CHECK(ibv_post_send(other.qp, &wr, &bad) == 0);
	expect(&other, 2, IBV_WC_SUCCESS);
	CHECK(completion(&other, &wc) == 1 && wc.wr_id == 11 && wc.byte_len == GRH);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0);
	destroy(&one), destroy(&other);
}

/* Dropped without an error at the sender: a fence message shows that nothing else has arrived. */
static void dropped(void)
{
	struct end one, other;
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	struct ibv_ah *ah = handle();
	make_ud(&one, NULL, 0), make_ud(&other, NULL, 0);
	start(&one), start(&other);
	CHECK(receive_at(&other, 10, GRH + 8) == 0);
	struct ibv_send_wr wr = datagram(&one, &sge, 1, ah, other.qp->qp_num);
	sge.length = 9;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	sge.length = 8;
	wr.wr.ud.remote_qkey = QKEY + 1;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	wr.wr.ud.remote_qkey = QKEY;
	for (int absent = 0; absent < 3; absent++) {
		wr.wr.ud.remote_qpn = (uint32_t[]) { other.qp->qp_num ^ 0x400000, 0, 0xffffff }[absent];
		CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
		expect(&one, 1, IBV_WC_SUCCESS);
	}
	wr.wr.ud.remote_qpn = other.qp->qp_num;
	strcpy(one.buffer, "fence");
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	expect(&other, 10, IBV_WC_SUCCESS);
	CHECK(strcmp(other.buffer + PLACE + GRH, "fence") == 0);
	/* Refused at the post. */
	static const enum ibv_wr_opcode others[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
		IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW };
	for (size_t at = 0; at < sizeof others / sizeof *others; at++) {
		wr.opcode = others[at];
		CHECK(ibv_post_send(one.qp, &wr, &bad) == EINVAL && bad == &wr);
	}
	wr.opcode = IBV_WR_SEND, wr.wr.ud.ah = NULL;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == EINVAL);
	CHECK(ibv_attach_mcast(one.qp, &gid, 0) == EOPNOTSUPP);
	/* A request of memory that is not registered is not sent. */
	wr.wr.ud.ah = ah, sge.lkey ^= 0x100;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	expect(&one, 1, IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_poll_cq(other.cq, 1, &wc) == 0);
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy(&one), destroy(&other);
}

/* Requests that are built call by call, read entry by entry. */
static void built(void)
{
	struct end one, other;
	struct ibv_ah *ah = handle();
	make_ud(&one, NULL, 1);
	memset(&other, 0, sizeof other);
	struct ibv_cq_init_attr_ex cq = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *read = ibv_create_cq_ex(device, &cq);
	CHECK(read != NULL);
	make_ud(&other, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = other.cq, .recv_cq = ibv_cq_ex_to_cq(read), .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(ibv_destroy_qp(other.qp) == 0 && (other.qp = ibv_create_qp(pd, &attr)) != NULL);
	start(&one), start(&other);
	CHECK(receive_at(&other, 10, 1000) == 0);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(one.qp);
	CHECK(qp != NULL && ibv_qp_to_qp_ex(other.qp) == NULL);
	ibv_wr_start(qp);
	qp->wr_id = 1, qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, 0x12345678);
	ibv_wr_set_ud_addr(qp, ah, other.qp->qp_num, QKEY);
	ibv_wr_set_sge(qp, one.mr->lkey, (uintptr_t)one.buffer, 16);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(&one, 1, IBV_WC_SUCCESS);
	struct ibv_poll_cq_attr none = { 0 };
	double end_at = seconds() + 20;
	int polled;
	while ((polled = ibv_start_poll(read, &none)) == ENOENT && seconds() < end_at)
		;
	CHECK(polled == 0 && read->status == IBV_WC_SUCCESS && read->wr_id == 10);
	CHECK(ibv_wc_read_byte_len(read) == GRH + 16 && ibv_wc_read_src_qp(read) == one.qp->qp_num);
	CHECK(ibv_wc_read_wc_flags(read) == (IBV_WC_GRH | IBV_WC_WITH_IMM) && ibv_wc_read_imm_data(read) == 0x12345678);
	CHECK(ibv_wc_read_sl(read) == 10);
	ibv_end_poll(read);
	/* Without a destination, nothing is posted. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, one.mr->lkey, (uintptr_t)one.buffer, 16);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	struct ibv_qp_init_attr_ex writes = { .send_cq = one.cq, .recv_cq = one.cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(ibv_create_qp_ex(device, &writes) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy(&one), destroy(&other);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(read)) == 0);
}

/* A program that sleeps on a completion channel is woken by a datagram of another process. */
static void events(void)
{
	struct end one;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device);
	struct ibv_wc wc;
	make_ud(&one, channel, 0);
	start(&one);
	CHECK(receive_at(&one, 10, 1000) == 0 && ibv_req_notify_cq(one.cq, 1) == 0);
	uint32_t number = one.qp->qp_num;
	pid_t child = fork();
	if (child == 0) {
		/* A device of its own: the parent's objects are not usable here. */
		struct ibv_device **list = ibv_get_device_list(NULL);
		device = ibv_open_device(list[0]);
		pd = ibv_alloc_pd(device);
		failures = 0;
		struct end other;
		struct ibv_sge sge;
		struct ibv_send_wr *bad;
		make_ud(&other, NULL, 0), start(&other);
		struct ibv_send_wr wr = datagram(&other, &sge, 1, handle(), number);
		wr.send_flags |= IBV_SEND_SOLICITED;
		CHECK((other.qp->qp_num & 0xffff) != (number & 0xffff) && ibv_post_send(other.qp, &wr, &bad) == 0);
		expect(&other, 1, IBV_WC_SUCCESS);
		_exit(failures);
	}
	struct pollfd ready = { channel->fd, POLLIN };
	CHECK(poll(&ready, 1, 20000) == 1);
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(channel, &cq, &context) == 0 && cq == one.cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(completion(&one, &wc) == 1 && wc.wr_id == 10 && wc.byte_len == GRH + 64);
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	destroy(&one);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* More queue pairs than numbers of one port; all of them receive. */
static void many(void)
{
	enum { COUNT = 300 };
	struct end one;
	struct ibv_ah *ah = handle();
	struct ibv_qp *all[COUNT];
	struct ibv_wc wc;
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	make_ud(&one, NULL, 0), start(&one);
	struct ibv_qp_init_attr attr = { .send_cq = one.cq, .recv_cq = one.cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	for (int at = 0; at < COUNT; at++) {
		struct end end = { .qp = all[at] = ibv_create_qp(pd, &attr), .mr = one.mr, .buffer = one.buffer };
		CHECK(end.qp != NULL);
		start(&end);
		CHECK(receive_at(&end, 1000 + at, 1000) == 0);
	}
	for (int at = 0; at < COUNT; at++) {
		struct ibv_send_wr wr = datagram(&one, &sge, at, ah, all[at]->qp_num);
		wr.send_flags = 0;
		CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
		CHECK(completion(&one, &wc) == 1 && wc.wr_id == (uint64_t)(1000 + at) && wc.qp_num == all[at]->qp_num);
	}
	for (int at = 0; at < COUNT; at++)
		CHECK(ibv_destroy_qp(all[at]) == 0);
	CHECK(ibv_destroy_ah(ah) == 0);
	destroy(&one);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = { { "states", states }, { "messages", messages }, { "dropped", dropped },
		{ "built", built }, { "events", events }, { "many", many } };
	return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
