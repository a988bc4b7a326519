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


def _always(_: Plan, __: str) -> bool:
    return True


KNOWN: tuple[Known, ...] = (
    Known(
        frozenset({"lost", "counter", "prefetch", "drop", "order", "doubled"}),
        6,
        "a client that joins a channel receives and discards the messages of its other queues",
        _joined_by_siblings,
    ),
    Known(frozenset({"prefetch"}), 1, "the broker does not enforce prefetch", _always),
    Known(
        frozenset({"prefetch"}),
        1,
        "the broker does not enforce prefetch in MQKS and MicroMessage2",
        _consumed_over("mqks", "mm2"),
    ),
    Known(frozenset({"unreported"}), 1, "a receipt does not report rejected copies", _always),
    Known(
        frozenset({"lost"}),
        90,
        "clients of TMQP discard what Throttr and EventMQ publish, because its hops are 0",
        _published_by("throttr", "raw-throttr", "raw-emqp"),
    ),
    Known(
        frozenset({"lost"}),
        61,
        "MQKS and MicroMessage2 confirm before the copies of a topic are saved",
        _killed_under_topics,
    ),
    Known(frozenset({"lost"}), 28, "a pull with a timeout discards messages that arrive late", _pulled_while_joined),
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
