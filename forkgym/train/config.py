"""The configuration of a run: one TOML file becomes frozen structs, or one error that names every bad key.

Only reading, validating and comparing lives here; what the values do is the trainer's business.
Nothing here imports torch. ``docs/configuration.md`` is the reference and is kept in step by a test.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forkgym.learn.config import LearnerConfig
from forkgym.learn.config import LoraConfig as LearnerLoraConfig
from forkgym.train.tables import (
    ConfigError,
    TableReader,
    apply_override,
    copy_tables,
    nested_struct,
    read_table,
    show_value,
)

__all__ = [
    "AlgorithmConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "CollectionConfig",
    "ConfigError",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LoraConfig",
    "OptimiserConfig",
    "PolicyConfig",
    "RunConfig",
    "TrainConfig",
    "changed_keys",
    "check_resumable",
    "config_digest",
    "config_from_json",
    "config_to_json",
    "learner_config",
    "load_config",
    "parse_config",
    "resolve_checkpoint",
]

Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
CountOrZero = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
Text = Annotated[str, Meta(min_length=1)]

MAY_CHANGE = frozenset(
    {
        "run.name",
        "run.directory",
        "checkpoint.every",
        "checkpoint.keep",
        "collection.max_environments",
        "collection.mode",
        "collection.timeline",
        "collection.workers",
        "evaluation.every",
    }
)
"""Keys that may differ on resume: they move or space out files, never change numbers of the training."""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the run is called and where it lies.

    Attributes:
        name: Directory of the run below ``directory``; by default algorithm, environment, seed and a digest.
        seed: Seed of everything: tasks, noise, initialisation, shuffling.
        directory: Where runs are kept, relative to the working directory.
    """

    name: Name | None = None
    seed: CountOrZero = 0
    directory: Text = "runs"


class EnvironmentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which environment is learned.

    Attributes:
        id: Environment id (``forkgym envs`` lists them).
        kwargs: Keyword arguments of the environment's constructor.
        split: Split that training tasks come from.
    """

    id: Text
    kwargs: dict[str, Any] = {}
    split: Text = "train"


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model is trained and how it is run.

    Attributes:
        checkpoint: Directory of a Hugging Face checkpoint, or ``package:PACKAGE/PATH`` for one inside an
            installed package.
        device: Where engine, noise and learner compute; ``auto`` takes a GPU if there is one.
        forward: Whose forward pass decodes: ``invariant`` (our own, CPU; a turn's logits do not depend on what else
            is in the batch), ``huggingface`` (the model's own code), or ``auto``: ``invariant`` where it can.
        max_running: Most turns that are decoded at once.
        max_turn_tokens: Most tokens in one turn, the end-of-turn token included.
        max_context: Most tokens of a context plus one turn; by default the model's limit, at most 1,024.
        renderer: How messages become tokens: ``tiny`` (word-level), ``plain`` (text as it is), ``template`` (the
            tokenizer's chat template), or ``auto``: by the checkpoint.
    """

    checkpoint: Text
    device: Literal["auto", "cpu", "cuda"] = "auto"
    forward: Literal["auto", "invariant", "huggingface"] = "auto"
    max_running: Count = 64
    max_turn_tokens: Count = 32
    max_context: Count | None = None
    renderer: Literal["auto", "tiny", "plain", "template"] = "auto"


class AlgorithmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which method assigns credit. In the file, every key beside ``name`` is an argument of the preset.

    Attributes:
        name: Preset (``forkgym algos`` lists them).
        arguments: Keyword arguments of the preset's function.
    """

    name: Text
    arguments: dict[str, Any] = {}


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Low-rank adapters instead of full fine-tuning; leave the table out for full fine-tuning.

    Attributes:
        rank: Rank of the adapters.
        alpha: Scale; the adapter's output is multiplied by alpha/rank.
        target_modules: Names of the adapted linear layers; ``["all-linear"]`` adapts all but the head.
        rank_stabilised: Multiply by alpha/√rank instead.
    """

    rank: Count = 16
    alpha: Positive = 32.0
    target_modules: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("all-linear",)
    rank_stabilised: bool = False


class OptimiserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the learner steps (AdamW).

    Attributes:
        learning_rate: Step size after warm-up.
        betas: Decay rates of AdamW's two moments.
        weight_decay: Decoupled weight decay.
        warmup_updates: Updates over which the step size rises linearly from 0.
        gradient_clip: Largest global gradient norm; 0 does not clip.
        minibatch: Episodes per optimiser step; 0 takes the whole update as one batch.
        epochs: Passes over each update's episodes.
        max_tokens_per_forward: Most tokens of one forward pass; gradients accumulate over several.
        dtype: Compute type of the learner; trained parameters and optimiser state are float32 either way.
        threads: CPU threads of the learner; bit-exact reproduction is promised for 1.
        lora: Low-rank adapters.
    """

    learning_rate: Positive = 3e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: NonNegative = 0.0
    warmup_updates: CountOrZero = 0
    gradient_clip: NonNegative = 1.0
    minibatch: CountOrZero = 0
    epochs: Count = 1
    max_tokens_per_forward: Count = 8192
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Count = 1
    lora: LoraConfig | None = None


class CollectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much is collected for an update.

    Attributes:
        groups_per_update: Tasks per update; each is tried by the algorithm's group size of episodes.
        mode: ``phases``: all episodes of an update, then all its branches; ``stream``: a group's branches run as soon
            as they can be planned, failures are retried, environments that declare it run in threads. The numbers are
            the same, only the time differs.
        planning: How the budget multiplier is found: ``batch`` solves it over each update; ``group`` moves it once
            after each update, on real tokens, so that streamed groups need not wait for the last one to be planned.
        max_environments: Rollouts that run at once in a streamed run; by default ``policy.max_running``.
        workers: Processes for environments that declare to run in processes (streamed runs).
        timeline: Write ``timeline.json``, a trace that Perfetto opens, into the run's directory (streamed runs).
    """

    groups_per_update: Count = 16
    mode: Literal["phases", "stream"] = "phases"
    planning: Literal["batch", "group"] = "batch"
    max_environments: Count | None = None
    workers: Count = 2
    timeline: bool = False


class BudgetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When the run ends: at whichever limit comes first; at least one is needed.

    Attributes:
        tokens: Training tokens (generated on policy and for counterfactuals), met within half an update.
        updates: Updates.
    """

    tokens: Count | None = None
    updates: Count | None = None


class EvaluationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy is judged.

    Attributes:
        split: Split that the tasks come from.
        tasks: Number of tasks, from task 0 on; at most those of the split.
        every: Updates between sampled evaluations; 0 evaluates before the first and after the last update only
            (greedy episodes are judged there alone).
        samples: Sampled episodes a task, beside the greedy one; at temperature 1 whatever temperature the
            algorithm trains at, so that methods are judged alike.
        seed: Seed of the evaluation's noise, the same at every evaluation.
    """

    split: Text = "test"
    tasks: Count = 200
    every: CountOrZero = 0
    samples: Count = 1
    seed: CountOrZero = 0


class CheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often the run can be resumed from.

    Attributes:
        every: Updates between checkpoints.
        keep: Checkpoints kept; older ones are deleted.
    """

    every: Count = 1
    keep: Count = 2


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a training run depends on.

    Attributes:
        run: What the run is called and where it lies.
        env: Which environment is learned.
        policy: Which model is trained.
        algorithm: Which method assigns credit.
        optimiser: How the learner steps.
        collection: How much is collected for an update.
        budget: When the run ends.
        evaluation: How the policy is judged.
        checkpoint: How often the run can be resumed from.
    """

    run: RunConfig = RunConfig()
    env: EnvironmentConfig
    policy: PolicyConfig
    algorithm: AlgorithmConfig
    optimiser: OptimiserConfig = OptimiserConfig()
    collection: CollectionConfig = CollectionConfig()
    budget: BudgetConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def run_name(self) -> str:
        """Name of the run: the given one, else algorithm, environment, seed and a digest of everything that counts.

        The same configuration is the same run and resumes; a changed one is another run.
        """
        if self.run.name is not None:
            return self.run.name
        made = f"{self.algorithm.name}-{self.env.id}-seed{self.run.seed}-{config_digest(self)[:6]}"
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in made).lstrip(".")

    @property
    def run_directory(self) -> Path:
        """Directory of the run."""
        return Path(self.run.directory).expanduser() / self.run_name


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read and validate a configuration file.

    Args:
        path: TOML file.
        overrides: ``section.key=value`` strings that win over the file; a value is read as TOML and, where
            it is none, taken as text.

    Raises:
        ConfigError: The file cannot be read or is not TOML, or keys are unknown, missing, of the wrong type
            or out of range; all such keys are named at once.
    """
    return parse_config(read_table(path), source=str(Path(path).expanduser()), overrides=overrides)


def parse_config(
    table: Mapping[str, Any], *, source: str = "configuration", overrides: Sequence[str] = ()
) -> TrainConfig:
    """Validate a nested mapping with the layout of the TOML file.

    Args:
        table: Sections, each a mapping.
        source: How errors call the origin.
        overrides: As for :func:`load_config`.

    Raises:
        ConfigError: See :func:`load_config`.
    """
    merged = copy_tables(table)
    problems: list[str] = []
    overridden: set[str] = set()
    for override in overrides:
        key = apply_override(merged, override, problems)
        if key:
            overridden |= {key, key.replace("algorithm.", "algorithm.arguments.", 1)}
    reader = TableReader(overridden, _HOMES)
    algorithm = merged.get("algorithm")
    if isinstance(algorithm, dict):
        # Free keys beside the name are the preset's arguments; the algorithm registry validates them.
        arguments = {key: value for key, value in algorithm.items() if key != "name"}
        merged["algorithm"] = {key: value for key, value in algorithm.items() if key == "name"}
        merged["algorithm"]["arguments"] = arguments
    config = reader.read(TrainConfig, merged, "")
    problems += [problem.replace("algorithm.arguments", "algorithm") for problem in reader.problems]
    budget = merged.get("budget", {})
    if isinstance(budget, dict) and not budget:
        problems = [problem for problem in problems if not problem.startswith("budget ")]
        problems.append("budget needs `tokens` or `updates` (or both), else the run would never end.")
    if problems or config is None:
        raise ConfigError(source, problems)
    return config


def _homes(struct: type[msgspec.Struct], prefix: str = "") -> dict[str, str]:
    """Where each key lives, so that an error can say which section a misplaced key belongs to."""
    found: dict[str, str] = {}
    for field in msgspec.structs.fields(struct):
        nested = nested_struct(field.type)
        if nested is None:
            found.setdefault(field.name, f"{prefix}{field.name}")
        else:
            found |= _homes(nested, f"{prefix}{field.name}.") | found
    return found


_HOMES = _homes(TrainConfig)


def config_to_json(config: TrainConfig) -> str:
    """The configuration as canonical JSON (all defaults written out, keys sorted)."""
    return msgspec.json.encode(config, order="sorted").decode()


def config_from_json(text: str | bytes) -> TrainConfig:
    """The inverse of :func:`config_to_json`.

    Raises:
        ConfigError: The text is not a configuration of this version.
    """
    try:
        return msgspec.json.decode(text, type=TrainConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("stored configuration", [f"it does not fit this version of forkgym: {error}."]) from error


def config_digest(config: TrainConfig) -> str:
    """BLAKE2b-128 (hexadecimal) of everything that may not change when a run is resumed."""
    fixed = {key: value for key, value in _flatten(config).items() if key not in MAY_CHANGE}
    return hashlib.blake2b(msgspec.json.encode(fixed, order="sorted"), digest_size=16).hexdigest()


def changed_keys(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Keys (dotted, sorted) that differ and may not differ on resume, each with its old and new value.

    A key that one side lacks (an algorithm's argument, LoRA) is ``None`` there.
    """
    before, after = _flatten(old), _flatten(new)
    keys = sorted((before.keys() | after.keys()) - MAY_CHANGE)
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def check_resumable(old: TrainConfig, new: TrainConfig) -> None:
    """Refuse to continue a run under a changed configuration.

    Raises:
        ConfigError: Names every changed key with both values.
    """
    changes = changed_keys(old, new)
    if changes:
        listed = ", ".join(f"{key} (was {_shown(before)}, now {_shown(after)})" for key, before, after in changes)
        raise ConfigError(
            str(new.run_directory),
            [
                f"the run there was started with another configuration; changed: {listed}. Set these back to "
                "resume it, or start a new run under another name (--set run.name=NAME)."
            ],
        )


def _shown(value: Any) -> str:
    return "not set" if value is None else show_value(value)


def learner_config(config: TrainConfig) -> LearnerConfig:
    """The learner's settings that follow from a configuration."""
    optimiser = config.optimiser
    lora = None
    if optimiser.lora is not None:
        modules = optimiser.lora.target_modules
        lora = LearnerLoraConfig(
            rank=optimiser.lora.rank,
            alpha=optimiser.lora.alpha,
            target_modules="all-linear" if modules == ("all-linear",) else modules,
            rank_stabilised=optimiser.lora.rank_stabilised,
        )
    return LearnerConfig(
        learning_rate=optimiser.learning_rate,
        betas=optimiser.betas,
        weight_decay=optimiser.weight_decay,
        warmup_updates=optimiser.warmup_updates,
        gradient_clip=optimiser.gradient_clip,
        minibatch=optimiser.minibatch,
        epochs=optimiser.epochs,
        max_tokens_per_forward=optimiser.max_tokens_per_forward,
        dtype=optimiser.dtype,
        threads=optimiser.threads,
        device=config.policy.device,
        lora=lora,
        seed=config.run.seed,
    )


def resolve_checkpoint(checkpoint: str) -> Path:
    """Directory of ``policy.checkpoint``.

    Args:
        checkpoint: A path, or ``package:PACKAGE/PATH``: PATH inside an installed package.

    Raises:
        ConfigError: There is no such package or directory.
    """
    scheme, colon, rest = checkpoint.partition(":")
    if colon and scheme == "package":
        package, _, inside = rest.partition("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                "policy.checkpoint",
                [f"there is no installed package {package!r} (from {checkpoint!r}); check its name."],
            )
        directory = Path(next(iter(spec.submodule_search_locations))) / inside
    else:
        directory = Path(checkpoint).expanduser()
    if not directory.is_dir():
        raise ConfigError(
            "policy.checkpoint",
            [
                f"there is no directory {directory}; give a Hugging Face checkpoint's directory, "
                "package:PACKAGE/PATH, or make one with `forkgym warmstart`."
            ],
        )
    return directory


def _flatten(config: TrainConfig) -> dict[str, Any]:
    """Dotted key → value, as the keys are written in the file (an algorithm's arguments beside its name)."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                visit(f"{prefix}.{key}" if prefix else key, below)
        elif not isinstance(value, dict):
            flat[prefix] = value

    table = msgspec.json.decode(msgspec.json.encode(config))
    table["algorithm"] = {**table["algorithm"]["arguments"], "name": table["algorithm"]["name"]}
    visit("", table)
    return flat
