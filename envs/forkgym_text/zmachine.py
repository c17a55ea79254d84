"""A Z-machine whose states are small immutable values: one interpreter a story, shared by all environments and forks.

Jericho's interpreter keeps its state in global variables of a C library, so a second one costs a copy of the library
(10 to 20 ms). Here nobody owns an interpreter: a `Machine` holds what differs from the state after the opening, and
the interpreter is set to it before a command where it stands elsewhere (some 10 µs).
"""

from __future__ import annotations

import hashlib
import re
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forkgym_text.needs import need

__all__ = ["Interpreter", "Machine", "without_prompt"]

_PROMPT = re.compile(r"\n>[^\n]*\Z")

_SEED = 1  # games that TextWorld makes seed their generator themselves


def without_prompt(raw: str) -> str:
    """A story's text without the prompt and the status line that the interpreter prints last."""
    return _PROMPT.sub("", raw.rstrip())


class Machine(NamedTuple):
    """One state of a Z-machine, as what differs from the state after the story's opening.

    Attributes:
        ram_at: Addresses that differ, as little-endian 32-bit numbers.
        ram: Their bytes.
        stack_at: The same for the stack.
        stack: Its bytes.
        registers: Program counter, stack and frame pointers, frame count and opcode.
        chance: State of the interpreter's random numbers.
        narrative: The text printed last, which the interpreter counts as state.
        digest: BLAKE2b-128 of all the others.
    """

    ram_at: bytes
    ram: bytes
    stack_at: bytes
    stack: bytes
    registers: tuple[int, ...]
    chance: tuple[int, ...]
    narrative: bytes
    digest: str

    @property
    def size(self) -> int:
        """Bytes of the parts."""
        return len(self.ram_at) + len(self.ram) + len(self.stack_at) + len(self.stack) + len(self.narrative)


class Interpreter:
    """Runs one story, from any of its states.

    Attributes:
        opening: What the story says at the beginning.
        start: The state after the opening and the preparing commands.
    """

    def __init__(self, story: Path, prepare: Sequence[str] = (), seed: int = _SEED, extra: str = "text") -> None:
        """Load a story.

        Args:
            story: Its file.
            prepare: Commands given once after the opening; their answers are thrown away.
            seed: Seed of the interpreter's random numbers.
            extra: The extra of forkgym that brings the interpreter.

        Raises:
            ImportError: Jericho is missing.
        """
        jericho = need("jericho", extra, "Playing Z-machine stories")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not fully supported": scores are read from the text instead
            self._frotz = jericho.FrotzEnv(str(story), seed)
        self._lock = threading.Lock()
        self.opening: str = self._frotz.reset()[0]
        for command in prepare:
            self._frotz.step(command)
        state = self._frotz.get_state()
        self._ram, self._stack = state[0].copy(), state[1].copy()
        self.start = self._read(state)
        self._held: Machine | None = self.start

    @property
    def frotz(self) -> Any:
        """Jericho's own object, for what it knows about famous stories; it stands wherever it was used last."""
        return self._frotz

    def run(self, machine: Machine, command: str) -> tuple[str, Machine]:
        """What the story says to a command, and the state after it."""
        with self._lock:
            self._go(machine)
            self._held = None  # if the call raises, nobody knows where the interpreter stands
            text: str = self._frotz.step(command)[0]
            after = self._held = self._read(self._frotz.get_state())
            return text, after

    def ask(self, machine: Machine, question: Any) -> Any:
        """The answer of ``question(frotz)`` in a state; the question must not change it, or must change it back."""
        with self._lock:
            self._go(machine)
            self._held = None
            return question(self._frotz)

    def _go(self, machine: Machine) -> None:
        if self._held is machine:
            return
        ram, stack = self._ram.copy(), self._stack.copy()
        ram[np.frombuffer(machine.ram_at, "<u4")] = np.frombuffer(machine.ram, np.uint8)
        stack[np.frombuffer(machine.stack_at, "<u4")] = np.frombuffer(machine.stack, np.uint8)
        counter, stack_pointer, frame, frames, opcode = machine.registers
        state = (ram, stack, counter, stack_pointer, frame, frames, opcode, machine.chance, machine.narrative)
        self._frotz.set_state(state)

    def _read(self, state: Any) -> Machine:
        ram, stack, counter, stack_pointer, frame, frames, opcode, chance, narrative = state
        ram_at = np.flatnonzero(ram != self._ram)
        stack_at = np.flatnonzero(stack != self._stack)
        parts = (
            ram_at.astype("<u4").tobytes(),
            ram[ram_at].tobytes(),
            stack_at.astype("<u4").tobytes(),
            stack[stack_at].tobytes(),
        )
        registers = tuple(int(value) for value in (counter, stack_pointer, frame, frames, opcode))
        luck = tuple(int(value) for value in chance)
        narrative = bytes(narrative or b"")
        hashed = hashlib.blake2b(digest_size=16)
        for part in (*parts, narrative, repr((registers, luck)).encode()):
            hashed.update(len(part).to_bytes(8, "little"))
            hashed.update(part)
        return Machine(*parts, registers, luck, narrative, hashed.hexdigest())
