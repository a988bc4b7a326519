"""Samples of `/metrics` of a broker, of this process or of another one."""

from __future__ import annotations

import urllib.request

import mqcore
from served import ServedBroker


def metric(broker: ServedBroker | mqcore.Broker, name: str) -> int:
    """The value of the sample with this name and these labels."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        (line,) = (line for line in answer.read().decode().splitlines() if line.startswith(f"{name} "))
    return int(line.rpartition(" ")[2])
