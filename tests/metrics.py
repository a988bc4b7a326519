"""Samples of `/metrics` of a broker, of this process or of another one."""

from __future__ import annotations

import urllib.request
from typing import Protocol


class Monitored(Protocol):
    """A broker with an admin side."""

    @property
    def admin_url(self) -> str | None:
        """Its URL."""


def metric(broker: Monitored, name: str) -> int:
    """The value of the sample with this name and these labels."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as answer:
        (line,) = (line for line in answer.read().decode().splitlines() if line.startswith(f"{name} "))
    return int(line.rpartition(" ")[2])
