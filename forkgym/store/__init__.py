"""What a run leaves on disk: the SQLite record and its exports. Checkpoints of weights live in ``learn``."""

from forkgym.store.errors import RunLockedError, StoreError
from forkgym.store.run import Evaluation, Event, RunStore

__all__ = ["Evaluation", "Event", "RunLockedError", "RunStore", "StoreError"]
