/* Makes system calls of one program fail: preloaded, it counts the calls on files below $FAULTS_DIRECTORY and fails those
 * that the file $FAULTS_CONTROL asks for. shim.py writes that file and explains it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

/* In the order of CALLS in shim.py. */
enum { OPEN, CREATE, READ, PREAD, WRITE, PWRITE, FDATASYNC, FSYNC, FSYNC_DIRECTORY, FTRUNCATE, FALLOCATE, UNLINK, RENAME, OPENDIR, MKDIR, CALLS };

struct control {
    atomic_uint armed;
    atomic_uint call;
    atomic_uint error; /* 0: the transfer is short. */
    atomic_int skip;
    atomic_int left;
    atomic_uint struck;
    atomic_uint traps; /* Whether fallocate can fail. */
    atomic_uint seen[CALLS];
    char part[128];
};

static struct control *control;
static char directory[4096];
static size_t directory_length;

/* Whether this call on this file must fail. */
static int strikes(int call, const char *path) {
    if (!path || strncmp(path, directory, directory_length) != 0) return 0;
    if (path[directory_length] != 0 && path[directory_length] != '/') return 0;
    atomic_fetch_add(&control->seen[call], 1);
    if ((int)atomic_load(&control->call) != call || !strstr(path, control->part)) return 0;
    if (atomic_fetch_sub(&control->skip, 1) > 0 || atomic_fetch_sub(&control->left, 1) <= 0) return 0;
    atomic_fetch_add(&control->struck, 1);
    return 1;
}

static int is_armed(void) { return control && atomic_load(&control->armed); }

static int strikes_file(int call, int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strikes(call, path);
}

static long failed(void) {
    errno = (int)atomic_load(&control->error);
    return -1;
}

#define REAL(name, ...) \
    static __typeof__(__VA_ARGS__) real; \
    if (!real) real = (__typeof__(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        REAL(#name, int (*)(const char *, int, ...)); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        if (is_armed() && strikes(flags & O_CREAT ? CREATE : OPEN, path)) return (int)failed(); \
        return real(path, flags, mode); \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(#name, int (*)(int, const char *, int, ...)); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        if (is_armed() && strikes(flags & O_CREAT ? CREATE : OPEN, path)) return (int)failed(); \
        return real(at, path, flags, mode); \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

/* A short transfer takes the first half. */
#define TRANSFER(name, call, buffer, ...) \
    ssize_t name(int file, buffer bytes, size_t count __VA_OPT__(, off_t) __VA_ARGS__) { \
        REAL(#name, ssize_t (*)(int, buffer, size_t __VA_OPT__(, off_t))); \
        if (is_armed() && strikes_file(call, file)) { \
            if (atomic_load(&control->error)) return failed(); \
            count -= count / 2; \
        } \
        return real(file, bytes, count __VA_OPT__(,) __VA_ARGS__); \
    }
TRANSFER(read, READ, void *)
TRANSFER(pread, PREAD, void *, offset)
TRANSFER(pread64, PREAD, void *, offset)
TRANSFER(write, WRITE, const void *)
TRANSFER(pwrite, PWRITE, const void *, offset)
TRANSFER(pwrite64, PWRITE, const void *, offset)

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL("writev", ssize_t (*)(int, const struct iovec *, int));
    if (is_armed() && strikes_file(WRITE, file)) {
        if (atomic_load(&control->error)) return failed();
        count -= count / 2;
    }
    return real(file, parts, count);
}

int fdatasync(int file) {
    REAL("fdatasync", int (*)(int));
    return is_armed() && strikes_file(FDATASYNC, file) ? (int)failed() : real(file);
}

int fsync(int file) {
    REAL("fsync", int (*)(int));
    struct stat status;
    if (is_armed()) {
        int is_directory = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
        if (strikes_file(is_directory ? FSYNC_DIRECTORY : FSYNC, file)) return (int)failed();
    }
    return real(file);
}

#define TRUNCATER(name) \
    int name(int file, off_t length) { \
        REAL(#name, int (*)(int, off_t)); \
        return is_armed() && strikes_file(FTRUNCATE, file) ? (int)failed() : real(file, length); \
    }
TRUNCATER(ftruncate)
TRUNCATER(ftruncate64)

int unlink(const char *path) {
    REAL("unlink", int (*)(const char *));
    return is_armed() && strikes(UNLINK, path) ? (int)failed() : real(path);
}

int rename(const char *from, const char *to) {
    REAL("rename", int (*)(const char *, const char *));
    return is_armed() && strikes(RENAME, to) ? (int)failed() : real(from, to);
}

DIR *opendir(const char *path) {
    REAL("opendir", DIR *(*)(const char *));
    if (is_armed() && strikes(OPENDIR, path)) {
        failed();
        return NULL;
    }
    return real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", int (*)(const char *, mode_t));
    return is_armed() && strikes(MKDIR, path) ? (int)failed() : real(path, mode);
}

/* Programs may call the kernel without the C library to reserve space, so a filter sends those calls here as signals. The
 * sixth argument, which the call does not have, lets those of this handler pass. */
enum { PASS = 0x6d71 };

#if defined(__x86_64__)
#define ARGUMENT(context, n) ((context)->uc_mcontext.gregs[(int[]){REG_RDI, REG_RSI, REG_RDX, REG_R10}[n]])
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARGUMENT(context, n) ((long)(context)->uc_mcontext.regs[n])
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#define MACHINE AUDIT_ARCH_AARCH64
#endif

#ifdef MACHINE
static void trapped(int number, siginfo_t *info, void *data) {
    (void)number, (void)info;
    ucontext_t *context = data;
    int before = errno;
    long result = -1;
    if (is_armed() && strikes_file(FALLOCATE, (int)ARGUMENT(context, 0))) failed();
    else
        result = syscall(SYS_fallocate, ARGUMENT(context, 0), ARGUMENT(context, 1), ARGUMENT(context, 2),
                         ARGUMENT(context, 3), 0L, (long)PASS);
    RESULT(context) = result < 0 ? -errno : result;
    errno = before;
}

static void trap_fallocate(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PASS, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) atomic_store(&control->traps, 1);
}
#else
static void trap_fallocate(void) {}
#endif

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULTS_CONTROL"), *below = getenv("FAULTS_DIRECTORY");
    if (!file || !below || strlen(below) >= sizeof directory) return;
    strcpy(directory, below);
    directory_length = strlen(directory);
    int opened = open(file, O_RDWR | O_CLOEXEC);
    if (opened < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    if (mapped == MAP_FAILED) return;
    control = mapped;
    trap_fallocate();
}
