/* A program that loads the libraries itself, and lets go of them: before the first use, after it, and while an adapter
   runs. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(what) do { if (!(what)) { failures++; printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, dlerror()); } } while (0)

static void use(void *verbs, void *cm)
{
	struct ibv_device **(*list)(int *) = dlsym(verbs, "ibv_get_device_list");
	void (*free_list)(struct ibv_device **) = dlsym(verbs, "ibv_free_device_list");
	struct ibv_context *(*open)(struct ibv_device *) = dlsym(verbs, "ibv_open_device");
	int (*close)(struct ibv_context *) = dlsym(verbs, "ibv_close_device");
	int (*query)(struct ibv_context *, struct ibv_device_attr *) = dlsym(verbs, "ibv_query_device");
	struct rdma_event_channel *(*create)(void) = dlsym(cm, "rdma_create_event_channel");
	void (*destroy)(struct rdma_event_channel *) = dlsym(cm, "rdma_destroy_event_channel");
	struct ibv_device_attr attr;
	int count = 0;
	CHECK(list && free_list && open && close && query && create && destroy);
	struct ibv_device **devices = list(&count);
	CHECK(devices && count == 1);
	struct ibv_context *context = open(devices[0]);
	CHECK(context && query(context, &attr) == 0 && attr.max_qp > 0);
	struct rdma_event_channel *channel = create();
	CHECK(channel != NULL);
	destroy(channel);
	CHECK(close(context) == 0);
	free_list(devices);
}

static void load(int is_used)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), *cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(verbs && cm);
	/* The names of development packages lead to the same library, which is loaded once. */
	void *plain_verbs = dlopen("libibverbs.so", RTLD_NOW | RTLD_LOCAL), *plain_cm = dlopen("librdmacm.so", RTLD_NOW | RTLD_LOCAL);
	CHECK(plain_verbs == verbs && plain_cm == cm && verbs == cm);
	CHECK(dlclose(plain_cm) == 0 && dlclose(plain_verbs) == 0);
	CHECK(dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.1") == dlsym(verbs, "ibv_get_device_list"));
	if (is_used)
		use(verbs, cm);
	CHECK(dlclose(cm) == 0 && dlclose(verbs) == 0);
}

int main(void)
{
	int status;
	load(0);
	/* A child that is the first to use them, and its parent after it. */
	pid_t child = fork();
	if (child == 0) {
		load(1);
		_exit(failures);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int round = 0; round < 3; round++)
		load(1);
	printf("%d failures\n", failures);
	return failures != 0;
}
