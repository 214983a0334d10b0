// Both ends of the siw interoperability tests: on siw in the guest, and under `flue run` on the host.
//
//     verbs_peer serve ADDRESS COUNT                 serves COUNT connections, any number concurrently, then exits
//     verbs_peer operations ADDRESS BYTES_MAX        every operation of every size up to BYTES_MAX; contents are verified
//     verbs_peer connects ADDRESS COUNT AT_ONCE      COUNT connections with a Write and two Sends each
//     verbs_peer error ADDRESS CASE                  one invalid operation
//
// The private data of the Request is the client's next operation, that of the Reply the server's region. Every result
// is printed, and checked by the test that started the program. Numbers are in the byte order of x86 at both ends.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORT 7180
#define MESSAGE_BYTES_MAX (16u << 20)
// Memory of a connection without large messages.
#define FEW_BYTES (64u << 10)
// Guard after the writable area of an operation: it must remain unchanged.
#define GUARD_BYTES 64
#define GUARD 0xa5
#define INLINE_BYTES 64
#define GATHERED_BYTES_MIN 7
// Kinds that differ from another kind in more than the data transfer.
#define VARIETY_BYTES_MAX (1u << 20)
// Time limit: loss and a busy emulator are slow.
#define WAIT_MS 60000

// --- data exchanged by both ends -------------------------------------------------------------------------------------

enum operation { SEND, SEND_SOLICITED, SEND_INVALIDATE, SEND_GATHERED, WRITE, WRITE_GATHERED, WRITE_INLINE, READ, CHECK };
static const char *const operation_names[] = {
    "Send", "Send with Solicited Event", "Send with Invalidate", "Send of three pieces",
    "Write", "Write of three pieces", "Write of inline data", "Read",
};
#define OPERATIONS (sizeof operation_names / sizeof *operation_names)

enum wrong {
    NOTHING, WRITE_STAG, WRITE_BOUNDS, WRITE_WRAP, WRITE_RIGHTS, WRITE_DOMAIN, WRITE_INVALIDATED, READ_STAG, READ_BOUNDS,
    READ_RIGHTS, READ_DOMAIN, READ_INVALIDATED, SEND_LONG, SEND_NO_RECEIVE, INVALIDATE_STAG,
};
static const char *const wrong_names[] = {
    "nothing", "write-stag", "write-bounds", "write-wrap", "write-rights", "write-domain", "write-invalidated", "read-stag",
    "read-bounds", "read-rights", "read-domain", "read-invalidated", "send-long", "send-no-receive", "invalidate-stag",
};
#define WRONGS (sizeof wrong_names / sizeof *wrong_names)

struct offer { uint32_t wrong, key; uint64_t address, length, is_siw; };
struct message { uint32_t operation, seed, key, is_bad; uint64_t size; };

// --- connection -----------------------------------------------------------------------------------------------------

struct connection {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *domain, *other_domain;
    struct ibv_comp_channel *received_channel;
    struct ibv_cq *sent, *received;
    struct ibv_mr *region, *message_region, *given_region;
    struct ibv_mw *window;
    uint8_t *memory;
    size_t bytes; // size without the guard
    struct message messages[2]; // in, out
    struct offer peer;
    enum wrong wrong;
    unsigned receives; // posted and not completed
    bool is_siw;
};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    flockfile(stdout);
    printf("failed: ");
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    flockfile(stdout);
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    funlockfile(stdout);
}

#define MUST(call) \
    do { if (call) fail("%s: %s", #call, strerror(errno)); } while (0)
#define MADE(call) \
    ({ __typeof__(call) made = (call); if (!made) fail("%s: %s", #call, strerror(errno)); made; })

// Message contents: a cyclic pattern, from a position given by the seed. Its length is a prime, so that no two
// multiples of a segment's payload start at the same position.
static uint8_t cycle[65521];

static size_t start_of(uint32_t seed) { return seed * 7919u % sizeof cycle; }

static void make_cycle(void) {
    uint32_t state = 1;
    for (size_t at = 0; at < sizeof cycle; at++) {
        state = state * 1664525u + 1013904223u;
        cycle[at] = (uint8_t)(state >> 24);
    }
}

static size_t smaller(size_t one, size_t other) { return one < other ? one : other; }

static void fill(uint8_t *memory, size_t size, uint32_t seed) {
    for (size_t from = start_of(seed), count; size; memory += count, size -= count, from = 0) {
        count = smaller(size, sizeof cycle - from);
        memcpy(memory, cycle + from, count);
    }
}

// True if the memory has the contents that `fill` writes, followed by an intact guard.
static bool is_whole(const uint8_t *memory, size_t size, uint32_t seed) {
    for (size_t from = start_of(seed), count; size; memory += count, size -= count, from = 0) {
        count = smaller(size, sizeof cycle - from);
        if (memcmp(memory, cycle + from, count)) return false;
    }
    for (size_t at = 0; at < GUARD_BYTES; at++)
        if (memory[at] != GUARD) return false;
    return true;
}

static void readable(int file, const char *what) {
    struct pollfd watched = { .fd = file, .events = POLLIN };
    int ready;
    do ready = poll(&watched, 1, WAIT_MS);
    while (ready < 0 && errno == EINTR);
    if (ready == 0) fail("no %s within %d s", what, WAIT_MS / 1000);
}

static enum rdma_cm_event_type next_event(struct connection *c) {
    struct rdma_cm_event *event;
    readable(c->channel->fd, "event of the connection");
    MUST(rdma_get_cm_event(c->channel, &event));
    enum rdma_cm_event_type type = event->event;
    if (type == RDMA_CM_EVENT_ESTABLISHED && event->param.conn.private_data_len >= sizeof c->peer)
        memcpy(&c->peer, event->param.conn.private_data, sizeof c->peer);
    MUST(rdma_ack_cm_event(event));
    return type;
}

static void expect_event(struct connection *c, enum rdma_cm_event_type wanted) {
    enum rdma_cm_event_type type = next_event(c);
    if (type != wanted) fail("event %s, expected %s", rdma_event_str(type), rdma_event_str(wanted));
}

static void post_receive(struct connection *c, void *memory, uint32_t size, struct ibv_mr *region) {
    struct ibv_sge piece = { (uintptr_t)memory, size, region->lkey };
    struct ibv_recv_wr request = { .wr_id = 'r', .sg_list = &piece, .num_sge = 1 }, *bad;
    MUST(ibv_post_recv(c->id->qp, &request, &bad));
    c->receives++;
}

static void post_message_receive(struct connection *c) {
    post_receive(c, &c->messages[0], sizeof c->messages[0], c->message_region);
}

// Completion of the send queue, which is polled; no other work is done meanwhile.
static enum ibv_wc_status sent(struct connection *c) {
    struct ibv_wc done;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        int count = ibv_poll_cq(c->sent, 1, &done);
        if (count < 0) fail("ibv_poll_cq");
        if (count) return done.status;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > WAIT_MS / 1000) fail("no completion of a send");
        sched_yield();
    }
}

// Completion of the receive queue, by its event.
static struct ibv_wc received(struct connection *c, bool solicited_only) {
    struct ibv_wc done;
    for (;;) {
        MUST(ibv_req_notify_cq(c->received, solicited_only));
        int count = ibv_poll_cq(c->received, 1, &done);
        if (count < 0) fail("ibv_poll_cq");
        if (count) {
            c->receives--;
            return done;
        }
        struct ibv_cq *queue;
        void *context;
        readable(c->received_channel->fd, "event of a receive");
        MUST(ibv_get_cq_event(c->received_channel, &queue, &context));
        ibv_ack_cq_events(queue, 1);
    }
}

static void send_message(struct connection *c, struct message message) {
    c->messages[1] = message;
    struct ibv_sge piece = { (uintptr_t)&c->messages[1], sizeof message, c->message_region->lkey };
    struct ibv_send_wr request = {
        .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
    }, *bad;
    MUST(ibv_post_send(c->id->qp, &request, &bad));
    enum ibv_wc_status status = sent(c);
    if (status) fail("message not sent: %s", ibv_wc_status_str(status));
}

static struct message receive_message(struct connection *c) {
    struct ibv_wc done = received(c, false);
    if (done.status) fail("message not received: %s", ibv_wc_status_str(done.status));
    if (done.byte_len != sizeof(struct message)) fail("message of %u bytes", done.byte_len);
    return c->messages[0];
}

static struct message ask(struct connection *c, struct message message) {
    post_message_receive(c);
    send_message(c, message);
    return receive_message(c);
}

// Key that can be invalidated separately: a window's, or a region's on a device without windows.
static uint32_t revocable_key(struct connection *c) {
    if (c->window || (c->window = ibv_alloc_mw(c->domain, IBV_MW_TYPE_2))) {
        struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
        bind.bind_mw.mw = c->window;
        bind.bind_mw.rkey = ibv_inc_rkey(c->window->rkey);
        bind.bind_mw.bind_info = (struct ibv_mw_bind_info){
            c->region, (uintptr_t)c->memory, c->bytes, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        };
        MUST(ibv_post_send(c->id->qp, &bind, &bad));
        enum ibv_wc_status status = sent(c);
        if (status) fail("window not bound: %s", ibv_wc_status_str(status));
        c->window->rkey = bind.bind_mw.rkey;
        return bind.bind_mw.rkey;
    }
    if (c->given_region) MUST(ibv_dereg_mr(c->given_region));
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    c->given_region = MADE(ibv_reg_mr(c->domain, c->memory, c->bytes, rights));
    return c->given_region->rkey;
}

static void make_queues(struct connection *c) {
    c->is_siw = !strncmp(ibv_get_device_name(c->id->verbs->device), "siw", 3);
    c->domain = MADE(ibv_alloc_pd(c->id->verbs));
    c->received_channel = MADE(ibv_create_comp_channel(c->id->verbs));
    c->sent = MADE(ibv_create_cq(c->id->verbs, 16, NULL, NULL, 0));
    c->received = MADE(ibv_create_cq(c->id->verbs, 16, NULL, c->received_channel, 0));
    struct ibv_qp_init_attr wanted = {
        .send_cq = c->sent, .recv_cq = c->received, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 3, .max_recv_sge = 1, .max_inline_data = INLINE_BYTES },
    };
    MUST(rdma_create_qp(c->id, c->domain, &wanted));
    size_t page = 4096;
    c->memory = MADE(aligned_alloc(page, c->bytes + page));
    memset(c->memory, GUARD, c->bytes + page);
    // On iWARP the sink of a Read is written by the peer.
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    c->window = ibv_alloc_mw(c->domain, IBV_MW_TYPE_2);
    if (c->window) rights |= IBV_ACCESS_MW_BIND;
    c->region = MADE(ibv_reg_mr(c->domain, c->memory, c->bytes + GUARD_BYTES, rights));
    c->message_region = MADE(ibv_reg_mr(c->domain, c->messages, sizeof c->messages, IBV_ACCESS_LOCAL_WRITE));
    fcntl(c->id->verbs->async_fd, F_SETFL, O_NONBLOCK);
}

static void destroy(struct connection *c) {
    rdma_destroy_qp(c->id);
    if (c->window) MUST(ibv_dealloc_mw(c->window));
    if (c->given_region) MUST(ibv_dereg_mr(c->given_region));
    MUST(ibv_dereg_mr(c->region));
    MUST(ibv_dereg_mr(c->message_region));
    MUST(ibv_destroy_cq(c->sent));
    MUST(ibv_destroy_cq(c->received));
    MUST(ibv_destroy_comp_channel(c->received_channel));
    MUST(ibv_dealloc_pd(c->domain));
    if (c->other_domain) MUST(ibv_dealloc_pd(c->other_domain));
    MUST(rdma_destroy_id(c->id));
    rdma_destroy_event_channel(c->channel);
    free(c->memory);
}

// --- server ---------------------------------------------------------------------------------------------------------

// siw does not support events for solicited messages only, and does not report the invalidated STag.
static bool was_received_well(struct connection *c, const struct message *asked, uint32_t key) {
    struct ibv_wc done = received(c, asked->operation == SEND_SOLICITED && !c->is_siw);
    if (done.status) fail("Send not received: %s", ibv_wc_status_str(done.status));
    bool is_invalidation = done.wc_flags & IBV_WC_WITH_INV;
    if (is_invalidation != (asked->operation == SEND_INVALIDATE && !c->is_siw)) return false;
    if (is_invalidation && done.invalidated_rkey != key) return false;
    return done.byte_len == asked->size && is_whole(c->memory, asked->size, asked->seed);
}

static void answer(struct connection *c, struct message asked) {
    struct message reply = asked;
    bool is_send = asked.operation < WRITE;
    if (asked.size > c->bytes) fail("requested %" PRIu64 " bytes", asked.size);
    if (asked.operation == CHECK) {
        reply.is_bad = !is_whole(c->memory, asked.size, asked.seed);
    } else if (asked.operation == READ) {
        fill(c->memory, asked.size, asked.seed);
        reply.key = c->region->rkey;
    } else {
        memset(c->memory, GUARD, asked.size + GUARD_BYTES);
        reply.key = asked.operation == SEND_INVALIDATE ? revocable_key(c) : c->region->rkey;
    }
    if (!is_send) {
        post_message_receive(c);
        send_message(c, reply);
        return;
    }
    post_receive(c, c->memory, (uint32_t)c->bytes, c->region);
    send_message(c, reply);
    reply.is_bad = !was_received_well(c, &asked, reply.key);
    post_message_receive(c);
    send_message(c, reply);
}

// Serves messages until the peer disconnects.
static void answer_all(struct connection *c) {
    for (;;) {
        struct ibv_wc done = received(c, false);
        if (done.status == IBV_WC_WR_FLUSH_ERR) return;
        if (done.status) fail("message not received: %s", ibv_wc_status_str(done.status));
        answer(c, c->messages[0]);
    }
}

static struct offer prepare(struct connection *c) {
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct ibv_pd *domain = c->domain;
    switch (c->wrong) {
    case WRITE_RIGHTS: rights &= ~IBV_ACCESS_REMOTE_WRITE; break;
    case READ_RIGHTS: rights &= ~IBV_ACCESS_REMOTE_READ; break;
    case WRITE_DOMAIN:
    case READ_DOMAIN: domain = c->other_domain = MADE(ibv_alloc_pd(c->id->verbs)); break;
    default: return (struct offer){ c->wrong, c->region->rkey, (uintptr_t)c->memory, c->bytes, c->is_siw };
    }
    c->given_region = MADE(ibv_reg_mr(domain, c->memory, c->bytes, rights));
    return (struct offer){ c->wrong, c->given_region->rkey, (uintptr_t)c->memory, c->bytes, c->is_siw };
}

// Result of a terminated connection: all completions, and the events of the queue pair.
static void report(struct connection *c, const char *side) {
    char text[1024] = "";
    size_t length = 0;
    struct ibv_wc done;
    while (ibv_poll_cq(c->sent, 1, &done) > 0)
        length += (size_t)snprintf(text + length, sizeof text - length, " sent=%d", done.status);
    while (c->receives)
        length += (size_t)snprintf(text + length, sizeof text - length, " received=%d", received(c, false).status);
    struct ibv_async_event event;
    while (ibv_get_async_event(c->id->verbs, &event) == 0) {
        length += (size_t)snprintf(text + length, sizeof text - length, " event=%d", event.event_type);
        ibv_ack_async_event(&event);
    }
    say("%s %s:%s", side, wrong_names[c->wrong], text);
}

// A message is exchanged before the invalid operation: Linux's iw_cm crashes if a connection ends before it has
// reported its establishment.
static void suffer(struct connection *c) {
    struct message asked = receive_message(c);
    if (c->wrong == WRITE_INVALIDATED || c->wrong == READ_INVALIDATED) {
        asked.key = revocable_key(c);
        struct ibv_send_wr invalidate = {
            .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = asked.key,
        }, *bad;
        // siw does not support it for programs.
        asked.is_bad = ibv_post_send(c->id->qp, &invalidate, &bad) || sent(c);
    }
    if (c->wrong != SEND_NO_RECEIVE) post_message_receive(c);
    send_message(c, asked);
    expect_event(c, RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(c->id);
    report(c, "server");
}

static void *serve_one(void *argument) {
    struct connection *c = argument;
    MUST(rdma_migrate_id(c->id, c->channel));
    make_queues(c);
    struct offer offer = prepare(c);
    post_message_receive(c);
    struct rdma_conn_param reply = {
        .private_data = &offer, .private_data_len = sizeof offer, .responder_resources = 4, .initiator_depth = 4,
    };
    MUST(rdma_accept(c->id, &reply));
    expect_event(c, RDMA_CM_EVENT_ESTABLISHED);
    if (c->wrong) {
        suffer(c);
    } else {
        answer_all(c);
        expect_event(c, RDMA_CM_EVENT_DISCONNECTED);
        rdma_disconnect(c->id);
    }
    destroy(c);
    free(c);
    return NULL;
}

static struct sockaddr_in address_of(const char *text) {
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1) fail("invalid address: %s", text);
    return address;
}

static void serve(const char *where, unsigned long count) {
    struct sockaddr_in address = address_of(where);
    struct rdma_event_channel *channel = MADE(rdma_create_event_channel());
    struct rdma_cm_id *listener;
    pthread_t *threads = MADE(calloc(count, sizeof *threads));
    MUST(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&address));
    MUST(rdma_listen(listener, 128));
    say("listening");
    for (unsigned long at = 0; at < count;) {
        struct rdma_cm_event *event;
        MUST(rdma_get_cm_event(channel, &event));
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct connection *c = MADE(calloc(1, sizeof *c));
            c->id = event->id;
            c->channel = MADE(rdma_create_event_channel());
            if (event->param.conn.private_data_len < sizeof c->peer) fail("Request without private data");
            memcpy(&c->peer, event->param.conn.private_data, sizeof c->peer);
            if (c->peer.wrong >= WRONGS) fail("requested case %u", c->peer.wrong);
            c->wrong = (enum wrong)c->peer.wrong;
            c->bytes = c->peer.length;
            if (c->bytes % 4096 || c->bytes > MESSAGE_BYTES_MAX) fail("requested %zu bytes of memory", c->bytes);
            MUST(rdma_ack_cm_event(event));
            MUST(pthread_create(&threads[at++], NULL, serve_one, c));
        } else {
            // The peer disconnected before it was accepted.
            say("listener: %s", rdma_event_str(event->event));
            MUST(rdma_ack_cm_event(event));
        }
    }
    for (unsigned long at = 0; at < count; at++) MUST(pthread_join(threads[at], NULL));
    MUST(rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
    free(threads);
    say("served %lu", count);
}

// --- client ---------------------------------------------------------------------------------------------------------

static struct connection *connect_to(const char *where, enum wrong wrong, size_t bytes) {
    struct connection *c = MADE(calloc(1, sizeof *c));
    struct sockaddr_in address = address_of(where);
    c->wrong = wrong;
    c->bytes = bytes;
    c->channel = MADE(rdma_create_event_channel());
    MUST(rdma_create_id(c->channel, &c->id, NULL, RDMA_PS_TCP));
    MUST(rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&address, 10000));
    expect_event(c, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(c->id, 10000));
    expect_event(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_queues(c);
    struct offer mine = { .wrong = wrong, .length = bytes };
    struct rdma_conn_param request = {
        .private_data = &mine, .private_data_len = sizeof mine, .responder_resources = 4, .initiator_depth = 4,
    };
    MUST(rdma_connect(c->id, &request));
    expect_event(c, RDMA_CM_EVENT_ESTABLISHED);
    if (c->peer.length != bytes) fail("Reply without the region");
    return c;
}

static void leave(struct connection *c) {
    rdma_disconnect(c->id);
    expect_event(c, RDMA_CM_EVENT_DISCONNECTED);
    destroy(c);
    free(c);
}

static void post(struct connection *c, enum ibv_wr_opcode opcode, int flags, uint64_t size, uint32_t key, uint64_t at) {
    struct ibv_sge piece = { (uintptr_t)c->memory, (uint32_t)size, c->region->lkey };
    struct ibv_send_wr request = {
        .sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | (unsigned)flags,
    }, *bad;
    if (opcode == IBV_WR_SEND_WITH_INV) request.invalidate_rkey = key;
    // siw's library reads the STag to invalidate from this field.
    request.wr.rdma.rkey = key;
    request.wr.rdma.remote_addr = at;
    MUST(ibv_post_send(c->id->qp, &request, &bad));
}

// The same bytes from three areas of the region.
static void post_pieces(struct connection *c, enum ibv_wr_opcode opcode, uint64_t size, uint32_t key) {
    uint32_t first = (uint32_t)size / GATHERED_BYTES_MIN, second = (uint32_t)size / 3;
    uint64_t start = (uintptr_t)c->memory;
    struct ibv_sge pieces[3] = {
        { start, first, c->region->lkey },
        { start + first, second, c->region->lkey },
        { start + first + second, (uint32_t)size - first - second, c->region->lkey },
    };
    struct ibv_send_wr request = {
        .sg_list = pieces, .num_sge = 3, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
    }, *bad;
    request.wr.rdma.rkey = key;
    request.wr.rdma.remote_addr = c->peer.address;
    MUST(ibv_post_send(c->id->qp, &request, &bad));
}

static void operate(struct connection *c, enum operation operation, uint64_t size, uint32_t seed) {
    struct message wanted = { .operation = operation, .seed = seed, .size = size };
    uint32_t key = ask(c, wanted).key;
    bool is_send = operation < WRITE;
    if (operation == READ) memset(c->memory, GUARD, size + GUARD_BYTES);
    else fill(c->memory, size, seed);
    // The reply arrives after the Send has been received.
    if (is_send) post_message_receive(c);
    uint64_t there = c->peer.address;
    switch (operation) {
    case SEND: post(c, IBV_WR_SEND, 0, size, 0, 0); break;
    case SEND_SOLICITED: post(c, IBV_WR_SEND, IBV_SEND_SOLICITED, size, 0, 0); break;
    case SEND_INVALIDATE: post(c, IBV_WR_SEND_WITH_INV, 0, size, key, 0); break;
    case SEND_GATHERED: post_pieces(c, IBV_WR_SEND, size, 0); break;
    case WRITE: post(c, IBV_WR_RDMA_WRITE, 0, size, key, there); break;
    case WRITE_GATHERED: post_pieces(c, IBV_WR_RDMA_WRITE, size, key); break;
    case WRITE_INLINE: post(c, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, size, key, there); break;
    case READ: post(c, IBV_WR_RDMA_READ, 0, size, key, there); break;
    case CHECK: break;
    }
    enum ibv_wc_status status = sent(c);
    if (status) fail("%s of %" PRIu64 " bytes: %s", operation_names[operation], size, ibv_wc_status_str(status));
    bool is_bad;
    if (operation == READ) is_bad = !is_whole(c->memory, size, seed);
    else if (is_send) is_bad = receive_message(c).is_bad;
    else is_bad = ask(c, (struct message){ .operation = CHECK, .seed = seed, .size = size }).is_bad;
    if (is_bad) fail("%s of %" PRIu64 " bytes: received data differs from sent data", operation_names[operation], size);
}

static void operations(const char *where, uint64_t bytes_max) {
    static const uint64_t sizes[] = {
        0, 1, 2, 3, 4, 5, 63, 64, 1000, 1427, 1428, 1429, 4095, 4096, 65535, 65536, 1000003, MESSAGE_BYTES_MAX,
    };
    struct connection *c = connect_to(where, NOTHING, MESSAGE_BYTES_MAX);
    uint32_t seed = 1;
    for (enum operation operation = 0; operation < OPERATIONS; operation++) {
        unsigned count = 0;
        for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
            if (sizes[at] > bytes_max || (operation == WRITE_INLINE && sizes[at] > INLINE_BYTES)) continue;
            // siw's kernel crashes on empty SGEs. After a message of its own, siw may respond to an RDMA Read of
            // length 0 with the length of that message.
            if (operation == READ && !sizes[at] && c->peer.is_siw) continue;
            bool is_variety = operation == SEND_SOLICITED || operation == SEND_GATHERED || operation == WRITE_GATHERED;
            if (is_variety && sizes[at] > VARIETY_BYTES_MAX) continue;
            bool is_gathered = operation == SEND_GATHERED || operation == WRITE_GATHERED;
            if (is_gathered && sizes[at] < GATHERED_BYTES_MIN) continue;
            operate(c, operation, sizes[at], seed++);
            count++;
        }
        say("%s: %u sizes", operation_names[operation], count);
    }
    leave(c);
    say("done");
}

struct series { const char *where; unsigned long count; };

static void *connect_often(void *argument) {
    struct series *series = argument;
    for (unsigned long at = 0; at < series->count; at++) {
        struct connection *c = connect_to(series->where, NOTHING, FEW_BYTES);
        operate(c, WRITE, 1000, (uint32_t)at);
        leave(c);
    }
    return NULL;
}

static void connects(const char *where, unsigned long count, unsigned long at_once) {
    pthread_t *threads = MADE(calloc(at_once, sizeof *threads));
    struct series series = { where, count / at_once };
    for (unsigned long at = 0; at < at_once; at++) MUST(pthread_create(&threads[at], NULL, connect_often, &series));
    for (unsigned long at = 0; at < at_once; at++) MUST(pthread_join(threads[at], NULL));
    free(threads);
    say("connected %lu", count / at_once * at_once);
}

static void err(const char *where, const char *name) {
    enum wrong wrong = 0;
    while (wrong < WRONGS && strcmp(wrong_names[wrong], name)) wrong++;
    if (wrong == WRONGS) fail("unknown case: %s", name);
    struct connection *c = connect_to(where, wrong, FEW_BYTES);
    uint64_t there = c->peer.address;
    struct message prepared = ask(c, (struct message){ .key = c->peer.key });
    uint32_t key = prepared.key;
    if (prepared.is_bad) {
        say("client %s: not supported", name);
        leave(c);
        return;
    }
    post_message_receive(c);
    // A different index: the low octet is the consumer's key.
    uint32_t unknown = key ^ 0x5a5a5a00;
    switch (wrong) {
    case WRITE_STAG: post(c, IBV_WR_RDMA_WRITE, 0, 8, unknown, there); break;
    case WRITE_BOUNDS: post(c, IBV_WR_RDMA_WRITE, 0, 8, key, there + c->bytes + GUARD_BYTES - 4); break;
    case WRITE_WRAP: post(c, IBV_WR_RDMA_WRITE, 0, 8, key, UINT64_MAX - 3); break;
    case WRITE_RIGHTS:
    case WRITE_DOMAIN:
    case WRITE_INVALIDATED: post(c, IBV_WR_RDMA_WRITE, 0, 8, key, there); break;
    case READ_STAG: post(c, IBV_WR_RDMA_READ, 0, 8, unknown, there); break;
    case READ_BOUNDS: post(c, IBV_WR_RDMA_READ, 0, 8, key, there + c->bytes + GUARD_BYTES - 4); break;
    case READ_RIGHTS:
    case READ_DOMAIN:
    case READ_INVALIDATED: post(c, IBV_WR_RDMA_READ, 0, 8, key, there); break;
    case SEND_LONG: post(c, IBV_WR_SEND, 0, sizeof(struct message) + 1, 0, 0); break;
    case SEND_NO_RECEIVE: post(c, IBV_WR_SEND, 0, 8, 0, 0); break;
    case INVALIDATE_STAG: post(c, IBV_WR_SEND_WITH_INV, 0, 8, unknown, 0); break;
    case NOTHING: break;
    }
    // A permitted operation does not end the connection, so it is closed here.
    enum ibv_wc_status status = sent(c);
    say("client %s: completed=%d", name, status);
    struct pollfd watched = { .fd = c->channel->fd, .events = POLLIN };
    if (poll(&watched, 1, 3000) == 0) {
        say("client %s: usable", name);
        leave(c);
        return;
    }
    expect_event(c, RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(c->id);
    report(c, "client");
    destroy(c);
    free(c);
}

int main(int count, char **words) {
    make_cycle();
    const char *verb = count > 2 ? words[1] : "";
    if (!strcmp(verb, "serve") && count == 4) serve(words[2], strtoul(words[3], NULL, 10));
    else if (!strcmp(verb, "operations") && count == 4) operations(words[2], strtoull(words[3], NULL, 10));
    else if (!strcmp(verb, "connects") && count == 5) connects(words[2], strtoul(words[3], NULL, 10), strtoul(words[4], NULL, 10));
    else if (!strcmp(verb, "error") && count == 4) err(words[2], words[3]);
    else return fprintf(stderr, "verbs_peer serve|operations|connects|error ADDRESS ...\n"), 2;
    return 0;
}
