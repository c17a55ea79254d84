"""A run's logs: quiet unless asked, structured when asked."""

from __future__ import annotations

import logging

import pytest

from forkgym.train.logs import LOGGER_NAME, run_logger


def test_nothing_below_a_warning_is_shown_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    run_logger(run="a").info("update", update=3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_line_carries_its_context(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=LOGGER_NAME):
        run_logger(run="runs/a").bind(update=3).info("update", success=0.5)
    [record] = caplog.records
    message = record.getMessage()
    assert "event='update'" in message
    assert "run='runs/a'" in message
    assert "update=3" in message
    assert "success=0.5" in message
