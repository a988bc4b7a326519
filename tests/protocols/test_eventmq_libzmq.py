"""Sockets of two versions of libzmq at each listener: the one that tests are installed with, and an older one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mqcore
from eventmq_original import addresses, older_libzmq
from libzmq_peer import SCENARIOS
from ports import free_ports
from served import clean_environment

__all__ = ["older_libzmq"]

# Making the environment takes longer than a test may.
pytestmark = pytest.mark.timeout(300)

PEER = Path(__file__).parent.parent / "libzmq_peer.py"


OLDER = pytest.param(
    "older",
    marks=pytest.mark.full("installs an older libzmq; the newest one speaks to the same listeners"),
)


@pytest.fixture(params=["newest", OLDER])
def python(request: pytest.FixtureRequest) -> Path:
    """An interpreter with pyzmq."""
    if request.param == "newest":
        return Path(sys.executable)
    found = request.getfixturevalue("older_libzmq")
    assert isinstance(found, Path)
    return found


def version(python: Path) -> tuple[int, ...]:
    said = subprocess.run(
        [python, "-c", "import zmq; print(*zmq.zmq_version_info())"], capture_output=True, text=True, check=True
    )
    return tuple(map(int, said.stdout.split()))


@pytest.mark.full("installs an older libzmq")
def test_they_are_two(older_libzmq: Path) -> None:
    assert version(older_libzmq) < version(Path(sys.executable))


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "reconnect"])
def test_sockets_of_libzmq_are_served(python: Path, scenario: str) -> None:
    with mqcore.Broker(listen="emqp://127.0.0.1:0", shards=2) as broker:
        command = [python, PEER, scenario, json.dumps(addresses(broker.listeners))]
        ended = subprocess.run(
            command, capture_output=True, text=True, env=clean_environment(), timeout=120, check=False
        )
    assert ended.returncode == 0, ended.stderr


def test_sockets_of_libzmq_come_back_to_a_broker_that_was_gone(python: Path) -> None:
    backend, frontend, admin, publish, subscribe = free_ports(5)
    url = f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}&publish={publish}&subscribe={subscribe}"
    first = mqcore.Broker(listen=url, shards=2)
    first.start()
    try:
        peer = subprocess.Popen(
            [python, PEER, "reconnect", json.dumps(addresses(first.listeners))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        assert peer.stdout is not None
        assert peer.stdout.readline() == "now\n"
    finally:
        first.stop(grace=2.0)  # The worker receives its KBYE.
    with mqcore.Broker(listen=url, shards=2):
        _, said = peer.communicate("go on\n", timeout=60)
    assert peer.returncode == 0, said
