"""How an agent's text becomes a command, what is refused, and how failures are named. No engine is needed."""

import pytest
from forkgym_text.families import FAMILIES, SPLITS, levels_of, recipe
from forkgym_text.story import MAX_COMMAND, Course, command_of, refusal


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("go north", "go north"),
        ("I think the key is north.\ngo  north\n\n", "go north"),
        ("> take key", "take key"),
        ("first <action>look</action> then <action> open  door </action> bye", "open door"),
        ("", ""),
        ("\n \n", ""),
        ("<action></action>", ""),
    ],
)
def test_the_command_is_the_last_tagged_one_or_the_last_line(text, command):
    assert command_of(text) == command


REFUSED = [
    *("save", "SAVE", "restore", "undo", "quit", "restart", "script", "look. save", "look then restart"),
    *("take key, undo", "tw-trace-actions", "tw-extra-infos score", "look;save", "  . save", '"save', "*save"),
    *("x" * (MAX_COMMAND + 1), "", "lo\nok", "look\0", "schau dir die Tür an"),
]


@pytest.mark.parametrize("command", REFUSED)
def test_commands_to_the_interpreter_and_odd_bytes_never_reach_the_game(command):
    assert refusal(command)


@pytest.mark.parametrize("command", ["look", "go north", "take save point", "put key on table"])
def test_commands_of_the_story_pass(command):
    assert refusal(command) == ""


def test_failures_are_named_by_what_the_turns_did():
    stuck = Course(seen=("a",)).after("a").after("a").after("b")
    assert stuck.failure(3, lost=False) == "no effect"
    circling = Course(seen=("a",)).after("b").after("a").after("b")
    assert circling.failure(3, lost=False) == "in circles"
    exploring = Course(seen=("a",)).after("b").after("c").after("a")
    assert exploring.failure(3, lost=False) == "too slow"
    assert exploring.failure(3, lost=True) == "lost"


def test_a_course_is_never_changed_in_place():
    course = Course(seen=("a",))
    before = course.plain()
    course.after("b").after("a")
    assert course.plain() == before


def test_tasks_of_different_splits_never_share_a_seed():
    seeds = {
        recipe("coin-collector", 3, split, task, attempt).seed
        for split in SPLITS
        for task in (0, 1, 999_999)
        for attempt in range(8)
    }
    assert len(seeds) == 3 * 3 * 8


@pytest.mark.parametrize("family", FAMILIES)
def test_every_level_has_a_recipe_and_others_are_refused(family):
    levels = levels_of(family)
    for level in (levels[0], levels[len(levels) // 3], levels[-1] if family != "coin-collector" else 40):
        assert recipe(family, level, "train", 0).family == family
    for wrong in (0, levels[-1] + 1, "1", True):
        with pytest.raises(ValueError, match="levels"):
            recipe(family, wrong, "train", 0)


def test_a_coin_collector_of_too_many_rooms_is_refused():
    with pytest.raises(ValueError, match="100 rooms"):
        recipe("coin-collector", 160, "train", 0)


def test_an_unknown_family_or_split_is_named_with_the_alternatives():
    with pytest.raises(ValueError, match="treasure-hunter"):
        recipe("hunting", 1, "train", 0)
    with pytest.raises(ValueError, match="valid"):
        recipe("cooking", 1, "dev", 0)
