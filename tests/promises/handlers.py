"""Delivery handlers of the checker's brokers. The end of a message's body says how they decide about it."""

from __future__ import annotations

import time

import mqcore
from mqcore import Decision, SendAck


def verdict_of(message: mqcore.Message) -> str:
    """How the plan wants this message decided."""
    return message.body.partition(b"!")[2].partition(b" ")[0].decode()


class Verdicts(mqcore.DeliveryHandler):
    """Decides as the message asks: refuses it at once, refuses it when it is sent, or raises."""

    timeout = 3.0

    def received_from_producer(
        self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
    ) -> Decision:
        match verdict_of(message):
            case "refuse":
                return Decision(allow=False, acknowledge=SendAck.NEGATIVE)
            case "raise":
                raise ValueError("the plan wants this handler to raise")
        answer = super().received_from_producer(queue, message, producer)
        assert isinstance(answer, Decision)
        return answer

    def begin_send(self, queue: mqcore.QueueView, message: mqcore.Message) -> Decision:
        if verdict_of(message) == "refuse-late":
            return Decision(allow=False)
        answer = super().begin_send(queue, message)
        assert isinstance(answer, Decision)
        return answer


class SavingVerdicts(Verdicts):
    """The same, and saves."""

    policy = "at-least-once"


class Choosy(mqcore.DeliveryHandler):
    """Serves all consumers but those that are called ``unwanted``."""

    async def can_consumer_receive(
        self, queue: mqcore.QueueView, message: mqcore.Message, consumer: mqcore.ClientView
    ) -> Decision:
        return Decision(allow=consumer.name != "unwanted")


class Slow(mqcore.DeliveryHandler):
    """Takes its time before each message is sent."""

    def begin_send(self, queue: mqcore.QueueView, message: mqcore.Message) -> Decision:
        time.sleep(0.01)
        return Decision()


def registered() -> dict[str, mqcore.DeliveryHandler]:
    """New handlers by key."""
    return {"verdict-memory": Verdicts(), "verdict-saving": SavingVerdicts(), "choosy": Choosy(), "slow": Slow()}


HANDLERS = registered()
"""Loaded by ``mqcore serve --app promises.handlers:HANDLERS``."""

POLICIES = {"verdict-memory": "memory", "verdict-saving": "at-least-once", "choosy": "memory", "slow": "memory"}
"""The policy of each handler."""
