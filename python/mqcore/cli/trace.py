"""`mqcore trace`: shows a message's current location and its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from mqcore.cli import options, output

if TYPE_CHECKING:
    from mqcore.admin import TracedClient

__all__ = ["trace"]

_COLUMNS = ("at", "queue", "step", "attempt", "who", "why")


@click.command()
@click.argument("message_id", metavar="MSGID")
@options.admin_side(timeout="60s")
@options.as_json
def trace(message_id: str, url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Show the producer, deliveries, outcome and current location of the message or job MSGID.

    Past events require a broker that records the history (mqcore serve --history).
    """
    from mqcore import admin

    traced = admin.trace(url, message_id, token=token, timeout=timeout)
    if as_json:
        output.document("mqcore.trace/1", {**output.plain(traced), "outcome": traced.outcome})
        return
    rows = [
        {
            "at": step.at.isoformat(timespec="milliseconds"),
            "queue": step.queue,
            "step": step.kind,
            "attempt": step.attempt,
            "who": _who(step.consumer or step.producer),
            "why": step.reason if step.target is None else f"{step.reason}: to {step.target}",
        }
        for step in traced.steps
    ]
    for now in traced.now:
        until = None if now.until_ms is None else datetime.fromtimestamp(now.until_ms / 1000, UTC)
        rows.append(
            {
                "at": "now",
                "queue": now.queue,
                "step": now.state,
                "attempt": now.attempts,
                "who": ", ".join(filter(None, map(_who, now.consumers))) or _who(now.producer),
                "why": None if until is None else f"until {until.isoformat(timespec='milliseconds')}",
            }
        )
    output.rows("mqcore.trace/1", "steps", rows, _COLUMNS, as_json=False)
    output.talk(f"{message_id}: {traced.outcome}")
    if not traced.history:
        output.talk("this broker records no history, so past events are unknown; start it with --history")
    if traced.truncated or traced.not_all_looked_at:
        output.talk("incomplete: the broker stopped at its search limit")


def _who(client: TracedClient | None) -> str | None:
    return None if client is None else f"{client.name or client.id} ({client.protocol})"
