"""Rules about delays, expiries, priorities and duplicates. They do not depend on mqcore."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

from promises.history import Event
from promises.lives import Lives
from promises.loss import named
from promises.model import Finding
from promises.repeats import first_deliveries

CLOCK_SECONDS = 0.01
"""Clients and the broker count whole milliseconds, each from its own zero."""
STORES_NOTHING = frozenset({"broadcast", "cache"})
"""Statuses whose queues reject delays."""


def premature(lives: Lives) -> Iterator[Finding]:
    """Messages that were delivered before their delay was over."""
    early = []
    for label in {*lives.delivered, *lives.stored}:
        due = min((event.at + event.delay for event in lives.arrivals(label) if event.delay), default=0.0)
        if any(not event.delay for event in lives.arrivals(label)):
            continue
        moments = [event.at for event in lives.delivered[label]]
        moments += [lives.stored[label].until] if label in lives.stored else []
        if any(moment < due - CLOCK_SECONDS for moment in moments):
            early.append(label)
    if early:
        text = f"delivered before their delay was over: {named(sorted(early))}"
        yield Finding("premature", lives.rules.address, text, tuple(early))


def stuck(all_lives: dict[str, Lives], lives: Lives) -> Iterator[Finding]:
    """Messages that the last look did not get, because their queue forgot that their delay is over."""
    rules, look = lives.rules, lives.last_look
    requeues = bool(lives.sessions) or (rules.acks and rules.acknowledge_timeout < 1)
    gets_dead_letters = any(
        rules.address in {one.rules.dead_letter, one.rules.expired_to} for one in all_lives.values()
    )
    if look is None or rules.handler or requeues or gets_dead_letters:
        return
    events = [event for events in lives.published.values() for event in events if event.outcome != "rejected"]
    if not any(event.delay for event in events):
        return
    waiting = sum(event.until + event.delay >= look.at - CLOCK_SECONDS for event in events)
    if look.count > waiting:
        text = f"{look.count} messages remain there; only {waiting} are delayed"
        yield Finding("stuck", rules.address, text)


def expired(lives: Lives) -> Iterator[Finding]:
    """Messages that were delivered after they had expired."""
    if lives.rules.handler:
        return  # while it is missing, its messages do not expire
    late = []
    for label in {*lives.delivered, *lives.stored}:
        arrivals = lives.arrivals(label)
        if not arrivals or not all(event.expires_in and event.outcome == "confirmed" for event in arrivals):
            continue
        over = max(event.until + event.expires_in for event in arrivals) + CLOCK_SECONDS
        # A client may show a message late. One that joins later cannot have received it in time.
        joins = [
            lives.sessions[event.client].joined for event in lives.delivered[label] if event.client in lives.sessions
        ]
        joins += [lives.stored[label].at] if label in lives.stored else []
        if any(joined > over for joined in joins):
            late.append(label)
    if late:
        text = f"delivered after they had expired: {named(sorted(late))}"
        yield Finding("expired", lives.rules.address, text, tuple(late))


def priorities(lives: Lives) -> Iterator[Finding]:
    """Messages that a consumer got before others of a higher priority, which waited already."""
    if not lives.rules.statuses <= {"push", "roundrobin", "pull", "paused"} or lives.rules.handler:
        return
    published = {
        label: events[0]
        for label, events in lives.published.items()
        if len(events) == 1 and not events[0].retried and not events[0].delay
    }
    for name, session, seen in first_deliveries(lives, published):
        for low, high in combinations([published[event.label] for event in seen], 2):
            waited = high.outcome == "confirmed" and high.until <= max(low.at, session.joined)
            if waited and high.level > low.level:
                yield _overtaken(lives, low, high, f"for {name}")
                return
    if lives.sessions or lives.erased:
        return
    left = sorted((event for event in lives.stored.values() if event.label in published), key=lambda event: event.count)
    for low, high in combinations([published[event.label] for event in left], 2):
        if high.level > low.level:
            yield _overtaken(lives, low, high, "in what was left")
            return


def _overtaken(lives: Lives, low: Event, high: Event, where: str) -> Finding:
    text = f"{low.label} (priority {low.level}) came before {high.label} (priority {high.level}; {where})"
    return Finding("order", lives.rules.address, text, (low.label, high.label))


def duplicates(lives: Lives) -> Iterator[Finding]:
    """Messages with one id that are both there, although the queue recognizes duplicates."""
    window = lives.rules.deduplication_window
    if not window or lives.rules.handler or lives.erased:
        return
    groups: dict[str, list[Event]] = defaultdict(list)
    for label, events in lives.published.items():
        if label in lives.stored or lives.delivered[label]:
            for event in events:
                if event.identity and event.outcome != "rejected":
                    groups[event.identity].append(event)
    found = [
        f"{first.label} and {second.label}"
        for group in groups.values()
        for first, second in combinations(sorted(group, key=lambda event: event.at), 2)
        if first.label != second.label and _is_recognized(lives, first, second)
    ]
    if found:
        yield Finding("duplicate", lives.rules.address, f"both were taken: {named(found)}")


def _is_recognized(lives: Lives, first: Event, second: Event) -> bool:
    """Whether the queue knew the id of one message for certain when the other arrived."""
    # Without a confirmation, a client on a bad connection may have sent a message long after the call.
    arrived = max(event.until if event.outcome == "confirmed" else lives.end for event in (first, second))
    if arrived - first.at >= 0.9 * lives.rules.deduplication_window:
        return False
    ends = [end for end in lives.crashes if end.until >= first.at and end.at <= arrived]
    # It remembers ids of messages that it saved.
    saved = lives.rules.durable and first.outcome == "confirmed"
    return all(saved and first.until < end.at for end in ends)


def stored_twice(all_lives: dict[str, Lives], lives: Lives) -> Iterator[Finding]:
    """Messages that were in their queue more often than clients published them."""
    rules = lives.rules
    gets_dead_letters = any(
        rules.address in {one.rules.dead_letter, one.rules.expired_to} for one in all_lives.values()
    )
    if gets_dead_letters or (rules.acks and rules.acknowledge_timeout < 1):
        return
    times = Counter(event.label for event in lives.looked)
    found = [
        label
        for label, count in times.items()
        if count > max(1, len(lives.arrivals(label))) and not any(event.retried for event in lives.arrivals(label))
    ]
    if found:
        yield Finding("doubled", rules.address, f"stored more than once: {named(sorted(found))}", tuple(found))


def taken_delays(lives: Lives) -> Iterator[Finding]:
    """Delays that a queue confirmed although it stores no messages."""
    if not lives.rules.statuses <= STORES_NOTHING:
        return
    events = [event for events in lives.published.values() for event in events]
    labels = [event.label for event in events if event.delay and event.outcome == "confirmed"]
    if labels:
        text = f"confirmed a delay, which this status does not have: {named(labels)}"
        yield Finding("terms", lives.rules.address, text, tuple(labels))
