"""``forkgym train`` and ``forkgym eval``: thin shells around ``forkgym.train``; torch is imported only when called."""

from __future__ import annotations

import argparse
import errno
import os
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forkgym.cli.command import INTERRUPTED, OK, Command, UsageError, bad_input, positive
from forkgym.console import Console, make_progress

if TYPE_CHECKING:
    from forkgym.train.config import EnvironmentConfig, EvaluationConfig, PolicyConfig, TrainConfig
    from forkgym.train.evaluate import EvaluationResult
    from forkgym.train.progress import TrainResult

__all__ = ["EVAL", "TRAIN"]

SCRIPTED = "scripted:"
SECONDS_BETWEEN_LINES = 10.0


def _configure_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file (docs/configuration.md lists the keys)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. --set run.seed=3"
    )
    parser.add_argument("--check", action="store_true", help="only say whether the configuration is usable")
    parser.add_argument("--no-plot", action="store_true", help="draw no learning curve at the end")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _train(arguments: argparse.Namespace, console: Console) -> int:
    from forkgym.train.config import load_config
    from forkgym.train.preflight import preflight

    config = load_config(arguments.config, arguments.set)
    preflight(config, source=arguments.config)
    if arguments.check:
        console.line(f"{arguments.config} is fine; the run would lie in {config.run_directory}")
        return OK
    from forkgym.learn.checkpoint import CheckpointError
    from forkgym.train.trainer import Trainer

    try:
        with make_progress(console) as progress:
            # Only the set-up fails by what the user wrote; an error while training is a defect and shows itself.
            with bad_input(ValueError, TypeError, OSError, CheckpointError):
                trainer = Trainer(config, progress=progress)
            try:
                with _what_no_program_can_help(config):
                    result = trainer.run()
            finally:
                trainer.close()
    except KeyboardInterrupt:
        console.error(
            f"stopped. Everything up to the last checkpoint is kept in {config.run_directory}; "
            "the same command resumes there."
        )
        return INTERRUPTED
    console.table(summary_rows(result), title=f"\n{result.algorithm}, {result.updates} updates")
    plot = None if arguments.no_plot else _plot(Path(result.directory), console)
    console.line(f"run: {result.directory}")
    if arguments.json:
        document = msgspec.to_builtins(result) | {"plot": str(plot) if plot else None}
        console.json(without_nan(document))
    return OK


@contextmanager
def _what_no_program_can_help(config: TrainConfig) -> Iterator[None]:
    """Tell of a full disk and of a policy that diverged in words; every other error while training is a defect."""
    from safetensors import SafetensorError

    from forkgym.learn import NonFiniteError
    from forkgym.noise.distribution import BrokenLogitsError

    try:
        yield
    except (NonFiniteError, BrokenLogitsError) as error:
        raise UsageError(
            f"{config.run_directory}: training diverged: {error}. Start anew under another name with a lower learning "
            f"rate, e.g. --set run.name=NAME --set optimiser.learning_rate={config.optimiser.learning_rate / 3:.1g}, "
            "or with more optimiser.warmup_updates."
        ) from error
    except (OSError, SafetensorError) as error:
        # safetensors writes files itself and tells of a full disk in words only.
        if os.strerror(errno.ENOSPC) not in str(error) and os.strerror(errno.EDQUOT) not in str(error):
            raise
        raise UsageError(
            f"{config.run_directory}: the disk is full. What was written up to the last checkpoint is whole; free some "
            "space and call the same command again to resume there."
        ) from error


def summary_rows(result: TrainResult) -> list[dict[str, Any]]:
    """Success before and after a run, one row per mode."""
    rows = []
    for mode, after in result.after.items():
        before = result.before.get(mode)
        rows.append(
            {
                "evaluation": f"{after.split} {mode}",
                "before": None if before is None else before.success,
                "after": after.success,
                "s.e.": after.standard_error,
                "tokens": result.training_tokens,
                "of them twins": result.counterfactual_tokens,
            }
        )
    return rows


def without_nan(value: Any) -> Any:
    """The same document with ``null`` for numbers that are none (JSON has no NaN)."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _plot(directory: Path, console: Console) -> Path | None:
    from forkgym.report.plots import PlotError, plot_learning_curves

    try:
        path = plot_learning_curves([directory], directory / "learning_curve.png")
    except PlotError as error:  # the run itself went well
        console.message(str(error))
        return None
    console.line(f"plot: {path}")
    return path


def _configure_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policy",
        metavar="RUN|CHECKPOINT|scripted:NAME",
        help="directory of a run or of a Hugging Face checkpoint, or a scripted policy of the environment",
    )
    parser.add_argument("--env", metavar="ID", help="environment (needed without a run; by default the run's)")
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="NAME=VALUE", help="constructor argument (added to the run's)"
    )
    parser.add_argument("--split", help="split of the tasks, or all (by default the run's, else test)")
    parser.add_argument("--tasks", type=positive, help="number of tasks of a split (by default the run's, else 200)")
    parser.add_argument("--samples", type=positive, default=1, help="sampled episodes a task")
    parser.add_argument("--seed", type=seed_value, help="seed of the noise (by default the run's, else 0)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampled episodes")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus mass of sampled episodes")
    parser.add_argument("--max-turn-tokens", type=positive, help="most tokens a turn (by default the run's, else 32)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], help="where to compute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def _eval(arguments: argparse.Namespace, console: Console) -> int:
    from forkgym.store import RunStore
    from forkgym.train.config import EvaluationConfig

    if not (arguments.temperature > 0 and 0 < arguments.top_p <= 1):
        raise UsageError("--temperature must be greater than 0 and --top-p in (0, 1].")
    if arguments.policy.startswith(SCRIPTED):
        return _eval_scripted(arguments, console)
    directory = Path(arguments.policy).expanduser()
    settings = EvaluationConfig()
    if RunStore.exists(directory):
        environment, policy, settings = _of_run(directory)
        environment, settings = _elsewhere(arguments, environment, settings)
    else:
        environment, policy = _of_checkpoint(arguments)
    changes = {"max_turn_tokens": arguments.max_turn_tokens, "device": arguments.device}
    policy = msgspec.structs.replace(policy, **{key: value for key, value in changes.items() if value is not None})
    from forkgym.train.judge import judge

    results = judge(
        environment,
        policy,
        split=arguments.split or settings.split,
        tasks=arguments.tasks or settings.tasks,
        samples=arguments.samples,
        seed=settings.seed if arguments.seed is None else arguments.seed,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
    )
    _show_results(results, f"{policy.checkpoint} on {environment.id}", arguments.json, console)
    return OK


def _eval_scripted(arguments: argparse.Namespace, console: Console) -> int:
    """Judge a scripted policy; no model is loaded."""
    from forkgym.train.config import EnvironmentConfig
    from forkgym.train.judge import judge_scripted

    if arguments.env is None:
        raise UsageError(f"Say in which environment {arguments.policy} plays: --env ID (`forkgym envs` lists them).")
    environment = EnvironmentConfig(id=arguments.env, kwargs=parse_arguments(arguments.env_arg))
    told = time.monotonic()

    def progress(episodes: int) -> None:
        nonlocal told
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            console.message(f"{episodes:,} episodes")

    result = judge_scripted(
        environment,
        arguments.policy.removeprefix(SCRIPTED),
        split=arguments.split or "test",
        tasks=arguments.tasks or 200,
        samples=arguments.samples,
        seed=arguments.seed or 0,
        progress=progress,
    )
    _show_results([result], f"{arguments.policy} on {environment.id}", arguments.json, console)
    return OK


def _show_results(results: Sequence[EvaluationResult], title: str, as_json: bool, console: Console) -> None:
    """The table of means, that of pass@k where there are several samples, and that of failures where there are any."""
    from forkgym.train.passes import pass_rates

    hidden = {"per_task", "failures"}
    rows = [{key: value for key, value in msgspec.to_builtins(r).items() if key not in hidden} for r in results]
    console.table(rows, title=title)
    rates = {
        result.mode: pass_rates(result.successes, result.samples)
        for result in results
        if result.samples > 1 or len(results) == 1
    }
    for mode, found in rates.items():
        console.table(
            [{"": rate.name, "rate": rate.rate, "95 % from": rate.low, "to": rate.high} for rate in found],
            title=f"{mode}: at least one of k, all of k (intervals: bootstrap over tasks)",
        )
    for result in results:
        if result.failures:
            console.table(
                [{"failure": name, "episodes": count} for name, count in result.failures.items()],
                title=f"{result.mode}: what went wrong",
            )
    if as_json:
        documents = [
            {**msgspec.to_builtins(result), "rates": msgspec.to_builtins(rates.get(result.mode, []))}
            for result in results
        ]
        console.json(without_nan({"results": documents}))


def _of_run(directory: Path) -> tuple[EnvironmentConfig, PolicyConfig, EvaluationConfig]:
    from forkgym.train.judge import run_config, run_policy

    config = run_config(directory)
    policy = msgspec.structs.replace(config.policy, checkpoint=str(run_policy(directory)))
    return config.env, policy, config.evaluation


def _elsewhere(
    arguments: argparse.Namespace, environment: EnvironmentConfig, settings: EvaluationConfig
) -> tuple[EnvironmentConfig, EvaluationConfig]:
    """A run's environment and settings, or those that the options ask for: another environment starts from defaults."""
    kwargs = parse_arguments(arguments.env_arg)
    if arguments.env is None or arguments.env == environment.id:
        return msgspec.structs.replace(environment, kwargs={**environment.kwargs, **kwargs}), settings
    from forkgym.train.config import EvaluationConfig

    changed = msgspec.structs.replace(environment, id=arguments.env, kwargs=kwargs)
    return changed, msgspec.structs.replace(settings, split=EvaluationConfig().split)


def _of_checkpoint(arguments: argparse.Namespace) -> tuple[EnvironmentConfig, PolicyConfig]:
    from forkgym.train.config import EnvironmentConfig, PolicyConfig, resolve_checkpoint

    resolve_checkpoint(arguments.policy)
    if arguments.env is None:
        raise UsageError(
            f"{arguments.policy} is no run, so say which environment: --env ID (`forkgym envs` lists them)."
        )
    environment = EnvironmentConfig(id=arguments.env, kwargs=parse_arguments(arguments.env_arg))
    return environment, PolicyConfig(checkpoint=arguments.policy)


def parse_arguments(pairs: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` strings; a value is TOML, or text where it is none.

    Raises:
        UsageError: A pair has no "=".
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{pair!r} is not of the form NAME=VALUE, e.g. --env-arg 'hops=[2]'.")
        try:
            parsed = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": text}
        found[name] = parsed["value"] if parsed.keys() == {"value"} else text
    return found


def seed_value(text: str) -> int:
    """A seed, for argparse.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to 2**64 - 1")
    return value


TRAIN = Command(
    "Train a policy. A run that was stopped or killed resumes when the same command is called again.",
    _configure_train,
    _train,
    logs=True,
)
EVAL = Command(
    "Judge a run's trained policy, or any checkpoint, sampled and greedy.", _configure_eval, _eval, logs=True
)
