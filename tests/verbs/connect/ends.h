/* Two ends of a program that connects its own queue pairs, and their exchange over TCP on loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Call that runs or ran last, for the messages of `must` and of the time limit. */
static const char *volatile call;

static unsigned limit_seconds;

static inline void expired(int signal)
{
	(void)signal;
	dprintf(2, "%s: not complete after %u s\n", call, limit_seconds);
	_exit(1);
}

/* Time limit of this process. */
static inline void limit_time(unsigned seconds)
{
	limit_seconds = seconds;
	signal(SIGALRM, expired);
	alarm(seconds);
}

/* Exits with 1 unless the named call succeeded. */
static inline void must(int succeeded, const char *name)
{
	call = name;
	if (!succeeded) {
		fprintf(stderr, "%s: %s\n", name, errno ? strerrorname_np(errno) : "failed");
		exit(1);
	}
}

/* The same for calls that return an errno value. */
static inline void must_return_zero(int error, const char *name)
{
	errno = error;
	must(!error, name);
}

/* Exits with 1 if a value is not the expected one. */
static inline void expect(const char *name, uint64_t value, uint64_t expected)
{
	if (value != expected) {
		fprintf(stderr, "%s: %s is %#llx, expected %#llx\n", call, name, (unsigned long long)value,
			(unsigned long long)expected);
		exit(1);
	}
}

/* Connected socket: the server's side accepts one connection. */
static inline int out_of_band(int is_server, const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int one = 1, socket_of = socket(AF_INET, SOCK_STREAM, 0);
	must(socket_of >= 0, "socket");
	if (!is_server) {
		must(!connect(socket_of, (struct sockaddr *)&at, sizeof at), "connect");
		return socket_of;
	}
	setsockopt(socket_of, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	must(!bind(socket_of, (struct sockaddr *)&at, sizeof at), "bind");
	must(!listen(socket_of, 1), "listen");
	int accepted = accept(socket_of, NULL, NULL);
	must(accepted >= 0, "accept");
	close(socket_of);
	return accepted;
}

static inline void tell(int socket_of, const void *what, size_t length)
{
	must(send(socket_of, what, length, MSG_NOSIGNAL) == (ssize_t)length, "send to the peer");
}

static inline void learn(int socket_of, void *what, size_t length)
{
	errno = 0;
	must(recv(socket_of, what, length, MSG_WAITALL) == (ssize_t)length, "recv from the peer");
}

/* Waits until the peer has called it too. */
static inline void meet(int socket_of)
{
	char here = 'm', there;
	tell(socket_of, &here, 1);
	learn(socket_of, &there, 1);
	expect("message of the peer", there, here);
}

/* Pattern of a buffer, which differs by seed and offset. */
static inline unsigned char octet(unsigned seed, size_t offset)
{
	return (unsigned char)((offset * 2654435761u + seed * 40503u) >> 11);
}

static inline void fill(unsigned char *buffer, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		buffer[i] = octet(seed, i);
}

static inline void compare(const char *name, const unsigned char *buffer, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (buffer[i] != octet(seed, i)) {
			fprintf(stderr, "%s: octet %zu of %zu is %#x, expected %#x\n", name, i, length, buffer[i],
				octet(seed, i));
			exit(1);
		}
}

/* Next completion of a queue, which must be a success. */
static inline struct ibv_wc completed(struct ibv_cq *cq, const char *name)
{
	struct ibv_wc wc;
	int count;
	call = name;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	errno = 0;
	must(count == 1, "ibv_poll_cq");
	call = name;
	expect("status", wc.status, IBV_WC_SUCCESS);
	return wc;
}
