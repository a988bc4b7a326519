"""An account reports each rule that a queue breaks, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from endurance.account import Account, Findings, Interruptions
from endurance.load import Label


class Played:
    """An account, its findings and the interruptions of its broker."""

    def __init__(self, **rules: bool) -> None:
        self.findings = Findings()
        self.interruptions = Interruptions()
        self.account = Account("queue", self.findings, self.interruptions, **rules)

    def publish(self, *numbers: int) -> Played:
        """Publish messages that are confirmed."""
        for number in numbers:
            self.account.sent(number)
            self.account.confirm(number)
        return self

    def consume(self, *numbers: int) -> Played:
        """Deliver messages and acknowledge them; the broker saves that."""
        for number in numbers:
            self.account.deliver(number)
            self.account.ack(number)
        self.account.settle(numbers)
        return self

    def kill(self) -> Played:
        """Interrupt the broker."""
        self.interruptions.count += 1
        return self

    def close(self) -> Played:
        """The queue is empty."""
        self.account.close()
        return self

    @property
    def texts(self) -> str:
        """All findings."""
        return "\n".join(self.findings.texts)


def ordinary() -> Played:
    return Played(is_ordered=True).publish(0, 1, 2).consume(0, 1, 2).close()


def redelivered_after_a_kill() -> Played:
    played = Played(is_ordered=True).publish(0, 1)
    played.account.deliver(0)
    played.account.deliver(1)
    return played.kill().consume(0, 1).close()


def acknowledgement_lost_in_a_kill() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    played.account.ack(0)
    return played.kill().consume(0).close()


def unconfirmed_message_that_never_came() -> Played:
    played = Played()
    played.account.sent(0)
    return played.kill().close()


def rejected_and_delivered_again() -> Played:
    played = Played(is_ordered=True).publish(0, 1)
    played.account.deliver(0)
    played.account.nack(0)
    return played.consume(1, 0).close()


def higher_priority_first() -> Played:
    played = Played(is_ordered=True).publish(0, 1)
    played.account.deliver(1, 255)
    played.account.deliver(0, 0)
    for number in (0, 1):
        played.account.ack(number)
    return played.close()


def copy_of_a_topic_after_a_kill() -> Played:
    return Played(may_repeat=True).publish(0).consume(0).kill().consume(0).close()


def numbers_with_gaps() -> Played:
    return Played().publish(0, 4, 7).consume(0, 4, 7).close()


ALLOWED = (
    ordinary,
    redelivered_after_a_kill,
    acknowledgement_lost_in_a_kill,
    unconfirmed_message_that_never_came,
    rejected_and_delivered_again,
    higher_priority_first,
    copy_of_a_topic_after_a_kill,
    numbers_with_gaps,
)


@pytest.mark.parametrize("play", ALLOWED, ids=lambda play: play.__name__)
def test_allowed_history_has_no_finding(play: Callable[[], Played]) -> None:
    played = play()
    assert not played.texts
    assert len(played.account) == 0


def lost() -> Played:
    return Played().publish(0, 1).consume(0).close()


def delivered_and_lost_unsettled() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    return played.kill().close()


def settled_and_returned() -> Played:
    return Played().publish(0).consume(0).kill().consume(0)


def acknowledged_and_returned_from_an_empty_queue() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    played.account.ack(0)
    return played.close().kill().consume(0)


def copied_without_a_kill() -> Played:
    return Played(may_repeat=True).publish(0).consume(0).consume(0)


def copied_after_an_earlier_kill() -> Played:
    return Played(may_repeat=True).kill().publish(0).consume(0).consume(0)


def appeared_late() -> Played:
    played = Played()
    played.account.sent(0)
    return played.close().consume(0)


def delivered_twice() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    return played.consume(0)


def delivered_three_times_after_one_kill() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    played.kill().account.deliver(0)
    return played.consume(0)


def reordered() -> Played:
    return Played(is_ordered=True).publish(0, 1).consume(1, 0)


def unknown() -> Played:
    return Played().publish(0).consume(0, 1)


def early() -> Played:
    played = Played()
    played.account.sent(0, not_before=time.monotonic() + 60)
    return played.consume(0)


def rejected_and_early() -> Played:
    played = Played().publish(0)
    played.account.deliver(0)
    played.account.nack(0)
    played.account.hold_until(0, time.monotonic() + 60)
    return played.consume(0)


FORBIDDEN = {
    lost: "1 confirmed messages are lost: [1]",
    delivered_and_lost_unsettled: "1 confirmed messages are lost: [0]",
    settled_and_returned: "settled for good, and came again",
    acknowledged_and_returned_from_an_empty_queue: "settled for good, and came again",
    copied_without_a_kill: "settled for good, and came again",
    copied_after_an_earlier_kill: "settled for good, and came again",
    appeared_late: "missing from a queue that was empty",
    delivered_twice: "delivered 2 times; 1 are explained",
    delivered_three_times_after_one_kill: "delivered 3 times; 2 are explained",
    reordered: "message 0 of priority 0 came after 1",
    unknown: "message 1 was never sent",
    early: "ms too early",
    rejected_and_early: "ms too early",
}


@pytest.mark.parametrize("play", FORBIDDEN, ids=lambda play: play.__name__)
def test_broken_rule_is_reported(play: Callable[[], Played]) -> None:
    assert FORBIDDEN[play] in play().texts


@pytest.mark.parametrize("size", [0, 1, 30_000])
def test_body_has_its_label(size: int) -> None:
    label = Label("work", 27, 200)
    assert Label.of(label.body(size)) == label


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body + "b", lambda body: body[:-1] + "c"])
def test_damaged_body_is_reported(damage: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match="is damaged"):
        Label.of(damage(Label("work", 27).body(100)))
