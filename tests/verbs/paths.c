// Calls every function of libc that takes a path and reports the results as text.
//
// paths compare GIVEN EXPECTED ...   each pair has the same results; prints the number of functions
// paths print PATH ...               prints the results
// paths time PATH COUNT              prints the time of open and close, in nanoseconds
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
enum { STAT_VERSION = 1 };
#else
enum { STAT_VERSION = 0 };
#endif
// Success must not change errno.
enum { UNUSED_ERRNO = 77, TEXT = 8192 };

static char text[TEXT];

__attribute__((format(printf, 1, 2))) static void add(const char *format, ...)
{
    size_t length = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + length, TEXT - length, format, values);
    va_end(values);
}

static void failed(void)
{
    add("errno %d", errno);
}

static void of_descriptor(int fd)
{
    char content[256];
    if (fd < 0) {
        failed();
        return;
    }
    add("errno %d, ", errno);
    ssize_t length = read(fd, content, sizeof content);
    if (length < 0)
        failed();
    else
        add("%.*s", (int)length, content);
    close(fd);
}

static void of_stream(FILE *stream)
{
    char line[256] = "";
    if (!stream) {
        failed();
        return;
    }
    if (!fgets(line, sizeof line, stream))
        add("empty, ");
    add("%s", line);
    fclose(stream);
}

static void of_stat(int result, const struct stat *found)
{
    if (result) {
        failed();
        return;
    }
    add("errno %d, %o %ju %ju %u:%u", errno, found->st_mode, (uintmax_t)found->st_ino,
        (uintmax_t)found->st_size, major(found->st_rdev), minor(found->st_rdev));
}

static void of_result(int result)
{
    add("%d errno %d", result, errno);
}

static void of_path(char *path)
{
    if (!path) {
        failed();
        return;
    }
    add("%s", path);
    free(path);
}

static void of_link(ssize_t length, const char *target)
{
    if (length < 0)
        failed();
    else
        add("errno %d, %.*s", errno, (int)length, target);
}

static int compare(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void of_directory(DIR *directory)
{
    char *names[256];
    int count = 0;
    struct dirent *entry;
    if (!directory) {
        failed();
        return;
    }
    while (count < 256 && (entry = readdir(directory)))
        names[count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(names, count, sizeof names[0], compare);
    for (int at = 0; at < count; at++) {
        add("%s ", names[at]);
        free(names[at]);
    }
}

static void of_list(int count, struct dirent **list)
{
    if (count < 0) {
        failed();
        return;
    }
    for (int at = 0; at < count; at++) {
        add("%s ", list[at]->d_name);
        free(list[at]);
    }
    free(list);
}

// Functions without a declaration: those of fortified and of older programs.
#define OLD(result, name, ...) \
    static result (*find_##name(void))(__VA_ARGS__) \
    { \
        return (result(*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, #name); \
    }
OLD(int, __open_2, const char *, int)
OLD(int, __open64_2, const char *, int)
OLD(int, __openat_2, int, const char *, int)
OLD(int, __openat64_2, int, const char *, int)
OLD(int, __xstat, int, const char *, struct stat *)
OLD(int, __xstat64, int, const char *, struct stat *)
OLD(int, __lxstat, int, const char *, struct stat *)
OLD(int, __lxstat64, int, const char *, struct stat *)
OLD(int, __fxstatat, int, int, const char *, struct stat *, int)
OLD(int, __fxstatat64, int, int, const char *, struct stat *, int)
OLD(char *, __realpath_chk, const char *, char *, size_t)
OLD(ssize_t, __readlink_chk, const char *, char *, size_t, size_t)
OLD(ssize_t, __readlinkat_chk, int, const char *, char *, size_t, size_t)

#define CALL(name) static void call_##name(const char *path)
#define STAT(name, ...) \
    CALL(name) \
    { \
        struct stat found; \
        of_stat(__VA_ARGS__, &found); \
    }
CALL(open) { of_descriptor(open(path, O_RDONLY)); }
CALL(open64) { of_descriptor(open64(path, O_RDONLY)); }
CALL(openat) { of_descriptor(openat(-1, path, O_RDONLY)); }
CALL(openat64) { of_descriptor(openat64(-1, path, O_RDONLY)); }
CALL(__open_2) { of_descriptor(find___open_2()(path, O_RDONLY)); }
CALL(__open64_2) { of_descriptor(find___open64_2()(path, O_RDONLY)); }
CALL(__openat_2) { of_descriptor(find___openat_2()(-1, path, O_RDONLY)); }
CALL(__openat64_2) { of_descriptor(find___openat64_2()(-1, path, O_RDONLY)); }
CALL(fopen) { of_stream(fopen(path, "r")); }
CALL(fopen64) { of_stream(fopen64(path, "r")); }
CALL(freopen) { of_stream(freopen(path, "r", fopen("/dev/zero", "r"))); }
CALL(freopen64) { of_stream(freopen64(path, "r", fopen("/dev/zero", "r"))); }
STAT(stat, stat(path, &found))
STAT(lstat, lstat(path, &found))
STAT(fstatat, fstatat(-1, path, &found, 0))
STAT(__xstat, find___xstat()(STAT_VERSION, path, &found))
STAT(__xstat64, find___xstat64()(STAT_VERSION, path, &found))
STAT(__lxstat, find___lxstat()(STAT_VERSION, path, &found))
STAT(__lxstat64, find___lxstat64()(STAT_VERSION, path, &found))
STAT(__fxstatat, find___fxstatat()(STAT_VERSION, -1, path, &found, 0))
STAT(__fxstatat64, find___fxstatat64()(STAT_VERSION, -1, path, &found, AT_SYMLINK_NOFOLLOW))
// The structures are equal on 64-bit machines.
STAT(stat64, stat64(path, (struct stat64 *)&found))
STAT(lstat64, lstat64(path, (struct stat64 *)&found))
STAT(fstatat64, fstatat64(-1, path, (struct stat64 *)&found, AT_SYMLINK_NOFOLLOW))
CALL(statx)
{
    struct statx found;
    if (statx(-1, path, 0, STATX_ALL, &found))
        failed();
    else
        add("%o %ju", found.stx_mode, (uintmax_t)found.stx_ino);
}
CALL(access) { of_result(access(path, R_OK)); }
CALL(euidaccess) { of_result(euidaccess(path, R_OK | W_OK)); }
CALL(eaccess) { of_result(eaccess(path, X_OK)); }
CALL(faccessat) { of_result(faccessat(-1, path, R_OK, 0)); }
CALL(getxattr) { of_result(getxattr(path, "user.none", NULL, 0)); }
CALL(lgetxattr) { of_result(lgetxattr(path, "user.none", NULL, 0)); }
CALL(listxattr) { of_result(listxattr(path, NULL, 0)); }
CALL(llistxattr) { of_result(llistxattr(path, NULL, 0)); }
CALL(realpath) { of_path(realpath(path, NULL)); }
CALL(__realpath_chk)
{
    char *room = malloc(PATH_MAX);
    if (find___realpath_chk()(path, room, PATH_MAX)) {
        of_path(room);
    } else {
        failed();
        free(room);
    }
}
CALL(canonicalize_file_name) { of_path(canonicalize_file_name(path)); }
#define LINK(name, ...) \
    CALL(name) \
    { \
        char target[PATH_MAX]; \
        ssize_t length = __VA_ARGS__; \
        of_link(length, target); \
    }
LINK(readlink, readlink(path, target, sizeof target))
LINK(readlinkat, readlinkat(-1, path, target, sizeof target))
LINK(__readlink_chk, find___readlink_chk()(path, target, sizeof target, sizeof target))
LINK(__readlinkat_chk, find___readlinkat_chk()(-1, path, target, sizeof target, sizeof target))
CALL(opendir) { of_directory(opendir(path)); }
#define LIST(name, ...) \
    CALL(name) \
    { \
        struct dirent **list = NULL; \
        int count = __VA_ARGS__; \
        of_list(count, list); \
    }
LIST(scandir, scandir(path, &list, NULL, alphasort))
LIST(scandir64, scandir64(path, (struct dirent64 ***)&list, NULL, alphasort64))
LIST(scandirat, scandirat(-1, path, &list, NULL, alphasort))
LIST(scandirat64, scandirat64(-1, path, (struct dirent64 ***)&list, NULL, alphasort64))
CALL(chdir)
{
    char *before = getcwd(NULL, 0);
    int result = chdir(path);
    if (result)
        failed();
    else
        of_path(getcwd(NULL, 0));
    if (chdir(before))
        abort();
    free(before);
}

#define NAMED(name) {#name, call_##name}
static const struct {
    const char *name;
    void (*call)(const char *path);
} CALLS[] = {
    NAMED(open), NAMED(open64), NAMED(openat), NAMED(openat64), NAMED(__open_2), NAMED(__open64_2),
    NAMED(__openat_2), NAMED(__openat64_2), NAMED(fopen), NAMED(fopen64), NAMED(freopen),
    NAMED(freopen64), NAMED(stat), NAMED(stat64), NAMED(lstat), NAMED(lstat64), NAMED(fstatat),
    NAMED(fstatat64), NAMED(statx), NAMED(__xstat), NAMED(__xstat64), NAMED(__lxstat),
    NAMED(__lxstat64), NAMED(__fxstatat), NAMED(__fxstatat64), NAMED(access), NAMED(euidaccess),
    NAMED(eaccess), NAMED(faccessat), NAMED(getxattr), NAMED(lgetxattr), NAMED(listxattr),
    NAMED(llistxattr), NAMED(realpath), NAMED(__realpath_chk), NAMED(canonicalize_file_name),
    NAMED(readlink), NAMED(__readlink_chk), NAMED(readlinkat), NAMED(__readlinkat_chk),
    NAMED(opendir), NAMED(scandir), NAMED(scandir64), NAMED(scandirat), NAMED(scandirat64),
    NAMED(chdir),
};
enum { COUNT = sizeof CALLS / sizeof CALLS[0] };

static void run(int at, const char *path)
{
    text[0] = 0;
    errno = UNUSED_ERRNO;
    CALLS[at].call(path);
}

static int compare_paths(const char *given, const char *expected)
{
    int differences = 0;
    for (int at = 0; at < COUNT; at++) {
        char found[TEXT];
        run(at, given);
        strcpy(found, text);
        run(at, expected);
        if (strcmp(found, text)) {
            printf("%s %s: %s: expected %s\n", CALLS[at].name, given, found, text);
            differences++;
        }
    }
    return differences;
}

static void print(const char *path)
{
    for (int at = 0; at < COUNT; at++) {
        run(at, path);
        printf("%s %s: %s\n", CALLS[at].name, path, text);
    }
}

// Creates a file: C passes the mode as a variable argument.
static void create(const char *path)
{
    for (int is_at = 0; is_at < 2; is_at++) {
        struct stat found;
        int flags = O_CREAT | O_EXCL | O_WRONLY;
        int fd = is_at ? openat(-1, path, flags, 0604) : open(path, flags, 0640);
        if (fstat(fd, &found))
            abort();
        printf("mode %o\n", found.st_mode);
        unlink(path);
        close(fd);
    }
}

static void measure(const char *path, long count)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long at = 0; at < count; at++)
        close(open(path, O_RDONLY));
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
    printf("%.1f\n", ns / count);
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    if (!strcmp(words[1], "compare")) {
        int differences = 0;
        for (int at = 2; at + 1 < count; at += 2)
            differences += compare_paths(words[at], words[at + 1]);
        printf("%d functions, %d differences\n", COUNT, differences);
        return differences != 0;
    }
    if (!strcmp(words[1], "time")) {
        measure(words[2], atol(words[3]));
        return 0;
    }
    umask(0);
    create(words[2]);
    for (int at = 2; at < count; at++)
        print(words[at]);
    // Null is a valid path of freopen, and an error of others.
    const char *volatile null = NULL;
    FILE *stream = fopen("/dev/null", "r");
    printf("null: %d %d\n", freopen(null, "r", stream) == stream, open(null, O_RDONLY));
    return 0;
}
