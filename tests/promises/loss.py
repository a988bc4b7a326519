"""Rules about messages that must exist: no confirmed one is missing, drops have a reason, counters agree."""

from __future__ import annotations

from collections.abc import Iterator

from promises.history import Event
from promises.lives import ARRIVED, Lives
from promises.model import Finding

SHOWN = 8
"""Labels that a finding lists."""


def named(labels: list[str]) -> str:
    """A list of messages, cut."""
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(labels[:SHOWN]) + more


def confirmed(lives: Lives, label: str) -> Event | None:
    """The publish after which the message must be in the queue, if there is one."""
    for event in lives.published[label]:
        if _may_be_rejected_unseen(lives, event):
            continue
        if event.outcome in ARRIVED or (event.outcome == "sent" and _followed(lives, event)):
            return event
    return None


def _may_be_rejected_unseen(lives: Lives, event: Event) -> bool:
    """Whether the queue may have rejected the message without an answer to its producer: a copy of a topic's or
    router's message, or one of a producer that learned only that the broker had read it.
    """
    unseen = event.via not in {"queue", "cc"} or event.outcome == "accepted"
    refuses = lives.rules.message_limit or "stopped" in lives.rules.statuses or lives.could_lack_handler(event)
    return unseen and bool(refuses)


def _followed(lives: Lives, event: Event) -> bool:
    """Whether the broker confirmed a later message of the same connection for this queue."""
    if lives.rules.message_limit or lives.rules.handler or event.via != "queue":
        return False
    later = (
        other.until
        for others in lives.published.values()
        for other in others
        if other.client == event.client and other.outcome == "confirmed" and other.at >= event.until
    )
    until = min(later, default=None)
    return until is not None and not any(
        event.at <= interruption.until and interruption.at <= until for interruption in lives.interruptions
    )


def missing(all_lives: dict[str, Lives], lives: Lives) -> Iterator[Finding]:
    """Confirmed messages that left the queue without a reason."""
    if not lives.rules.retains:
        return
    gone: list[str] = []
    early: list[str] = []
    for label in lives.published:
        publish = confirmed(lives, label)
        if publish is None or _has_left_by_right(lives, label, publish):
            continue
        places = [place for place in (lives.rules.dead_letter, lives.rules.expired_to) if place is not None]
        if not any(_is_accounted(all_lives.get(place), label) for place in places):
            gone.append(label)
        elif not _may_be_dead_lettered(lives, label, publish):
            early.append(label)
    if len(gone) > lives.remaining:
        waiting = f"; {lives.remaining} messages remain unread there" if lives.remaining else ""
        total = sum(1 for label in lives.published if confirmed(lives, label))
        yield Finding(
            "lost", lives.rules.address, f"{len(gone)} of {total} confirmed: {named(gone)}{waiting}", tuple(gone)
        )
    if len(gone) + len(early) > lives.remaining and early:
        # Otherwise their copies may be those that remain, and the dead letters those of another queue.
        yield Finding(
            "drop", lives.rules.address, f"dead-lettered before their attempts were used: {named(early)}", tuple(early)
        )


def _has_left_by_right(lives: Lives, label: str, publish: Event) -> bool:
    rules, decisions = lives.rules, lives.rules.decisions
    if label in lives.stored or lives.acks(label) or lives.late_acks(label) or lives.erased_after(publish.at):
        return True
    if _is_duplicate(lives, publish):
        return True
    if rules.handler and publish.verdict in {"refuse", "refuse-late"}:
        return True
    survives = rules.durable and publish.outcome == "confirmed"
    if not survives and lives.crashed_after(publish.at):
        return True
    if rules.expired_to is None and _may_expire(lives, publish):
        return True
    if rules.dead_letter is None and _may_be_dead_lettered(lives, label, publish):
        return True
    left = lives.leaves(publish.at)
    if not rules.acks:
        # Settled when it is written to a connection: delivered, or on its way to a consumer that left.
        took = [session for session in left if session.outcome != "pulled"]
        return bool(lives.delivered[label] or took or _cut_while_consumed(lives, publish.at))
    if decisions.nack == "drop" and lives.nacks(label):
        return True
    if decisions.timeout == "drop" and lives.could_time_out(publish.at, lives.end):
        return True
    return decisions.lost == "drop" and bool(left or _cut_while_consumed(lives, publish.at))


def _is_duplicate(lives: Lives, publish: Event) -> bool:
    """Whether the queue may have dropped it, because it has or had another message with its id."""
    window = lives.rules.deduplication_window
    if not window or not publish.identity:
        return False
    return any(
        other.identity == publish.identity
        and other.label != publish.label
        and other.outcome != "rejected"
        and other.at < publish.at
        and publish.at - other.until <= 1.1 * window
        and _was_taken(lives, other)
        for others in lives.published.values()
        for other in others
    )


def _was_taken(lives: Lives, publish: Event) -> bool:
    """Whether the queue took the message: it confirmed it, so another rule looks for it, or the message was seen."""
    if confirmed(lives, publish.label) or lives.delivered[publish.label]:
        return True
    return _has_left_by_right(lives, publish.label, publish)


def _cut_while_consumed(lives: Lives, since: float) -> bool:
    return bool(lives.sessions) and any(event.until >= since for event in lives.interruptions)


def _may_expire(lives: Lives, publish: Event) -> bool:
    """Whether it waited too long."""
    times = [publish.delay + lives.rules.message_timeout] if lives.rules.message_timeout else []
    times += [publish.expires_in] if publish.expires_in else []
    return any(lives.end - publish.at >= 0.9 * time for time in times)


def _may_be_dead_lettered(lives: Lives, label: str, publish: Event) -> bool:
    """Whether it waited too long, or its attempts can be used up."""
    return _may_expire(lives, publish) or lives.requeues(label, publish.at) >= lives.rules.put_back_limit


def _is_accounted(lives: Lives | None, label: str) -> bool:
    """Whether a dead letter is in its queue, or left that by right."""
    if lives is None:
        return False
    if label in lives.stored or lives.delivered[label] or lives.remaining or lives.erased:
        return True
    if not lives.rules.durable and lives.crashes:
        return True
    return not lives.rules.retains or (not lives.rules.acks and bool(lives.leaves(0.0)))


def newest_in_cache(lives: Lives) -> Iterator[Finding]:
    """A cache keeps its newest message."""
    rules = lives.rules
    if rules.statuses != {"cache"} or lives.erased or lives.remaining:
        return
    arrived = [event for events in lives.published.values() for event in events if event.outcome != "rejected"]
    certain = [event for event in arrived if event.outcome == "confirmed"]
    if rules.message_timeout or rules.handler or not certain or (lives.crashes and not rules.durable):
        return
    if any(event.expires_in for event in arrived):
        return
    # Messages without a confirmation may have arrived at any time after they were sent.
    newest = {
        event.label
        for event in arrived
        if event.outcome != "confirmed" or not any(other.at > event.until for other in certain)
    }
    kept = set(lives.stored)
    if len(kept) != 1 or not kept <= newest:
        yield Finding(
            "lost",
            rules.address,
            f"the cache holds {named(sorted(kept)) or 'nothing'}, not the newest: {named(sorted(newest))}",
        )


def strangers(all_lives: dict[str, Lives], lives: Lives) -> Iterator[Finding]:
    """Messages in a queue to which no client published them and no queue dead-lettered them."""
    address = lives.rules.address
    sources = [other for other in all_lives.values() if address in {other.rules.dead_letter, other.rules.expired_to}]
    found = [
        label
        for label in {*lives.delivered, *lives.stored}
        if (label in lives.stored or lives.delivered[label])
        and not lives.arrivals(label)
        and not any(source.arrivals(label) for source in sources)
    ]
    if found:
        yield Finding("stranger", address, f"messages that no client published there: {named(sorted(found))}")


def unexplained_drops(lives: Lives) -> Iterator[Finding]:
    """Dropped messages whose reason no option of the queue explains."""
    rules = lives.rules
    for event in lives.observed:
        if event.kind == "dropped" and event.count and not _explains(lives, event.outcome, event.count):
            yield Finding("drop", rules.address, f"{event.count} messages were dropped: {event.outcome}")


def _explains(lives: Lives, reason: str, count: int) -> bool:
    rules = lives.rules
    publishes = [event for events in lives.published.values() for event in events]
    match reason:
        case "no-consumer" | "slow":
            return "broadcast" in rules.statuses
        case "limit":
            # Attempts are used up, or the queue is full: then copies are dropped.
            return rules.message_limit > 0 or (
                rules.dead_letter is None
                and any(
                    _may_be_dead_lettered(lives, label, event)
                    for label, events in lives.published.items()
                    for event in events
                )
            )
        case "expired":
            mortal = sum(event.expires_in > 0 for event in publishes)
            return rules.expired_to is None and (rules.message_timeout > 0 or count <= mortal)
        case "duplicate":
            identities = [event.identity for event in publishes if event.identity]
            repeated = len(identities) - len(set(identities))
            # A client whose connection was lost may have published again.
            return rules.deduplication_window > 0 and (count <= repeated or bool(lives.interruptions))
        case "refused":
            drops = "drop" in {rules.decisions.nack, rules.decisions.timeout, rules.decisions.lost}
            # If the handler raises, the broker does not take a message whose producer asked for a confirmation.
            verdicts = {event.verdict for event in publishes if event.asked or event.verdict != "raise"}
            # A handler may refuse all consumers of a broadcast message, which no queue keeps.
            choosy = rules.handler and "broadcast" in rules.statuses
            return drops or choosy or (rules.handler and bool(verdicts & {"refuse", "refuse-late", "raise"}))
        case "erased":
            return bool(lives.erased) or bool({"cache", "stopped"} & rules.statuses)
    return False


def counters(lives: Lives) -> Iterator[Finding]:
    """Counters that contradict the history. A restarted broker counts from zero: then only balances are compared."""
    rules = lives.rules
    counted = {event.outcome: event.count for event in lives.observed if event.kind == "counter"}
    if not counted or lives.crashes:
        return
    publishes = [event for events in lives.published.values() for event in events]
    certain = [event for event in publishes if event.verdict != "refuse" and not _may_be_rejected_unseen(lives, event)]
    least = sum(event.outcome in ARRIVED for event in certain if not _is_duplicate(lives, event))
    most = sum(event.outcome != "rejected" or event.verdict == "refuse" for event in publishes)
    # A client whose connection was lost publishes again as often as it needs to.
    again = any(event.retried for event in publishes) and bool(lives.interruptions)
    is_grave = counted.get("arrived", 0)
    received = counted.get("received")
    if received is not None and not least <= received <= (received if again else most + is_grave):
        yield Finding(
            "counter", rules.address, f"{received} messages received; clients published {least} to {most + is_grave}"
        )
    acks = counted.get("acks")
    sent = sum(len(lives.acks(label)) + len(lives.late_acks(label)) for label in lives.settled)
    if rules.acks and acks is not None and acks > sent:
        yield Finding("counter", rules.address, f"{acks} acks counted; clients sent {sent}")


def rejections(lives: Lives) -> Iterator[Finding]:
    """Rejected and unanswered publishes that no option explains, and confirmations without the queue's handler."""
    rules = lives.rules
    rejected: list[Event] = []
    unanswered: list[Event] = []
    unhandled: list[Event] = []
    for event in (event for events in lives.published.values() for event in events):
        headless = lives.could_lack_handler(event)
        if event.outcome == "rejected" and not headless and not _may_reject(lives, event):
            rejected.append(event)
        if event.outcome == "timeout" and not headless and not _may_stay_silent(lives, event):
            unanswered.append(event)
        if event.outcome == "confirmed" and lives.lacks_handler(event):
            unhandled.append(event)
    if rejected:
        labels = [f"{event.label} ({event.detail})" for event in rejected]
        yield Finding("rejected", rules.address, f"no option explains the rejection of {named(labels)}")
    if unanswered:
        yield Finding(
            "unconfirmed", rules.address, f"no confirmation came for {named([event.label for event in unanswered])}"
        )
    if unhandled:
        labels = [event.label for event in unhandled]
        yield Finding("handler", rules.address, f"confirmed while its handler was not registered: {named(labels)}")


def _may_reject(lives: Lives, event: Event) -> bool:
    rules = lives.rules
    if rules.message_limit or "stopped" in rules.statuses or event.via == "topic":
        return True
    if rules.decisions.saves and not rules.storage:
        return True
    if rules.decisions.confirms_at == "consumed" or (rules.handler and event.verdict):
        return True
    if event.delay and rules.statuses & {"broadcast", "cache"}:
        return True
    if event.identity and rules.deduplication_window:
        return True  # until the queue has admitted another message with this id
    return lives.erased_after(event.at) or bool(lives.interruptions)


def _may_stay_silent(lives: Lives, event: Event) -> bool:
    rules = lives.rules
    if rules.decisions.confirms_at in {"sent", "consumed"} or lives.erased_after(event.at):
        return True
    return bool(lives.interruptions) or (rules.handler and bool(event.verdict))


def saved_dead_letters(lives: Lives) -> Iterator[Finding]:
    """Messages saved at a moment, in a queue that no client consumes, are there at the end."""
    if lives.sessions or lives.erased or lives.rules.message_timeout or not lives.rules.retains:
        return
    least = max((event.count for event in lives.observed if event.kind == "saved"), default=0)
    # Two queues may dead-letter their copies of one message, so labels are not counted.
    found = len(lives.looked) + lives.remaining
    if found < least:
        yield Finding("lost", lives.rules.address, f"{least} messages were stored and saved; {found} are left")
