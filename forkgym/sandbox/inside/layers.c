/* Makes one writable layer with its view in a single call, and copies a small layer's content into it.
 *
 * Loaded into the broker by ctypes; the same steps without the copy stand in stores.py, for machines without a compiler.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NAMES 64    /* more names than this in one directory, or longer ones than fit, are not copied */
#define LISTING 4096
#define BLOCK 65536

struct entry { /* as getdents64(2) writes it */
    uint64_t number;
    int64_t offset;
    unsigned short length;
    unsigned char kind;
    char name[];
};

struct budget {
    long names, bytes;
    int newest_first; /* the order in which this file system lists a directory */
    int owner;        /* give everything to this user, or -1 */
};

static int copy_folder(int from, int to, struct budget *left);

static int copy_attributes(int from, int to) {
    char names[1024], value[1024];
    ssize_t length = flistxattr(from, names, sizeof names);
    if (length < 0) return errno == ENOTSUP ? 0 : -errno;
    for (char *name = names; name < names + length; name += strlen(name) + 1) {
        ssize_t size = fgetxattr(from, name, value, sizeof value);
        if (size < 0 || fsetxattr(to, name, value, (size_t)size, 0)) return -errno;
    }
    return 0;
}

static int copy_bytes(int from, int to, off_t size) {
    static char block[BLOCK]; /* the broker calls from one thread */
    while (size > 0) {
        ssize_t got = read(from, block, sizeof block);
        if (got <= 0) return got < 0 ? -errno : -EIO;
        size -= got;
        for (ssize_t done = 0; done < got;) {
            ssize_t put = write(to, block + done, (size_t)(got - done));
            if (put < 0) return -errno;
            done += put;
        }
    }
    return 0;
}

/* What has content of its own: a file or a directory. */
static int copy_open(int from, int to, const char *name, const struct stat *s, struct budget *left) {
    int folder = S_ISDIR(s->st_mode), result = 0;
    if (folder && mkdirat(to, name, s->st_mode & 07777)) return -errno;
    int source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (folder ? O_DIRECTORY : 0));
    if (source < 0) return -errno;
    int target = folder ? openat(to, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                        : openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, s->st_mode & 07777);
    if (target < 0) result = -errno;
    else {
        struct timespec times[2] = {s->st_atim, s->st_mtim};
        result = folder ? copy_folder(source, target, left) : copy_bytes(source, target, s->st_size);
        if (!result) result = copy_attributes(source, target);
        if (!result && left->owner >= 0 && fchown(target, (uid_t)left->owner, (gid_t)left->owner)) result = -errno;
        if (!result && s->st_mode & 07000 && fchmod(target, s->st_mode & 07777)) result = -errno;
        if (!result && futimens(target, times)) result = -errno;
        close(target);
    }
    close(source);
    return result;
}

static int copy_name(int from, int to, const char *name, struct budget *left) {
    struct stat s;
    char link[4096];
    if (fstatat(from, name, &s, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (--left->names < 0) return -E2BIG;
    if (S_ISDIR(s.st_mode)) return copy_open(from, to, name, &s, left);
    if (s.st_nlink > 1 && !S_ISCHR(s.st_mode)) return -EMLINK; /* a copy would part the names of one file */
    if (S_ISREG(s.st_mode)) {
        /* A file with holes takes more room as a copy: that is for the other way to fork. */
        if (s.st_blocks * 512 < s.st_size || (left->bytes -= s.st_size) < 0) return -E2BIG;
        return copy_open(from, to, name, &s, left);
    }
    if (S_ISLNK(s.st_mode)) {
        ssize_t length = readlinkat(from, name, link, sizeof link - 1);
        if (length < 0) return -errno;
        link[length] = 0;
        if (symlinkat(link, to, name)) return -errno;
    } else if (mknodat(to, name, s.st_mode & (S_IFMT | 07777), s.st_rdev)) return -errno;
    if (left->owner >= 0 && !S_ISCHR(s.st_mode) &&
        fchownat(to, name, (uid_t)left->owner, (gid_t)left->owner, AT_SYMLINK_NOFOLLOW))
        return -errno;
    struct timespec times[2] = {s.st_atim, s.st_mtim};
    return utimensat(to, name, times, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

/* The names in a freshly opened directory, in the order of the file system; how many, or -errno. */
static int list(int folder, char *buffer, char **names) {
    int count = 0;
    long got = syscall(SYS_getdents64, folder, buffer, LISTING);
    if (got < 0) return -errno;
    if (got > LISTING - 300) return -E2BIG; /* there may be more */
    for (long at = 0; at < got;) {
        struct entry *entry = (struct entry *)(buffer + at);
        at += entry->length;
        if (!strcmp(entry->name, ".") || !strcmp(entry->name, "..")) continue;
        if (count == NAMES) return -E2BIG;
        names[count++] = entry->name;
    }
    return count;
}

/* Makes the names in the order in which they were made, so that both directories list alike. */
static int copy_folder(int from, int to, struct budget *left) {
    char buffer[LISTING] __attribute__((aligned(8))), *names[NAMES];
    int count = list(from, buffer, names), result = count < 0 ? count : 0;
    for (int i = 0; i < count && !result; i++)
        result = copy_name(from, to, names[left->newest_first ? count - 1 - i : i], left);
    return result;
}

static int copy_layer(const char *source, const char *target, struct budget *left) {
    int from = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC), to = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = from < 0 || to < 0 ? -errno : copy_folder(from, to, left);
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    return result;
}

/* Whether a tmpfs lists what was made last first: 1 or 0, or -errno. `folder` is an empty directory on one. */
int forkgym_newest_first(const char *folder) {
    char buffer[LISTING] __attribute__((aligned(8))), *names[NAMES];
    int there = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (there < 0 || mkdirat(there, "1", 0700) || mkdirat(there, "2", 0700)) return -errno;
    int count = list(there, buffer, names), result = count == 2 ? *names[0] == '2' : -EIO;
    unlinkat(there, "1", AT_REMOVEDIR);
    unlinkat(there, "2", AT_REMOVEDIR);
    close(there);
    return result;
}

static int below(char *text, size_t size, const char *folder, const char *name) {
    return snprintf(text, size, "%s/%s", folder, name) < (int)size ? 0 : -ENAMETOOLONG;
}

/* A layer in the new directory `folder`: its tmpfs, `u`pper and `w`ork directories, and its view `v`.
 *
 * source: an upper directory whose content it starts with, or null.
 * options: of the overlay, or null for no view yet.
 * Returns 0 or -errno; after an error the caller takes away what is there. */
int forkgym_layer(const char *folder, const char *quota, const char *source, const char *options, long names, long bytes,
                  int newest_first, int owner) {
    char path[128];
    struct budget left = {names, bytes, newest_first, owner};
    if (mkdir(folder, 0755)) return -errno;
    if (mount("layer", folder, "tmpfs", MS_NOSUID | MS_NODEV, quota)) return -errno;
    static const char *const parts[] = {"u", "w", "v"};
    for (int i = 0; i < 3; i++)
        if (below(path, sizeof path, folder, parts[i]) || mkdir(path, 0755)) return -errno;
    if (source) {
        below(path, sizeof path, folder, "u");
        mode_t mask = umask(0);
        int result = copy_layer(source, path, &left);
        umask(mask);
        if (result) return result;
    }
    below(path, sizeof path, folder, "v");
    if (options && mount("state", path, "overlay", MS_NOSUID | MS_NODEV, options)) return -errno;
    return 0;
}
