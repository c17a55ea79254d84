"""Structured logs of a run: key=value lines with the run as context, through Python's own logging.

Quiet by default, because Python's logging shows warnings only: ``forkgym --verbose`` (or ``logging.basicConfig``)
shows more. Numbers that matter are in the run's record; logs say when something happened and why.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

__all__ = ["LOGGER_NAME", "run_logger"]

LOGGER_NAME = "forkgym"


def run_logger(**context: Any) -> Any:
    """A logger whose lines carry ``context`` (run, algorithm, …); ``bind`` returns one with more.

    Args:
        context: Key and value of whatever every line should say.
    """
    logger: Any = structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger.bind(**context)
