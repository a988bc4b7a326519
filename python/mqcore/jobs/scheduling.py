"""How a worker sends its schedules."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from mqcore.errors import MqcoreError

if TYPE_CHECKING:
    from mqcore.jobs.app import Jobs

__all__ = ["ScheduleSender"]

# Time between two attempts to send schedules.
_RETRY_SECONDS: Final = 0.1

_LOG: Final = logging.getLogger("mqcore.worker")


class ScheduleSender:
    """Sends the schedules of `jobs` once for each join, and for each connection of the client: the broker may be
    another one, and what a lost connection had not sent is lost.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # The worker's name at the broker, and the client's connection, with which the schedules were sent.
        self._sent_over: tuple[str, int] | None = None
        # When to report that the schedules cannot be sent; 0: they were sent, infinite: it was reported.
        self._report_at = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next attempt; infinite: whenever the worker has something else to do."""
        return _RETRY_SECONDS if 0.0 < self._report_at < math.inf else math.inf

    def send(self, identity: str) -> None:
        """Send the schedules if they were not sent since the worker got the name `identity`.

        A listener for clients that does not answer delays no job: this does not wait for it.
        """
        if not self._jobs.schedules:
            return
        now = time.monotonic()
        try:
            over = (identity, self._jobs.client.connections)
            if over == self._sent_over:
                return
            self._report_at = self._report_at or now + self._jobs._timeout
            _LOG.info("sent %d schedules", self._jobs._send_schedules(unless_ended=True, wait=False))
        except MqcoreError as error:
            # Schedules need the listener for clients, which may reject workers. Jobs arrive regardless.
            if now >= self._report_at:
                self._report_at = math.inf
                _LOG.error("cannot send schedules, trying again: %s", error)
            return
        self._sent_over, self._report_at = over, 0.0
