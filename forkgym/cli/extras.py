"""Which optional packages exist, which are missing, and what to install for them: read from our own metadata."""

from __future__ import annotations

import re
from importlib import metadata

__all__ = ["extra_of", "extras", "installed_version", "missing_by_extra"]

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_MODULES = {"pystemmer": "stemmer"}
"""Distributions whose module has another name (both in lower case)."""


def extras() -> dict[str, list[str]]:
    """Optional distributions by extra, as this installation's metadata lists them."""
    try:
        requirements = metadata.requires("forkgym") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        name, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if name and extra:
            found.setdefault(extra[1], []).append(name[1])
    return found


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, ``None`` where it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def missing_by_extra() -> dict[str, list[str]]:
    """Distributions that are not installed, by extra; complete extras are left out."""
    missing = {extra: [name for name in names if installed_version(name) is None] for extra, names in extras().items()}
    return {extra: names for extra, names in missing.items() if names}


def extra_of(module: str) -> str | None:
    """The extra that brings a module, e.g. ``train`` for ``torch``; of several the one that brings least besides."""
    wanted = module.partition(".")[0].lower().replace("_", "-")
    bringing = [
        (len(names), extra)
        for extra, names in extras().items()
        if any(wanted in (name.lower(), _MODULES.get(name.lower())) for name in names)
    ]
    return min(bringing)[1] if bringing else None
