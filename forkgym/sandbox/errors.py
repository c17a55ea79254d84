"""Errors of the sandbox. Each text says what was wrong and what to do; nothing here decides anything."""

from __future__ import annotations

from forkgym.core import ForkgymError

__all__ = ["BackendUnavailableError", "SandboxClosedError", "SandboxError", "SandboxPathError"]


class SandboxError(ForkgymError):
    """Base of the sandbox's errors."""


class BackendUnavailableError(SandboxError):
    """This machine cannot do what was asked for; the text gives the reason for each way."""


class SandboxClosedError(SandboxError):
    """A verb was called on a sandbox, snapshot or broker that is closed."""


class SandboxPathError(SandboxError, ValueError):
    """A path that is not inside the sandbox's tree, or leads out of it, or is no plain file."""
