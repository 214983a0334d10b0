/* Many queue pairs between all of several processes, connected, used and destroyed in rounds.
 *
 *   stress PROCESSES QUEUE_PAIRS ROUNDS
 *
 * QUEUE_PAIRS is the number between each two processes. In each round, both ends of a queue pair send a message and
 * write another one; all are compared. Descriptors must not grow after the first quarter of the rounds, and memory not
 * after the first half: the allocator reaches its largest size only then.
 */
#include "ends.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum {
	MESSAGE = 512,                 /* octets of a Send, and of a Write */
	GROWTH_MAX_KIB = 8 << 10,      /* of VmRSS, after the first half */
	SECONDS_MAX = 900,
};

struct end {
	union ibv_gid gid;
	uint32_t qpn, psn, rkey;
	uint64_t address;
};

static int processes, queue_pairs, rounds;
/* Socket to the parent, and this process. */
static int parent, me;

/* Tables of all processes: each sends its own. */
static void gather(const void *mine, void *all, size_t length)
{
	tell(parent, mine, length);
	learn(parent, all, length * processes);
}

static void meet_all(void)
{
	char here = 'm', all[processes];
	gather(&here, all, 1);
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	must(directory != NULL, "opendir of /proc/self/fd");
	int count = 0;
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 3;
}

static int memory_kib(void)
{
	char line[200];
	int kib = -1;
	FILE *status = fopen("/proc/self/status", "r");
	must(status != NULL, "fopen of /proc/self/status");
	while (kib < 0 && fgets(line, sizeof line, status))
		sscanf(line, "VmRSS: %d", &kib);
	fclose(status);
	return kib;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned seed(int round, int from, int to, int number)
{
	return ((round * 64u + from) * 64u + to) * 16384u + number;
}

/* Counts that the parent prints. */
struct report {
	int first_descriptors, last_descriptors, connected_kib, first_kib, last_kib;
	double connect_seconds;
};

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	must_return_zero(ibv_post_send(qp, wr, &bad), "ibv_post_send");
}

/* Connects, transfers, compares and destroys once; returns the seconds until all are in RTS and have sent. `kib` is the
 * memory then. */
static double run_round(struct ibv_context *context, int mtu, const union ibv_gid *gid, int round, int *kib)
{
	int count = (processes - 1) * queue_pairs;
	size_t length = (size_t)count * MESSAGE;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	must(pd != NULL, "ibv_alloc_pd");
	struct ibv_cq *cq = ibv_create_cq(context, 3 * count, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	/* Sent messages, received ones, and those that peers write. */
	unsigned char *memory = malloc(3 * length);
	must(memory != NULL, "malloc");
	memset(memory, 0xee, 3 * length);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 3 * length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(mr != NULL, "ibv_reg_mr");
	unsigned char *sent = memory, *received = memory + length, *written = memory + 2 * length;

	struct ibv_qp **qps = calloc(count, sizeof *qps);
	struct end *mine = calloc(processes * queue_pairs, sizeof *mine);
	struct end *all = calloc((size_t)processes * processes * queue_pairs, sizeof *all);
	must(qps && mine && all, "calloc");
	double begun = now();
	for (int i = 0; i < count; i++) {
		int peer = i / queue_pairs + (i / queue_pairs >= me), number = i % queue_pairs;
		struct ibv_qp_init_attr attributes = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 2, 1, 1, 1, 0 },
		};
		qps[i] = ibv_create_qp(pd, &attributes);
		must(qps[i] != NULL, "ibv_create_qp");
		struct ibv_qp_attr init = {
			.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		};
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		must_return_zero(ibv_modify_qp(qps[i], &init, mask), "ibv_modify_qp to INIT");
		struct ibv_sge to = { (uintptr_t)received + (size_t)i * MESSAGE, MESSAGE, mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &to, .num_sge = 1 }, *bad;
		must_return_zero(ibv_post_recv(qps[i], &receive, &bad), "ibv_post_recv");
		mine[peer * queue_pairs + number] = (struct end){
			*gid, qps[i]->qp_num, random() & 0xffffff, mr->rkey, (uintptr_t)written + (size_t)i * MESSAGE,
		};
	}
	gather(mine, all, processes * queue_pairs * sizeof *mine);
	for (int i = 0; i < count; i++) {
		int peer = i / queue_pairs + (i / queue_pairs >= me), number = i % queue_pairs;
		struct end *here = &mine[peer * queue_pairs + number];
		struct end *there = &all[((size_t)peer * processes + me) * queue_pairs + number];
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = there->qpn, .rq_psn = there->psn,
			.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = there->gid, .hop_limit = 1 } },
		};
		int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
			| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		must_return_zero(ibv_modify_qp(qps[i], &rtr, mask), "ibv_modify_qp to RTR");
		struct ibv_qp_attr rts = {
			.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = here->psn,
			.max_rd_atomic = 1,
		};
		mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
			| IBV_QP_MAX_QP_RD_ATOMIC;
		must_return_zero(ibv_modify_qp(qps[i], &rts, mask), "ibv_modify_qp to RTS");
		fill(sent + (size_t)i * MESSAGE, MESSAGE, seed(round, me, peer, number));
		struct ibv_sge from = { (uintptr_t)sent + (size_t)i * MESSAGE, MESSAGE, mr->lkey };
		struct ibv_send_wr send = {
			.wr_id = count + i, .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1,
			.send_flags = IBV_SEND_SIGNALED,
		};
		post(qps[i], &send);
		struct ibv_send_wr write = send;
		write.wr_id = 2 * count + i;
		write.opcode = IBV_WR_RDMA_WRITE;
		write.wr.rdma.remote_addr = there->address;
		write.wr.rdma.rkey = there->rkey;
		post(qps[i], &write);
	}
	for (int done = 0; done < 3 * count; done++) {
		static const enum ibv_wc_opcode opcodes[] = { IBV_WC_RECV, IBV_WC_SEND, IBV_WC_RDMA_WRITE };
		struct ibv_wc wc = completed(cq, "completions of a round");
		int i = wc.wr_id % count;
		expect("opcode", wc.opcode, opcodes[wc.wr_id / count]);
		expect("qp_num", wc.qp_num, qps[i]->qp_num);
		if (wc.opcode == IBV_WC_RECV)
			expect("byte_len", wc.byte_len, MESSAGE);
	}
	double took = now() - begun;
	meet_all();
	*kib = memory_kib();
	for (int i = 0; i < count; i++) {
		int peer = i / queue_pairs + (i / queue_pairs >= me), number = i % queue_pairs;
		unsigned of_peer = seed(round, peer, me, number);
		compare("received message", received + (size_t)i * MESSAGE, MESSAGE, of_peer);
		compare("written message", written + (size_t)i * MESSAGE, MESSAGE, of_peer);
	}
	for (int i = 0; i < count; i++)
		must_return_zero(ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
	must_return_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
	must_return_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
	must_return_zero(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	free(memory);
	free(qps);
	free(mine);
	free(all);
	meet_all();
	return took;
}

static void run_process(void)
{
	limit_time(SECONDS_MAX);
	srandom(me + 1);
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	must(list && count > 0, "ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(list[0]);
	must(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	must_return_zero(ibv_query_port(context, 1, &port), "ibv_query_port");
	union ibv_gid gid;
	must(!ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");

	int first = rounds / 4;
	struct report report = { 0 };
	for (int round = 0; round < rounds; round++) {
		int connected_kib;
		report.connect_seconds += run_round(context, port.active_mtu, &gid, round, &connected_kib) / rounds;
		if (!round)
			report.connected_kib = connected_kib;
		if (round < first)
			continue;
		int count = descriptors(), kib = memory_kib();
		if (round == first) {
			report.first_descriptors = count;
			report.first_kib = kib;
		}
		if (round == rounds / 2)
			report.first_kib = kib;
		/* Connections may close after the queue pair is destroyed, within a bounded time. */
		call = "descriptors and memory";
		for (double until = now() + 15; count > report.first_descriptors && now() < until; count = descriptors())
			usleep(10000);
		int is_larger = round > rounds / 2 && kib > report.first_kib + GROWTH_MAX_KIB;
		if (count > report.first_descriptors || is_larger) {
			fprintf(stderr, "round %d: %d descriptors and %d KiB, expected at most %d and %d\n", round, count,
				kib, report.first_descriptors, report.first_kib + GROWTH_MAX_KIB);
			exit(1);
		}
		report.last_descriptors = count;
		report.last_kib = kib;
	}
	must_return_zero(ibv_close_device(context), "ibv_close_device");
	tell(parent, &report, sizeof report);
	exit(0);
}

/* Passes data between the processes: `length` octets of each, to all. */
static void pass(const int *sockets, size_t length)
{
	char *all = malloc(length * processes);
	must(all != NULL, "malloc");
	for (int i = 0; i < processes; i++)
		learn(sockets[i], all + i * length, length);
	for (int i = 0; i < processes; i++)
		tell(sockets[i], all, length * processes);
	free(all);
}

int main(int argc, char **argv)
{
	if (argc == 4) {
		processes = atoi(argv[1]);
		queue_pairs = atoi(argv[2]);
		rounds = atoi(argv[3]);
	}
	if (processes < 2 || processes > 64 || queue_pairs < 1 || queue_pairs > 16384 || rounds < 4) {
		fprintf(stderr, "usage: stress PROCESSES QUEUE_PAIRS ROUNDS: 2 to 64, 1 to 16384, 4 or more\n");
		return 2;
	}
	/* A connection has a descriptor. */
	struct rlimit limit;
	must(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	limit.rlim_cur = limit.rlim_max;
	must(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
	limit_time(SECONDS_MAX);
	int sockets[processes];
	for (me = 0; me < processes; me++) {
		int pair[2];
		must(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
		pid_t child = fork();
		must(child >= 0, "fork");
		if (!child) {
			for (int i = 0; i < me; i++)
				close(sockets[i]);
			close(pair[0]);
			parent = pair[1];
			run_process();
		}
		close(pair[1]);
		sockets[me] = pair[0];
	}
	for (int round = 0; round < rounds; round++) {
		pass(sockets, processes * queue_pairs * sizeof(struct end));
		pass(sockets, 1);
		pass(sockets, 1);
	}
	struct report worst = { 0 };
	for (int i = 0; i < processes; i++) {
		struct report report;
		learn(sockets[i], &report, sizeof report);
		if (!i || report.last_kib - report.first_kib > worst.last_kib - worst.first_kib)
			worst = report;
	}
	for (int i = 0; i < processes; i++) {
		int status;
		must(wait(&status) >= 0, "wait");
		expect("exit status of a process", status, 0);
	}
	printf("%d processes, %d queue pairs between each two, %d rounds of %.3f s; connected first: %d KiB; before and "
		"after the last half: %d and %d descriptors, %d and %d KiB\n", processes, queue_pairs, rounds,
		worst.connect_seconds, worst.connected_kib, worst.first_descriptors, worst.last_descriptors,
		worst.first_kib, worst.last_kib);
	return 0;
}
