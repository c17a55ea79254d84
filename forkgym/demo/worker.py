"""One method's process: reads a configuration from standard input, trains, measures coupling, writes the result."""

from __future__ import annotations

import math
import sys

import msgspec

from forkgym.demo.compare import RESULT_FILE, MethodResult
from forkgym.noise import Layout
from forkgym.train.config import TrainConfig
from forkgym.train.trainer import Trainer

__all__ = ["main"]

COUPLING_TASKS = 100


def main() -> int:
    """Train the configuration on standard input; the result lies in the run's directory."""
    config = msgspec.json.decode(sys.stdin.read(), type=TrainConfig)
    trainer = Trainer(config)
    try:
        result = MethodResult(training=trainer.run())
        branching = trainer.algorithm.branching
        if branching is not None and branching.plan.coupling == "twin":
            coupling = trainer.evaluator.coupling(
                config.evaluation.split,
                range(min(COUPLING_TASKS, config.evaluation.tasks, trainer.task_count(config.evaluation.split))),
                version=trainer.state.updates,
                layout=Layout(trainer.algorithm.rollout.layout),
            )
            result.coupling = None if math.isnan(coupling.correlation) else coupling
    finally:
        trainer.close()
    (trainer.directory / RESULT_FILE).write_bytes(msgspec.msgpack.encode(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
