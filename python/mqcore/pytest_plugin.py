"""Fixtures of pytest for programs that use mqcore. pytest loads them when mqcore is installed.

- ``mq``: a started `mqcore.testing.TestBroker`. ``@pytest.mark.mqcore_broker(auto_create_queues=True)`` passes
  arguments. ``async with mq.running(app)`` runs an app.
- ``mq_server``: a started `mqcore.testing.ServerProcess`, with a data directory.
  ``@pytest.mark.mqcore_server("--auto-create")`` passes arguments of ``mqcore serve``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mqcore.testing import ServerProcess, TestBroker

__all__ = ["mq", "mq_server", "pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line("markers", "mqcore_broker(**options): arguments of TestBroker for the fixture mq")
    config.addinivalue_line("markers", "mqcore_server(*arguments): of mqcore serve for the fixture mq_server")


@pytest.fixture
def mq(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """A broker in memory whose clock the test controls; see `mqcore.testing.TestBroker`."""
    from mqcore.testing import TestBroker

    marker = request.node.get_closest_marker("mqcore_broker")
    options = {} if marker is None else marker.kwargs
    with TestBroker(**options) as broker:
        yield broker


@pytest.fixture
def mq_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker in a process of its own, on free ports; see `mqcore.testing.ServerProcess`."""
    from mqcore.testing import ServerProcess

    marker = request.node.get_closest_marker("mqcore_server")
    arguments = () if marker is None else marker.args
    with ServerProcess(*arguments, data_dir=tmp_path / "mqcore") as server:
        yield server
