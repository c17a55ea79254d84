"""One command without namespaces: limits, a deadline, and the end of its whole tree as far as a user can bring it.

Started by `forkgym.sandbox.local` as ``python -I -S -B``. It adopts orphans (a subreaper), so that even those that left
the session are found and killed. It isolates nothing: the command sees what the user sees.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NoReturn

from . import kernel
from .spawn import ADDR_NO_RANDOMIZE, RESOURCES

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36


def _children() -> list[int]:
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def _kill_all() -> None:
    """Kill children until there are none: each death hands its own children to this process."""
    while True:
        children = _children()
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def _command(config: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        for name, value in config["limits"].items():
            hard = resource.getrlimit(RESOURCES[name])[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(RESOURCES[name], (value, value))
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.personality(ADDR_NO_RANDOMIZE)
        os.umask(0o022)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(config["cwd"])
        except OSError as error:
            os.write(2, f"sandbox: cannot enter {config['cwd']}: {error.strerror}\n".encode(errors="surrogateescape"))
            os._exit(126)
        try:
            os.execvpe(config["argv"][0], config["argv"], config["environment"])  # noqa: S606
        except OSError as error:
            text = f"sandbox: cannot run {config['argv'][0]}: {error.strerror}\n"
            os.write(2, text.encode(errors="surrogateescape"))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(125)


def _stop(_number: int, _frame: object) -> NoReturn:
    raise InterruptedError("the host asks for the end")


def main() -> NoReturn:
    """Read the configuration (JSON on descriptor ``argv[1]``), run, write JSON to descriptor ``argv[2]``."""
    with open(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        config = json.loads(file.read())
    report = int(sys.argv[2])
    os.set_inheritable(report, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # until somebody waits who can end the tree
    signal.signal(signal.SIGTERM, _stop)
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    host = kernel.pidfd_open(config["host"])
    child = os.fork()
    if child == 0:
        _command(config)
    for standard in range(3):
        os.close(standard)
    ended = kernel.pidfd_open(child)
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(ended, select.POLLIN)
    ready: list[tuple[int, int]] = []
    stopped = False
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ready = poll.poll(config["timeout"] * 1000)
    except InterruptedError:
        stopped = True
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    status = None
    if any(descriptor == ended for descriptor, _ in ready):
        status = os.waitpid(child, 0)[1]
    _kill_all()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = {
        "status": status,
        "timed_out": not ready and not stopped,
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "peak_memory": usage.ru_maxrss * 1024,
    }
    with contextlib.suppress(BrokenPipeError):
        os.write(report, json.dumps(answer).encode())
    os._exit(0)
