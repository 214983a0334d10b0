// Process 1 of the guest: loads the modules, configures eth0 and siw0, then runs commands received over a
// virtio-serial port. The protocol of the port is lines of text in both directions:
//
//     run ID COMMAND     the host: starts `sh -c COMMAND`
//     ID > LINE          the guest: a line of its standard output or error
//     ID = STATUS        the guest: the command's exit status, or 128 and the signal; its output is complete
//     0 = 0              the guest: ready
//
// Parameters on the kernel's command line: siw=stock or siw=patched, address=IP/PREFIX, mtu=BYTES.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// Maximum number of concurrent commands.
#define JOBS_MAX 64
// Maximum bytes of a command, and of a line of its output; a longer line is forwarded in parts.
#define LINE_MAX_BYTES 4096

struct job {
    unsigned long id; // 0: free
    pid_t process;
    int output;
    size_t length;
    char line[LINE_MAX_BYTES];
};

static struct job jobs[JOBS_MAX];
static int port;

static void die(const char *what) {
    fprintf(stderr, "init: %s: %s\n", what, strerror(errno));
    reboot(RB_POWER_OFF);
    _exit(1);
}

static void mount_at(const char *type, const char *where) {
    if (mount(type, where, type, 0, NULL) && errno != EBUSY) die(where);
}

static void load(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "/modules/%s", name);
    int file = open(path, O_RDONLY);
    if (file < 0) die(path);
    if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST) die(path);
    close(file);
}

// Returns a parameter of the kernel's command line, or its default.
static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name); // the kernel passes unknown parameters to process 1
    return value ? value : otherwise;
}

static void must(const char *format, ...) {
    char command[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command)) die(command);
}

// Opens the port with the name assigned by the host.
static int open_port(const char *name) {
    DIR *ports = opendir("/sys/class/virtio-ports");
    for (struct dirent *entry; ports && (entry = readdir(ports));) {
        char path[320], found[64] = "";
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%63s", found) != 1) found[0] = 0;
        fclose(file);
        if (strcmp(found, name)) continue;
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        closedir(ports);
        int opened = open(path, O_RDWR | O_CLOEXEC);
        if (opened < 0) die(path);
        return opened;
    }
    errno = ENODEV;
    die(name);
    return -1;
}

static void tell(unsigned long id, char kind, const char *text, size_t length) {
    char line[LINE_MAX_BYTES + 64];
    size_t size = (size_t)snprintf(line, sizeof line, "%lu %c ", id, kind);
    memcpy(line + size, text, length);
    size += length;
    line[size++] = '\n';
    for (size_t done = 0; done < size;) {
        ssize_t written = write(port, line + done, size - done);
        if (written < 0 && errno != EINTR && errno != EAGAIN) die("port");
        if (written > 0) done += (size_t)written;
    }
}

static void tell_status(unsigned long id, int status) {
    char text[16];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    tell(id, '=', text, (size_t)snprintf(text, sizeof text, "%d", code));
}

static struct job *find(unsigned long id) {
    for (int at = 0; at < JOBS_MAX; at++)
        if (jobs[at].id == id) return &jobs[at];
    return NULL;
}

static void run(unsigned long id, const char *command) {
    struct job *job = find(0);
    int ends[2];
    if (!job || pipe2(ends, O_CLOEXEC)) {
        tell(id, '>', "too many open commands", 22);
        tell_status(id, 127 << 8);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(127);
    }
    if (child < 0) die("fork");
    close(ends[1]);
    *job = (struct job){ .id = id, .process = child, .output = ends[0] };
}

static void obey(char *line) {
    unsigned long id;
    int at = 0;
    if (sscanf(line, "run %lu %n", &id, &at) == 1 && at && id) {
        run(id, line + at);
    } else {
        fprintf(stderr, "init: invalid command: %s\n", line);
    }
}

// Reads the output of a command. At end of file the command has ended, or has closed its output and is waited for.
static void hand_on(struct job *job) {
    ssize_t got = read(job->output, job->line + job->length, sizeof job->line - job->length);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got > 0) {
        job->length += (size_t)got;
        char *start = job->line, *end;
        while ((end = memchr(start, '\n', job->length))) {
            tell(job->id, '>', start, (size_t)(end - start));
            job->length -= (size_t)(end + 1 - start);
            start = end + 1;
        }
        memmove(job->line, start, job->length);
        if (job->length < sizeof job->line) return;
    }
    if (job->length) tell(job->id, '>', job->line, job->length);
    job->length = 0;
    if (got > 0) return;
    int status = 0;
    close(job->output);
    waitpid(job->process, &status, 0);
    tell_status(job->id, status);
    job->id = 0;
}

static void set_up(void) {
    mount_at("devtmpfs", "/dev");
    int console = open("/dev/console", O_RDWR);
    for (int at = 0; at < 3 && console >= 0; at++) dup2(console, at);
    mount_at("proc", "/proc");
    mount_at("sysfs", "/sys");
    mount_at("tmpfs", "/tmp");
    setenv("PATH", "/bin", 1);

    char name[128];
    FILE *order = fopen("/modules/order", "r");
    if (!order) die("/modules/order");
    while (fscanf(order, "%127s", name) == 1) load(name);
    fclose(order);
    snprintf(name, sizeof name, "%s.ko", setting("siw", "stock"));
    load(name);

    must("ip link set lo up");
    must("ip link set eth0 mtu %s up", setting("mtu", "1500"));
    must("ip addr add %s dev eth0", setting("address", "10.77.0.2/24"));
    must("rdma link add siw0 type siw netdev eth0");
}

int main(void) {
    set_up();
    port = open_port("commands");
    tell(0, '=', "0", 1);

    static char input[LINE_MAX_BYTES];
    size_t length = 0;
    for (;;) {
        struct pollfd watched[JOBS_MAX + 1] = { { .fd = port, .events = POLLIN } };
        for (int at = 0; at < JOBS_MAX; at++)
            watched[at + 1] = (struct pollfd){ .fd = jobs[at].id ? jobs[at].output : -1, .events = POLLIN };
        if (poll(watched, JOBS_MAX + 1, -1) < 0 && errno != EINTR) die("poll");
        for (int at = 0; at < JOBS_MAX; at++)
            if (jobs[at].id && watched[at + 1].revents) hand_on(&jobs[at]);
        if (!watched[0].revents) continue;
        ssize_t got = read(port, input + length, sizeof input - length);
        // The host closed the port: power off the guest.
        if (got == 0) reboot(RB_POWER_OFF);
        if (got < 0) continue;
        length += (size_t)got;
        char *start = input, *end;
        while ((end = memchr(start, '\n', length))) {
            *end = 0;
            obey(start);
            length -= (size_t)(end + 1 - start);
            start = end + 1;
        }
        memmove(input, start, length);
        if (length == sizeof input) length = 0;
    }
}
