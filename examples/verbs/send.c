/* A message from a client to a server with librdmacm and libibverbs, as for any RDMA adapter.
 *
 *   $ make
 *   $ flue run -- ./send 7471 &                 server
 *   received: hello
 *   $ flue run -- ./send 7471 127.0.0.1         client
 *   sent
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

/* Waits for one completion. rdma_get_send_comp and rdma_get_recv_comp return the number of completions. */
static void completed(int count, struct ibv_wc *wc)
{
    check(count != 1, "completion");
    if (wc->status != IBV_WC_SUCCESS) {
        fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc->status));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PORT [SERVER]\n", argv[0]);
        return 2;
    }
    const char *server = argc > 2 ? argv[2] : NULL;
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = server ? 0 : RAI_PASSIVE};
    struct rdma_addrinfo *address;
    check(rdma_getaddrinfo(server, argv[1], &hints, &address), "rdma_getaddrinfo");

    /* Completions of one message in each direction. */
    struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .sq_sig_all = 1};
    struct rdma_cm_id *listener = NULL, *id;
    if (server) {
        check(rdma_create_ep(&id, address, NULL, &attr), "rdma_create_ep");
    } else {
        check(rdma_create_ep(&listener, address, NULL, &attr), "rdma_create_ep");
        check(rdma_listen(listener, 1), "rdma_listen");
        check(rdma_get_request(listener, &id), "rdma_get_request");
    }
    rdma_freeaddrinfo(address);

    static char buffer[64];
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    check(!mr, "rdma_reg_msgs");
    struct ibv_wc wc;
    if (server) {
        check(rdma_connect(id, NULL), "rdma_connect");
        strcpy(buffer, "hello");
        check(rdma_post_send(id, NULL, buffer, strlen(buffer) + 1, mr, 0), "rdma_post_send");
        completed(rdma_get_send_comp(id, &wc), &wc);
        puts("sent");
    } else {
        /* The receive is posted before the client can send. */
        check(rdma_post_recv(id, NULL, buffer, sizeof buffer, mr), "rdma_post_recv");
        check(rdma_accept(id, NULL), "rdma_accept");
        completed(rdma_get_recv_comp(id, &wc), &wc);
        printf("received: %s\n", buffer);
    }
    rdma_disconnect(id);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    if (listener)
        rdma_destroy_ep(listener);
    return 0;
}
