"""Games for the tests: skipped where TextWorld is missing, made once and kept in the user's cache."""

import importlib.util

import pytest

GAMES = (("treasure-hunter", 4), ("coin-collector", 5), ("cooking", 5))


@pytest.fixture(scope="session")
def textworld_games():
    """The first training game of each family, made in one go; {family: directory}."""
    if importlib.util.find_spec("textworld") is None:
        pytest.skip("TextWorld is not installed: pip install 'forkgym[text]'")
    from forkgym_text.families import recipe
    from forkgym_text.making import make_games

    wanted = [recipe(family, level, "train", 0) for family, level in GAMES]
    # Some tests need every game of a small environment: made together, the generator starts once.
    others = [recipe("coin-collector", 5, *task) for task in (("train", 1), ("valid", 0), ("test", 0))]
    places = make_games([*wanted, *others])
    return dict(zip([family for family, _ in GAMES], places, strict=False))
