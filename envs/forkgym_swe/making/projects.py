"""The catalogue of real projects that tasks are made of: names, releases and how their tests run. No file of theirs.

Sources and requirements are fetched only when the user asks; see ``fetching``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["PROJECTS", "SAMPLE_SPLITS", "Project", "find_project"]

Split = Literal["train", "validation", "test"]


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project whose tests pass offline from its source distribution.

    Attributes:
        name: On the package index.
        version: The release.
        digest: SHA-256 of the source distribution, in hex.
        split: Where its tasks belong; a project is in one split only.
        python_path: Directories that its tests import from.
        test_paths: The tests; empty for the test runner's own choice.
        requires: What its tests need beside pytest, pinned.
        license: As the project states it.
    """

    name: str
    version: str
    digest: str
    split: Split = "train"
    python_path: tuple[str, ...] = (".",)
    test_paths: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    license: str = "MIT"


def _below(folder: str, names: str) -> tuple[str, ...]:
    """Test files by what is between ``test_`` and ``.py``: the fast ones of a slow suite."""
    return tuple(f"{folder}/test_{name}.py" for name in names.split())


PROJECTS: tuple[Project, ...] = (
    Project(
        name="boltons",
        version="26.2.0",
        digest="d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
        license="BSD-3-Clause",
    ),
    Project(
        name="cachetools",
        version="8.0.2",
        digest="30ac523adfc118b51d2b2e7bad8a0ddb31370dfe2700c7f10ca224f36ccf81e0",
        split="test",
        python_path=("src",),
    ),
    Project(
        name="funcy",
        version="2.1",
        digest="8979feb3de7120afd1d00e5a8eae810c1942e4bfbc91697151e9ee1e49f79284",
        requires=("whatever==0.7",),
        license="BSD-3-Clause",
    ),
    Project(
        name="inflection",
        version="0.5.1",
        digest="1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417",
        split="validation",
    ),
    Project(
        name="jinja2",
        version="3.1.6",
        digest="0137fb05990d35f1275a587e9aee6d56da821fc83491a0fb838183be43f66d6d",
        python_path=("src",),
        requires=("markupsafe==3.0.4", "trio==0.35.0"),
        license="BSD-3-Clause",
    ),
    Project(
        name="lark",
        version="1.3.1",
        digest="b426a7a6d6d53189d318f2b6236ab5d6429eaf09259f1ca33eb716eed10d2905",
        test_paths=_below("tests", "grammar lexer python_grammar reconstructor tools tree_forest_transformer trees"),
    ),
    Project(
        name="marshmallow",
        version="4.4.0",
        digest="9e6ffa8511012ca89732324c1c253efd7b4d35632dcbdf80aa793fe01804af3e",
        python_path=("src",),
        requires=("simplejson==4.3.0",),
    ),
    Project(
        name="parso",
        version="0.8.7",
        digest="eaaac4c9fdd5e9e8852dc778d2d7405897ec510f2a298071453e5e3a07914bb1",
        test_paths=_below(
            "test", "error_recovery fstring get_code param_splitting parser parser_tree pep8 pgen2 prefix"
        )
        + _below("test", "python_errors tokenize utils"),
    ),
    Project(
        name="schema",
        version="0.7.8",
        digest="e86cc08edd6fe6e2522648f4e47e3a31920a76e82cce8937535422e310862ab5",
        split="test",
    ),
    Project(
        name="sqlparse",
        version="0.6.1",
        digest="ca722573f848ff2d30e40ea30f53a104b7dea7635ea9285891263eb2c58fb6e7",
        split="test",
        license="BSD-3-Clause",
    ),
    Project(
        name="tabulate",
        version="0.10.0",
        digest="e2cfde8f79420f6deeffdeda9aaec3b6bc5abce947655d17ac662b126e48a60d",
    ),
    Project(
        name="tinydb",
        version="4.9.0",
        digest="6928b1fa785186bda7952a0ba05aaeedc883ede565ca9c7d608de44e5e75de70",
    ),
    Project(
        name="toolz",
        version="1.2.0",
        digest="9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490",
        split="test",
        license="BSD-3-Clause",
    ),
    Project(
        name="voluptuous",
        version="0.16.0",
        digest="006535e22fed944aec17bef6e8725472476194743c87bd233e912eb463f8ff05",
        license="BSD-3-Clause",
    ),
    Project(
        name="xmltodict",
        version="1.0.4",
        digest="6d94c9f834dd9e44514162799d344d815a3a4faec913717a9ecbfa5be1bb8e61",
        split="validation",
    ),
)
"""In alphabetical order. Suites that need a network, a database or more than some seconds are not in it."""


SAMPLE_SPLITS: dict[str, Split] = {"ledger": "test", "pagelet": "validation", "spans": "train"}
"""The projects that ship with this package, and where their tasks belong."""


def find_project(name: str) -> Project | None:
    """The project of this name in the catalogue, however its name is written."""
    wanted = name.lower().replace("_", "-")
    return next((project for project in PROJECTS if project.name == wanted), None)
