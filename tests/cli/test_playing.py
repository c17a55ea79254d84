"""A person plays: undo, named forks, differences, saved games; through pipes and through a pseudo-terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forkgym
from forkgym.cli.branches import Session, begin, differing_turns, resume
from forkgym.cli.command import UsageError
from forkgym.cli.playing import Player, read_action
from forkgym.console import Console
from forkgym.core import Handle, Luck, ReplayDivergence
from tests.cli.conftest import Caller

CHAIN = "toy/Chain-v0"


def played(env_id: str, *lines: str) -> tuple[Session, str]:
    """A session after some typed lines, and what was shown."""
    session = Session(begin("main", forkgym.make(env_id), 0, {}))
    output = io.StringIO()
    Player(session, Console(output, io.StringIO())).run(lines)
    return session, output.getvalue()


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))


def test_undo_leads_back_to_the_very_state_before() -> None:
    session, _ = played(CHAIN, "left")
    before = session.current.env.state_hash()
    player = Player(session, Console(io.StringIO(), io.StringIO()))
    player.run(["right", "left", ":undo 2"])
    assert session.current.env.state_hash() == before
    assert [turn.action for turn in session.current.turns] == ["left"]


def test_a_fork_goes_its_own_way_and_its_parent_stays() -> None:
    session, shown = played(CHAIN, "left", ":fork brave", "right", ":switch main")
    main, brave = session.branches["main"], session.branches["brave"]
    assert [turn.action for turn in brave.turns] == ["left", "right"]
    assert [turn.action for turn in main.turns] == ["left"]
    assert session.current is main
    assert "now on branch brave, turn 1" in shown
    brave.undo(2)
    assert brave.env.turn == 0
    assert main.env.turn == 1


def test_a_difference_names_the_first_turn_that_is_not_shared() -> None:
    session, shown = played(CHAIN, "left", ":fork brave", "right", ":switch main", "left", ":diff brave")
    shared, pairs = differing_turns(session.branches["main"], session.branches["brave"])
    assert shared == 1
    assert [[turn.action for turn in pair if turn] for pair in pairs] == [["left", "right"]]
    assert "main and brave share 1 turns" in shown
    assert "- main: left -> " in shown
    assert "+ brave: right -> " in shown


def test_branches_without_a_difference_are_said_to_be_the_same() -> None:
    _, shown = played(CHAIN, "left", ":fork twin", ":diff main")
    assert "twin and main are the same: 1 turns" in shown


def test_a_saved_game_is_resumed_turn_by_turn_and_can_be_undone(tmp_path: Path) -> None:
    file = tmp_path / "game.json"
    session, _ = played(CHAIN, "left", "right", f":save {file}")
    handle = Handle.from_json(file.read_text())
    again = resume("again", handle)
    assert again.env.state_hash() == session.current.env.state_hash()
    assert [turn.action for turn in again.turns] == ["left", "right"]
    again.undo()
    session.current.undo()
    assert again.env.state_hash() == session.current.env.state_hash()


def test_a_saved_game_keeps_the_luck_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "game.json"
    session, _ = played("toy/SlipperyChain-v0", "right", ":fork other 5", "right", "right", f":save {file}")
    handle = Handle.from_json(file.read_text())
    assert handle.luck == [(1, 5)]
    assert resume("again", handle).env.state_hash() == session.current.env.state_hash()
    env = forkgym.make("toy/SlipperyChain-v0")
    env.reset(seed=0)
    env.step("right")
    fresh = env.fork(luck=Luck.fresh(5))
    fresh.step("right")
    fresh.step("right")
    assert fresh.state_hash() == session.current.env.state_hash()


def test_a_tampered_game_is_refused_with_the_turn(tmp_path: Path, forkgym_command: Caller) -> None:
    file = tmp_path / "game.json"
    session, _ = played(CHAIN, "left", "right", f":save {file}")
    file.write_text(file.read_text().replace('"left"', '"right"'))
    with pytest.raises(ReplayDivergence) as caught:
        resume("again", Handle.from_json(file.read_text()))
    assert caught.value.turn == 1
    outcome = forkgym_command("play", "--resume", file)
    assert outcome.code == 2
    assert "turn 1" in outcome.err
    session.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (":undo", "cannot go back 1 turns"),
        (":undo x", "not a number"),
        (":fork", "give the new branch a name"),
        (":fork main", "choose another name"),
        (":swich main", "Did you mean 'switch'"),
        (":switch man", "Did you mean 'main'"),
        (":diff", "say which branch"),
        (":save", "say where to"),
        (":save /nowhere/at/all.json", "cannot be written"),
        (":resume nothing.json", "there is no file"),
        (":hint genius", "there is no policy 'genius'"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(line: str, words: str) -> None:
    session, shown = played(CHAIN, line)
    assert words in shown
    assert list(session.branches) == ["main"]
    assert not session.current.turns


def test_a_game_is_not_written_over_unasked(tmp_path: Path) -> None:
    file = tmp_path / "game.json"
    file.write_text("precious")
    _, shown = played(CHAIN, "left", f":save {file}")
    assert "exists already" in shown
    assert file.read_text() == "precious"
    played(CHAIN, "left", f":save! {file}")
    assert Handle.from_json(file.read_text()).env == CHAIN


def test_after_the_end_only_going_back_is_possible() -> None:
    session, shown = played(CHAIN, *["left"] * 20)
    assert "*** over" in shown
    assert "the episode is over" in shown
    ended = len(session.current.turns)
    Player(session, Console(io.StringIO(), io.StringIO())).run([":undo", "left"])
    assert len(session.current.turns) == ended


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"])
def test_gymnasiums_worlds_of_tables_can_be_played(env_id: str, tmp_path: Path) -> None:
    from forkgym.cli.playing import _rendering

    session = Session(begin("main", forkgym.make(env_id, **_rendering(env_id)), 3, {}))
    output = io.StringIO()
    file = tmp_path / "game.json"
    lines = ["0", ":undo", "1", ":fork other", ":undo", "0", ":switch main", ":diff other", ":actions", f":save {file}"]
    Player(session, Console(output, io.StringIO())).run([*lines, "hello", "77"])
    shown = output.getvalue()
    assert "share 0 turns" in shown
    assert "Discrete" in shown
    assert "'hello' is no action" in shown
    assert "'77' is no action" in shown
    assert "\x1b" not in shown
    main = session.branches["main"]
    assert [turn.action for turn in main.turns] == [1]
    assert resume("again", Handle.from_json(file.read_text())).env.state_hash() == main.env.state_hash()


def test_actions_are_numbers_json_or_words_as_the_space_asks() -> None:
    assert read_action(forkgym.make("FrozenLake-v1"), "2") == 2
    assert read_action(forkgym.make(CHAIN), "2") == "2"
    car = forkgym.make("MountainCarContinuous-v0")
    assert read_action(car, "[0.5]").tolist() == [0.5]
    with pytest.raises(UsageError, match="no action"):
        read_action(car, "[7]")


def test_hints_and_actions_come_from_the_environment() -> None:
    _, shown = played(CHAIN, ":hint", ":actions", ":state", ":log", ":branches", ":help")
    for words in ("random: ", "say: ", "state hash ", "branch", ":undo [N]"):
        assert words in shown


def test_the_command_reads_a_script(forkgym_command: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typed(monkeypatch, "left", ":save game.json", ":quit", "left")
    assert forkgym_command("play", CHAIN, "--seed", 4).code == 0
    handle = Handle.from_json((tmp_path / "game.json").read_text())
    assert (handle.seed, handle.actions) == (4, ["left"])
    typed(monkeypatch, ":state")
    assert "turn 1" in forkgym_command("play", "--resume", "game.json").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say what to play"),
        (("toy/Chian-v0",), "Did you mean"),
        ((CHAIN, "--env-arg", "colour=1"), "colour"),
        ((CHAIN, "--resume", "nothing.json"), "cannot be read"),
    ],
)
def test_bad_arguments_are_one_paragraph(forkgym_command: Caller, arguments: tuple[str, ...], words: str) -> None:
    outcome = forkgym_command("play", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        program = "import sys; from forkgym.cli import main; sys.exit(main(sys.argv[1:]))"
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**os.environ, "COLUMNS": "60", "TERM": "xterm"},
            close_fds=True,
        )
        os.close(theirs)

    def until(self, words: str, seconds: float = 60.0) -> str:
        """Everything shown until some words have come."""
        shown, limit = "", time.monotonic() + seconds
        while words not in shown:
            ready, _, _ = select.select([self.ours], [], [], max(limit - time.monotonic(), 0))
            assert ready, f"{words!r} did not come; shown was {shown!r}"
            shown += os.read(self.ours, 4096).decode()
        return shown

    def type(self, line: str, prompt: str) -> str:
        """Type a line and read until the next prompt."""
        os.write(self.ours, line.encode() + b"\n")
        return self.until(prompt)

    def close(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self.ours)
        return code


def test_a_whole_game_through_a_pseudo_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "play", CHAIN)
    terminal.until("main:0> ")
    terminal.type("left", "main:1> ")
    terminal.type(":fork brave", "brave:1> ")
    terminal.type("right", "brave:2> ")
    assert "share 1 turns" in terminal.type(":diff main", "brave:2> ")
    terminal.type(":undo", "brave:1> ")
    terminal.type("left", "brave:2> ")
    assert "saved game.json" in terminal.type(":save game.json", "brave:2> ")
    terminal.type(":switch main", "main:1> ")
    state = terminal.type(":resume game.json", "game:2> ")
    assert "turn 2" in state
    assert "are the same: 2 turns" in terminal.type(":diff brave", "game:2> ")
    os.write(terminal.ours, b":quit\n")
    assert terminal.close() == 0
    assert Handle.from_json((tmp_path / "game.json").read_text()).actions == ["left", "left"]


def test_the_end_of_input_ends_the_game_and_ctrl_c_stops_it(tmp_path: Path) -> None:
    for keys, code in ((b"\x04", 0), (b"\x03", 130)):
        terminal = Terminal(tmp_path, "play", CHAIN)
        terminal.until("main:0> ")
        os.write(terminal.ours, keys)
        if keys == b"\x03":
            # The pseudo-terminal is not the child's controlling one, so the key sends no signal by itself.
            terminal.process.send_signal(2)
        assert terminal.close() == code
