"""Compares a history with the promises. It does not depend on mqcore."""

from __future__ import annotations

from collections.abc import Iterator

from promises import jobs_check, loss, repeats, terms_check
from promises.history import History
from promises.lives import lives_of
from promises.model import Finding, World


def check(world: World, history: History) -> list[Finding]:
    """Every broken promise of a run, by queue."""
    found: list[Finding] = []
    all_lives = lives_of(world, history)
    for lives in all_lives.values():
        found += loss.missing(all_lives, lives)
        found += loss.strangers(all_lives, lives)
        found += terms_check.stuck(all_lives, lives)
        found += terms_check.stored_twice(all_lives, lives)
        for rule in (
            loss.newest_in_cache,
            loss.unexplained_drops,
            loss.counters,
            loss.rejections,
            loss.saved_dead_letters,
            repeats.doubled,
            repeats.settled_returns,
            repeats.order,
            repeats.prefetch,
            terms_check.premature,
            terms_check.expired,
            terms_check.priorities,
            terms_check.duplicates,
            terms_check.taken_delays,
        ):
            found += rule(lives)
    found += _unreported_copies(world, history)
    found += jobs_check.check(history)
    return found


def _unreported_copies(world: World, history: History) -> Iterator[Finding]:
    """Copies for queues that do not exist, of messages whose receipt does not report them."""
    for event in history.of("publish"):
        if event.via == "cc" and event.queue not in world.queues and event.outcome == "confirmed":
            yield Finding("unreported", event.queue, f"the receipt of {event.label} does not report its rejected copy")
            return
