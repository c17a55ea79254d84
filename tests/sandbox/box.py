"""Places where a guard is off, so that an attempt can be shown to work: each throws away what was done to it.

The `box` is a machine of its own: root of a fresh user namespace over writable overlays of the host's programs, with
processes, network, names and messages of its own. Nothing that is done there reaches the host's files.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BoxUnavailableError", "capable", "run_directly", "run_in_box"]

_CAPABILITIES = {"sys_time": 25, "mknod": 27, "sys_nice": 23, "sys_admin": 21, "sys_module": 16, "sys_boot": 22}
_CAPABILITIES |= {"setuid": 7, "chown": 0, "syslog": 34, "bpf": 39, "dac_read_search": 2, "sys_ptrace": 19}
_START = r"""
set -e
mount -t tmpfs -o mode=755 box "$POINT"
cd "$POINT"
mkdir root over
mount -t tmpfs -o mode=755 root root
for name in bin sbin lib lib32 lib64 libx32; do
    if test -h /$name; then cp -P /$name root/$name; fi
done
mkdir root/box root/mnt root/dev root/proc root/sys root/tmp root/old root/root
for name in usr etc $PLACES; do
    if ! test -e "root/$name"; then
        mkdir -p "root/$name" "over/$name/upper" "over/$name/work"
        layers="lowerdir=/$name,upperdir=over/$name/upper,workdir=over/$name/work"
        mount -t overlay -o "$layers,userxattr" box "root/$name"
    fi
done
mount -t tmpfs -o mode=755 dev root/dev
for name in null zero random urandom; do : > root/dev/$name; mount --bind /dev/$name root/dev/$name; done
: > root/dev/full
mkdir root/dev/shm
mount -t tmpfs shm root/dev/shm
mount -t proc proc root/proc
mount -t sysfs sys root/sys 2> /dev/null || true
mount -t tmpfs tmp root/tmp
mount --bind root/mnt root/mnt
mount -o remount,bind,ro root/mnt
cd root
pivot_root . old
cd /
umount -l old
cd /box
echo alpha > a.txt
export HOME=/tmp TMPDIR=/tmp
exec setsid sh -c "$ATTEMPT"
"""


class BoxUnavailableError(Exception):
    """This machine makes no such box; the text says why."""


def capable(name: str) -> bool:
    """Whether this process has a capability, in the machine's own user namespace."""
    inside = Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("CapEff"))
    return not inside and bool(int(line.split()[1], 16) >> _CAPABILITIES[name] & 1)


def _as_text(command: str | Sequence[str]) -> str:
    import shlex

    return command if isinstance(command, str) else shlex.join(command)


def _box(attempt: str, prepare: str) -> subprocess.CompletedProcess[str]:
    spaces = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"]
    with tempfile.TemporaryDirectory() as point:
        environment = {
            "PATH": f"{sys.prefix}/bin:{sys.base_prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "POINT": point,
            "PLACES": f"{sys.base_prefix[1:]} {sys.prefix[1:]}",
            "ATTEMPT": f"{prepare}\n{attempt}",
        }
        return subprocess.run(
            ["unshare", *spaces, "sh", "-c", _START],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )


@functools.cache
def _why_no_box() -> str:
    try:
        done = _box("echo works", "")
    except OSError as error:
        return str(error)
    return "" if done.stdout == "works\n" else done.stderr.strip() or "it does not work"


def run_in_box(command: str | Sequence[str], *, prepare: str = "") -> str:
    """What a command says in a throw-away machine whose root it is.

    Raises:
        BoxUnavailableError: There are no user namespaces here, or no overlays in them.
    """
    if _why_no_box():
        raise BoxUnavailableError(f"no throw-away machine here: {_why_no_box()}")
    done = _box(_as_text(command), prepare)
    return done.stdout + done.stderr


def run_directly(
    command: str | Sequence[str], *, pass_fds: Sequence[int] = (), env: dict[str, str] | None = None
) -> str:
    """What a command says as a plain child of this process, in an empty directory."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.txt").write_text("alpha\n")
        done = subprocess.run(
            ["sh", "-c", _as_text(command)],
            cwd=folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=30,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
        )
    return done.stdout + done.stderr
