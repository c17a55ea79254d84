"""The worlds: Coupled, Shortcut and Chain (with or without luck), as pure rules and policies.

Their exact numbers are in docs/toy.md and are recomputed by the tests; the environments are in `env.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from forkgym_toy.world import END, INVALID, NEWLINE, Outcome, State, World

__all__ = ["WORLDS", "Chain", "Coupled", "Shortcut", "SlipperyChain"]


class CoupledState(NamedTuple):
    """Where an episode of `Coupled` stands.

    Attributes:
        task: Always 0.
        turn: Turn number.
        route: 0 before the first turn and after an invalid one, 1 north, 2 south.
        hits: Hits so far.
        last: 1 if the last throw hit.
    """

    task: int
    turn: int
    route: int
    hits: int
    last: int


class Coupled(World):
    """Choose a route that hardly matters, then throw three times; two hits win.

    The route moves each throw's chance by a few points only, so most of the outcome is the throws' luck: a twin,
    which shares it, nearly always ends as the factual episode did (Twice §5, Lemma 1), an independent branch
    disagrees by chance about half the time.
    """

    vocabulary = (END, NEWLINE, "start", "north", "south", "hit", "miss", "on")
    horizon = 4
    max_tokens = 2

    def start(self, task: int) -> State:
        """One task; see `World.start`."""
        return CoupledState(task, 0, 0, 0, 0)

    def prompt(self, task: int) -> str:  # noqa: ARG002
        """See `World.prompt`."""
        return "start"

    def policy(self, state: State, written: tuple[str, ...]) -> Mapping[str, float]:
        """60 % north; a throw hits with .48, +.06 on the north route, +.04 after a hit."""
        if written:
            return {END: 1.0}
        place = CoupledState(*state)
        if place.turn == 0:
            return {"north": 0.6, "south": 0.4}
        hit = 0.48 + 0.06 * (place.route == 1) + 0.04 * place.last
        return {"hit": hit, "miss": 1 - hit}

    def action(self, words: Sequence[str]) -> str:
        """The turn's only word; see `World.action`."""
        return words[0] if len(words) == 1 and words[0] in ("north", "south", "hit", "miss") else INVALID

    def actions(self, state: State) -> tuple[str, ...]:
        """A route first, then throws."""
        return ("north", "south") if CoupledState(*state).turn == 0 else ("hit", "miss")

    def act(self, state: State, action: str) -> tuple[Outcome, ...]:
        """An invalid turn is a miss, or no route."""
        place = CoupledState(*state)
        if place.turn == 0:
            route = {"north": 1, "south": 2}.get(action, 0)
            return (Outcome(1.0, place._replace(turn=1, route=route), "on"),)
        hit = int(action == "hit")
        after = place._replace(turn=place.turn + 1, hits=place.hits + hit, last=hit)
        if after.turn == self.horizon:
            return (Outcome(1.0, after, "", int(after.hits >= 2)),)
        return (Outcome(1.0, after, "on"),)


class ShortcutState(NamedTuple):
    """Where an episode of `Shortcut` stands.

    Attributes:
        task: Always 0.
        turn: Turn number.
    """

    task: int
    turn: int


class Shortcut(World):
    """Pass at once or think longer, then flip a coin; only the coin counts, so every first turn has A = 0.

    A thinking turn names a side as its third token, the number that a passing twin's coin has in a count of all
    generated tokens. Under the ``episode`` layout that twin therefore flips the noise that chose the factual
    side: E[D | think hard heads] = −¼ and E[D | think hard tails] = +¼, although the advantage is 0.
    """

    vocabulary = (END, NEWLINE, "start", "pass", "think", "hard", "heads", "tails", "on")
    horizon = 2
    max_tokens = 4

    def start(self, task: int) -> State:
        """One task; see `World.start`."""
        return ShortcutState(task, 0)

    def prompt(self, task: int) -> str:  # noqa: ARG002
        """See `World.prompt`."""
        return "start"

    def policy(self, state: State, written: tuple[str, ...]) -> Mapping[str, float]:
        """Fair choices everywhere."""
        coin = {"heads": 0.5, "tails": 0.5}
        if ShortcutState(*state).turn == 1:
            return {END: 1.0} if written else coin
        if not written:
            return {"pass": 0.5, "think": 0.5}
        if written == ("think",):
            return {"hard": 1.0}
        return coin if written == ("think", "hard") else {END: 1.0}

    def action(self, words: Sequence[str]) -> str:
        """Thinking is one action whatever side it names."""
        said = tuple(words)
        if said in (("pass",), ("heads",), ("tails",)):
            return said[0]
        return "think" if said[:2] == ("think", "hard") and said[2:] in (("heads",), ("tails",)) else INVALID

    def actions(self, state: State) -> tuple[str, ...]:
        """Pass or think, then a side."""
        return ("pass", "think") if ShortcutState(*state).turn == 0 else ("heads", "tails")

    def act(self, state: State, action: str) -> tuple[Outcome, ...]:
        """Only heads in the second turn wins."""
        place = ShortcutState(*state)
        after = place._replace(turn=place.turn + 1)
        return (Outcome(1.0, after, "on") if place.turn == 0 else Outcome(1.0, after, "", int(action == "heads")),)


class ChainState(NamedTuple):
    """Where an episode of `Chain` stands.

    Attributes:
        task: Task number; its bits are the two directions that count.
        turn: Turn number.
        mood: 0 at the start and after an invalid turn, 1 after a left turn, 2 after a right one.
        lost: 1 once the first decisive turn went wrong.
    """

    task: int
    turn: int
    mood: int
    lost: int


class Chain(World):
    """Six turns, two of which decide; each turn mumbles for a while, ends the line and names a direction.

    Turns 1 and 4 have a right direction (the prompt says which), the others change only the policy's mood: how
    long it mumbles and, a little, where it turns next. Both directions right wins; a mistake at turn 4 ends the
    episode at once. The mumble makes turns of different lengths, so only a layout that starts afresh at each line
    keeps a twin's directions on the factual noise.

    Attributes:
        slip: Probability that a decisive turn does the opposite of what was asked (environment luck).
    """

    vocabulary = (END, NEWLINE, "go", "um", "left", "right", "ok", "on", "off")
    tasks = 4
    horizon = 6
    max_tokens = 9
    decisive = (1, 4)
    max_mumbles = 6
    slip: float = 0.0

    def start(self, task: int) -> State:
        """Task ``2a + b``: direction a counts at turn 1, b at turn 4 (0 left, 1 right)."""
        return ChainState(task, 0, 0, 0)

    def target(self, state: State) -> str | None:
        """The direction that counts at this state, if any."""
        place = ChainState(*state)
        if place.turn not in self.decisive:
            return None
        bit = place.task >> 1 if place.turn == self.decisive[0] else place.task & 1
        return ("left", "right")[bit]

    def prompt(self, task: int) -> str:
        """``go``, then the two directions that count."""
        return f"go {('left', 'right')[task >> 1]} {('left', 'right')[task & 1]}"

    def policy(self, state: State, written: tuple[str, ...]) -> Mapping[str, float]:
        """Mumbles go on with .55 (.45 after a right turn); decisive turns are right with .75 ± .05 by mood."""
        place = ChainState(*state)
        if NEWLINE not in written:
            go_on = 0.0 if len(written) == self.max_mumbles else 0.45 if place.mood == 2 else 0.55
            return {"um": go_on, NEWLINE: 1 - go_on}
        if written[-1] != NEWLINE:
            return {END: 1.0}
        lean = {0: 0.0, 1: 0.05, 2: -0.05}[place.mood]
        target = self.target(state)
        left = 0.5 + 2 * lean if target is None else {"left": 0.75, "right": 0.25}[target] + lean
        return {"left": left, "right": 1 - left}

    def action(self, words: Sequence[str]) -> str:
        """The word after the line end; a turn without one, or with more, says nothing."""
        said = list(words)
        if said.count(NEWLINE) != 1:
            return INVALID
        last = said[said.index(NEWLINE) + 1 :]
        return last[0] if last in (["left"], ["right"]) else INVALID

    def actions(self, state: State) -> tuple[str, ...]:  # noqa: ARG002
        """Two directions."""
        return ("left", "right")

    def act(self, state: State, action: str) -> tuple[Outcome, ...]:
        """At a decisive turn the first outcome is the bad one; its chance is ``slip``, or 1 − ``slip`` if wrong."""
        place = ChainState(*state)
        after = place._replace(turn=place.turn + 1, mood={"left": 1, "right": 2}.get(action, 0))
        target = self.target(state)
        if target is None:
            if after.turn == self.horizon:
                return (Outcome(1.0, after, "", 1 - after.lost),)
            return (Outcome(1.0, after, "ok"),)
        worse = after._replace(lost=1)
        fails = self.slip if action == target else 1 - self.slip
        bad = Outcome(fails, worse, "", 0) if place.turn == self.decisive[1] else Outcome(fails, worse, "off")
        good = Outcome(1 - fails, after, "on")
        return tuple(outcome for outcome in (bad, good) if outcome.probability > 0)


class SlipperyChain(Chain):
    """`Chain` whose decisive turns slip one time in five: luck of the environment, not of the policy."""

    slip = 0.2


WORLDS: dict[str, type[World]] = {
    "toy/Coupled-v0": Coupled,
    "toy/Shortcut-v0": Shortcut,
    "toy/Chain-v0": Chain,
    "toy/SlipperyChain-v0": SlipperyChain,
}
"""World of each environment id."""
