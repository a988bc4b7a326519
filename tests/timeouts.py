"""A plugin for pytest that prints where all threads are, right before a timeout ends the process of a test.

pytest-timeout prints that too, but to the standard output, which xdist drops.
"""

from __future__ import annotations

import faulthandler
import os
from typing import Any

import pytest

STDERR = pytest.StashKey[int]()
"""The standard error of this process, also while a test's output is captured."""


def pytest_configure(config: pytest.Config) -> None:
    """Remember the standard error before tests run."""
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Print it a second before the timeout."""
    faulthandler.dump_traceback_later(max(settings.timeout - 1, 0.5), file=item.config.stash[STDERR])


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    """Print nothing about a test that has ended in time."""
    faulthandler.cancel_dump_traceback_later()
