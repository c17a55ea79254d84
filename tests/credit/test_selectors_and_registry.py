"""CRR's selector and its ablations; presets by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from forkgym.credit import (
    Algorithm,
    ScoreSelector,
    UnknownAlgorithm,
    list_algorithms,
    make_algorithm,
    register_algorithm,
    registry,
    select_by_score,
)
from forkgym.rollout.trace import Decision, Episode
from tests.credit.traces import decision, episode, turn


def five_turns() -> tuple[Episode, list[Decision]]:
    """Entropies .5, 1.0, .3, .9 and a terminal turn; kinds search, edit, edit, shell, answer."""
    one = episode(7, 1.0, [])
    one.turns = [
        turn(0, entropy=0.5, kind="search"),
        turn(1, entropy=1.0, kind="edit"),
        turn(2, entropy=0.3, kind="edit"),
        turn(3, entropy=0.9, kind="shell"),
        turn(4, entropy=2.0, kind="answer", terminal=True),
    ]
    return one, [decision(1.0, [], turn=t, terminal=t == 4) for t in range(5)]


def chosen(selector: ScoreSelector) -> list[int]:
    one, decisions = five_turns()
    select_by_score(selector, one, decisions)
    share = selector.k / 3 if selector.score == "random" else 1.0  # three turns are eligible
    assert all(d.propensity == (share if d.branched else 0.0) for d in decisions)
    return [d.turn for d in decisions if d.branched]


def test_the_score_is_entropy_weighted_by_the_type_of_the_action() -> None:
    one, decisions = five_turns()
    select_by_score(ScoreSelector(), one, decisions)
    assert [d.score for d in decisions[:4]] == pytest.approx([0.5, 1.0 * 1.6, 0.3 * 1.6, 0.9 * 1.45])


def test_only_uncertain_turns_that_do_not_end_the_episode_are_eligible() -> None:
    assert chosen(ScoreSelector(k=9)) == [0, 1, 3]


def test_ablations_choose_among_the_same_turns() -> None:
    assert chosen(ScoreSelector(k=1)) == [1]
    assert chosen(ScoreSelector(k=1, score="type")) == [1]
    assert chosen(ScoreSelector(k=2, score="entropy")) == [1, 3]
    assert chosen(ScoreSelector(k=1, score="stride")) == [1]
    random = chosen(ScoreSelector(k=2, score="random"))
    assert len(random) == 2
    assert set(random) <= {0, 1, 3}
    assert random == chosen(ScoreSelector(k=2, score="random"))


def test_every_preset_builds_with_its_defaults() -> None:
    names = list_algorithms()
    assert {"grpo", "rloo", "crr", "twice", "twice-dr", "merge-annealed"} <= set(names)
    for name in names:
        algorithm = make_algorithm(name)
        assert isinstance(algorithm, Algorithm)
        assert algorithm.name == name


def test_unknown_names_and_options_are_told_the_nearest() -> None:
    with pytest.raises(UnknownAlgorithm, match="did you mean 'twice'"):
        make_algorithm("twise")
    with pytest.raises(UnknownAlgorithm, match="did you mean 'group_size'"):
        make_algorithm("grpo", groupsize=3)


def test_a_broken_entry_point_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint(name="broken", value="forkgym.credit:nothing_of_the_kind", group="forkgym.algos")
    monkeypatch.setattr("forkgym.credit.registry._entry_points", lambda: {"broken": broken})
    with pytest.raises(UnknownAlgorithm, match=r"announced as forkgym\.credit:nothing_of_the_kind"):
        make_algorithm("broken")


def test_a_third_party_can_register_a_preset_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    register_algorithm("test-preset", lambda: make_algorithm("grpo"))
    assert "test-preset" in list_algorithms()
    with pytest.raises(ValueError, match="exists already"):
        register_algorithm("grpo", lambda: make_algorithm("rloo"))
    with pytest.raises(ValueError, match="exists already"):
        register_algorithm("test-preset", lambda: make_algorithm("rloo"))
