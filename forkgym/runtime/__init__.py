"""The runtime: event loops (one of them virtual), supervised actors with bounded mailboxes, and pools of workers."""

try:
    import anyio as _anyio  # noqa: F401
except ImportError as error:
    raise ImportError("forkgym.runtime needs anyio: pip install 'forkgym[train]'") from error

from forkgym.runtime.actor import (
    Actor,
    ActorDead,
    ActorError,
    ActorFailed,
    ActorRef,
    ActorStatistics,
    ActorStopped,
    MailboxStatistics,
    Refusal,
)
from forkgym.runtime.loop import DeadlockError, Fault, Killed, VirtualLoop, VirtualLoopError, run
from forkgym.runtime.pool import Health, Pool, Worker, WorkerDied
from forkgym.runtime.supervisor import Restarts, Supervisor
from forkgym.runtime.wire import RemoteError, WireError

__all__ = [
    "Actor",
    "ActorDead",
    "ActorError",
    "ActorFailed",
    "ActorRef",
    "ActorStatistics",
    "ActorStopped",
    "DeadlockError",
    "Fault",
    "Health",
    "Killed",
    "MailboxStatistics",
    "Pool",
    "Refusal",
    "RemoteError",
    "Restarts",
    "Supervisor",
    "VirtualLoop",
    "VirtualLoopError",
    "WireError",
    "Worker",
    "WorkerDied",
    "run",
]
