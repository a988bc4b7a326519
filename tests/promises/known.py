"""Findings that are known and not repaired yet, each with a reason. Entries are only removed; none is the aim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from promises.model import Finding
from promises.plan import Plan
from promises.run import Outcome


@dataclass(frozen=True)
class Known:
    """A finding that does not fail a run."""

    rules: frozenset[str]
    seed: int
    """A seed that shows it."""
    reason: str
    applies: Callable[[Plan, str], bool]
    """Whether the plan can show it in this queue."""


def _joined_by_siblings(plan: Plan, address: str) -> bool:
    """Whether a client joins the channel for another of its queues: it receives this queue's messages, too."""
    channel = address.rpartition("/")[0]
    return any(
        actor.role in {"consumer", "puller", "idler"}
        and actor.protocol in {"tmqp", "raw-tmqp"}
        and actor.target.rpartition("/")[0] == channel
        and (actor.target != address or actor.protocol == "raw-tmqp")
        for actor in plan.actors
    )


def _has_handler(key: str) -> Callable[[Plan, str], bool]:
    def applies(plan: Plan, address: str) -> bool:
        queue = plan.queue(address)
        return queue is not None and str(queue.options.get("delivery_handler", "")).startswith(key)

    return applies


def _loses_handlers(plan: Plan, address: str) -> bool:
    handled = _has_handler("verdict")(plan, address) or _has_handler("choosy")(plan, address)
    return handled and any(not fault.handlers for fault in plan.faults)


def _published_by(*protocols: str) -> Callable[[Plan, str], bool]:
    """Whether the queue is bound to a topic to which a client of one of these protocols publishes."""

    def applies(plan: Plan, address: str) -> bool:
        bound = {f"@topic:{topic}" for topic, addresses in plan.topics.items() if address in addresses}
        return any(actor.protocol in protocols and actor.target in bound for actor in plan.actors)

    return applies


def _consumed_over(*protocols: str) -> Callable[[Plan, str], bool]:
    def applies(plan: Plan, address: str) -> bool:
        return any(actor.protocol in protocols and actor.target == address for actor in plan.actors)

    return applies


def _killed_under_topics(plan: Plan, address: str) -> bool:
    return any(fault.kind == "kill" for fault in plan.faults) and _published_by("mqks", "mm2")(plan, address)


def _pulled_while_joined(plan: Plan, address: str) -> bool:
    return any(actor.role == "puller" and actor.target == address for actor in plan.actors)


def _runs_out_of_attempts(plan: Plan, address: str) -> bool:
    queue = plan.queue(address)
    limited = queue is not None and queue.options.get("put_back_limit", 16) <= 3
    return limited or any(
        {"nack", "raise"} & set(step.get("habits", ()))
        for actor in plan.actors
        if actor.target == address
        for step in actor.steps
    )


def _gets_dead_letters(plan: Plan, address: str) -> bool:
    return any(queue.options.get("dead_letter") == address for queue in plan.queues)


def _always(_: Plan, __: str) -> bool:
    return True


KNOWN: tuple[Known, ...] = (
    Known(
        frozenset({"lost", "counter", "prefetch", "drop", "order", "doubled"}),
        8,
        "a client that joins a channel receives and discards the messages of its other queues",
        _joined_by_siblings,
    ),
    Known(frozenset({"prefetch"}), 7, "the broker does not enforce prefetch", _always),
    Known(
        frozenset({"prefetch"}),
        7,
        "the broker does not enforce prefetch in MQKS and MicroMessage2",
        _consumed_over("mqks", "mm2"),
    ),
    Known(frozenset({"early"}), 12, "there is no delay between redeliveries", _always),
    Known(
        frozenset({"lost", "drop"}),
        12,
        "without a dead-letter queue, messages whose attempts are used up are dropped",
        _runs_out_of_attempts,
    ),
    Known(
        frozenset({"lost"}),
        5,
        "dead letters of a queue in memory are not saved before consumers see them",
        _gets_dead_letters,
    ),
    Known(frozenset({"unreported"}), 6, "a receipt does not report rejected copies", _always),
    Known(
        frozenset({"lost", "drop"}),
        77,
        "round robin drops what can_consumer_receive refused once",
        _has_handler("choosy"),
    ),
    Known(frozenset({"handler", "lost"}), 73, "a queue without its handler uses the policy memory", _loses_handlers),
    Known(
        frozenset({"lost"}),
        58,
        "clients of TMQP discard what Throttr and EventMQ publish, because its hops are 0",
        _published_by("throttr", "raw-throttr", "raw-emqp"),
    ),
    Known(
        frozenset({"lost"}),
        0,
        "MQKS and MicroMessage2 confirm before the copies of a topic are saved",
        _killed_under_topics,
    ),
    Known(frozenset({"lost"}), 0, "a pull with a timeout discards messages that arrive late", _pulled_while_joined),
    Known(
        frozenset({"lost"}),
        28,
        "a job that is sent before a worker serves its queue stays in the queue default",
        lambda plan, _: any(actor.role == "jobs" for actor in plan.actors),
    ),
)


def explanation(outcome: Outcome, finding: Finding) -> str | None:
    """Why a finding is known; `None` if it is not."""
    return next(
        (known.reason for known in KNOWN if finding.rule in known.rules and known.applies(outcome.plan, finding.queue)),
        None,
    )
