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


def _joined_as_a_whole(plan: Plan, address: str) -> bool:
    """Whether a raw peer joins the channel as original clients do: it receives the messages of all its queues."""
    channel = address.rpartition("/")[0]
    return any(
        actor.role in {"consumer", "puller", "idler"}
        and actor.protocol == "raw-tmqp"
        and actor.target.rpartition("/")[0] == channel
        for actor in plan.actors
    )


def _pulled_without_acknowledgements(plan: Plan, address: str) -> bool:
    queue = plan.queue(address)
    asks = queue is not None and queue.options.get("request_acknowledge", False)
    return not asks and any(actor.role == "puller" and actor.target == address for actor in plan.actors)


KNOWN: tuple[Known, ...] = (
    Known(
        frozenset({"lost", "counter", "prefetch", "drop", "order", "doubled"}),
        6,
        "an original client joins a whole channel, and the checker's raw peer discards what it does not expect",
        _joined_as_a_whole,
    ),
    Known(
        frozenset({"lost"}),
        28,
        "a queue without acknowledgements settles what it sends; the client keeps late pulled messages until it closes",
        _pulled_without_acknowledgements,
    ),
)


def explanation(outcome: Outcome, finding: Finding) -> str | None:
    """Why a finding is known; `None` if it is not."""
    return next(
        (known.reason for known in KNOWN if finding.rule in known.rules and known.applies(outcome.plan, finding.queue)),
        None,
    )
