"""The history of the messages of one queue, and the rules that it must obey. It does not depend on mqcore."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_UNSENT, _OPEN, _SETTLED, _NEVER_CAME = range(4)

EARLY_TOLERANCE = 0.02
"""Seconds that a delayed message may be early: brokers save wall-clock times, and clocks are adjusted."""

_SHOWN = 10
"""Findings of one queue that are recorded."""


@dataclass
class Interruptions:
    """How often a broker was killed or stopped. Deliveries of a message may repeat once for each of them."""

    count: int = 0


@dataclass
class Findings:
    """Broken promises."""

    texts: list[str] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        """Record one; a single cause can break thousands in a queue, of which the first ones are enough."""
        subject = text.partition(":")[0]
        self._counts[subject] += 1
        if self._counts[subject] <= _SHOWN:
            self.texts.append(text)


@dataclass(slots=True)
class _Message:
    """A message that is neither settled for good nor known to be missing."""

    epoch: int
    """Interruptions before it was sent."""
    not_before: float
    """Monotonic time before which no delivery is allowed."""
    is_confirmed: bool = False
    is_acked: bool = False
    """Its consumer acknowledged it; a kill may have prevented that the broker received or saved this."""
    deliveries: int = 0
    nacks: int = 0


class Account:
    """The messages of one producer in one queue, numbered from 0 or 1 in the order in which they were sent.

    A message needs a byte once it is settled, so that an account can hold those of many hours.
    """

    def __init__(
        self,
        name: str,
        findings: Findings,
        interruptions: Interruptions,
        *,
        is_ordered: bool = False,
        may_repeat: bool = False,
    ) -> None:
        self.name = name
        self.confirmed = self.settled = self.redelivered = 0
        self._findings = findings
        self._interruptions = interruptions
        self._is_ordered = is_ordered
        self._may_repeat = may_repeat
        """Whether another copy may arrive if the broker was interrupted after the message was sent."""
        self._states = bytearray()
        self._open: dict[int, _Message] = {}
        self._last: dict[int, int] = {}
        """The number of the latest first delivery by priority."""
        self._epochs: list[tuple[int, int]] = []
        """Numbers from which on another count of interruptions applies."""

    def __len__(self) -> int:
        """Messages that are neither settled nor known to be missing."""
        return len(self._open)

    def sent(self, number: int, *, not_before: float = 0.0, epoch: int | None = None) -> None:
        """Record that a producer begins to publish a message, `epoch` interruptions after the begin. Numbers ascend."""
        self._states.extend(bytes(number + 1 - len(self._states)))
        self._states[number] = _OPEN
        epoch = self._interruptions.count if epoch is None else epoch
        if not self._epochs or self._epochs[-1][1] != epoch:
            self._epochs.append((number, epoch))
        self._open[number] = _Message(epoch, not_before)

    def confirm(self, number: int) -> None:
        """Record that the broker confirmed it as saved."""
        self.confirmed += 1
        if (message := self._open.get(number)) is not None:
            message.is_confirmed = True

    def deliver(self, number: int, priority: int = 0) -> None:
        """Record a delivery, and check that it is allowed."""
        state = self._states[number] if 0 <= number < len(self._states) else _UNSENT
        if state != _OPEN and not self._reopen(number, state):
            return
        message = self._open[number]
        message.deliveries += 1
        since = self._interruptions.count - message.epoch
        allowed = 1 + message.nacks + since * (2 if self._may_repeat else 1)
        if message.deliveries > allowed:
            self._report(f"message {number} was delivered {message.deliveries} times; {allowed} are explained")
        if (early := message.not_before - time.monotonic()) > EARLY_TOLERANCE:
            self._report(f"message {number} was delivered {early * 1000:.1f} ms too early")
        if message.deliveries > 1:
            self.redelivered += 1
        elif self._is_ordered:
            if number < self._last.get(priority, -1):
                self._report(f"message {number} of priority {priority} came after {self._last[priority]}")
            self._last[priority] = max(number, self._last.get(priority, -1))

    def _reopen(self, number: int, state: int) -> bool:
        """Whether a message that should not come may come after all, and is then open again."""
        if state == _UNSENT:
            self._report(f"message {number} was never sent")
            return False
        if not (self._may_repeat and self._interruptions.count > self._epoch_of(number)):
            what = "settled for good" if state == _SETTLED else "missing from a queue that was empty"
            self._report(f"message {number} was {what}, and came again")
            return False
        self._states[number] = _OPEN
        self._open[number] = _Message(self._epoch_of(number), 0.0)
        return True

    def ack(self, number: int) -> None:
        """Record that its consumer sent an acknowledgement."""
        if (message := self._open.get(number)) is not None:
            message.is_acked = True

    def nack(self, number: int, *, not_before: float = 0.0) -> None:
        """Record that its consumer rejected it; `not_before` if the broker is known to have saved that."""
        if (message := self._open.get(number)) is not None:
            message.nacks += 1
            message.not_before = not_before

    def nacks_of(self, number: int) -> tuple[int, int]:
        """How often an open message was rejected, and how often its broker was interrupted since it was sent."""
        message = self._open.get(number)
        return (0, 0) if message is None else (message.nacks, self._interruptions.count - message.epoch)

    def hold_until(self, number: int, moment: float) -> None:
        """Allow no delivery of an open message before this monotonic time."""
        if (message := self._open.get(number)) is not None:
            message.not_before = moment

    def settle(self, numbers: Iterable[int]) -> None:
        """Record that the broker saved the acknowledgements of these messages: from now on they must not return."""
        for number in numbers:
            if (message := self._open.get(number)) is not None and message.is_acked:
                del self._open[number]
                self._states[number] = _SETTLED
                self.settled += 1

    def missing(self) -> list[int]:
        """Confirmed messages that no consumer has acknowledged yet."""
        return [number for number, message in self._open.items() if message.is_confirmed and not message.is_acked]

    def unconfirmed(self) -> int:
        """Messages that the broker may or may not have."""
        return sum(not message.is_confirmed for message in self._open.values())

    def close(self) -> None:
        """Record that the queue is empty, and that the broker saved everything that led to this."""
        if missing := self.missing():
            self._report(f"{len(missing)} confirmed messages are lost: {missing[:20]}")
        self.settle(list(self._open))
        for number in self._open:
            self._states[number] = _NEVER_CAME
        self._open.clear()

    def _epoch_of(self, number: int) -> int:
        """Interruptions before a message was sent."""
        at = bisect.bisect_right(self._epochs, number, key=lambda entry: entry[0])
        return self._epochs[max(at - 1, 0)][1]

    def _report(self, text: str) -> None:
        self._findings.add(f"{self.name}: {text}")
