/* Preloaded into commands that ask for it: random bytes from a seeded stream, and a clock that begins at a given instant.
 *
 * FORKGYM_RANDOM_SEED is a number; bytes are a function of it, of the process id and of the count of calls so far. They
 * are no secrets. FORKGYM_CLOCK is `seconds nanoseconds mode`: mode 0 stands still, mode 1 goes on from there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_BYTES (1 << 20) /* what an opened random device holds */
#define GOLDEN 0x9E3779B97F4A7C15ULL

static int seeded, clocked, moving;
static uint64_t seed;
static struct timespec begin, started; /* what the clock says at the command's start, and that start since boot */
static _Atomic uint64_t calls;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static uint64_t mix(uint64_t x) { /* the output function of SplitMix64 */
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

static void fill(void *target, size_t length) {
    unsigned char *out = target;
    uint64_t state = mix(seed + GOLDEN) ^ mix(((uint64_t)getpid() << 32) + atomic_fetch_add(&calls, 1) + 1);
    while (length) {
        uint64_t word = mix(state += GOLDEN);
        size_t part = length < 8 ? length : 8;
        memcpy(out, &word, part);
        out += part, length -= part;
    }
}

typedef long (*raw_call)(long, ...);

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    static raw_call next;
    if (!next) next = (raw_call)real("syscall");
    return next(number, a, b, c, d, e, f);
}

/* When the command began, since boot: its first process leads the session. */
static void find_start(void) {
    char path[64], text[1024];
    clock_gettime(CLOCK_BOOTTIME, &started);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)getsid(0));
    int fd = (int)raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return;
    text[got] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (!at) return;
    unsigned long long ticks = strtoull(at, 0, 10), each = (unsigned long long)sysconf(_SC_CLK_TCK);
    started.tv_sec = (time_t)(ticks / each);
    started.tv_nsec = (long)(ticks % each * (1000000000ULL / each));
}

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("FORKGYM_RANDOM_SEED");
    if (text) seed = strtoull(text, 0, 10), seeded = 1;
    text = getenv("FORKGYM_CLOCK");
    long long seconds;
    if (text && sscanf(text, "%lld %ld %d", &seconds, &begin.tv_nsec, &moving) == 3) {
        begin.tv_sec = (time_t)seconds;
        if (moving) find_start();
        clocked = 1;
    }
}

/* --- random bytes */

ssize_t getrandom(void *target, size_t length, unsigned flags) {
    if (!seeded) return raw(SYS_getrandom, (long)target, (long)length, flags, 0, 0, 0);
    fill(target, length);
    return (ssize_t)length;
}

int getentropy(void *target, size_t length) {
    if (length > 256) {
        errno = EIO;
        return -1;
    }
    return getrandom(target, length, 0) == (ssize_t)length ? 0 : -1;
}

void arc4random_buf(void *target, size_t length) {
    if (!seeded) {
        void (*next)(void *, size_t) = (void (*)(void *, size_t))real("arc4random_buf");
        if (next) {
            next(target, length);
            return;
        }
        for (size_t done = 0; done < length;) {
            long got = raw(SYS_getrandom, (long)target + (long)done, (long)(length - done), 0, 0, 0, 0);
            if (got > 0) done += (size_t)got;
        }
        return;
    }
    fill(target, length);
}

uint32_t arc4random(void) {
    uint32_t word;
    arc4random_buf(&word, sizeof word);
    return word;
}

uint32_t arc4random_uniform(uint32_t bound) {
    if (bound < 2) return 0;
    uint32_t least = -bound % bound, word;
    do word = arc4random();
    while (word < least);
    return word % bound;
}

/* A file that holds the stream: unlike a tracked descriptor it outlives dup and exec. */
static int device(const char *path, int flags) {
    if (!seeded || !path || (flags & O_ACCMODE) != O_RDONLY) return -2;
    if (strcmp(path, "/dev/urandom") && strcmp(path, "/dev/random")) return -2;
    int fd = memfd_create("random", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (fd < 0) return -1;
    void *bytes = ftruncate(fd, DEVICE_BYTES) ? MAP_FAILED
                                              : mmap(0, DEVICE_BYTES, PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        close(fd);
        return -1;
    }
    fill(bytes, DEVICE_BYTES);
    munmap(bytes, DEVICE_BYTES);
    return fd;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    int fd = device(path, flags);
    return fd != -2 ? fd : (int)raw(SYS_openat, folder, (long)path, flags, mode, 0, 0);
}

#define MODE(flags, last, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, last); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, flags, mode)
    return open_at(folder, path, flags, mode);
}
/* What fortified programs call. */
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }

static FILE *stream(const char *name, const char *path, const char *mode) {
    int fd = mode[0] == 'r' && !strchr(mode, '+') ? device(path, O_RDONLY) : -2;
    if (fd == -1) return 0;
    if (fd >= 0) return fdopen(fd, mode);
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) real(name);
    return next(path, mode);
}
FILE *fopen(const char *path, const char *mode) { return stream("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream("fopen64", path, mode); }

/* --- the clock */

static int shown(struct timespec *now) {
    *now = begin;
    if (!moving) return 0;
    struct timespec here;
    if (raw(SYS_clock_gettime, CLOCK_BOOTTIME, (long)&here, 0, 0, 0, 0)) return -1;
    now->tv_sec += here.tv_sec - started.tv_sec;
    now->tv_nsec += here.tv_nsec - started.tv_nsec;
    if (now->tv_nsec < 0) now->tv_nsec += 1000000000L, now->tv_sec--;
    if (now->tv_nsec >= 1000000000L) now->tv_nsec -= 1000000000L, now->tv_sec++;
    return 0;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (clocked && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE || which == CLOCK_TAI)) return shown(now);
    if (!next) next = (int (*)(clockid_t, struct timespec *))real("clock_gettime");
    return next(which, now);
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *target) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (target) *target = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* --- programs that name the call themselves */

long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (seeded && number == SYS_getrandom) return getrandom((void *)a[0], (size_t)a[1], (unsigned)a[2]);
    if (clocked && number == SYS_clock_gettime) return clock_gettime((clockid_t)a[0], (struct timespec *)a[1]);
    return raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
