/*
 * libfabric-bench: bandwidth and latency of libfabric's tcp provider or of another one, as a baseline for flue.
 *
 *   libfabric-bench server      --port P [--provider NAME]
 *   libfabric-bench client HOST --port P --op write|read|send --size BYTES --depth N --seconds S [--latency]
 *   libfabric-bench client HOST --port P --op connect --depth N --seconds S
 *
 * Both ends need the same --provider; the default is tcp.
 *
 * cc -O2 libfabric.c -o libfabric-bench -lfabric
 *
 * Endpoints are reliable datagrams (FI_EP_RDM) of the provider "NAME;ofi_rxm", or of NAME if the library
 * provides them there. Both ends poll their completion queue and never sleep. The server accepts one client and
 * exits; it prints "ready" when it listens. A separate TCP connection on port P carries parameters,
 * addresses, keys and results.
 *
 * Bandwidth: `depth` operations are outstanding, on buffers of a few MiB in total. After a warm-up,
 * completions are counted for S seconds. For writes the time ends with a read after them, whose response
 * follows their placement.
 * Latency: one operation at a time. Half the round trip for send (the reply is a send) and write (the reply
 * is a write; both ends poll the last byte of the buffer), the whole operation for read.
 *
 * Connect: N connected endpoints (FI_EP_MSG of the provider) are created and connected concurrently, then closed,
 * repeatedly for S seconds. The measured time is from the first fi_endpoint to the last FI_CONNECTED.
 *
 * Except for connect, one more operation at the end carries a pattern, which is verified at its destination.
 *
 * The client prints one line of JSON, also on failure. Exit status: 0 success, 1 failure, 2 usage error,
 * 3 no provider.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define SCHEMA "flue.baseline/1"
#define SUCCESS "{\"schema\":\"" SCHEMA "\",\"ok\":true,\"exit_status\":0,\"error\":null,"
#define FAILURE "\"error\":{\"kind\":\"%s\",\"hint\":null,\"message\":\""
#define MAGIC 0x79617264u

enum {
    DEPTH_MAX = 4096,
    CYCLE_BYTES = 4096,         /* ring of buffers of small operations; larger ones use one buffer, as in perftest */
    SIZE_MAX_BYTES = 1 << 30,
    LANDING_BYTES = 4096,       /* after the slots: for the read after writes */
    NAME_BYTES = 128,           /* length of an endpoint's address */
    STEPS_PER_CLOCK = 16,       /* operations per clock read */
    POLLS_PER_CONTROL = 256,    /* polls per read of the control connection */
    SAMPLES_MAX = 8000000,
    GRACE_SECONDS = 20,         /* time limit of a run in addition to the measurement */
};

enum op { OP_WRITE, OP_READ, OP_SEND, OP_CONNECT, OPS };
static const char *const op_names[OPS] = { "write", "read", "send", "connect" };

/* The client's first message. Both ends have the same architecture. */
struct request {
    uint32_t magic;
    uint32_t op;
    uint32_t latency;
    uint32_t depth;
    uint64_t size;
};

/* Description of an endpoint, sent by both ends. */
struct identity {
    uint64_t address;
    uint64_t key;
    uint32_t name_bytes;
    char name[NAME_BYTES];
};

/* The server's results. */
struct result {
    uint32_t pattern_is_right;
    uint32_t unused;
    uint64_t messages;
    double user_seconds;
    double system_seconds;
};

struct usage {
    double user_seconds;
    double system_seconds;
};

static struct {
    const char *role;
    const char *host;
    const char *port;
    const char *provider;
    int op;
    bool latency;
    uint64_t size;
    uint32_t depth;
    double seconds;
} options = { .port = "18600", .provider = "tcp", .op = OP_WRITE, .size = 65536, .seconds = 1.0 };

static int control = -1;
static char provider[64] = "";
static struct fid_ep *endpoint;
static struct fid_cq *queue;
static struct fid_mr *region;
static void *descriptor;
static fi_addr_t peer;
static struct identity theirs;
static uint8_t *memory;     /* slots, then landing */
static size_t slots;
static uint64_t receives;   /* posted ahead by the server */
static uint64_t sent_done, received_done;
static struct fi_context contexts[4 * DEPTH_MAX + 64];
static size_t next_context;

/* ---- errors ---- */

static bool is_client(void)
{
    return options.role && !strcmp(options.role, "client");
}

/* Prints one line to standard error and, for a client, the document; then exits. */
static void fail(int status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "libfabric-bench: %s\n", text);
    if (is_client()) {
        printf("{\"schema\":\"" SCHEMA "\",\"ok\":false,\"exit_status\":%d," FAILURE, status,
               status == 3 ? "prerequisite" : "failure");
        for (const char *c = text; *c; c++) {
            if (*c == '"' || *c == '\\')
                putchar('\\');
            putchar((unsigned char)*c < ' ' ? ' ' : *c);
        }
        printf("\"},\"kind\":\"libfabric-%s\"}\n", op_names[options.op]);
    }
    exit(status);
}

static void check(const char *what, long code)
{
    if (code < 0)
        fail(code == -FI_ENODATA || code == -FI_ENOSYS ? 3 : 1, "%s: %s", what, fi_strerror((int)-code));
}

static void check_system(const char *what, long code)
{
    if (code < 0)
        fail(1, "%s: %s", what, strerror(errno));
}

static void on_alarm(int signal)
{
    (void)signal;
    static const char line[] =
        "{\"schema\":\"" SCHEMA "\",\"ok\":false,\"exit_status\":1,\"error\":"
        "{\"kind\":\"failure\",\"hint\":null,\"message\":\"time limit exceeded\"},\"kind\":\"libfabric\"}\n";
    if (is_client() && write(STDOUT_FILENO, line, sizeof line - 1) < 0)
        _exit(2);
    _exit(1);
}

/* ---- time ---- */

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static struct usage usage_now(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (struct usage){
        .user_seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6,
        .system_seconds = (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6,
    };
}

static struct usage usage_since(struct usage then)
{
    struct usage now = usage_now();
    now.user_seconds -= then.user_seconds;
    now.system_seconds -= then.system_seconds;
    return now;
}

/* ---- the control connection ---- */

static void tell(const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes) {
        ssize_t sent = send(control, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        check_system("control connection", sent);
        at += sent;
        bytes -= (size_t)sent;
    }
}

static void hear(void *data, size_t bytes)
{
    char *at = data;
    while (bytes) {
        ssize_t got = recv(control, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        check_system("control connection", got);
        if (got == 0)
            fail(1, "the other end has gone");
        at += got;
        bytes -= (size_t)got;
    }
}

/* Control messages of the client during the run. */
enum { WARM = 'w', OVER = 'o', DONE = 'd' };

/* Returns the next message of the other end; 0 if none is available. */
static char told(void)
{
    char byte;
    ssize_t got = recv(control, &byte, 1, MSG_DONTWAIT);
    if (got == 0)
        fail(1, "the other end has gone");
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        check_system("control connection", got);
    return got > 0 ? byte : 0;
}

static void meet(void)
{
    int one = 1;
    struct addrinfo *found, hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
    hints.ai_flags = is_client() ? 0 : AI_PASSIVE;
    int code = getaddrinfo(options.host, options.port, &hints, &found);
    if (code)
        fail(2, "%s: %s", options.host ? options.host : options.port, gai_strerror(code));
    if (is_client()) {
        const uint64_t limit = now_ns() + 5000000000u;
        for (;;) {
            control = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            check_system("socket", control);
            if (!connect(control, found->ai_addr, found->ai_addrlen))
                break;
            if (errno != ECONNREFUSED || now_ns() > limit)
                fail(1, "connect to %s port %s: %s", options.host, options.port, strerror(errno));
            close(control);
            poll(NULL, 0, 10);
        }
    } else {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check_system("socket", listener);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        check_system("bind", bind(listener, found->ai_addr, found->ai_addrlen));
        check_system("listen", listen(listener, 1));
        puts("ready");
        fflush(stdout);
        control = accept(listener, NULL, NULL);
        check_system("accept", control);
        close(listener);
    }
    freeaddrinfo(found);
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* ---- the fabric ---- */

static uint8_t *slot(uint64_t number)
{
    return memory + number % slots * options.size;
}

static uint64_t remote_slot(uint64_t number)
{
    return theirs.address + number % slots * options.size;
}

static void *context(void)
{
    next_context = (next_context + 1) % (sizeof contexts / sizeof contexts[0]);
    return &contexts[next_context];
}

/* Reads the completion queue; returns true if an operation has completed. */
static bool progress(void)
{
    struct fi_cq_msg_entry entries[32];
    ssize_t count = fi_cq_read(queue, entries, 32);
    if (count == -FI_EAGAIN)
        return false;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = { 0 };
        fi_cq_readerr(queue, &error, 0);
        fail(1, "an operation failed: %s", fi_strerror(error.err));
    }
    check("fi_cq_read", count);
    for (ssize_t i = 0; i < count; i++) {
        if (entries[i].flags & FI_RECV)
            received_done++;
        else
            sent_done++;
    }
    return true;
}

/* Posts an operation, and makes progress while the queue is full. */
#define POST(call)                                  \
    do {                                            \
        ssize_t posted_;                            \
        while ((posted_ = (call)) == -FI_EAGAIN)    \
            progress();                             \
        check(#call, posted_);                      \
    } while (0)

static void post_write(const uint8_t *from, uint64_t to)
{
    POST(fi_write(endpoint, from, options.size, descriptor, peer, to, theirs.key, context()));
}

static void post_read(uint8_t *to, uint64_t from, size_t bytes)
{
    POST(fi_read(endpoint, to, bytes, descriptor, peer, from, theirs.key, context()));
}

static void post_send(const uint8_t *from)
{
    POST(fi_send(endpoint, from, options.size, descriptor, peer, context()));
}

static void post_receive(uint8_t *to)
{
    POST(fi_recv(endpoint, to, options.size, descriptor, peer, context()));
}

static struct fi_info *find_provider(const char *name, const char *address)
{
    struct fi_info *hints = fi_allocinfo(), *found = NULL;
    if (!hints)
        fail(1, "no memory");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->tx_attr->size = options.depth < 256 ? 256 : options.depth;
    hints->fabric_attr->prov_name = strdup(name);
    const uint32_t version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    int code = fi_getinfo(version, address, NULL, FI_SOURCE, hints, &found);
    fi_freeinfo(hints);
    if (code && code != -FI_ENODATA)
        check("fi_getinfo", code);
    return code ? NULL : found;
}

/* Returns the address of this end of the control connection. */
static const char *own_address(void)
{
    static char address[INET_ADDRSTRLEN];
    struct sockaddr_in own = { 0 };
    socklen_t own_bytes = sizeof own;
    check_system("getsockname", getsockname(control, (struct sockaddr *)&own, &own_bytes));
    return inet_ntop(AF_INET, &own.sin_addr, address, sizeof address);
}

static void open_fabric(void)
{
    const char *address = own_address();
    char layered[sizeof provider];
    snprintf(layered, sizeof layered, "%s;ofi_rxm", options.provider);
    struct fi_info *info = find_provider(layered, address);
    if (!info)
        info = find_provider(options.provider, address);
    if (!info)
        fail(3, "libfabric has no provider \"%s\" or \"%s\" with reliable datagrams", layered, options.provider);
    snprintf(provider, sizeof provider, "%s", info->fabric_attr->prov_name);

    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fi_cq_attr queue_attr = { .format = FI_CQ_FORMAT_MSG, .size = 4 * DEPTH_MAX };
    struct fi_av_attr address_attr = { .type = FI_AV_TABLE, .count = 1 };
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    check("fi_cq_open", fi_cq_open(domain, &queue_attr, &queue, NULL));
    check("fi_av_open", fi_av_open(domain, &address_attr, &addresses, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &endpoint, NULL));
    check("fi_ep_bind", fi_ep_bind(endpoint, &addresses->fid, 0));
    check("fi_ep_bind", fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(endpoint));

    receives = 2 * (uint64_t)options.depth;
    if (receives > info->rx_attr->size / 2)
        receives = info->rx_attr->size / 2;
    slots = CYCLE_BYTES / options.size;
    if (slots < 1)
        slots = 1;
    const size_t bytes = slots * options.size + LANDING_BYTES;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        fail(1, "no memory for %zu bytes", bytes);
    const uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    check("fi_mr_reg", fi_mr_reg(domain, memory, bytes, access, 0, 1, 0, &region, NULL));
    descriptor = fi_mr_desc(region);

    struct identity mine = { .key = fi_mr_key(region) };
    size_t name_bytes = sizeof mine.name;
    check("fi_getname", fi_getname(&endpoint->fid, mine.name, &name_bytes));
    mine.name_bytes = (uint32_t)name_bytes;
    mine.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
    tell(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    if (fi_av_insert(addresses, theirs.name, 1, &peer, 0, NULL) != 1)
        fail(1, "the other end's address is not taken");
    fi_freeinfo(info);
}

/* ---- connections ---- */

static struct fid_fabric *fabric_of_connections;
static struct fid_domain *domain_of_connections;
static struct fid_eq *events;

/* Opens all objects except endpoints; a server has a source address, a client the destination of its arguments. */
static struct fi_info *open_connections(const struct identity *destination)
{
    struct rlimit files;
    check_system("getrlimit", getrlimit(RLIMIT_NOFILE, &files));
    files.rlim_cur = files.rlim_max;
    check_system("setrlimit", setrlimit(RLIMIT_NOFILE, &files));

    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    if (!hints)
        fail(1, "no memory");
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(options.provider);
    if (destination) {
        hints->dest_addr = malloc(destination->name_bytes);
        if (!hints->dest_addr)
            fail(1, "no memory");
        memcpy(hints->dest_addr, destination->name, destination->name_bytes);
        hints->dest_addrlen = destination->name_bytes;
    }
    const uint32_t version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    const char *source = destination ? NULL : own_address();
    check("fi_getinfo", fi_getinfo(version, source, NULL, source ? FI_SOURCE : 0, hints, &info));
    fi_freeinfo(hints);
    snprintf(provider, sizeof provider, "%s", info->fabric_attr->prov_name);

    struct fi_cq_attr queue_attr = { .format = FI_CQ_FORMAT_MSG, .size = 4 * DEPTH_MAX };
    struct fi_eq_attr event_attr = { .wait_obj = FI_WAIT_UNSPEC };
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric_of_connections, NULL));
    check("fi_domain", fi_domain(fabric_of_connections, info, &domain_of_connections, NULL));
    check("fi_cq_open", fi_cq_open(domain_of_connections, &queue_attr, &queue, NULL));
    check("fi_eq_open", fi_eq_open(fabric_of_connections, &event_attr, &events, NULL));
    return info;
}

static struct fid_ep *connected_endpoint(struct fi_info *info)
{
    struct fid_ep *made;
    check("fi_endpoint", fi_endpoint(domain_of_connections, info, &made, NULL));
    check("fi_ep_bind", fi_ep_bind(made, &events->fid, 0));
    check("fi_ep_bind", fi_ep_bind(made, &queue->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(made));
    return made;
}

/* Returns the next event; 0 if none is available. */
static uint32_t next_event(struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    const ssize_t got = fi_eq_read(events, &event, entry, sizeof *entry, 0);
    if (got == -FI_EAGAIN)
        return 0;
    if (got == -FI_EAVAIL) {
        struct fi_eq_err_entry error = { 0 };
        fi_eq_readerr(events, &error, 0);
        fail(1, "a connection failed: %s", fi_strerror(error.err));
    }
    check("fi_eq_read", got);
    return event;
}

static void accept_connections(void)
{
    struct fi_info *info = open_connections(NULL);
    struct fid_pep *passive;
    int backlog = DEPTH_MAX;
    check("fi_passive_ep", fi_passive_ep(fabric_of_connections, info, &passive, NULL));
    check("fi_pep_bind", fi_pep_bind(passive, &events->fid, 0));
    fi_control(&passive->fid, FI_BACKLOG, &backlog);
    check("fi_listen", fi_listen(passive));
    struct identity mine = { 0 };
    size_t name_bytes = sizeof mine.name;
    check("fi_getname", fi_getname(&passive->fid, mine.name, &name_bytes));
    mine.name_bytes = (uint32_t)name_bytes;
    tell(&mine, sizeof mine);

    struct fi_eq_cm_entry entry;
    for (unsigned polls = 1; polls % POLLS_PER_CONTROL || told() != DONE; polls++) {
        switch (next_event(&entry)) {
        case FI_CONNREQ:
            check("fi_accept", fi_accept(connected_endpoint(entry.info), NULL, 0));
            fi_freeinfo(entry.info);
            break;
        case FI_SHUTDOWN:
            check("fi_close", fi_close(entry.fid));
            break;
        }
    }
}

static void make_connections(void)
{
    hear(&theirs, sizeof theirs);
    struct fi_info *info = open_connections(&theirs);
    struct fid_ep **made = calloc(options.depth, sizeof *made);
    if (!made)
        fail(1, "no memory");
    const uint64_t begin = now_ns(), length = (uint64_t)(options.seconds * 1e9);
    uint64_t spent = 0, rounds = 0;
    do {
        const uint64_t before = now_ns();
        for (uint32_t i = 0; i < options.depth; i++) {
            made[i] = connected_endpoint(info);
            check("fi_connect", fi_connect(made[i], theirs.name, NULL, 0));
        }
        struct fi_eq_cm_entry entry;
        for (uint32_t connected = 0; connected < options.depth;)
            connected += next_event(&entry) == FI_CONNECTED;
        spent += now_ns() - before;
        rounds++;
        for (uint32_t i = 0; i < options.depth; i++)
            check("fi_close", fi_close(&made[i]->fid));
    } while (now_ns() - begin < length);
    tell(&(char){ DONE }, 1);
    const double seconds = (double)spent * 1e-9;
    printf(SUCCESS "\"kind\":\"libfabric-connect\",\"value\":%.1f,\"unit\":\"connections_per_s\","
           "\"seconds\":%.6f,\"detail\":{\"connections\":%" PRIu32 ",\"rounds\":%" PRIu64 ",\"provider\":\"%s\","
           "\"libfabric\":\"%u.%u\"}}\n",
           (double)rounds * options.depth / seconds, seconds, options.depth, rounds, provider,
           FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    free(made);
}

/* ---- the pattern ---- */

static uint8_t pattern(size_t at)
{
    return (uint8_t)((at * 2654435761u) >> 11 ^ at ^ 0xa5);
}

static void fill(uint8_t *target)
{
    for (size_t i = 0; i < options.size; i++)
        target[i] = pattern(i);
}

static bool is_pattern(const uint8_t *found)
{
    for (size_t i = 0; i < options.size; i++)
        if (found[i] != pattern(i))
            return false;
    return true;
}

/* ---- the server ---- */

/* Poll functions: the server calls that of its operation until the client is done. */

static void take_messages(void)
{
    static uint64_t posted;
    while (posted < received_done + receives)
        post_receive(slot(posted++));
    progress();
}

static void answer_messages(void)
{
    static uint64_t posted, answered;
    if (!posted)
        post_receive(slot(posted++));
    progress();
    if (received_done > answered) {
        /* Use another slot: this one is in use by a send. */
        post_receive(slot(posted++));
        post_send(slot(answered++));
    }
}

static void answer_writes(void)
{
    static uint8_t seen;
    const uint8_t last = *(const volatile uint8_t *)(slot(0) + options.size - 1);
    if (last != seen) {
        seen = last;
        slot(1)[options.size - 1] = seen;
        post_write(slot(1), remote_slot(0));
    }
    progress();
}

static void attend(void)
{
    progress();
}

/* Serves the client until it is done. Returns the CPU time during the measurement. */
static struct usage work(void (*look)(void))
{
    struct usage before = { 0 }, used = { 0 };
    for (unsigned polls = 1;; polls++) {
        look();
        if (polls % POLLS_PER_CONTROL)
            continue;
        switch (told()) {
        case WARM:
            before = usage_now();
            break;
        case OVER:
            used = usage_since(before);
            break;
        case DONE:
            return used;
        }
    }
}

static void serve(void)
{
    struct request request;
    hear(&request, sizeof request);
    if (request.magic != MAGIC || request.op >= OPS || request.depth < 1 || request.depth > DEPTH_MAX ||
        request.size < 1 || request.size > SIZE_MAX_BYTES)
        fail(1, "who connected is no client of this program");
    options.op = (int)request.op;
    options.latency = request.latency;
    options.depth = request.depth;
    options.size = request.size;
    if (options.op == OP_CONNECT) {
        accept_connections();
        return;
    }
    open_fabric();
    if (options.op == OP_READ)
        for (size_t i = 0; i < slots; i++)
            fill(slot(i));
    if (options.op == OP_WRITE && options.latency && slots < 2)
        fail(1, "no room for two messages");

    const bool writes = options.op == OP_WRITE && options.latency;
    tell("r", 1);
    const struct usage used = work(options.op != OP_SEND ? writes ? answer_writes : attend
                                   : options.latency     ? answer_messages
                                                         : take_messages);

    /* The pattern arrived last, so one slot contains it. */
    struct result result = { .pattern_is_right = options.op == OP_READ, .messages = received_done };
    for (size_t i = 0; i < slots; i++)
        result.pattern_is_right |= is_pattern(slot(i));
    result.user_seconds = used.user_seconds;
    result.system_seconds = used.system_seconds;
    tell(&result, sizeof result);
    while (!told())
        progress();
}

/* ---- the client ---- */

struct measured {
    uint64_t messages;
    double seconds;
    struct usage used;
    uint32_t *samples_ns;
    size_t samples;
};

static void post_one(uint64_t number)
{
    if (options.op == OP_WRITE)
        post_write(slot(number), remote_slot(number));
    else if (options.op == OP_READ)
        post_read(slot(number), remote_slot(number), options.size);
    else
        post_send(slot(number));
}

static void drain(uint64_t posted)
{
    while (sent_done < posted)
        progress();
}

/* The response of a read follows the placement of earlier writes. */
static uint64_t fence(uint64_t posted)
{
    if (options.op != OP_WRITE)
        return posted;
    post_read(memory + slots * options.size, theirs.address, 1);
    drain(posted + 1);
    return posted + 1;
}

static void say(char what)
{
    tell(&what, 1);
}

static uint64_t warm_up_ns(void)
{
    const double seconds = options.seconds / 5 < 0.2 ? options.seconds / 5 : 0.2;
    return (uint64_t)(seconds * 1e9);
}

static struct measured bandwidth(void)
{
    const uint64_t warm = now_ns() + warm_up_ns(), length = (uint64_t)(options.seconds * 1e9);
    uint64_t posted = 0, first = 0, begin = 0;
    struct usage before = { 0 };
    for (;;) {
        const uint64_t now = now_ns();
        if (!begin && now >= warm) {
            say(WARM);
            before = usage_now();
            begin = now_ns();
            first = sent_done;
        } else if (begin && now - begin >= length) {
            break;
        }
        for (int i = 0; i < STEPS_PER_CLOCK; i++) {
            while (posted - sent_done >= options.depth)
                progress();
            post_one(posted++);
        }
    }
    drain(posted);
    const uint64_t counted = sent_done;
    fence(posted);
    const double seconds = (double)(now_ns() - begin) * 1e-9;
    say(OVER);
    return (struct measured){ .messages = counted - first, .seconds = seconds, .used = usage_since(before) };
}

static struct measured latency(void)
{
    const uint64_t warm = now_ns() + warm_up_ns(), length = (uint64_t)(options.seconds * 1e9);
    const size_t room = options.seconds * 1e6 < SAMPLES_MAX ? (size_t)(options.seconds * 1e6) + 1 : SAMPLES_MAX;
    uint32_t *samples = malloc(room * sizeof *samples);
    if (!samples)
        fail(1, "no memory for %zu samples", room);
    memset(samples, 0xff, room * sizeof *samples); /* avoid page faults during the run */
    struct measured measured = { .samples_ns = samples };
    const volatile uint8_t *last = slot(0) + options.size - 1;
    uint8_t *outgoing = slot(1), stamp = 0;
    uint64_t begin = 0, count = 0, before = now_ns();
    struct usage used = { 0 };

    if (options.op == OP_SEND)
        post_receive(slot(0));
    for (;;) {
        count++;
        if (options.op == OP_SEND) {
            post_send(outgoing);
            while (received_done < count)
                progress();
            post_receive(slot(0));
        } else if (options.op == OP_WRITE) {
            outgoing[options.size - 1] = ++stamp;
            post_write(outgoing, remote_slot(0));
            while (*last != stamp)
                progress();
        } else {
            post_read(slot(0), remote_slot(0), options.size);
            drain(count);
        }
        const uint64_t after = now_ns();
        if (begin && measured.samples < room)
            samples[measured.samples++] = after - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(after - before);
        before = after;
        if (!begin && after >= warm) {
            say(WARM);
            used = usage_now();
            before = begin = now_ns();
        } else if (begin && after - begin >= length) {
            break;
        }
    }
    measured.used = usage_since(used);
    say(OVER);
    measured.messages = measured.samples;
    measured.seconds = (double)(now_ns() - begin) * 1e-9;
    drain(count);
    return measured;
}

/* One more operation, whose data is verified. */
static void carry_pattern(void)
{
    const uint64_t number = slots > 1 ? 1 : 0;
    uint64_t posted = sent_done;
    if (options.op == OP_READ) {
        memset(slot(number), 0, options.size);
        post_read(slot(number), remote_slot(number), options.size);
        drain(posted + 1);
        if (!is_pattern(slot(number)))
            fail(1, "what was read is not what is there");
        return;
    }
    fill(slot(number));
    if (options.op == OP_WRITE) {
        /* At an offset where a replying server does not mistake it for a stamp. */
        post_write(slot(number), remote_slot(number));
        fence(posted + 1);
        return;
    }
    const uint64_t answers = received_done + (options.latency ? 1 : 0);
    post_send(slot(number));
    drain(posted + 1);
    while (received_done < answers)
        progress();
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct measured *measured, double percent, double divisor)
{
    const double exact = (double)measured->samples * percent / 100;
    size_t rank = (size_t)exact;
    rank += (double)rank < exact;
    return measured->samples_ns[rank ? rank - 1 : 0] / divisor;
}

/* Returns the lower bound of a value's bucket; the width of a bucket is at most an eighth of its value. */
static uint32_t lower_bound(uint32_t value)
{
    int shift = 0;
    while (value >> shift >= 16)
        shift++;
    return value >> shift << shift;
}

static void print_latency(struct measured *measured, uint32_t divisor)
{
    qsort(measured->samples_ns, measured->samples, sizeof(uint32_t), compare);
    double sum = 0;
    for (size_t i = 0; i < measured->samples; i++)
        sum += measured->samples_ns[i];
    const double d = divisor;
    printf("{\"samples\":%zu,\"min\":%.1f,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,"
           "\"max\":%.1f,\"histogram\":[",
           measured->samples, measured->samples_ns[0] / d, sum / (double)measured->samples / d,
           percentile(measured, 50, d), percentile(measured, 90, d), percentile(measured, 99, d),
           percentile(measured, 99.9, d), measured->samples_ns[measured->samples - 1] / d);
    for (size_t i = 0; i < measured->samples;) {
        const uint32_t bound = lower_bound(measured->samples_ns[i] / divisor);
        size_t count = 0;
        while (i < measured->samples && lower_bound(measured->samples_ns[i] / divisor) == bound)
            count++, i++;
        printf("%s[%" PRIu32 ",%zu]", i == count ? "" : ",", bound, count);
    }
    printf("]}");
}

static void measure(void)
{
    struct request request = { .magic = MAGIC, .op = (uint32_t)options.op, .latency = options.latency };
    request.depth = options.depth;
    request.size = options.size;
    tell(&request, sizeof request);
    if (options.op == OP_CONNECT) {
        make_connections();
        return;
    }
    open_fabric();
    if (options.latency && slots < 2)
        fail(2, "--size: with --latency at most %d bytes", CYCLE_BYTES / 2);
    char ready;
    hear(&ready, 1);

    struct measured measured = options.latency ? latency() : bandwidth();
    carry_pattern();
    say(DONE);
    /* The server may still need this end to make progress. */
    struct pollfd answer = { .fd = control, .events = POLLIN };
    while (poll(&answer, 1, 0) == 0)
        progress();
    struct result result;
    hear(&result, sizeof result);
    say(DONE);
    if (!result.pattern_is_right)
        fail(1, "what arrived last is not what was sent");
    if (options.latency && !measured.samples)
        fail(1, "nothing came back in the time measured");

    const struct usage used = measured.used;
    const uint32_t divisor = options.op == OP_READ ? 1 : 2;
    const uint64_t bytes = measured.messages * options.size;
    const double bps = (double)bytes * 8 / measured.seconds;
    const double rate = (double)measured.messages / measured.seconds;
    printf(SUCCESS "\"kind\":\"libfabric-%s%s\",", op_names[options.op],
           options.latency ? "-latency" : "");
    if (options.latency) {
        printf("\"latency_ns\":");
        print_latency(&measured, divisor);
        printf(",\"value\":%.1f,\"unit\":\"ns\",\"samples\":%zu,",
               percentile(&measured, 50, divisor), measured.samples);
    } else {
        printf("\"latency_ns\":null,\"value\":%.0f,\"unit\":\"bps\",\"samples\":null,", bps);
    }
    printf("\"cpu\":{\"user_seconds\":%.6f,\"system_seconds\":%.6f},\"bytes\":%" PRIu64 ",\"seconds\":%.6f,"
           "\"detail\":{\"messages_per_second\":%.1f,\"message_bytes\":%" PRIu64 ",\"depth\":%" PRIu32
           ",\"buffers\":%zu,\"provider\":\"%s\",\"libfabric\":\"%u.%u\",\"local_user_seconds\":%.6f,"
           "\"local_system_seconds\":%.6f,\"remote_user_seconds\":%.6f,\"remote_system_seconds\":%.6f}}\n",
           used.user_seconds + result.user_seconds, used.system_seconds + result.system_seconds, bytes,
           measured.seconds, rate, options.size, options.depth, slots, provider, FI_MAJOR(fi_version()),
           FI_MINOR(fi_version()), used.user_seconds, used.system_seconds, result.user_seconds,
           result.system_seconds);
    free(measured.samples_ns);
}

/* ---- the command line ---- */

static void misused(const char *what)
{
    fail(2, "%s\nusage: libfabric-bench server --port P\n"
            "       libfabric-bench client HOST --port P --op write|read|send|connect --size BYTES --depth N "
            "--seconds S [--latency]\n"
            "       both ends: --provider NAME", what);
}

static uint64_t number(const char *text, uint64_t max, const char *what)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || value < 1 || value > max)
        misused(what);
    return value;
}

static void parse(int argc, char **argv)
{
    enum { PORT = 1, OP, SIZE, DEPTH, SECONDS, LATENCY, PROVIDER };
    static const struct option known[] = {
        { "port", required_argument, NULL, PORT },       { "op", required_argument, NULL, OP },
        { "size", required_argument, NULL, SIZE },       { "depth", required_argument, NULL, DEPTH },
        { "seconds", required_argument, NULL, SECONDS }, { "latency", no_argument, NULL, LATENCY },
        { "provider", required_argument, NULL, PROVIDER }, { NULL, 0, NULL, 0 },
    };
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *end;
        switch (option) {
        case PORT:
            number(optarg, 65535, "--port is not within 1 to 65535");
            options.port = optarg;
            break;
        case OP:
            for (options.op = 0; options.op < OPS && strcmp(optarg, op_names[options.op]); options.op++)
                ;
            if (options.op == OPS) {
                options.op = OP_WRITE;
                misused("--op is not write, read, send or connect");
            }
            break;
        case SIZE:
            options.size = number(optarg, SIZE_MAX_BYTES, "--size is not within 1 byte to 1 GiB");
            break;
        case DEPTH:
            options.depth = (uint32_t)number(optarg, DEPTH_MAX, "--depth is not within 1 to 4096");
            break;
        case SECONDS:
            options.seconds = strtod(optarg, &end);
            if (*end || end == optarg || !(options.seconds >= 0.01 && options.seconds <= 600))
                misused("--seconds is not within 0.01 to 600");
            break;
        case LATENCY:
            options.latency = true;
            break;
        case PROVIDER:
            options.provider = optarg;
            break;
        default:
            misused("no such option");
        }
    }
    options.role = optind < argc ? argv[optind] : "";
    options.host = optind + 1 < argc ? argv[optind + 1] : NULL;
    if (strcmp(options.role, "server") && !is_client())
        misused("neither server nor client");
    if (is_client() != (options.host != NULL) || optind + 2 < argc)
        misused("a client has a host, a server none");
    if (!options.depth)
        options.depth = options.size >= 256 << 10 ? 16 : options.size >= 16 << 10 ? 64 : 256;
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, NULL);
    meet();
    /* A server has no time limit yet; it detects the exit of the client. */
    if (is_client())
        alarm(GRACE_SECONDS + (unsigned)(options.seconds * 1.2));
    is_client() ? measure() : serve();
    return 0;
}
