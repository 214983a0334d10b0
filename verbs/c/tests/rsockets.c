#define _GNU_SOURCE
#include <rdma/rsocket.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); } } while (0)
#define FAILS(call, error) do { errno = 0; CHECK((call) == -1 && errno == (error)); } while (0)

static int listener;
static struct sockaddr_in at;

static void listen_there(void)
{
	socklen_t length = sizeof at;
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	at.sin_port = 0;
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0);
	FAILS(raccept(listener, NULL, NULL), EINVAL);
	CHECK(rbind(listener, (struct sockaddr *)&at, sizeof at) == 0);
	FAILS(rbind(listener, (struct sockaddr *)&at, sizeof at), EINVAL);
	CHECK(rgetsockname(listener, (struct sockaddr *)&at, &length) == 0 && length == sizeof at);
	CHECK(rlisten(listener, 8) == 0);
}

/* Non-blocking, for there is one thread: the request waits for raccept. */
static void pair(int *active, int *passive)
{
	struct pollfd fd;
	int error = -1;
	socklen_t length = sizeof error;
	*active = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(*active >= 0);
	FAILS(rconnect(*active, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
	fd.fd = listener;
	fd.events = POLLIN;
	CHECK(rpoll(&fd, 1, 10000) == 1 && fd.revents == POLLIN);
	*passive = raccept(listener, NULL, NULL);
	CHECK(*passive >= 0);
	fd.fd = *active;
	fd.events = POLLOUT;
	CHECK(rpoll(&fd, 1, 10000) == 1 && fd.revents == POLLOUT);
	CHECK(rgetsockopt(*active, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
	CHECK(rconnect(*active, (struct sockaddr *)&at, sizeof at) == 0);
	FAILS(rconnect(*active, (struct sockaddr *)&at, sizeof at), EISCONN);
	CHECK(rfcntl(*active, F_GETFL) & O_NONBLOCK);
	CHECK(rfcntl(*active, F_SETFL, 0) == 0);
}

static void bad_descriptors(void)
{
	char octet;
	int kernel[2], fd, other;
	FAILS(rrecv(-1, &octet, 1, 0), EBADF);
	FAILS(rclose(12345), EBADF);
	FAILS(rsocket(AF_INET, SOCK_DGRAM, 0), EOPNOTSUPP);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	CHECK(pipe(kernel) == 0);
	FAILS(rsend(kernel[1], "x", 1, 0), EBADF);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
	FAILS(rshutdown(fd, SHUT_WR), ENOTCONN);
	CHECK(rclose(fd) == 0);
	FAILS(rclose(fd), EBADF);
	/* Closed by mistake, and the number used for something else. */
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(close(fd) == 0);
	other = dup(kernel[1]);
	CHECK(other == fd);
	FAILS(rsend(fd, "x", 1, 0), EBADF);
	CHECK(write(other, "y", 1) == 1);
	close(other);
	close(kernel[0]);
	close(kernel[1]);
}

static void options(void)
{
	int fd = rsocket(AF_INET6, SOCK_STREAM, 0), value = 1;
	socklen_t length = sizeof value;
	struct linger linger = { 1, 3 };
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) == 0);
	CHECK(rsetsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof value) == 0);
	CHECK(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value) == 0);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	value = 0;
	FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value), EINVAL);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, 1), EINVAL);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3), EOPNOTSUPP);
	value = 50000;
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value) == 0);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0 && value == 100000);
	value = 100;
	CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value) == 0);
	CHECK(rgetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, &length) == 0 && value == 100);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, &length) == 0 && value == 1);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_STREAM);
	CHECK(rclose(fd) == 0);
}

static void peeks_and_waits(int a, int b)
{
	char text[16] = "";
	struct iovec out[3] = { { "ab", 2 }, { NULL, 0 }, { "cdef", 4 } }, in[2] = { { text, 3 }, { text + 3, 13 } };
	struct pollfd fds[2];
	int kernel[2];
	fd_set set;
	struct timeval none = { 0, 1000 };
	FAILS(rrecv(b, text, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rwritev(a, out, 3) == 6);
	CHECK(rrecv(b, text, 6, MSG_WAITALL | MSG_PEEK) == 6 && !memcmp(text, "abcdef", 6));
	CHECK(rrecv(b, text, 1, 0) == 1 && text[0] == 'a');
	CHECK(rreadv(b, in, 2) == 5 && !memcmp(text, "bcdef", 5));
	FAILS(rrecv(b, text, 1, MSG_DONTWAIT), EAGAIN);
	FAILS(rsend(a, "x", 1, MSG_OOB), EOPNOTSUPP);
	FAILS(rsendto(a, "x", 1, 0, (struct sockaddr *)&at, sizeof at), EISCONN);
	/* Kernel descriptors beside rsockets: either wakes up. */
	CHECK(pipe(kernel) == 0);
	fds[0].fd = b;
	fds[1].fd = kernel[0];
	fds[0].events = fds[1].events = POLLIN;
	CHECK(rpoll(fds, 2, 20) == 0);
	CHECK(write(kernel[1], "k", 1) == 1);
	CHECK(rpoll(fds, 2, -1) == 1 && fds[0].revents == 0 && fds[1].revents == POLLIN);
	CHECK(rsend(a, "x", 1, 0) == 1);
	fds[1].events = 0;
	CHECK(rpoll(fds, 2, -1) == 1 && fds[0].revents == POLLIN);
	FD_ZERO(&set);
	FD_SET(b, &set);
	CHECK(rselect(b + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(b, &set));
	CHECK(rread(b, text, 16) == 1);
	CHECK(rselect(b + 1, &set, NULL, NULL, &none) == 0 && !FD_ISSET(b, &set));
	close(kernel[0]);
	close(kernel[1]);
}

static const size_t MUCH = 3 << 20;

static void *sends(void *fd)
{
	unsigned char *data = malloc(MUCH);
	for (size_t i = 0; i < MUCH; i++) data[i] = i * 7 + (i >> 11);
	CHECK(rwrite(*(int *)fd, data, MUCH) == (ssize_t)MUCH);
	free(data);
	return NULL;
}

static void takes(int fd)
{
	unsigned char *data = malloc(MUCH);
	size_t wrong = 0;
	CHECK(rrecv(fd, data, MUCH, MSG_WAITALL) == (ssize_t)MUCH);
	for (size_t i = 0; i < MUCH; i++) wrong += data[i] != (unsigned char)(i * 7 + (i >> 11));
	CHECK(wrong == 0);
	free(data);
}

static void *takes_there(void *fd)
{
	takes(*(int *)fd);
	return NULL;
}

/* Both directions at once, a thread for each. */
static void full_duplex(int a, int b)
{
	pthread_t threads[3];
	pthread_create(&threads[0], NULL, sends, &a);
	pthread_create(&threads[1], NULL, sends, &b);
	pthread_create(&threads[2], NULL, takes_there, &a);
	takes(b);
	for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

/* A sender without a reader fills its buffers once, and continues when the reader reads. */
static void fills(int a, int b)
{
	static char data[1 << 16];
	size_t sent = 0, got = 0;
	ssize_t count;
	struct pollfd fd = { a, POLLOUT, 0 };
	while ((count = rsend(a, data, sizeof data, MSG_DONTWAIT)) > 0) sent += count;
	CHECK(count == -1 && errno == EAGAIN && sent > sizeof data);
	while (rpoll(&fd, 1, 50) == 1) {
		if ((count = rsend(a, data, sizeof data, MSG_DONTWAIT)) > 0) sent += count;
	}
	while (got < sent && (count = rrecv(b, data, sizeof data, 0)) > 0) got += count;
	CHECK(got == sent);
	CHECK(rpoll(&fd, 1, 10000) == 1 && fd.revents == POLLOUT);
}

static void halves(void)
{
	int a, b;
	char text[8];
	struct pollfd fd;
	pair(&a, &b);
	CHECK(rsend(a, "end", 3, 0) == 3);
	CHECK(rshutdown(a, SHUT_WR) == 0);
	FAILS(rsend(a, "x", 1, 0), EPIPE);
	CHECK(rrecv(b, text, 8, MSG_WAITALL) == 3);
	CHECK(rrecv(b, text, 8, 0) == 0 && rrecv(b, text, 8, 0) == 0);
	fd.fd = b;
	fd.events = POLLIN | POLLRDHUP;
	CHECK(rpoll(&fd, 1, 0) == 1 && fd.revents == (POLLIN | POLLRDHUP));
	CHECK(rsend(b, "more", 4, 0) == 4);
	CHECK(rrecv(a, text, 4, MSG_WAITALL) == 4);
	CHECK(rclose(b) == 0);
	CHECK(rrecv(a, text, 4, 0) == 0);
	CHECK(rpoll(&(struct pollfd){ a, POLLIN, 0 }, 1, 0) == 1);
	CHECK(rclose(a) == 0);
	/* SO_LINGER of 0 resets. */
	pair(&a, &b);
	struct linger linger = { 1, 0 };
	CHECK(rsetsockopt(b, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	CHECK(rsend(a, "x", 1, 0) == 1 && rrecv(b, text, 1, 0) == 1);
	CHECK(rclose(b) == 0);
	FAILS(rrecv(a, text, 4, 0), ECONNRESET);
	CHECK(rrecv(a, text, 4, 0) == 0);
	CHECK(rclose(a) == 0);
}

static void nobody_listens(void)
{
	struct sockaddr_in there = at;
	socklen_t length = sizeof there;
	int taken = rsocket(AF_INET, SOCK_STREAM, 0), fd = rsocket(AF_INET, SOCK_STREAM, 0);
	there.sin_port = 0;
	CHECK(rbind(taken, (struct sockaddr *)&there, sizeof there) == 0);
	CHECK(rgetsockname(taken, (struct sockaddr *)&there, &length) == 0);
	FAILS(rconnect(fd, (struct sockaddr *)&there, sizeof there), ECONNREFUSED);
	CHECK(rlisten(taken, 1) == 0);
	CHECK(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rconnect(fd, (struct sockaddr *)&there, sizeof there), EINPROGRESS);
	FAILS(rconnect(fd, (struct sockaddr *)&there, sizeof there), EALREADY);
	int accepted = raccept(taken, NULL, NULL);
	CHECK(accepted >= 0);
	CHECK(rpoll(&(struct pollfd){ fd, POLLOUT, 0 }, 1, 10000) == 1);
	CHECK(rclose(fd) == 0 && rclose(accepted) == 0 && rclose(taken) == 0);
}

static void handle(int signal) { (void)signal; }

static void *interrupts(void *thread)
{
	for (int i = 0; i < 200; i++) {
		if (pthread_kill(*(pthread_t *)thread, SIGUSR1)) break;
		poll(NULL, 0, 1);
	}
	return NULL;
}

static void signals(int fd)
{
	struct sigaction action = { .sa_handler = handle };
	pthread_t self = pthread_self(), other;
	char octet;
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&other, NULL, interrupts, &self);
	FAILS(rrecv(fd, &octet, 1, 0), EINTR);
	FAILS(rpoll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1), EINTR);
	pthread_join(other, NULL);
}

static void mapped(void)
{
	int a, b, size = 4;
	static char from[70000];
	volatile char *to = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char octet;
	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &size, sizeof size) == 0);
	pair(&a, &b);
	FAILS(rsetsockopt(a, SOL_RDMA, RDMA_IOMAPSIZE, &size, sizeof size), EINVAL);
	FAILS(riomap(b, (void *)to, 1 << 17, PROT_WRITE, 0, 4096), ENOMEM);
	CHECK(riomap(a, (void *)to, 1 << 17, PROT_WRITE, 0, 4096) == 4096);
	CHECK(rsend(a, "m", 1, 0) == 1 && rrecv(b, &octet, 1, 0) == 1);
	memset(from, 'z', sizeof from);
	CHECK(riowrite(b, from, sizeof from, 4096 + 10, 0) == sizeof from);
	FAILS(riowrite(b, from, 1, 4096 + (1 << 17), 0), EINVAL);
	FAILS(riowrite(b, from, 1, 4095, 0), EINVAL);
	CHECK(rsend(b, "d", 1, 0) == 1 && rrecv(a, &octet, 1, 0) == 1);
	CHECK(to[9] == 0 && to[10] == 'z' && to[10 + sizeof from - 1] == 'z' && to[10 + sizeof from] == 0);
	CHECK(riounmap(a, (void *)to, 1 << 17) == 0);
	FAILS(riounmap(a, (void *)to, 1 << 17), EINVAL);
	CHECK(rsend(a, "u", 1, 0) == 1 && rrecv(b, &octet, 1, 0) == 1);
	FAILS(riowrite(b, from, 1, 4096, 0), EINVAL);
	CHECK(rclose(a) == 0 && rclose(b) == 0);
}

static void put(uint8_t *at, uint64_t value, int octets)
{
	while (octets--) { at[octets] = value; value >>= 8; }
}

/* A peer that speaks the protocol's form, and keeps to none of its rules. */
struct hostile { uint8_t told[40]; uint32_t message; int is_refused; };

static void *attacks(void *arg)
{
	struct hostile *hostile = arg;
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *there;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 } };
	struct rdma_conn_param param = { .private_data = hostile->told, .private_data_len = 40, .initiator_depth = 1 };
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	static uint8_t buffer[64];
	char port[8];
	snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &there) == 0);
	CHECK(rdma_create_ep(&id, there, NULL, &attr) == 0);
	/* Credits that it is told are written there. */
	struct ibv_mr *mr = rdma_reg_write(id, buffer, sizeof buffer);
	put(hostile->told + 8, (uintptr_t)buffer, 8);
	put(hostile->told + 16, mr->rkey, 4);
	for (int i = 0; i < 64; i++) CHECK(rdma_post_recv(id, NULL, buffer, 4, mr) == 0);
	int connected = rdma_connect(id, &param);
	CHECK((connected == 0) == !hostile->is_refused);
	if (connected == 0) {
		CHECK(rdma_post_send(id, NULL, &hostile->message, 4, NULL, IBV_SEND_INLINE) == 0);
		/* It ends the connection: the receives are flushed. */
		do CHECK(rdma_get_recv_comp(id, &wc) == 1); while (wc.status == IBV_WC_SUCCESS);
	}
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(there);
	return NULL;
}

static void hostile_peers(void)
{
	static const uint32_t messages[] = {
		1 << 29, 2 << 29, 3 << 29, 5 << 29, 7u << 29 | 3, /* unknown */
		0x1fffffff,                                       /* more bytes than were granted */
		6u << 29 | 0xffff,                                /* beyond the iomap */
	};
	struct hostile hostile = { { 1, 2, 1, 0 }, 0, 0 };
	pthread_t thread;
	char octet;
	put(hostile.told + 20, 2, 4);
	put(hostile.told + 24, 4096, 8);
	put(hostile.told + 36, 100, 4);
	for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
		hostile.message = messages[i];
		pthread_create(&thread, NULL, attacks, &hostile);
		int fd = raccept(listener, NULL, NULL);
		CHECK(fd >= 0);
		FAILS(rrecv(fd, &octet, 1, 0), EPROTO);
		CHECK(rrecv(fd, &octet, 1, 0) == 0);
		CHECK(rclose(fd) == 0);
		pthread_join(thread, NULL);
	}
	/* A request of another protocol is refused, and the listener goes on. */
	int a, b;
	hostile.told[0] = 9;
	hostile.is_refused = 1;
	pthread_create(&thread, NULL, attacks, &hostile);
	CHECK(rpoll(&(struct pollfd){ listener, POLLIN, 0 }, 1, -1) == 1);
	CHECK(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	FAILS(raccept(listener, NULL, NULL), EAGAIN);
	CHECK(rfcntl(listener, F_SETFL, 0) == 0);
	pthread_join(thread, NULL);
	pair(&a, &b);
	CHECK(rclose(a) == 0 && rclose(b) == 0);
}

/* A process that connects, and says so; then it sleeps until it is killed, or exits without a close. */
static pid_t other_process(int is_exiting, int inherited, int *passive)
{
	pid_t pid = fork();
	if (pid == 0) {
		char octet = 0;
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		failures = 0;
		FAILS(rrecv(inherited, &octet, 1, 0), ENODEV);
		CHECK(rpoll(&(struct pollfd){ inherited, POLLIN, 0 }, 1, 0) == 1);
		CHECK(rconnect(fd, (struct sockaddr *)&at, sizeof at) == 0);
		CHECK(rsend(fd, "hello", 5, 0) == 5);
		fflush(stdout);
		if (is_exiting) exit(failures != 0);
		CHECK(rrecv(fd, &octet, 1, 0) == 1);
		fflush(stdout);
		pause();
		_exit(1);
	}
	*passive = raccept(listener, NULL, NULL);
	CHECK(*passive >= 0);
	return pid;
}

static void other_processes(void)
{
	int a, b, fd, status;
	char text[8];
	pid_t pid;
	pair(&a, &b);
	pid = other_process(1, a, &fd);
	CHECK(rrecv(fd, text, 8, MSG_WAITALL) == 5);
	CHECK(rrecv(fd, text, 8, 0) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(rclose(fd) == 0);
	pid = other_process(0, b, &fd);
	CHECK(rrecv(fd, text, 5, MSG_WAITALL) == 5);
	CHECK(rsend(fd, "x", 1, 0) == 1);
	kill(pid, SIGKILL);
	FAILS(rrecv(fd, text, 8, 0), ECONNRESET);
	CHECK(rrecv(fd, text, 8, 0) == 0);
	FAILS(rsend(fd, "x", 1, 0), ECONNRESET);
	CHECK(rpoll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1) == 1);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(rclose(fd) == 0);
	CHECK(rclose(a) == 0 && rclose(b) == 0);
}

int main(void)
{
	int a, b;
	listen_there();
	bad_descriptors();
	options();
	pair(&a, &b);
	peeks_and_waits(a, b);
	full_duplex(a, b);
	fills(a, b);
	signals(a);
	CHECK(rclose(a) == 0 && rclose(b) == 0);
	halves();
	nobody_listens();
	mapped();
	hostile_peers();
	other_processes();
	CHECK(rclose(listener) == 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
