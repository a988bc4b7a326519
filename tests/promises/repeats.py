"""Rules about deliveries: each repetition has a reason and a delay, settled messages stay settled, order holds."""

from __future__ import annotations

from collections.abc import Container, Iterator

from promises.history import Event
from promises.lives import END, Lives, Session
from promises.loss import named
from promises.model import Finding

LEAVE_SECONDS = 1.0
"""Time until the broker has surely noticed that a consumer left."""


def doubled(lives: Lives) -> Iterator[Finding]:
    """Messages that were delivered twice without a reason, or too early after a nack."""
    twice: list[str] = []
    early: list[str] = []
    for label, deliveries in lives.delivered.items():
        published = lives.arrivals(label)
        if not published or any(event.retried for event in published):
            continue
        copies = max(1, len(published))
        for repeated in _repetitions(lives, deliveries, copies):
            since = min(event.at for event in published)
            reason = _reason(lives, label, since, *repeated)
            if reason == "none":
                twice.append(label)
            elif reason == "early":
                early.append(label)
    if twice:
        yield Finding("doubled", lives.rules.address, f"delivered again without a reason: {named(twice)}", tuple(twice))
    if early:
        least = lives.rules.first_backoff
        text = f"delivered again less than {least} s after a nack: {named(early)}"
        yield Finding("early", lives.rules.address, text, tuple(early))


def _repetitions(lives: Lives, deliveries: list[Event], copies: int) -> Iterator[tuple[int, Event]]:
    """Each delivery after the first of its row, with its number in the row."""
    rows: dict[str, list[Event]] = {}
    for event in deliveries:
        rows.setdefault("" if lives.rules.one_consumer_each else event.client, []).append(event)
    for row in rows.values():
        yield from enumerate(row[copies:], 1)


def _reason(lives: Lives, label: str, since: float, number: int, delivery: Event) -> str:
    """Why it was delivered again: ``other``, ``nack``, ``early`` for a nack with too little delay, or ``none``."""
    if lives.leaves(since, delivery.until) or lives.could_time_out(since, delivery.until):
        return "other"
    if any(event.until >= since and event.at <= delivery.until for event in lives.interruptions):
        return "other"
    nacks = [
        event
        for event in lives.nacks(label, delivery.until)
        if lives.rules.decisions.nack == "requeue" or event.detail == "requeue"
    ]
    if len(nacks) < number:
        return "other" if lives.rules.handler and _asks_for_return(lives, label) else "none"
    delay = delivery.at - nacks[number - 1].at
    # The broker counts whole milliseconds.
    return "early" if delay < 0.9 * lives.rules.first_backoff else "nack"


def _asks_for_return(lives: Lives, label: str) -> bool:
    return any(event.verdict in {"return", "raise", "raise-late"} for event in lives.published[label])


def settled_returns(lives: Lives) -> Iterator[Finding]:
    """Messages that a consumer settled, and that were delivered or stored afterwards."""
    returned: list[str] = []
    for label in lives.settled:
        if len(lives.arrivals(label)) != 1 or any(event.retried for event in lives.arrivals(label)):
            continue
        for ack in lives.acks(label):
            settled = _settled_at(lives, label, ack)
            if settled is None:
                continue
            again = [
                event
                for event in lives.delivered[label]
                if event.at > settled and (lives.rules.one_consumer_each or event.client == ack.client)
            ]
            if again or (lives.rules.one_consumer_each and label in lives.stored):
                returned.append(label)
                break
    if returned:
        text = f"settled, and there again: {named(returned)}"
        yield Finding("settled-returns", lives.rules.address, text, tuple(returned))


def _settled_at(lives: Lives, label: str, ack: Event) -> float | None:
    """When the broker had certainly settled the message for good; `None` if that is not certain."""
    session = lives.sessions.get(ack.client)
    if session is None or lives.could_time_out(lives.arrivals(label)[0].at, ack.until):
        return None
    for fence in lives.fences.get(ack.client, ()):
        if fence.at < ack.until or session.gone < fence.until:
            continue
        if any(session.joined <= event.until and event.at <= fence.until for event in lives.interruptions):
            return None
        crashed = lives.crashed_after(fence.until)
        if crashed and not (fence.outcome == "saved" and lives.rules.durable):
            continue
        return fence.until
    return None


def order(lives: Lives) -> Iterator[Finding]:
    """First deliveries, and messages that were never delivered, in another order than that of publishing."""
    rules = lives.rules
    if not rules.statuses <= {"push", "roundrobin", "pull", "paused"} or rules.handler:
        return
    published = {
        label: events[0]
        for label, events in lives.published.items()
        if len(events) == 1
        and events[0].outcome in {"confirmed", "sent"}
        and not events[0].retried
        and not events[0].delay
    }
    for name, _, seen in first_deliveries(lives, published):
        yield from _inversions(lives, published, [event.label for event in seen], f"for {name}")
    if not lives.sessions and not lives.erased:
        left = [
            label for label, _ in sorted(lives.stored.items(), key=lambda item: item[1].count) if label in published
        ]
        yield from _inversions(lives, published, left, "in what was left")


def first_deliveries(lives: Lives, published: Container[str]) -> Iterator[tuple[str, Session, list[Event]]]:
    """For each consumer, the undisturbed first deliveries of these messages in the order of their arrival."""
    for name, session in lives.sessions.items():
        if session.limit < 0:
            continue  # the newest first
        seen = [
            deliveries[0]
            for label, deliveries in lives.delivered.items()
            if label in published
            and deliveries
            and deliveries[0].client == name
            and is_undisturbed(lives, deliveries[0])
        ]
        yield name, session, sorted(seen, key=lambda event: (event.at, event.count))


def is_undisturbed(lives: Lives, delivery: Event) -> bool:
    """Whether no message can have been requeued before this delivery."""
    nacked = any(event.outcome == "nack" for events in lives.settled.values() for event in events)
    disturbed = nacked or bool(lives.leaves(0.0, delivery.until)) or lives.could_time_out(0.0, delivery.until)
    return not disturbed and not any(event.at <= delivery.until for event in lives.interruptions)


def _inversions(lives: Lives, published: dict[str, Event], labels: list[str], where: str) -> Iterator[Finding]:
    """Neighbors in the wrong order. A later message of the same priority must not come before."""
    latest: dict[int, Event] = {}
    for label in labels:
        event = published[label]
        before = latest.get(event.level)
        if before is not None and _precedes(event, before):
            text = f"{before.label} came before {label}, which was published earlier ({where})"
            yield Finding("order", lives.rules.address, text, (label,))
            return
        if before is None or event.at > before.at:
            latest[event.level] = event


def _precedes(earlier: Event, later: Event) -> bool:
    """Whether the broker admitted one message before the other, as far as clients know."""
    if earlier.via != later.via or earlier.via == "topic":
        return False
    if earlier.outcome == "confirmed":
        return earlier.until < later.at
    return earlier.client == later.client and earlier.until <= later.at


def prefetch(lives: Lives) -> Iterator[Finding]:
    """More messages in flight than the consumers allow together."""
    if not lives.rules.acks or "broadcast" in lives.rules.statuses:
        return
    first_interruption = min((event.at for event in lives.interruptions), default=END)
    for event in lives.observed:
        # After an interruption, the broker may still know the lost connection of a consumer that has returned.
        if event.kind != "in-flight" or event.until >= first_interruption:
            continue
        present = [
            one for one in lives.sessions.values() if one.joined <= event.until and one.gone + LEAVE_SECONDS >= event.at
        ]
        if any(one.limit <= 0 for one in present):
            continue
        most = sum(one.limit for one in present)
        if event.count > most:
            yield Finding("prefetch", lives.rules.address, f"{event.count} in flight; its consumers allow {most}")
            return
