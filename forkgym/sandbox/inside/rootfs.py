"""The file systems of the broker: its own root, and the empty template that every command's root is copied from.

An allow list, not a deny list: of the host only the named directories can be seen, read-only, below a tmpfs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence

from . import kernel

__all__ = ["IMAGES", "LAYERS", "PRELOADED", "build", "open_template"]

IMAGES, LAYERS, _TEMPLATE = "/images", "/l", "/t"
PRELOADED = "/etc/forkgym-repeat.so"
"""Where commands find a library to preload."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_COPIED = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_ETC = {
    "passwd": "agent:x:{id}:{id}:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "agent:x:{id}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def build(
    point: str,
    images: str,
    visible: Sequence[str],
    owner: int,
    etc: Mapping[str, str],
    preload: str | None,
    writer: int,
    *,
    images_writable: bool,
) -> None:
    """Make the broker's root and enter it; the host's other files are out of reach afterwards.

    Args:
        point: An existing directory to mount on (in a private mount namespace).
        images: The host's directory of base images.
        visible: Absolute directories of the host that commands may read.
        owner: User id of commands inside the sandbox.
        etc: More files for /etc: path below it → text.
        preload: A library for `PRELOADED`.
        writer: User id that the broker will have here.
        images_writable: False binds the images read-only.
    """
    kernel.mount("forkgym", point, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,mode=755")
    for folder in (IMAGES, LAYERS, _TEMPLATE, "/proc"):
        os.mkdir(point + folder, 0o755)
    os.chown(point + LAYERS, writer, -1)
    kernel.bind(images, point + IMAGES)
    kernel.read_only(point + IMAGES, writable=images_writable)
    kernel.bind("/proc", f"{point}/proc")
    _template(f"{point}{_TEMPLATE}", visible, owner, etc, preload)
    kernel.pivot_root(point)


def _template(root: str, visible: Sequence[str], owner: int, etc: Mapping[str, str], preload: str | None) -> None:
    kernel.mount("root", root, "tmpfs", kernel.MS_NOSUID, "size=16m,mode=755")
    for folder in ("proc", "dev", "tmp", "testbed", "etc"):
        os.mkdir(f"{root}/{folder}", 0o755)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
    for name, text in _ETC.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text.format(id=owner))
    for name, text in etc.items():
        os.makedirs(os.path.dirname(f"{root}/etc/{name}"), exist_ok=True)
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    if preload:
        shutil.copyfile(preload, root + PRELOADED)
    for name in _COPIED:
        source = f"/etc/{name}"
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(source):
                shutil.copytree(source, f"{root}/etc/{name}", symlinks=True)
            else:
                shutil.copy(source, f"{root}/etc/{name}")
    for path in visible:
        os.makedirs(root + path, exist_ok=True)
        kernel.bind(path, root + path)
        kernel.read_only(root + path)
    _devices(f"{root}/dev")
    kernel.bind("/proc", f"{root}/proc")
    kernel.read_only(root, recursive=False, devices=True)


def _devices(folder: str) -> None:
    for name in _DEVICES:
        with open(f"{folder}/{name}", "w"):
            pass
        kernel.bind(f"/dev/{name}", f"{folder}/{name}")
    os.mkdir(f"{folder}/shm", 0o755)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{folder}/{name}")


def open_template() -> int:
    """Make the mount namespace whose root is the template.

    Returns:
        A descriptor of it; the caller's own namespace is as before.
    """
    mine = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_private()
    kernel.bind(_TEMPLATE, _TEMPLATE)
    kernel.pivot_root(_TEMPLATE)
    template = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    kernel.setns(mine, kernel.CLONE_NEWNS)
    os.close(mine)
    os.chdir("/")
    return template
