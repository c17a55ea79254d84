/* Starts one command in fresh pid, ipc, network and mount namespaces, with a small init above it.
 *
 * Loaded into the broker by ctypes, and with STARTER a program of its own, which is faster. The same steps in Python stand in spawn.py, for machines without a compiler.
 * The status pipe carries what happened, when no process of the command is left: 'S', the wait status of the command
 * and the resources used; or 'E', errno and the step that failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct plan {
    int template_ns;      /* mount namespace that holds the empty root */
    int network_ns;       /* or -1 */
    int input, output, error, status;
    int owner;            /* user id inside */
    int nest;             /* 1: a user namespace of its own; 0: become `owner` */
    const char *tree, *tmp, *tree_target, *tmp_target, *shm, *cwd;
    const char *const *argv, *const *envp;
    const uint64_t *limits; /* pairs: resource, value; ends with UINT64_MAX */
    const void *filter;
    uint64_t filter_length; /* instructions; 0: none */
    uint64_t persona;
};

static void fail(const struct plan *p, const char *step) {
    char text[128];
    int n = snprintf(text, sizeof text, "E%d %s", errno, step);
    if (write(p->status, text, (size_t)n) < 0) _exit(124);
    _exit(125);
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

static int attach(int fd, const char *target) {
    return (int)syscall(429, fd, "", AT_FDCWD, target, 4);
}

static void enter(const struct plan *p) {
    char map[64];
    int tree = (int)syscall(428, AT_FDCWD, p->tree, 1 | O_CLOEXEC | 0x8000);
    int tmp = (int)syscall(428, AT_FDCWD, p->tmp, 1 | O_CLOEXEC | 0x8000);
    if (tree < 0 || tmp < 0) fail(p, "open_tree");
    if (p->network_ns >= 0 && setns(p->network_ns, CLONE_NEWNET)) fail(p, "setns(net)");
    if (setns(p->template_ns, CLONE_NEWNS)) fail(p, "setns(mnt)");
    if (unshare(CLONE_NEWNS)) fail(p, "unshare(mnt)");
    if (attach(tree, p->tree_target)) fail(p, "attach the tree");
    if (attach(tmp, p->tmp_target)) fail(p, "attach /tmp");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0)) fail(p, "mount /proc");
    if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, p->shm)) fail(p, "mount /dev/shm");
    if (p->nest) {
        if (unshare(CLONE_NEWUSER)) fail(p, "unshare(user)");
        snprintf(map, sizeof map, "%d %d 1", p->owner, p->owner);
        if (put("/proc/self/setgroups", "deny") || put("/proc/self/uid_map", map) || put("/proc/self/gid_map", map))
            fail(p, "map the user");
    }
}

static void confine(const struct plan *p) {
    uint32_t header[2] = {0x20080522, 0}, none[6] = {0};
    const uint64_t *l;
    for (l = p->limits; *l != UINT64_MAX; l += 2) {
        struct rlimit r = {l[1], l[1]};
        if (setrlimit((int)l[0], &r)) fail(p, "setrlimit");
    }
    for (int c = 0; c < 64; c++)
        if (prctl(PR_CAPBSET_DROP, c, 0, 0, 0)) break;
    if (!p->nest) {
        if (syscall(SYS_setgroups, 0, 0)) fail(p, "setgroups");
        if (setresgid((gid_t)p->owner, (gid_t)p->owner, (gid_t)p->owner)) fail(p, "setresgid");
        if (setresuid((uid_t)p->owner, (uid_t)p->owner, (uid_t)p->owner)) fail(p, "setresuid");
    }
    if (syscall(SYS_capset, header, none)) fail(p, "capset");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail(p, "no_new_privs");
    if (p->persona && personality(p->persona) < 0) fail(p, "personality");
    umask(022);
    /* This process is a copy of the broker: keep the command from reading its memory. Execution lifts it. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) fail(p, "dumpable");
    if (p->filter_length) {
        struct sock_fprog program = {(unsigned short)p->filter_length, (struct sock_filter *)p->filter};
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) fail(p, "seccomp");
    }
}

static void command(const struct plan *p) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    setsid();
    if (dup2(p->input, 0) < 0 || dup2(p->output, 1) < 0 || dup2(p->error, 2) < 0) _exit(125);
    syscall(SYS_close_range, 3, ~0U, 0);
    if (chdir(p->cwd)) {
        dprintf(2, "sandbox: cannot enter %s: %s\n", p->cwd, strerror(errno));
        _exit(126);
    }
    extern char **environ;
    environ = (char **)p->envp;
    execvp(p->argv[0], (char *const *)p->argv);
    int code = errno == ENOENT ? 127 : 126;
    dprintf(2, "sandbox: cannot run %s: %s\n", p->argv[0], strerror(errno));
    _exit(code);
}

static void init(const struct plan *p) {
    enter(p);
    confine(p);
    pid_t child = vfork(); /* the command executes or exits at once, so it may borrow this memory */
    if (child < 0) fail(p, "fork");
    if (child == 0) command(p);
    struct { char mark; char pad[3]; int status; struct rusage usage; } said = {.mark = 'S'};
    if (p->status != 3) dup2(p->status, 3);
    close(0), close(1), close(2);
    syscall(SYS_close_range, 4, ~0U, 0);
    for (;;) {
        int found;
        pid_t ended = waitpid(-1, &found, 0);
        if (ended == child) {
            said.status = found;
            break;
        }
        if (ended < 0 && errno != EINTR) _exit(124);
    }
    /* Whoever is left becomes a child of this process when its parent dies: no child left means nobody left. */
    do kill(-1, SIGKILL);
    while (waitpid(-1, 0, 0) >= 0 || errno == EINTR);
    getrusage(RUSAGE_CHILDREN, &said.usage);
    _exit(write(3, &said, sizeof said) == (ssize_t)sizeof said ? 0 : 124);
}

/* Returns the process id of the init, or -errno. `pidfd` receives a descriptor of it. */
int forkgym_spawn(const struct plan *p, int *pidfd) {
    /* the layout of clone_args, 64 bytes: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls */
    uint64_t a[8] = {0};
    a[0] = CLONE_NEWPID | CLONE_NEWIPC | 0x1000 /* CLONE_PIDFD */;
    a[1] = (uint64_t)(uintptr_t)pidfd;
    a[4] = SIGCHLD;
    long pid = syscall(435, a, sizeof a);
    if (pid == 0) init(p);
    return pid < 0 ? -errno : (int)pid;
}

#ifdef STARTER
/* A process that starts commands on request: descriptor 3 is the channel to the broker, 4 the template. What it starts
 * are children of the broker. See starter.py for the layout of the messages. */
#define LARGEST (1 << 17)
#define WORDS 16384

static int receive(char *data, int *descriptors, size_t *length) {
    union {
        char space[CMSG_SPACE(5 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {data, LARGEST};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(3, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return -1;
    *length = (size_t)got;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (descriptors) {
        if (!first || first->cmsg_len != CMSG_LEN(5 * sizeof(int))) return -1;
        memcpy(descriptors, CMSG_DATA(first), 5 * sizeof(int));
    }
    return 0;
}

int main(void) {
    static _Alignas(8) char config[LARGEST], data[LARGEST];
    static const char *words[WORDS + 8];
    size_t length;
    if (receive(config, 0, &length) || length < 24) return 1;
    uint64_t *told = (uint64_t *)config;
    struct plan p = {.template_ns = 4, .owner = (int)told[0], .nest = (int)told[1], .persona = told[2]};
    p.filter = config + 24;
    p.filter_length = (length - 24) / 8;
    p.tree_target = "/testbed";
    p.tmp_target = "/tmp";
    int32_t answer = 0;
    for (;;) {
        if (write(3, &answer, sizeof answer) != sizeof answer) return 1;
        int fds[5];
        if (receive(data, fds, &length)) return 1;
        const uint32_t *counts = (const uint32_t *)data; /* arguments, variables, numbers of limits */
        uint64_t limits[64];
        size_t at = 16 + 8 * (size_t)counts[2], word = 0;
        if (counts[2] < 64) {
            memcpy(limits, data + 16, 8 * (size_t)counts[2]);
            limits[counts[2]] = UINT64_MAX;
        }
        /* tree, tmp, shm, cwd; arguments; a null; variables; a null */
        size_t arguments = 4 + (size_t)counts[0], wanted = arguments + 1 + counts[1];
        while (counts[2] < 64 && wanted < WORDS && at < length && word < wanted) {
            if (word == arguments) words[word++] = 0;
            if (word == wanted) break;
            words[word++] = data + at;
            at += strlen(data + at) + 1;
        }
        if (word == arguments) words[word++] = 0;
        answer = -E2BIG;
        if (word == wanted && data[length - 1] == 0) {
            words[wanted] = 0;
            p.tree = words[0], p.tmp = words[1], p.shm = words[2], p.cwd = words[3];
            p.argv = words + 4, p.envp = words + arguments + 1, p.limits = limits;
            p.input = fds[0], p.output = fds[1], p.error = fds[2], p.status = fds[3], p.network_ns = fds[4];
            uint64_t a[8] = {CLONE_NEWPID | CLONE_NEWIPC | CLONE_PARENT};
            long pid = syscall(435, a, sizeof a);
            if (pid == 0) init(&p);
            answer = pid < 0 ? -errno : (int32_t)pid;
        }
        for (int i = 0; i < 5; i++) close(fds[i]);
    }
}
#endif
