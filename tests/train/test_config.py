"""A configuration is read whole or refused with every wrong key named."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkgym.train.config import (
    MAY_CHANGE,
    ConfigError,
    changed_keys,
    check_resumable,
    config_digest,
    config_from_json,
    config_to_json,
    learner_config,
    load_config,
    parse_config,
    resolve_checkpoint,
)

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = """
[env]
id = "retrieval/Atlas-v0"
[policy]
checkpoint = "somewhere"
[algorithm]
name = "twice"
budget_fraction = 0.5
[budget]
updates = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    return path


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_a_minimal_file_gets_defaults_for_the_rest(file: Path) -> None:
    config = load_config(file)
    assert config.env.id == "retrieval/Atlas-v0"
    assert config.algorithm.name == "twice"
    assert config.algorithm.arguments == {"budget_fraction": 0.5}
    assert config.optimiser.betas == (0.9, 0.999)
    assert config.optimiser.lora is None
    digest = config_digest(config)[:6]
    assert config.run_directory == Path(f"runs/twice-retrieval-Atlas-v0-seed0-{digest}")


def test_a_changed_configuration_without_a_name_is_another_run(file: Path) -> None:
    plain = load_config(file)
    assert load_config(file, ["algorithm.omega=0.5"]).run_directory != plain.run_directory
    assert load_config(file, ["checkpoint.every=7"]).run_directory == plain.run_directory


@pytest.mark.parametrize("name", ["../../elsewhere", "lab/mine", "..", "a\nb"])
def test_a_method_with_an_odd_name_still_gets_one_directory_below_the_runs(name: str, file: Path) -> None:
    directory = load_config(file, [f"algorithm.name={name!r}"]).run_directory
    assert directory.parent == Path("runs")
    assert set(directory.name) <= {*string.ascii_letters, *string.digits, *"._-"}
    assert not directory.name.startswith(".")


def test_a_name_does_not_end_with_a_line_end(file: Path) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        load_config(file, ['run.name="mine\\n"'])


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("run.seed=3", "run", "seed", 3),
        ("optimiser.learning_rate=1e-4", "optimiser", "learning_rate", 1e-4),
        ("optimiser.learning_rate=.5", "optimiser", "learning_rate", 0.5),
        ("optimiser.betas=[0.5, 0.6]", "optimiser", "betas", (0.5, 0.6)),
        ("run.name=my-run", "run", "name", "my-run"),
        ('run.name="quoted"', "run", "name", "quoted"),
        ("policy.checkpoint=runs/a b/c=d", "policy", "checkpoint", "runs/a b/c=d"),
        ("env.kwargs.hops=[1, 2]", "env", "kwargs", {"hops": [1, 2]}),
        ("env.kwargs={top = 3}", "env", "kwargs", {"top": 3}),
        ("algorithm.group_size=2", "algorithm", "arguments", {"budget_fraction": 0.5, "group_size": 2}),
    ],
)
def test_an_override_wins_over_the_file(file: Path, override: str, section: str, key: str, value: Any) -> None:
    assert getattr(getattr(load_config(file, [override]), section), key) == value


def test_a_line_break_in_an_override_cannot_smuggle_in_another_key(file: Path) -> None:
    assert load_config(file, ["policy.checkpoint=1\nseed = 2"]).policy.checkpoint == "1\nseed = 2"


def test_an_override_can_make_a_section_of_its_own(file: Path) -> None:
    lora = load_config(file, ["optimiser.lora.rank=4"]).optimiser.lora
    assert lora is not None
    assert (lora.rank, lora.target_modules) == (4, ("all-linear",))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimiser.learning_rat=1", "Did you mean 'learning_rate'?"),
        ("run.learning_rate=1", "Did you mean optimiser.learning_rate?"),
        ("optimizer.epochs=2", "Did you mean 'optimiser'?"),
        ("optimiser.epochs=0", "optimiser.epochs (from --set) is 0, expected an integer of at least 1."),
        ("optimiser.epochs=true", "is true, expected an integer of at least 1."),
        ("optimiser.epochs=1.5", "is 1.5, expected an integer of at least 1."),
        ("optimiser.learning_rate=0", "is 0, expected a number greater than 0."),
        ("optimiser.learning_rate=fast", "is 'fast', expected a number greater than 0."),
        ("optimiser.learning_rate=inf", "is inf, expected a finite number."),
        ("optimiser.learning_rate=nan", "is nan, expected a finite number."),
        ("optimiser.betas=[0.9]", "expected a list of 2, each a number of at least 0 and less than 1."),
        ("optimiser.betas=[0.9, 1.0]", "expected a list of 2, each a number of at least 0 and less than 1."),
        ("optimiser.lora=8", "is 8, but it is a section; write it as a table [optimiser.lora]."),
        ("optimiser.lora.target_modules=[]", "expected a list that is not empty, each item text"),
        ("policy.device=gpu", "is 'gpu', expected one of 'auto', 'cpu', 'cuda'."),
        ("policy.checkpoint=", "is '', expected text that is not empty."),
        ("run.name=../elsewhere", "expected a name"),
        ("run.seed=-1", "is -1, expected an integer of at least 0."),
        ("run.seed=99999999999999999999", "expected an integer below 2**63"),
        ("env.kwargs.x=99999999999999999999", "expected an integer below 2**63"),
        ("policy.checkpoint=\udcff", "not valid UTF-8"),
        ("env.kwargs=3", "is 3, expected a table."),
        ("env.kwargs.since=2020-01-01", "env.kwargs.since (from --set) is a date"),
        ("algorithm.omega=nan", "algorithm.omega (from --set) is nan, expected a finite number."),
        ("algorithm.name=3", "algorithm.name (from --set) is 3, expected text"),
        ("seed=3", "is not of the form section.key=value"),
        ("run.seed", "is not of the form section.key=value"),
        ("run..seed=1", "is not of the form section.key=value"),
        ("env.id.x=1", "env.id is a value, not a section"),
    ],
)
def test_a_wrong_value_is_refused_by_name(file: Path, override: str, said: str) -> None:
    assert said in refused(file, override)


def test_all_wrong_keys_are_named_at_once(file: Path) -> None:
    text = refused(file, "optimiser.epochs=0", "policy.device=gpu", "budgett.tokens=3")
    assert f"{file}: 3 problems:" in text
    assert all(name in text for name in ("optimiser.epochs", "policy.device", "budgett"))


def test_missing_sections_and_keys_are_named(file: Path) -> None:
    file.write_text("[policy]\n[algorithm]\nname='grpo'\n")
    text = refused(file)
    assert "env is missing; add a section [env] with `id`." in text
    assert "policy.checkpoint is missing, expected text that is not empty." in text
    assert "budget needs `tokens` or `updates`" in text


def test_an_empty_budget_is_refused(file: Path) -> None:
    file.write_text(MINIMAL.replace("updates = 3", ""))
    assert "budget needs `tokens` or `updates`" in refused(file)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, file: Path) -> None:
    assert "no such file. Did you mean" in refused(tmp_path / "runn.toml")
    assert "no such file. Check the path." in refused(tmp_path / "no" / "where")
    assert "this is a directory" in refused(tmp_path)
    file.write_bytes(b'name = "\xff"')
    assert "byte 9 is not UTF-8" in refused(file)
    file.write_text("[run\nseed = 1")
    assert "not valid TOML" in refused(file)
    file.write_text("[run]\nseed = 1\nseed = 2")
    assert "not valid TOML" in refused(file)


def test_a_value_where_a_section_belongs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimiser is 3, but it is a section"):
        parse_config({"optimiser": 3, "env": {"id": "x"}, "policy": {"checkpoint": "x"}, "budget": {"updates": 1}})


@given(
    table=st.dictionaries(
        st.sampled_from(["run", "env", "policy", "algorithm", "budget", "optimiser", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["id", "name", "seed", "lora", "kwargs", "betas"]), inner, max_size=3)
            ),
            max_leaves=8,
        ),
    )
)
def test_no_table_whatever_crashes_the_reader(table: dict[str, Any]) -> None:
    try:
        config = parse_config(table)
    except ConfigError as error:
        problems = error.problems
    else:
        problems = ("none",)
        assert config_digest(config)
    assert problems


def test_the_stored_form_gives_the_same_configuration(file: Path) -> None:
    config = load_config(file, ["optimiser.lora.rank=4", "env.kwargs.a=[1, {b = 2}]"])
    assert config_from_json(config_to_json(config)) == config
    with pytest.raises(ConfigError, match="does not fit this version"):
        config_from_json('{"env": 3}')


def test_the_order_of_keys_does_not_change_the_digest(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    blocks = re.split(r"(?m)^(?=\[)", MINIMAL)
    other.write_text("".join(reversed(blocks)))
    assert config_digest(load_config(other)) == config_digest(load_config(file))


@pytest.mark.parametrize("key", sorted(MAY_CHANGE))
def test_keys_that_only_move_or_space_out_files_may_change_on_resume(file: Path, key: str) -> None:
    value = {"collection.mode": "stream", "collection.timeline": "true"}.get(key, "7")
    value = "other" if key.startswith("run.") else value
    old, new = load_config(file), load_config(file, [f"{key}={value}"])
    assert old != new
    assert config_digest(old) == config_digest(new)
    check_resumable(old, new)


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=1",
        "algorithm.omega=2",
        "algorithm.name=grpo",
        "optimiser.lora.rank=4",
        "budget.tokens=5",
        "env.split=x",
    ],
)
def test_a_key_that_changes_the_numbers_may_not_change_on_resume(file: Path, override: str) -> None:
    old, new = load_config(file), load_config(file, [override])
    key = override.split("=")[0]
    assert config_digest(old) != config_digest(new)
    assert key in [name for name, _, _ in changed_keys(old, new)]
    with pytest.raises(ConfigError, match=re.escape(key)):
        check_resumable(old, new)


def test_the_learner_gets_every_setting_of_the_optimiser(file: Path) -> None:
    overrides = ["run.seed=7", "policy.device=cpu", "optimiser.epochs=3", "optimiser.betas=[0.5, 0.6]"]
    plain = learner_config(load_config(file, overrides))
    assert (plain.seed, plain.device, plain.epochs, plain.betas, plain.lora) == (7, "cpu", 3, (0.5, 0.6), None)
    adapted = learner_config(load_config(file, ["optimiser.lora.rank=4"])).lora
    assert adapted is not None
    assert (adapted.rank, adapted.target_modules) == (4, "all-linear")
    some = learner_config(load_config(file, ["optimiser.lora.target_modules=['q_proj']"])).lora
    assert some is not None
    assert some.target_modules == ("q_proj",)
    for field in msgspec.structs.fields(type(load_config(file).optimiser)):
        assert hasattr(plain, field.name), f"optimiser.{field.name} reaches nobody"


def test_a_checkpoint_is_found_by_path_and_inside_a_package(tmp_path: Path) -> None:
    import forkgym.train

    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    assert resolve_checkpoint("package:forkgym/train") == Path(forkgym.train.__file__).parent
    for wrong in ("package:no_such_package/x", "package:../x", "package:forkgym/no/such", str(tmp_path / "no")):
        with pytest.raises(ConfigError, match=r"policy\.checkpoint"):
            resolve_checkpoint(wrong)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    config = load_config(path)
    assert msgspec.json.decode(config_to_json(config))["env"]["id"] == config.env.id
