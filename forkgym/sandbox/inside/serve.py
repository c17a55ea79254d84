"""The broker: one process that keeps the state of all sandboxes of a host process and runs their commands.

Started as ``python -I -S -B`` by `forkgym.sandbox.broker`. The launcher (outside) and the broker (process 1 of a pid
namespace) watch the host process: when it is gone, however it went, the kernel ends everything here.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import time
from typing import Any, NoReturn

from . import kernel, rootfs, seccomp
from .spawn import SAID, Plan, Spawner, map_user
from .stores import PARTS, CopyStore, OverlayStore
from .undertaker import Undertaker

__all__ = ["main"]

MESSAGE = 1 << 16
"""Longer messages travel as a memory file beside an empty one."""


class Running:
    """A command that has not ended."""

    def __init__(self, channel: socket.socket, layer: int, pid: int, pidfd: int, status: int, network: int) -> None:
        self.channel, self.layer, self.pid, self.pidfd, self.status = channel, layer, pid, pidfd, status
        self.network = network
        self.deadline: float | None = None
        self.timed_out = False

    def kill(self) -> None:
        """End the whole tree: the kernel kills a pid namespace with its init."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def send(channel: socket.socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors."""
    data = json.dumps(message).encode()
    memory = -1
    if len(data) > MESSAGE:
        memory = os.memfd_create("message", os.MFD_CLOEXEC)
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        data, descriptors = b"", (*descriptors, memory)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        channel.sendmsg([data or b"@"], rights)
    finally:
        if memory >= 0:
            os.close(memory)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors; None when the other side is gone."""
    data, ancillary, _, _ = channel.recvmsg(MESSAGE + 1, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"<{len(content) // 4}i", content)
    if not data:
        return None, descriptors
    if data == b"@":
        with open(descriptors.pop(), "rb") as file:
            file.seek(0)
            data = file.read()
    return json.loads(data), descriptors


class Broker:
    """The loop.

    Args:
        config: What the host asked for, see `main`.
        control: Channel over which the host sends a new channel for each of its threads.
    """

    def __init__(self, config: dict[str, Any], control: socket.socket) -> None:
        if config["backend"] == "overlay":
            library = ctypes.CDLL(config["library"]) if config["library"] else None
            owner = -1 if config["user_namespace"] else config["owner"]
            self.store: OverlayStore | CopyStore = OverlayStore(rootfs.IMAGES, rootfs.LAYERS, library, owner)
        else:
            self.store = CopyStore(rootfs.IMAGES, rootfs.LAYERS, capped=True)
        self._owner = config["owner"]
        self._drops = not config["user_namespace"]
        self._networks: list[int] = []
        self._leased: set[int] = set()
        self._leaving: dict[int, list[Running]] = {}
        self._spawner = Spawner(
            config["library"],
            config["executable"],
            rootfs.open_template(),
            self._owner,
            nest=config["user_namespace"],
            program=seccomp.system_call_filter() if config["seccomp"] else b"",
        )
        self._undertaker = Undertaker(self.store.discard)
        self._running: dict[socket.socket, Running] = {}
        self._selector = selectors.EpollSelector()
        self._selector.register(control, selectors.EVENT_READ, self._accept)
        names = ("mount", "freeze", "fork", "scan", "flatten", "open", "listen", "unlisten")
        self._handlers = {name: getattr(self, f"_{name}") for name in names}

    def loop(self) -> NoReturn:
        """Serve until the host is gone."""
        while True:
            deadlines = [command.deadline for command in self._running.values() if command.deadline is not None]
            wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self._selector.select(wait):
                key.data(key.fileobj)
            now = time.monotonic()
            for command in self._running.values():
                if command.deadline is not None and command.deadline <= now:
                    command.timed_out, command.deadline = True, None
                    command.kill()

    def _accept(self, control: socket.socket) -> None:
        message, descriptors = receive(control)
        if message is None:
            os._exit(0)  # the kernel ends every command with this process
        for descriptor in descriptors:
            channel = socket.socket(fileno=descriptor)
            self._selector.register(channel, selectors.EVENT_READ, self._request)

    def _request(self, channel: socket.socket) -> None:
        try:
            message, descriptors = receive(channel)
        except OSError:
            message, descriptors = None, []
        if message is None:
            self._selector.unregister(channel)
            if channel in self._running:
                self._running[channel].kill()
            else:
                channel.close()
            return
        if message["op"] == "kill":
            if channel in self._running:
                self._running[channel].kill()
            return
        try:
            for layer in message.get("unused", ()):
                if self.store.forget(layer):
                    self._undertaker.take(layer)
            for birth in message.get("begin", ()):
                self._begin(*birth)
            if message["op"] == "run":
                answer = self._run(channel, message, descriptors)
            else:
                answer = self._handlers[message["op"]](message)
        except OSError as error:
            answer = {"error": [error.errno or errno.EIO, str(error.strerror or error)]}
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": [errno.EINVAL, f"{type(error).__name__}: {error}"]}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if answer is not None:
            self._answer(channel, answer)

    def _answer(self, channel: socket.socket, answer: dict[str, Any]) -> None:
        descriptor = answer.pop("descriptor", None)
        try:
            send(channel, answer, () if descriptor is None else (descriptor,))
        except OSError:  # the thread that asked is gone
            pass
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _begin(self, layer: int, image: str, frozen: list[int], space: int, files: int) -> None:
        self.store.begin(layer, image, tuple(frozen), space, files)

    def _mount(self, message: dict[str, Any]) -> dict[str, Any]:
        for layer in message["layers"]:
            self.store.root(layer)
        return {}

    def _freeze(self, message: dict[str, Any]) -> dict[str, Any]:
        # A layer must not become a lower one while a dying mount namespace still has it as its upper one.
        for command in list(self._leaving.get(message["layer"], ())):
            self._reap(command)
        frozen, size = self.store.freeze(message["layer"])
        return {"frozen": frozen, "bytes": size}

    def _fork(self, message: dict[str, Any]) -> dict[str, Any]:
        """Two mounted layers that show the same: the parent's own and a copy of it, or two new ones above it."""
        layer, child, after = message["layer"], message["child"], message["after"]
        image, below, space, files = message["on"]
        if self.store.fork(layer, child):
            return {"frozen": False, "bytes": 0}
        answer = self._freeze(message)
        stack = [layer, *below] if answer["frozen"] else below
        for number in (after, child) if answer["frozen"] else (child,):
            self._begin(number, image, stack, space - answer["bytes"], files)
            self.store.root(number)
        return answer

    def _scan(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"items": self.store.scan(message["layer"])}

    def _flatten(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"bytes": self.store.flatten(message["layer"], tuple(message["frozen"]))}

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Open a file of the state on the host's behalf; never follows a link out of the tree."""
        if message["part"] not in PARTS:
            raise ValueError(f"there is no part {message['part']!r}")
        root = os.open(f"{self.store.root(message['layer'])}/{message['part']}", os.O_PATH | os.O_CLOEXEC)
        if self._drops:
            os.setegid(self._owner)
            os.seteuid(self._owner)
        try:
            if message.get("parents"):
                make_parents(root, message["path"])
            return {"descriptor": kernel.open_beneath(root, message["path"], message["flags"], message["mode"])}
        finally:
            if self._drops:
                os.seteuid(0)
                os.setegid(0)
            os.close(root)

    def _network(self) -> int:
        """A network namespace with only a loopback, used by one command at a time."""
        if self._networks:
            return self._networks.pop()
        kernel.unshare(kernel.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def _give_back(self, network: int) -> None:
        if network not in self._leased:
            self._networks.append(network)

    def _listen(self, message: dict[str, Any]) -> dict[str, Any]:
        """A network for commands that name it, one at a time, with a port on which the host listens."""
        network = self._network()
        kernel.setns(network, kernel.CLONE_NEWNET)  # which of them the broker itself is in does not matter
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", message["port"]))
            listener.listen(128)
            self._leased.add(network)
            return {"network": network, "descriptor": os.dup(listener.fileno())}

    def _unlisten(self, message: dict[str, Any]) -> dict[str, Any]:
        network = message["network"]
        if network not in self._leased or any(command.network == network for command in self._running.values()):
            raise ValueError(f"network {network} is unknown or in use")
        self._leased.remove(network)
        os.close(network)
        return {}

    def _run(self, channel: socket.socket, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        if channel in self._running:
            raise ValueError("this channel has a running command")
        root = self.store.root(message["layer"])
        leased = message.get("network", -1)
        if leased >= 0 and leased not in self._leased:
            raise ValueError(f"there is no network {leased}")
        read, write = os.pipe()
        network = leased if leased >= 0 else self._network()
        try:
            pid, pidfd = self._spawner.start(
                Plan(
                    root,
                    message["argv"],
                    message["environment"],
                    message["cwd"],
                    message["limits"],
                    message["shared_memory"],
                    descriptors[0],
                    descriptors[1],
                    descriptors[2],
                    write,
                    network,
                )
            )
        except BaseException:
            os.close(read)
            self._give_back(network)
            raise
        finally:
            os.close(write)
        command = Running(channel, message["layer"], pid, pidfd, read, network)
        if message["timeout"] is not None:
            command.deadline = time.monotonic() + message["timeout"]
        self.store.pin(command.layer)
        self._running[channel] = command
        self._selector.register(read, selectors.EVENT_READ, lambda _: self._said(command))
        return None

    def _said(self, command: Running) -> None:
        """The init says that no process of the command is left, or it is dead itself (killed at the deadline)."""
        said = os.read(command.status, 256)
        self._selector.unregister(command.status)
        os.close(command.status)
        del self._running[command.channel]
        if said:
            # Tearing the namespaces down takes longer than the answer should wait.
            self._leaving.setdefault(command.layer, []).append(command)
            self._selector.register(command.pidfd, selectors.EVENT_READ, lambda _: self._reap(command))
        else:
            os.waitpid(command.pid, 0)  # returns when the kernel has killed all of the pid namespace
            os.close(command.pidfd)
            self.store.unpin(command.layer)
        self._give_back(command.network)
        if command.channel not in self._selector.get_map():
            command.channel.close()
            return
        answer: dict[str, Any] = {"status": None, "timed_out": command.timed_out}
        if said[:1] == b"S":
            _, status, user, user_micro, system, system_micro, peak = SAID.unpack_from(said)
            answer |= {
                "status": status,
                "user_seconds": user + user_micro / 1e6,
                "system_seconds": system + system_micro / 1e6,
                "peak_memory": peak * 1024,
            }
        elif said[:1] == b"E":
            number, _, step = said[1:].decode(errors="replace").partition(" ")
            answer = {"error": [int(number), f"the command could not be started: {step}"]}
        self._answer(command.channel, answer)

    def _reap(self, command: Running) -> None:
        """Wait until the init and its namespaces are gone; it has nothing left to do but that."""
        if command not in self._leaving.get(command.layer, ()):
            return  # a request of the same round has done it
        self._selector.unregister(command.pidfd)
        os.waitpid(command.pid, 0)
        os.close(command.pidfd)
        self.store.unpin(command.layer)
        self._leaving[command.layer].remove(command)
        if not self._leaving[command.layer]:
            del self._leaving[command.layer]


def make_parents(root: int, path: str) -> None:
    """Make the folders above ``path`` below the open folder ``root``; links out of it are not followed."""
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        if not parts[depth - 1]:
            continue
        folder = kernel.open_beneath(root, "/".join(parts[: depth - 1]) or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(parts[depth - 1], 0o755, dir_fd=folder)
        except FileExistsError:
            pass
        finally:
            os.close(folder)


def _enter(config: dict[str, Any]) -> None:
    """Namespaces and root of the broker; see the package's documentation for the order."""
    point, outside = config["point"], config["outside"]
    spaces = kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
    arguments = (point, config["images"], config["visible"], config["owner"], config["etc"], config["preload"])
    if os.geteuid() == 0:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.make_private()
        rootfs.build(*arguments, writer=outside, images_writable=False)
        if not config["user_namespace"]:
            kernel.unshare(spaces)
            return
        # From here on the broker is a user that owns nothing on the host: every later right is the namespace's.
        os.setgroups([])
        os.setresgid(outside, outside, outside)
        os.setresuid(outside, outside, outside)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | spaces)
        map_user(config["owner"], outside)
        return
    group = os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | spaces)
    map_user(config["owner"], outside, group)
    kernel.make_private()
    rootfs.build(*arguments, writer=-1, images_writable=False)


def _watch(host: int, broker: int) -> NoReturn:
    """The launcher: ends the broker when the host is gone, and itself with the broker."""
    poll = selectors.PollSelector()
    descriptor = kernel.pidfd_open(broker)
    poll.register(host, selectors.EVENT_READ)
    poll.register(descriptor, selectors.EVENT_READ)
    poll.select()
    with contextlib.suppress(ProcessLookupError):
        os.kill(broker, signal.SIGKILL)
    os.waitpid(broker, 0)
    os._exit(0)


def main() -> NoReturn:
    """Take standard input for the control channel, read the configuration from it, and serve.

    Keys: ``host`` (process id), ``images``, ``point``, ``visible``, ``library``, ``starter``, ``backend``, ``owner``
    (user id inside), ``outside`` (the same user outside), ``user_namespace``, ``seccomp``, ``etc``, ``preload``.
    Nothing of it is in the arguments, which every command can read of its init.
    """
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    config, _ = receive(control)
    if config is None:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = kernel.pidfd_open(config["host"])
        if config["library"]:
            ctypes.CDLL(config["library"])  # the file is out of reach later; loaded, it is found by its name
        starter = config["starter"]
        config["executable"] = os.open(starter, os.O_RDONLY | os.O_CLOEXEC) if starter else -1
        _enter(config)
        pid = os.fork()
    except OSError as error:
        send(control, {"error": [error.errno or errno.EIO, str(error)]})
        os._exit(1)
    if pid:
        control.close()
        _watch(host, pid)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        socket.sethostname("sandbox")
        broker = Broker(config, control)
    except OSError as error:
        send(control, {"error": [error.errno or errno.EIO, str(error)]})
        os._exit(1)
    send(control, {"ready": True})
    broker.loop()
