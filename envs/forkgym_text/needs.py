"""What the engines need to be installed, and where games are kept. Imports no engine by itself."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["cache_directory", "need"]


def need(module: str, extra: str, purpose: str) -> Any:
    """Import an optional package.

    Args:
        module: What to import.
        extra: The extra of forkgym that brings it.
        purpose: What it is needed for, as the subject of a sentence.

    Raises:
        ImportError: It is missing; the text says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{purpose} needs the package {package} ({error}). Install it: pip install 'forkgym[{extra}]'.",
            name=package,
        ) from error


def cache_directory() -> Path:
    """Where generated games are kept: ``$FORKGYM_TEXT_CACHE``, else ``forkgym/text`` in the user's cache directory."""
    given = os.environ.get("FORKGYM_TEXT_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forkgym" / "text"
