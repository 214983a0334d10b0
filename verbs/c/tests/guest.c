/* The library as a guest: signals, timers and children of the program. The argument names the case. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)
#define FAILS(call, with) do { errno = 0; CHECK((call) == -1 && errno == (with)); } while (0)

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static struct sockaddr_in at = { .sin_family = AF_INET };

static void bind_there(void)
{
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK((channel = rdma_create_event_channel()) != NULL);
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
	at.sin_port = rdma_get_src_port(listener);
}

static void listen_there(void)
{
	bind_there();
	CHECK(rdma_listen(listener, 8) == 0);
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}

static struct rdma_cm_id *expect(struct rdma_event_channel *from, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = NULL;
	if (rdma_get_cm_event(from, &event)) {
		CHECK(!"an event");
		return NULL;
	}
	if (event->event != kind) {
		failures++;
		printf("%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
	}
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

/* Connects to the listener, and waits for the end if it is to. */
static int connect_there(int waits)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(own, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 1000) == 0);
	expect(own, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect(own, RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_qp(id);
	CHECK(rdma_connect(id, &param) == 0);
	if (!waits)
		return 0;
	expect(own, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_disconnect(id) == 0);
	expect(own, RDMA_CM_EVENT_DISCONNECTED);
	return failures;
}

/* A process that connects. */
static pid_t client(int waits)
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		failures = 0;
		connect_there(waits);
		fflush(stdout);
		if (!waits)
			pause();
		_exit(failures != 0);
	}
	return pid;
}

/* Serves one connection until its end. */
static void serve(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!id)
		return;
	create_qp(id);
	CHECK(rdma_accept(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static int ends_well(pid_t pid)
{
	int status;
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- signals ---- */

static uint64_t mask_of(const char *task)
{
	char path[64], line[256];
	unsigned long long mask = 0;
	FILE *file;
	snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
	if (!(file = fopen(path, "r")))
		return ~0ull;
	while (fgets(line, sizeof line, file))
		sscanf(line, "SigBlk: %llx", &mask);
	fclose(file);
	return mask;
}

/* Threads but this one; all block what is none of a fault. The C library blocks that too where they start and end. */
static int other_threads(void)
{
	static const int of_faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
	uint64_t expected = ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31);
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int count = 0;
	for (size_t i = 0; i < sizeof of_faults / sizeof *of_faults; i++)
		expected &= ~(1ull << (of_faults[i] - 1));
	while ((task = readdir(tasks))) {
		uint64_t mask;
		if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
			continue;
		mask = mask_of(task->d_name);
		if (mask == ~0ull)
			continue; /* it has ended */
		count++;
		if ((mask & expected) != expected) {
			failures++;
			printf("thread %s blocks %llx\n", task->d_name, (unsigned long long)mask);
		}
	}
	closedir(tasks);
	return count;
}

static volatile sig_atomic_t arrived, elsewhere;
static void handler(int signal)
{
	(void)signal;
	arrived++;
	if (syscall(SYS_gettid) != getpid())
		elsewhere++;
}

static sigjmp_buf back;
static void fault(int signal) { siglongjmp(back, signal); }

static void signals(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct itimerspec each = { { 0, 2000000 }, { 0, 2000000 } };
	struct sigevent notify = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3 };
	struct signalfd_siginfo info;
	timer_t timer;
	sigset_t set;
	int fd, signal, one = 1;
	pid_t pid;
	struct timespec limit = { 10, 0 };

	listen_there();
	pid = client(1);
	serve();
	CHECK(ends_well(pid));

	/* rsockets with keep-alive, and a connect that is repeated: all threads that there are. */
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
	CHECK(other_threads() >= 2);
	{
		struct sockaddr_in none = at;
		none.sin_port = htons(1);
		CHECK(rconnect(fd, (struct sockaddr *)&none, sizeof none) == -1);
		other_threads();
	}
	CHECK(rclose(fd) == 0);

	/* Blocked now, after the library has its threads. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGTERM);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	fd = signalfd(-1, &set, SFD_CLOEXEC);
	CHECK(kill(getpid(), SIGUSR2) == 0);
	CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
	CHECK(kill(getpid(), SIGTERM) == 0);
	CHECK(sigwait(&set, &signal) == 0 && signal == SIGTERM);
	CHECK(kill(getpid(), SIGUSR2) == 0);
	CHECK(sigtimedwait(&set, NULL, &limit) == SIGUSR2);

	/* Handlers of the program run on its thread. */
	sigaction(SIGCHLD, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGPROF, &action, NULL);
	sigaction(SIGRTMIN + 3, &action, NULL);
	for (int i = 0; i < 8; i++) {
		arrived = 0;
		if (!(pid = fork()))
			_exit(0);
		CHECK(ends_well(pid));
		CHECK(arrived == 1);
	}
	arrived = 0;
	setitimer(ITIMER_REAL, &every, NULL);
	while (arrived < 20)
		pause();
	setitimer(ITIMER_REAL, &never, NULL);
	arrived = 0;
	CHECK(timer_create(CLOCK_MONOTONIC, &notify, &timer) == 0);
	timer_settime(timer, 0, &each, NULL);
	while (arrived < 20)
		pause();
	timer_delete(timer);
	CHECK(elsewhere == 0);

	/* Its own handler of faults. */
	action.sa_handler = fault;
	sigaction(SIGSEGV, &action, NULL);
	signal = sigsetjmp(back, 1);
	if (!signal)
		*(volatile int *)8 = 1;
	CHECK(signal == SIGSEGV);
	CHECK(system("exit 7") == 7 << 8);
}

/* ---- children ---- */

/* A process that listens, has a child, and ends; the child serves, and says how that went by the pipe. */
static void server(const char *how, int report)
{
	int is = strcmp(how, "bound") == 0, rsock = -1, set = -1;
	pid_t pid;
	char port[2];
	if (strcmp(how, "rsocket") == 0) {
		socklen_t length = sizeof at;
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		rsock = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(rbind(rsock, (struct sockaddr *)&at, sizeof at) == 0 && rlisten(rsock, 8) == 0);
		CHECK(rgetsockname(rsock, (struct sockaddr *)&at, &length) == 0);
	} else if (is) {
		bind_there();
	} else {
		listen_there();
	}
	memcpy(port, &at.sin_port, 2);
	if (strcmp(how, "epoll") == 0) {
		struct epoll_event wanted = { .events = EPOLLIN };
		set = epoll_create1(0);
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, channel->fd, &wanted) == 0);
	}
	if ((pid = fork())) {
		if (strcmp(how, "alive") == 0)
			waitpid(pid, NULL, 0);
		else if (strcmp(how, "prompt") == 0)
			_exit(0);
		exit(failures != 0);
	}
	setsid();
	if (strcmp(how, "double") == 0 && fork())
		_exit(0);
	alarm(20);
	if (is)
		CHECK(rdma_listen(listener, 8) == 0);
	if (strcmp(how, "alive") == 0) {
		/* From its first wait on, connections are the child's. */
		struct rdma_cm_event *event;
		CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
		FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
		CHECK(fcntl(channel->fd, F_SETFL, 0) == 0);
	}
	CHECK(write(report, port, 2) == 2);
	if (strcmp(how, "polled") == 0)
		CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, 15000) == 1);
	if (set >= 0) {
		struct epoll_event found;
		CHECK(epoll_wait(set, &found, 1, 15000) == 1);
	}
	if (rsock >= 0) {
		char text[8];
		int fd = raccept(rsock, NULL, NULL);
		CHECK(fd >= 0 && rrecv(fd, text, 5, MSG_WAITALL) == 5 && rrecv(fd, text, 8, 0) == 0);
		CHECK(rclose(fd) == 0 && rclose(rsock) == 0);
	} else {
		serve();
		CHECK(rdma_destroy_id(listener) == 0);
		rdma_destroy_event_channel(channel);
	}
	fflush(stdout);
	CHECK(write(report, failures ? "n" : "y", 1) == 1);
	_exit(0);
}

static void daemon_after_listen(const char *how)
{
	int ends[2];
	char port[2], said = 0;
	pid_t pid;
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	if (!(pid = fork())) {
		close(ends[0]);
		server(how, ends[1]);
	}
	close(ends[1]);
	CHECK(read(ends[0], port, 2) == 2);
	/* Not before the parent has ended: its end must not take the listener along. */
	if (strcmp(how, "alive"))
		CHECK(ends_well(pid));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	memcpy(&at.sin_port, port, 2);
	if (strcmp(how, "rsocket") == 0) {
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(rconnect(fd, (struct sockaddr *)&at, sizeof at) == 0);
		CHECK(rsend(fd, "hello", 5, 0) == 5 && rclose(fd) == 0);
	} else {
		connect_there(1);
	}
	CHECK(read(ends[0], &said, 1) == 1 && said == 'y');
	if (strcmp(how, "alive") == 0)
		CHECK(ends_well(pid));
	close(ends[0]);
}

/* A child of a process with a connection: it waits for nothing, and may close its copies. */
static void child_of_connected(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct ibv_comp_channel *completions;
	struct ibv_async_event asynchronous;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	void *context;
	int gate[2];
	char octet;
	pid_t pid = -1, other;

	listen_there();
	pid = client(1);
	id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(id);
	CHECK(rdma_migrate_id(id, own) == 0);
	completions = ibv_create_comp_channel(id->verbs);
	cq = ibv_create_cq(id->verbs, 4, NULL, completions, 0);
	CHECK(pipe2(gate, O_CLOEXEC) == 0);
	if (!(other = fork())) {
		alarm(10);
		failures = 0;
		FAILS(rdma_get_cm_event(own, &event), ENODEV);
		FAILS(ibv_get_cq_event(completions, &cq, &context), ENODEV);
		FAILS(ibv_get_async_event(id->verbs, &asynchronous), ENODEV);
		FAILS(rdma_accept(id, &param), ENODEV);
		CHECK(rdma_destroy_id(listener) == 0);
		fflush(stdout);
		CHECK(write(gate[1], failures ? "n" : "y", 1) == 1);
		/* It has the parent's sockets for as long as it lives. */
		close(gate[1]);
		pause();
		_exit(0);
	}
	CHECK(read(gate[0], &octet, 1) == 1 && octet == 'y');
	CHECK(rdma_accept(id, &param) == 0);
	expect(own, RDMA_CM_EVENT_ESTABLISHED);
	expect(own, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(ends_well(pid));
	/* The parent goes on listening, and a reset reaches the peer while the child lives. */
	pid = client(1);
	serve();
	CHECK(ends_well(pid));
	if (!(pid = fork())) {
		failures = 0;
		alarm(10);
		struct rdma_event_channel *mine = rdma_create_event_channel();
		struct rdma_cm_id *peer;
		CHECK(rdma_create_id(mine, &peer, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(peer, NULL, (struct sockaddr *)&at, 1000) == 0);
		expect(mine, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rdma_resolve_route(peer, 1000) == 0);
		expect(mine, RDMA_CM_EVENT_ROUTE_RESOLVED);
		create_qp(peer);
		CHECK(rdma_connect(peer, &param) == 0);
		expect(mine, RDMA_CM_EVENT_ESTABLISHED);
		expect(mine, RDMA_CM_EVENT_DISCONNECTED);
		fflush(stdout);
		_exit(failures != 0);
	}
	id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(id);
	CHECK(rdma_accept(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	{
		pid_t holds = fork();
		if (!holds) {
			pause();
			_exit(0);
		}
		rdma_destroy_qp(id);
		CHECK(rdma_destroy_id(id) == 0);
		CHECK(ends_well(pid));
		kill(holds, SIGKILL);
		waitpid(holds, NULL, 0);
	}
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

/* ---- a requester that leaves ---- */

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = 0;
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

static void requester_leaves(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id;
	struct ibv_recv_wr wr = { .wr_id = 77 }, *bad;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	struct timespec now, began;
	int before;
	pid_t pid;
	listen_there();
	pid = client(0);
	id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(id);
	CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
	before = descriptors();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	/* The library closes the socket of the request when it has taken note. */
	clock_gettime(CLOCK_MONOTONIC, &began);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (descriptors() >= before && now.tv_sec - began.tv_sec < 10);
	CHECK(descriptors() < before);
	FAILS(rdma_accept(id, &param), ECONNRESET);
	CHECK(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(ibv_poll_cq(id->recv_cq, 1, &wc) == 1);
	CHECK(wc.wr_id == 77 && wc.status == IBV_WC_WR_FLUSH_ERR);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* ---- a program that closes what it does not know ---- */

/* Descriptors up to 255 are closed, as servers do, and files take their numbers: the library goes on, and neither writes
 * to the files nor closes them. */
static void closed_descriptors(void)
{
	enum { FILES = 64 };
	int files[FILES];
	pid_t pid;
	listen_there();
	pid = client(1);
	serve();
	CHECK(ends_well(pid));
	CHECK(syscall(SYS_close_range, 3, 255, 0) == 0);
	for (int i = 0; i < FILES; i++) {
		files[i] = open("/tmp", O_TMPFILE | O_RDWR, 0600);
		CHECK(files[i] == i + 3);
	}
	/* An event for the channel whose descriptor is that of a file now. */
	pid = client(0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	at.sin_port = 0;
	listen_there();
	pid = client(1);
	serve();
	CHECK(ends_well(pid));
	for (int i = 0; i < FILES; i++) {
		struct stat stat;
		CHECK(fstat(files[i], &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size == 0);
	}
}

/* Every descriptor is closed while there is a connection, and files of the program take all the numbers: the device is
 * lost, calls fail, and none of the files is read, written or closed. */
static void lost_descriptors(void)
{
	enum { FILES = 64, SIZE = 64 };
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_recv_wr wr = { .wr_id = 77 }, *bad;
	struct ibv_send_wr send = { .wr_id = 78, .opcode = IBV_WR_SEND }, *bad_send;
	struct rdma_event_channel *other;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *late;
	struct timespec now, began;
	struct dirent *entry;
	struct ibv_wc wc;
	int numbers[FILES], count = 0, done = 0;
	char text[SIZE] = "";
	pid_t pid;
	DIR *all;

	listen_there();
	pid = client(0);
	id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(id);
	CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
	CHECK(rdma_accept(id, &param) == 0);
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_create_id(channel, &late, NULL, RDMA_PS_TCP) == 0);
	all = opendir("/proc/self/fd");
	while ((entry = readdir(all)) && count < FILES)
		if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(all))
			numbers[count++] = atoi(entry->d_name);
	closedir(all);
	CHECK(count > 5 && count < FILES);
	CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	for (int i = 0; i < count; i++) {
		int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
		CHECK(pwrite(file, text, SIZE, 0) == SIZE);
		if (file != numbers[i]) {
			CHECK(dup2(file, numbers[i]) == numbers[i]);
			for (int j = 0; j < i; j++)
				CHECK(numbers[j] != file);
			close(file);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		done = ibv_poll_cq(id->recv_cq, 1, &wc);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (done == 0 && now.tv_sec - began.tv_sec < 10);
	CHECK(done == 1 && wc.wr_id == 77 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_post_send(id->qp, &send, &bad_send) == 0 || errno == ENODEV || errno == EINVAL);
	CHECK(ibv_open_device(id->verbs->device) == NULL && errno == ENODEV);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == ENODEV);
	CHECK((other = rdma_create_event_channel()) == NULL && errno == ENODEV);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(late) == 0 && rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	for (int i = 0; i < count; i++) {
		struct stat stat;
		CHECK(fstat(numbers[i], &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size == SIZE);
		CHECK(lseek(numbers[i], 0, SEEK_CUR) == 0);
		CHECK(pread(numbers[i], text, SIZE, 0) == SIZE);
		for (int j = 0; j < SIZE; j++)
			CHECK(text[j] == 0);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* 0, or the first wrong errno: with `limit` descriptors every call succeeds or fails with EMFILE. */
static int few_descriptors(rlim_t limit)
{
	struct rlimit files = { limit, limit };
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	alarm(10);
	errno = 0;
	if (setrlimit(RLIMIT_NOFILE, &files)) return errno;
	struct rdma_event_channel *events = rdma_create_event_channel();
	if (!events) return errno == EMFILE ? 0 : errno;
	struct rdma_cm_id *id;
	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP)) return errno == EMFILE ? 0 : errno;
	if (rdma_bind_addr(id, (struct sockaddr *)&any)) return errno == EMFILE ? 0 : errno;
	if (rdma_listen(id, 8)) return errno == EMFILE ? 0 : errno;
	struct ibv_comp_channel *completions = ibv_create_comp_channel(id->verbs);
	if (!completions) return errno == EMFILE ? 0 : errno;
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);
	if (socket < 0) return errno == EMFILE ? 0 : errno;
	return 0;
}

static void limits(void)
{
	for (rlim_t limit = 3; limit <= 40; limit++) {
		int status = 0;
		pid_t child = fork();
		if (child == 0) _exit(few_descriptors(limit));
		waitpid(child, &status, 0);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		if (status) printf("RLIMIT_NOFILE %lu: status %x\n", (unsigned long)limit, status);
	}
}

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	if (strcmp(which, "signals") == 0)
		signals();
	else if (strcmp(which, "connected") == 0)
		child_of_connected();
	else if (strcmp(which, "leaves") == 0)
		requester_leaves();
	else if (strcmp(which, "closed") == 0)
		closed_descriptors();
	else if (strcmp(which, "lost") == 0)
		lost_descriptors();
	else if (strcmp(which, "limits") == 0)
		limits();
	else
		daemon_after_listen(which);
	printf("%d failures\n", failures);
	return failures != 0;
}
