/* Two ends in one process that the program connects itself, on a RoCE device. */
#include <infiniband/verbs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)

enum { BYTES = 1 << 16, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *device;
static struct ibv_pd *pd;
static union ibv_gid gid;

struct end { struct ibv_qp *qp; struct ibv_cq *cq; struct ibv_srq *srq; struct ibv_mr *mr; char *buffer; uint32_t psn; };

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static inline void create_qp(struct end *end)
{
	struct ibv_qp_init_attr attr = { .send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 } };
	end->qp = ibv_create_qp(pd, &attr);
	CHECK(end->qp != NULL && end->qp->state == IBV_QPS_RESET && attr.cap.max_inline_data >= 64);
}

static inline void make_with(struct end *end, uint32_t psn, int has_srq)
{
	memset(end, 0, sizeof *end);
	end->psn = psn;
	end->cq = ibv_create_cq(device, 256, NULL, NULL, 0);
	CHECK(end->cq != NULL);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	if (has_srq)
		CHECK((end->srq = ibv_create_srq(pd, &srq)) != NULL);
	end->buffer = aligned_alloc(4096, BYTES);
	memset(end->buffer, 0, BYTES);
	end->mr = ibv_reg_mr(pd, end->buffer, BYTES, ALL);
	CHECK(end->mr != NULL);
	create_qp(end);
}

static inline void make(struct end *end, uint32_t psn) { make_with(end, psn, 0); }

static inline void destroy(struct end *end)
{
	CHECK(ibv_destroy_qp(end->qp) == 0);
	if (end->srq)
		CHECK(ibv_destroy_srq(end->srq) == 0);
	CHECK(ibv_dereg_mr(end->mr) == 0);
	CHECK(ibv_destroy_cq(end->cq) == 0);
	free(end->buffer);
}

enum { INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS };
enum { RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER };
enum { RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	IBV_QP_MAX_QP_RD_ATOMIC };

static inline int init_with(struct end *end, int access)
{
	struct ibv_qp_attr attr;
	memset(&attr, 0xee, sizeof attr);
	attr.qp_state = IBV_QPS_INIT;
	attr.pkey_index = 0;
	attr.port_num = 1;
	attr.qp_access_flags = access;
	return ibv_modify_qp(end->qp, &attr, INIT_MASK);
}

static inline int init(struct end *end) { return init_with(end, ALL); }

static inline void rtr_attributes(struct ibv_qp_attr *attr, struct end *end, uint32_t qpn, uint32_t psn)
{
	memset(attr, 0xee, sizeof *attr);
	attr->qp_state = IBV_QPS_RTR;
	attr->path_mtu = IBV_MTU_1024;
	attr->dest_qp_num = qpn;
	attr->rq_psn = psn;
	attr->max_dest_rd_atomic = 4;
	attr->min_rnr_timer = 12;
	memset(&attr->ah_attr, 0, sizeof attr->ah_attr);
	attr->ah_attr.grh.dgid = gid;
	attr->ah_attr.grh.hop_limit = 1;
	attr->ah_attr.is_global = 1;
	attr->ah_attr.port_num = 1;
}

static inline int rtr(struct end *end, uint32_t qpn, uint32_t psn)
{
	struct ibv_qp_attr attr;
	rtr_attributes(&attr, end, qpn, psn);
	return ibv_modify_qp(end->qp, &attr, RTR_MASK);
}

static inline int rts_with(struct end *end, int rnr_retry)
{
	struct ibv_qp_attr attr;
	memset(&attr, 0xee, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = rnr_retry;
	attr.sq_psn = end->psn;
	attr.max_rd_atomic = 4;
	return ibv_modify_qp(end->qp, &attr, RTS_MASK);
}

static inline int rts(struct end *end) { return rts_with(end, 7); }

/* One end after the other, in one thread: no call waits for the peer. */
static inline void connect_pair(struct end *one, struct end *other)
{
	CHECK(init(one) == 0 && init(other) == 0);
	CHECK(rtr(one, other->qp->qp_num, other->psn) == 0 && rts(one) == 0);
	CHECK(rtr(other, one->qp->qp_num, one->psn) == 0 && rts(other) == 0);
}

static inline int completion(struct end *end, struct ibv_wc *wc)
{
	double end_at = seconds() + 20;
	int count;
	while ((count = ibv_poll_cq(end->cq, 1, wc)) == 0 && seconds() < end_at)
		;
	return count;
}

static inline void expect(struct end *end, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .status = -1 };
	CHECK(completion(end, &wc) == 1);
	if (wc.wr_id != wr_id || wc.status != status) {
		failures++;
		printf("request %d: %s; expected request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), (int)wr_id,
			ibv_wc_status_str(status));
	}
	CHECK(wc.qp_num == end->qp->qp_num);
}

static inline int receive(struct end *end, uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = length ? 1 : 0 }, *bad;
	return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);
}

static inline struct ibv_send_wr request(struct end *end, struct ibv_sge *sge, uint64_t wr_id, enum ibv_wr_opcode opcode)
{
	*sge = (struct ibv_sge) { (uintptr_t)end->buffer, 64, end->mr->lkey };
	return (struct ibv_send_wr) { .wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED };
}

static inline int post(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, struct end *to)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(end, &sge, wr_id, opcode), *bad;
	if (to) {
		wr.wr.rdma.remote_addr = (uintptr_t)to->buffer + 4096;
		wr.wr.rdma.rkey = to->mr->rkey;
	}
	return ibv_post_send(end->qp, &wr, &bad);
}

/* Test of a program, by name. */
struct test { const char *name; void (*run)(void); };

/* Runs the tests that the arguments name; returns the exit status. */
static inline int run_tests(const struct test *tests, size_t length, int argc, char **argv)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && (device = ibv_open_device(list[0])) != NULL);
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(device)) != NULL && ibv_query_gid(device, 1, 0, &gid) == 0);
	for (int arg = 1; arg < argc; arg++)
		for (size_t at = 0; at < length; at++)
			if (strcmp(argv[arg], tests[at].name) == 0) {
				int before = failures;
				tests[at].run();
				if (failures != before)
					printf("in %s\n", argv[arg]);
			}
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(device) == 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
