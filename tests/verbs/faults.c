/* Program whose verbs library gets an error from one system call.
 *
 *   faults REPORT CALL[,CALL...] PROGRAM [ARGUMENT...]
 *   faults REPORT CALL:ERROR:PLACE:COUNT PROGRAM [ARGUMENT...]
 *
 * The first form reports each place in the library that makes one of the calls: name, offset in the file, number of
 * calls, and "tap" if the first one is a call on a TAP, otherwise "-". The second form fails the call of that number
 * (from 1) at that place with that error, and reports it. Calls
 * of the program itself and of its other libraries are executed, and those that read or write an eventfd: those of the
 * library do not fail, and the others return EINTR to the program by contract.
 *
 * The kernel passes each call to this process (seccomp_unotify(2)), also those without a function of libc. The caller
 * is the library if the address of the call is there, or if it is the innermost known return address on the stack.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIBRARY "/libflue_verbs.so"

enum {
	CALLS_MAX = 64,
	PLACES_MAX = 512,
	STACK_WORDS = 1024, /* searched for the caller of a function of libc */
};

struct entry { const char *name; int number; };

static const struct entry CALLS[] = {
#define CALL(name) { #name, SYS_##name }
	CALL(read), CALL(readv), CALL(recvfrom), CALL(recvmsg), CALL(write), CALL(writev), CALL(sendto), CALL(sendmsg),
	CALL(epoll_create1), CALL(epoll_ctl), CALL(epoll_pwait), CALL(epoll_pwait2), CALL(ppoll), CALL(eventfd2),
	CALL(timerfd_create), CALL(timerfd_settime), CALL(memfd_create), CALL(mmap), CALL(clone), CALL(clone3),
	CALL(openat), CALL(fcntl), CALL(dup), CALL(pipe2), CALL(socketpair), CALL(statx), CALL(socket), CALL(bind),
	CALL(listen), CALL(accept4), CALL(connect), CALL(shutdown), CALL(getsockname), CALL(getpeername),
	CALL(setsockopt), CALL(getsockopt), CALL(ioctl), CALL(getrandom), CALL(sched_getaffinity), CALL(mkdirat),
	CALL(unlinkat), CALL(ftruncate), CALL(madvise), CALL(mprotect), CALL(recvmmsg), CALL(sendmmsg),
	CALL(sched_setaffinity), CALL(prctl), CALL(getdents64), CALL(lseek), CALL(fchmod), CALL(rseq), CALL(set_robust_list),
	CALL(sigaltstack), CALL(pread64), CALL(pwrite64), CALL(readlink), CALL(readlinkat), CALL(pidfd_open),
#if defined(SYS_epoll_wait)
	CALL(epoll_wait), CALL(poll), CALL(open), CALL(mkdir), CALL(unlink), CALL(stat), CALL(select),
#endif
#undef CALL
};

static const struct entry ERRORS[] = {
#define ERROR(name) { #name, name }
	ERROR(EINTR), ERROR(EIO), ERROR(EAGAIN), ERROR(ENOMEM), ERROR(ENOBUFS), ERROR(ENOSPC), ERROR(EMFILE), ERROR(ENFILE),
	ERROR(EACCES), ERROR(EPERM), ERROR(ENOENT), ERROR(ENOSYS), ERROR(EINVAL), ERROR(EPIPE), ERROR(ECONNRESET),
	ERROR(ECONNREFUSED), ERROR(ECONNABORTED), ERROR(ETIMEDOUT), ERROR(EHOSTUNREACH), ERROR(ENETUNREACH),
	ERROR(EADDRINUSE), ERROR(EADDRNOTAVAIL), ERROR(EAFNOSUPPORT), ERROR(ENOTCONN), ERROR(ENOPROTOOPT), ERROR(EBADFD),
#undef ERROR
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
	exit(125);
}

static const char *name_of(int number)
{
	for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
		if (CALLS[i].number == number)
			return CALLS[i].name;
	return "?";
}

static int number_of(const struct entry *table, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(table[i].name, name))
			return table[i].number;
	errno = EINVAL;
	fail(name);
}

#define NUMBER_OF(table, name) number_of(table, sizeof table / sizeof *table, name)

/* Code of the library in a process: addresses, and the offset of the first one in the file. */
struct code {
	int process;
	uint64_t start, end, offset;
};

/* Reads the mapping; false if the process has not loaded the library. */
static int find_code(int task, struct code *code)
{
	char name[64], line[4400], flags[8];
	snprintf(name, sizeof name, "/proc/%d/maps", task);
	FILE *maps = fopen(name, "re");
	int found = 0;
	while (maps && !found && fgets(line, sizeof line, maps))
		found = strstr(line, LIBRARY) &&
			sscanf(line, "%lx-%lx %7s %lx", &code->start, &code->end, flags, &code->offset) == 4 &&
			flags[2] == 'x';
	if (maps)
		fclose(maps);
	return found;
}

/* True if the instruction before the address is a call. */
static int follows_call(int memory, uint64_t address)
{
#if defined(__x86_64__)
	uint8_t code[7];
	if (pread(memory, code, sizeof code, address - sizeof code) != sizeof code)
		return 0;
	if (code[2] == 0xe8)
		return 1;
	for (int length = 2; length <= 7; length++)
		if (code[7 - length] == 0xff && (code[8 - length] & 0x38) == 0x10)
			return 1;
	return 0;
#else
	return memory >= 0 && address;
#endif
}

/* True if the first argument of the call is a descriptor of that file. */
static int is_of_file(const struct seccomp_notif *call, const char *file)
{
	char name[64], target[64] = "";
	snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)call->pid, (int)call->data.args[0]);
	return readlink(name, target, sizeof target - 1) > 0 && !strcmp(target, file);
}

/* True if the call reads or writes an eventfd. */
static int is_of_eventfd(const struct seccomp_notif *call)
{
	return (call->data.nr == SYS_read || call->data.nr == SYS_write) && is_of_file(call, "anon_inode:[eventfd]");
}

/* True if the call reads, writes or configures a TAP. */
static int is_of_tap(const struct seccomp_notif *call)
{
	switch (call->data.nr) {
	case SYS_read: case SYS_write: case SYS_writev: case SYS_ioctl:
		return is_of_file(call, "/dev/net/tun");
	default:
		return 0;
	}
}

/* Offset in the library of the place that has made the call; 0 if another object has. */
static uint64_t place_of(const struct seccomp_notif *call)
{
	struct code code;
	if (!find_code(call->pid, &code) || is_of_eventfd(call))
		return 0;
	uint64_t at = call->data.instruction_pointer;
	if (at >= code.start && at < code.end)
		return at - code.start + code.offset;
	char name[64], text[512] = "";
	snprintf(name, sizeof name, "/proc/%d/syscall", (int)call->pid);
	int file = open(name, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
	if (file >= 0)
		close(file);
	uint64_t stack = 0, place = 0;
	/* Number, six arguments, stack, instruction. */
	if (length <= 0 || sscanf(text, "%*s %*s %*s %*s %*s %*s %*s %lx", &stack) != 1)
		return 0;
	snprintf(name, sizeof name, "/proc/%d/mem", (int)call->pid);
	int memory = open(name, O_RDONLY | O_CLOEXEC);
	static uint64_t words[STACK_WORDS];
	length = memory < 0 ? 0 : pread(memory, words, sizeof words, stack);
	for (ssize_t i = 0; i < length / (ssize_t)sizeof *words && !place; i++)
		if (words[i] >= code.start && words[i] < code.end && follows_call(memory, words[i]))
			place = words[i] - code.start + code.offset;
	if (memory >= 0)
		close(memory);
	return place;
}

/* Runs the program under a filter that passes these calls to the parent. */
static void run(char **program, const int *calls, int count, volatile int *listener)
{
	struct sock_filter filter[2 * CALLS_MAX + 2];
	int length = 0;
	filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < count; i++) {
		filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	}
	filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog all = { .len = length, .filter = filter };
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("prctl");
	*listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &all);
	if (*listener < 0)
		fail("seccomp");
	/* Until the parent has the listener. */
	raise(SIGSTOP);
	execvp(program[0], program);
	fail(program[0]);
}

static struct { int call; uint64_t place; long count; int is_of_tap; } places[PLACES_MAX];
static int places_count;

/* Number of calls so far, from 1, at that place. */
static long count_call(const struct seccomp_notif *call, uint64_t place)
{
	int i = 0;
	while (i < places_count && (places[i].call != call->data.nr || places[i].place != place))
		i++;
	if (i == PLACES_MAX) {
		errno = ENOSPC;
		fail("places");
	}
	if (i == places_count) {
		places_count++;
		places[i].call = call->data.nr;
		places[i].place = place;
		places[i].is_of_tap = is_of_tap(call);
	}
	return ++places[i].count;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: faults REPORT CALL[,CALL...]|CALL:ERROR:PLACE:COUNT PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	FILE *report = fopen(argv[1], "we");
	if (!report)
		fail(argv[1]);
	int calls[CALLS_MAX], count = 0, error = 0;
	uint64_t place = 0;
	long number = 0;
	char *fault = strchr(argv[2], ':');
	if (fault) {
		*fault++ = 0;
		char *word = strtok(fault, ":");
		error = NUMBER_OF(ERRORS, word ? word : "");
		word = strtok(NULL, ":");
		place = word ? strtoull(word, NULL, 16) : 0;
		word = strtok(NULL, ":");
		number = word ? atol(word) : 1;
	}
	for (char *name = strtok(argv[2], ","); name && count < CALLS_MAX; name = strtok(NULL, ","))
		calls[count++] = NUMBER_OF(CALLS, name);
	volatile int *listener = mmap(NULL, sizeof *listener, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (listener == MAP_FAILED)
		fail("mmap");
	pid_t program = fork();
	if (program < 0)
		fail("fork");
	if (!program)
		run(argv + 3, calls, count, listener);
	int status = 0;
	if (waitpid(program, &status, WUNTRACED) != program || !WIFSTOPPED(status))
		return 125;
	int process = syscall(SYS_pidfd_open, program, 0);
	int notices = syscall(SYS_pidfd_getfd, process, *listener, 0);
	if (notices < 0)
		fail("pidfd_getfd");
	kill(program, SIGCONT);
	struct pollfd ready = { .fd = notices, .events = POLLIN };
	while (poll(&ready, 1, -1) > 0 && !(ready.revents & POLLHUP)) {
		struct seccomp_notif call = { 0 };
		if (ioctl(notices, SECCOMP_IOCTL_NOTIF_RECV, &call))
			continue;
		struct seccomp_notif_resp answer = { .id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
		uint64_t at = place_of(&call);
		if (at && !error) {
			count_call(&call, at);
		} else if (at == place && at && count_call(&call, at) == number) {
			answer.flags = 0;
			answer.error = -error;
			fprintf(report, "failed %s at %lx\n", name_of(call.data.nr), at);
			fflush(report);
		}
		/* Fails if the call was interrupted: the kernel passes it again. */
		ioctl(notices, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
	for (int i = 0; !error && i < places_count; i++)
		fprintf(report, "%s %lx %ld %s\n", name_of(places[i].call), places[i].place, places[i].count,
			places[i].is_of_tap ? "tap" : "-");
	fclose(report);
	if (waitpid(program, &status, 0) != program)
		fail("waitpid");
	if (WIFSIGNALED(status)) {
		fprintf(stderr, "faults: signal %d\n", WTERMSIG(status));
		return 128 + WTERMSIG(status);
	}
	return WEXITSTATUS(status);
}
