/* Ports at which peers reach queue pairs: strangers, a range of ports, and the child of a fork. */
#define _GNU_SOURCE
#include "ends.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	STRANGERS = 1000,              /* connections that send nothing */
	LISTENER_MAX = 1024,           /* connections of a listener without a complete Request */
	GROWTH_MAX_KIB = 64 << 10,     /* of VmRSS */
};

/* Open descriptors, or those of TCP sockets only. */
static int descriptors(int is_tcp)
{
	int count = 0;
	struct dirent *entry;
	DIR *directory = opendir("/proc/self/fd");
	while (directory && (entry = readdir(directory))) {
		int protocol = 0, number = atoi(entry->d_name);
		socklen_t size = sizeof protocol;
		if (!is_tcp)
			count++;
		else if (getsockopt(number, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP)
			count++;
	}
	closedir(directory);
	return count;
}

static int memory_kib(void)
{
	char line[200];
	int kib = -1;
	FILE *status = fopen("/proc/self/status", "r");
	while (status && kib < 0 && fgets(line, sizeof line, status))
		sscanf(line, "VmRSS: %d", &kib);
	fclose(status);
	return kib;
}

/* Message in both directions. */
static void exchange(struct end *one, struct end *other)
{
	struct end *ends[] = { one, other };
	for (int at = 0; at < 2; at++) {
		struct end *from = ends[at], *to = ends[!at];
		strcpy(from->buffer, at ? "there" : "back");
		CHECK(receive(to, 10, 64) == 0 && post(from, 1, IBV_WR_SEND, NULL) == 0);
		expect(from, 1, IBV_WC_SUCCESS);
		expect(to, 10, IBV_WC_SUCCESS);
		CHECK(strcmp(to->buffer, from->buffer) == 0);
	}
}

/* Connection to the port of a queue pair. */
static int dial(uint32_t qpn)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(qpn & 0xffff) };
	memcpy(&at.sin6_addr, &gid, 16);
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
		perror("connect of a stranger");
		_exit(1);
	}
	return fd;
}

static uint64_t state = 88172645463325252;

static uint64_t arbitrary(void)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state;
}

static void put32(unsigned char *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, 4);
}

/* MPA Request with private data that name a queue pair, but neither its PSN nor its peer. */
static size_t claim(unsigned char *octets, uint32_t qpn)
{
	static const char head[] = "MPA ID Req Frame\x50\x02\x00\x44" "\x40\x01\xc0\x01" "fluerc\x01\x01\x00\x00\x00\x0f";
	memset(octets, 0, 256);
	memcpy(octets, head, sizeof head - 1);
	put32(octets + 36, qpn);
	put32(octets + 40, qpn + 65536);
	put32(octets + 44, 0x80000000 | (arbitrary() & 0xffffff));
	memcpy(octets + 52, &gid, 16);
	return 24 + 64;
}

/* Strangers: connects without a byte, with any octets, with parts of a Request, and with Requests that claim to be of the
   peer. Reports when all are sent, and holds them until the pipe is closed. */
static void be_strangers(uint32_t qpn, int ready, int end)
{
	unsigned char octets[512];
	for (int at = 0; at < STRANGERS; at++)
		dial(qpn);
	for (int at = 0; at < 200; at++) {
		int fd = dial(qpn);
		size_t length = claim(octets, at & 1 ? qpn : arbitrary());
		switch (at % 5) {
		case 0: /* any octets */
			length = arbitrary() % sizeof octets;
			for (size_t of = 0; of < length; of++)
				octets[of] = arbitrary();
			break;
		case 1: /* a part */
			length = arbitrary() % length;
			break;
		case 2: /* one octet changed */
			octets[arbitrary() % length] ^= 1 << arbitrary() % 8;
			break;
		case 3: /* more than a Request */
			length += arbitrary() % 64;
			break;
		}
		/* The connection may be reset already. */
		if (send(fd, octets, length, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
			_exit(2);
		/* Half of them leave: without reading, so with a reset if a Reply was sent. */
		if (at % 2)
			close(fd);
	}
	if (write(ready, "r", 1) != 1 || read(end, octets, 1) != 0)
		_exit(3);
	_exit(0);
}

/* Memory and descriptors are bounded, the queue pair is untouched, and its peer is connected at once. */
static void strangers(void)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	struct end one, other;
	int ready[2], end[2];
	char octet;
	/* In either direction of the dial, and before and after RTR. */
	make(&one, 0x111111), make(&other, 0x222222);
	CHECK(init(&one) == 0 && init(&other) == 0);
	int before = descriptors(0), kib = memory_kib();
	CHECK(pipe(ready) == 0 && pipe(end) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(end[1]), close(ready[0]);
		be_strangers(other.qp->qp_num, ready[1], end[0]);
	}
	close(ready[1]), close(end[0]);
	CHECK(read(ready[0], &octet, 1) == 1);
	double begun = seconds();
	CHECK(rtr(&one, other.qp->qp_num, other.psn) == 0 && rts(&one) == 0);
	CHECK(rtr(&other, one.qp->qp_num, one.psn) == 0 && rts(&other) == 0);
	exchange(&one, &other);
	CHECK(seconds() - begun < 3);
	int count = descriptors(0), grown = memory_kib() - kib;
	if (count > before + 2 + LISTENER_MAX + 100 || grown > GROWTH_MAX_KIB) {
		failures++;
		printf("%d descriptors after %d, %d KiB more\n", count, before, grown);
	}
	close(end[1]);
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(ready[0]);
	/* Both ends of the pair remain. */
	for (double until = seconds() + 10; (count = descriptors(0)) > before + 2 && seconds() < until;)
		ibv_poll_cq(one.cq, 0, NULL);
	CHECK(count <= before + 2);
	exchange(&one, &other);
	destroy(&one), destroy(&other);
}

/* Ports of the range in use are skipped. When all are in use, no queue pair is left. */
static void ports(void)
{
	enum { PER_PORT = 256, COUNT = 2 * PER_PORT };
	int first = 0, last = 0;
	CHECK(sscanf(getenv("FLUE_VERBS_RENDEZVOUS_PORTS"), "%d-%d", &first, &last) == 2 && last == first + 2);
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(first) };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
	struct end one, other;
	make(&one, 1), make(&other, 2);
	struct ibv_qp *all[COUNT - 2];
	struct ibv_qp_init_attr attr = { .send_cq = one.cq, .recv_cq = one.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	for (int number = 0; number < COUNT - 2; number++) {
		CHECK((all[number] = ibv_create_qp(pd, &attr)) != NULL);
		if (all[number] && (int)(all[number]->qp_num & 0xffff) != (number + 2 < PER_PORT ? first + 1 : last)) {
			failures++;
			printf("queue pair %d has number %#x\n", number, all[number]->qp_num);
			break;
		}
	}
	CHECK(ibv_create_qp(pd, &attr) == NULL && errno == ENOMEM);
	connect_pair(&one, &other);
	exchange(&one, &other);
	for (int number = 0; number < COUNT - 2; number++)
		CHECK(ibv_destroy_qp(all[number]) == 0);
	destroy(&one), destroy(&other);
	close(fd);
}

/* TCP sockets whose port was selected by connect(2), so that the port remains available for other peers. */
static int sockets_without_reserved_port(void)
{
	int count = 0;
	for (int fd = 0; fd < 1 << 16; fd++) {
		int is_set = 0;
		socklen_t size = sizeof is_set;
		if (getsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &is_set, &size) == 0)
			count += is_set;
	}
	return count;
}

/* The child of a fork has no descriptor of its parent's connections, and their closing there does not end them. */
static void forked(void)
{
	struct end one, other;
	make(&one, 1), make(&other, 2);
	connect_pair(&one, &other);
	exchange(&one, &other);
	/* Both ends, of which one has dialed, and a listener. */
	CHECK(descriptors(1) == 3 && sockets_without_reserved_port() == 1);
	pid_t child = fork();
	if (child == 0)
		_exit(descriptors(1));
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	exchange(&one, &other);
	CHECK(descriptors(1) == 3);
	destroy(&one), destroy(&other);
}

/* `flue ss` lists both ends under the numbers that the program exchanges. The path of flue is in a variable. */
static void numbers(void)
{
	struct end one, other;
	char command[4096], text[1 << 16], expected[100];
	make(&one, 1), make(&other, 2);
	connect_pair(&one, &other);
	exchange(&one, &other);
	snprintf(command, sizeof command, "'%s' ss --json --node %d", getenv("FLUE"), getpid());
	FILE *output = popen(command, "r");
	size_t length = 0;
	for (int octet; output && (octet = getc(output)) != EOF && length < sizeof text - 1;)
		if (octet != ' ' && octet != '\n')
			text[length++] = octet;
	text[length] = 0;
	CHECK(output && pclose(output) == 0);
	snprintf(expected, sizeof expected, "\"peer_qp\":%u,\"qp\":%u,", one.qp->qp_num, other.qp->qp_num);
	CHECK(strstr(text, expected));
	snprintf(expected, sizeof expected, "\"peer_qp\":%u,\"qp\":%u,", other.qp->qp_num, one.qp->qp_num);
	CHECK(strstr(text, expected));
	destroy(&one), destroy(&other);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = { { "strangers", strangers }, { "ports", ports }, { "forked", forked },
		{ "numbers", numbers } };
	return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
