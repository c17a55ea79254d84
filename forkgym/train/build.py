"""Build what a run needs from its configuration: environment maker, policy, engine, learner.

Heavy imports (torch, transformers) happen inside the functions, so that reading a configuration stays light.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forkgym
from forkgym.core import TextEnv
from forkgym.credit.protocol import Algorithm
from forkgym.policy.chat import Renderer
from forkgym.train.config import (
    ConfigError,
    EnvironmentConfig,
    PolicyConfig,
    TrainConfig,
    learner_config,
    resolve_checkpoint,
)

if TYPE_CHECKING:
    from forkgym.learn.learner import Learner
    from forkgym.policy.torch_engine import TorchEngine

__all__ = ["build_engine", "build_learner", "check_room", "environment_maker", "load_policy", "save_policy"]


def environment_maker(config: EnvironmentConfig) -> Callable[[], TextEnv]:
    """A function that makes a fresh environment; made once here so that a bad configuration fails early.

    Raises:
        TypeError: The environment is not a text environment (it has no conversation to train a language model on).
    """

    def make() -> TextEnv:
        env = forkgym.make(config.id, **config.kwargs)
        if not isinstance(env, TextEnv):
            raise TypeError(
                f"environment {config.id!r} is not a TextEnv: training a language model needs messages(), parse() and "
                "text observations; see docs/environments.md"
            )
        return env

    make().close()
    return make


def load_policy(config: PolicyConfig, make_env: Callable[[], TextEnv]) -> tuple[Any, Any, Renderer]:
    """Load the model, its tokenizer and the renderer that suits both.

    ``renderer = "auto"`` takes the tiny renderer for a tiny-policy checkpoint (its vocabulary is checked against the
    environment's), else what suits the tokenizer: its chat template where it has one, plain text where not.

    Returns:
        Model, tokenizer, renderer.

    Raises:
        ConfigError: No such checkpoint directory, its weights are damaged, or it is a tiny policy and the environment
            has no vocabulary for one.
        ValueError: The checkpoint belongs to another vocabulary, or has no chat template.
    """
    from safetensors import SafetensorError
    from transformers.utils import logging

    # A log file full of progress bars helps nobody; weights of this size load in no time.
    logging.disable_progress_bar()
    path = resolve_checkpoint(config.checkpoint)
    try:
        return _load(path, config.renderer, make_env)
    except SafetensorError as error:
        raise ConfigError(
            str(path), [f"the weights are damaged ({error}); copy or make the checkpoint again."]
        ) from error


def _load(path: Path, kind: str, make_env: Callable[[], TextEnv]) -> tuple[Any, Any, Renderer]:

    from forkgym.policy.chat import PlainRenderer, TemplateRenderer, TinyRenderer, choose_renderer
    from forkgym.policy.tiny import load_checkpoint

    if kind == "tiny" or (kind == "auto" and _is_tiny(path)):
        env = make_env()
        try:
            vocabulary = env.vocabulary()
        except NotImplementedError as error:
            raise ConfigError(
                str(path),
                [
                    f"{error}, and this checkpoint is a world-level policy; take a Hugging Face checkpoint that reads "
                    "text, or an environment that has a vocabulary (retrieval/Atlas-v0 does)."
                ],
            ) from error
        finally:
            env.close()
        model, tokenizer = load_checkpoint(path, vocabulary)
        return model, tokenizer, TinyRenderer(tokenizer)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    choices: dict[str, Callable[..., Renderer]] = {
        "auto": choose_renderer,
        "template": TemplateRenderer,
        "plain": PlainRenderer,
    }
    return model, tokenizer, choices[kind](tokenizer, vocabulary_size=model.config.vocab_size)


def save_policy(path: Path, model: Any, tokenizer: Any, make_env: Callable[[], TextEnv]) -> None:
    """Save a policy as a Hugging Face checkpoint, with the tiny policy's vocabulary record where there is one.

    It is written beside its place and renamed, so there is a whole checkpoint under the name or none.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _save(partial, model, tokenizer, make_env)
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save(path: Path, model: Any, tokenizer: Any, make_env: Callable[[], TextEnv]) -> None:
    from forkgym.policy.chat import EOT
    from forkgym.policy.tiny import save_checkpoint

    if EOT in tokenizer.get_vocab():
        env = make_env()
        try:
            save_checkpoint(path, model, tokenizer, env.vocabulary())
        finally:
            env.close()
        return
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def build_engine(config: PolicyConfig, model: Any, renderer: Renderer, *, version: int) -> TorchEngine:
    """An engine that serves a copy of ``model`` as ``version``."""
    from forkgym.policy.torch_engine import TorchEngine

    return TorchEngine(
        model,
        renderer,
        device=config.device,
        max_running=config.max_running,
        max_context=config.max_context,
        forward=config.forward,
        version=version,
    )


def check_room(
    make_env: Callable[[], TextEnv], renderer: Renderer, split: str, config: PolicyConfig, limit: int
) -> None:
    """Refuse a turn so long that it does not fit behind the prompt of the split's first task.

    Args:
        make_env: Makes the environment.
        renderer: Turns its prompt into tokens.
        split: Split of the task.
        config: Whose ``max_turn_tokens`` is checked.
        limit: Most tokens of a context plus one turn.

    Raises:
        ConfigError: It does not fit; longer prompts of later tasks are found when they are met.
    """
    env = make_env()
    try:
        env.reset(seed=0, options={"split": split, "task": 0})
        prompt = len(renderer.prompt(env.messages()))
    finally:
        env.close()
    if prompt + config.max_turn_tokens > limit:
        raise ConfigError(
            "policy.max_turn_tokens",
            [
                f"a turn of {config.max_turn_tokens} tokens does not fit behind the {prompt} tokens of the first task "
                f"of {split!r}: a context has at most {limit}. Lower max_turn_tokens, or raise max_context as far as "
                "the model goes."
            ],
        )


def build_learner(config: TrainConfig, model: Any, algorithm: Algorithm) -> Learner:
    """A learner that trains ``model`` in place."""
    from forkgym.learn.learner import Learner

    return Learner(
        model,
        algorithm.loss,
        learner_config(config),
        temperature=algorithm.rollout.temperature,
        top_p=algorithm.rollout.top_p,
    )


def _is_tiny(path: Path) -> bool:
    """Whether the directory holds a tiny policy: only that keeps a record of its environment's vocabulary."""
    return (path / "vocabulary.json").is_file()
