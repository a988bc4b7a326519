"""Rules about jobs and schedules. It does not depend on mqcore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from promises.history import Event, History
from promises.model import Finding


def check(history: History) -> Iterator[Finding]:
    """Jobs that have a result did run; accepted guaranteed jobs run; none runs twice without a reason."""
    runs = Counter(event.label for event in history.of("job-run"))
    interruptions = list(history.of("crash", "stop", "cut"))
    disturbed = bool(interruptions) or any(event.outcome == "died" for event in history.of("leave"))
    for event in history.of("job"):
        yield from _job(event, runs[event.label], disturbed)
    for event in history.of("schedule"):
        ran = runs[event.label]
        if ran > event.count and not disturbed:
            yield Finding("doubled", event.queue, f"the schedule {event.label} ran {ran} times of {event.count}")
        if ran < event.count and not disturbed:
            yield Finding("lost", event.queue, f"the schedule {event.label} ran {ran} times of {event.count}")


def _job(event: Event, ran: int, disturbed: bool) -> Iterator[Finding]:
    if event.outcome == "result" and not ran:
        yield Finding("stranger", event.queue, f"the job {event.label} has a result and did not run", (event.label,))
    if event.outcome == "timeout" and not disturbed:
        yield Finding("lost", event.queue, f"the job {event.label} got no result ({event.detail})", (event.label,))
    if ran > 1 and not disturbed:
        yield Finding("doubled", event.queue, f"the job {event.label} ran {ran} times", (event.label,))
