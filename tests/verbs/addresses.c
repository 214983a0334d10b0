/* Addresses of identifiers and rsockets, as reported to a program.
 *
 *   addresses listen PORT ADDRESS[,only] ...    an identifier for each, or with the prefix "r" an rsocket; prints
 *                                               the results of bind and listen; ",only": this family only
 *   addresses serve ADDRESS PORT                one connection; prints the addresses of each event
 *   addresses daemon ADDRESS PORT               the same, as a daemon that closes descriptors after it listens
 *   addresses connect ADDRESS PORT              the same as the client
 *   addresses hold ADDRESS PORT                 the same, but disconnects after SIGUSR1
 *   addresses both PORT                         listens on a port for RDMA after it listens for TCP
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int failed, const char *call)
{
	if (failed) {
		printf("%s: %s\n", call, strerrorname_np(errno));
		exit(1);
	}
}

static struct addrinfo *address(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	int failed = getaddrinfo(host, port, &hints, &found);
	if (failed) {
		printf("%s: %s\n", host, gai_strerror(failed));
		exit(2);
	}
	return found;
}

static void show(const char *name, struct sockaddr *of)
{
	char host[80], port[8];
	socklen_t length = of->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	int flags = NI_NUMERICHOST | NI_NUMERICSERV;
	if (getnameinfo(of, length, host, sizeof host, port, sizeof port, flags))
		printf("%s none\n", name);
	else
		printf("%s %s port %s\n", name, host, port);
	fflush(stdout);
}

static const char *outcome(int failed)
{
	return failed ? strerrorname_np(errno) : "ok";
}

static void try_id(struct addrinfo *at, int only)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	if (only)
		check(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only), "AFONLY");
	int failed = rdma_bind_addr(id, at->ai_addr);
	if (!failed)
		failed = rdma_listen(id, 4);
	printf(" %s\n", outcome(failed));
}

static void try_rsocket(struct addrinfo *at, int only)
{
	int socket = rsocket(at->ai_family, SOCK_STREAM, 0);
	if (only)
		check(rsetsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), "V6ONLY");
	int failed = rbind(socket, at->ai_addr, at->ai_addrlen);
	if (!failed)
		failed = rlisten(socket, 4);
	printf(" %s\n", outcome(failed));
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != expected) {
		printf("%s %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

static struct ibv_qp_init_attr attributes = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
static struct rdma_conn_param parameters = { .responder_resources = 1, .initiator_depth = 1 };

static void ends(const char *when, struct rdma_cm_id *id)
{
	char name[40];
	snprintf(name, sizeof name, "%s local", when);
	show(name, rdma_get_local_addr(id));
	snprintf(name, sizeof name, "%s peer", when);
	show(name, rdma_get_peer_addr(id));
}

/* Continues in a child that replaced descriptors 3 to 1023, except the channel, with files; the parent exits then. */
static void become_daemon(int channel)
{
	int gate[2];
	char octet;
	check(pipe(gate), "pipe");
	if (fork()) {
		check(read(gate[0], &octet, 1) != 1, "read");
		_exit(0);
	}
	setsid();
	for (int number = 3; number < 1024; number++)
		if (number != channel && number != gate[1])
			close(number);
	for (int count = 0; count < 64; count++)
		check(open("/tmp", O_TMPFILE | O_RDWR, 0600) < 0, "open");
	check(write(gate[1], "", 1) != 1, "write");
}

static void serve(struct addrinfo *at, int is_daemon)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *accepted;
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(id, at->ai_addr), "rdma_bind_addr");
	check(rdma_listen(id, 4), "rdma_listen");
	if (is_daemon)
		become_daemon(channel->fd);
	show("listening", rdma_get_local_addr(id));
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	accepted = event->id;
	check(rdma_create_qp(accepted, NULL, &attributes), "rdma_create_qp");
	check(rdma_accept(accepted, &parameters), "rdma_accept");
	rdma_ack_cm_event(event);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
	ends("accepted", accepted);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_DISCONNECTED));
}

static sigset_t usr1;

static void connect_to(struct addrinfo *to, int holds)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, to->ai_addr, 2000), "rdma_resolve_addr");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	check(rdma_resolve_route(id, 2000), "rdma_resolve_route");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	check(rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	check(rdma_connect(id, &parameters), "rdma_connect");
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
	ends("connected", id);
	if (holds)
		check(sigwait(&usr1, &(int){ 0 }), "sigwait");
	check(rdma_disconnect(id), "rdma_disconnect");
}

static void both(const char *port)
{
	struct addrinfo *at = address("0.0.0.0", port);
	int on = 1, socket_ = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	check(bind(socket_, at->ai_addr, at->ai_addrlen) || listen(socket_, 4), "TCP");
	printf("TCP ok, RDMA");
	try_id(at, 0);
}

int main(int count, char **words)
{
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	if (!strcmp(words[1], "serve"))
		serve(address(words[2], words[3]), 0);
	else if (!strcmp(words[1], "daemon"))
		serve(address(words[2], words[3]), 1);
	else if (!strcmp(words[1], "connect"))
		connect_to(address(words[2], words[3]), 0);
	else if (!strcmp(words[1], "hold"))
		connect_to(address(words[2], words[3]), 1);
	else if (!strcmp(words[1], "both"))
		both(words[2]);
	else
		for (int at = 3; at < count; at++) {
			int is_rsocket = words[at][0] == 'r';
			char *host = words[at] + is_rsocket, *only = strstr(host, ",only");
			if (only)
				*only = 0;
			printf("%s", host);
			(is_rsocket ? try_rsocket : try_id)(address(host, words[2]), !!only);
		}
	return 0;
}
