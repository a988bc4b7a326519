"""`mqcore limit`: counters of a Throttr listener, looked at and changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.program import CommandGroup

if TYPE_CHECKING:
    from mqcore.throttr import SyncClient

__all__ = ["limit"]

_DEFAULT_URL = "throttr://127.0.0.1:9000"
_COLUMNS = ("key", "kind", "left", "expires_in")
_BATCH = 1000
"""Counters that are asked for in one trip."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _connection(command: _F) -> _F:
    command = click.option(
        "--timeout", type=options.DURATION, default="15s", show_default=True, help="How long an answer may take."
    )(command)
    return click.option(
        "--url", metavar="URL", help=f"The Throttr listener. [default: MQCORE_LIMIT_URL, or {_DEFAULT_URL}]"
    )(command)


def _connect(url: str | None, timeout: float) -> SyncClient:
    from mqcore.throttr import SyncClient

    chosen = url or click.get_current_context().find_root().meta.get("mqcore.url") or ""
    if not chosen.startswith("throttr"):
        # What MQCORE_URL names is as a rule a listener of another protocol.
        chosen = url or os.environ.get("MQCORE_LIMIT_URL") or _DEFAULT_URL
    return SyncClient(chosen, request_timeout=timeout)


@click.group(cls=CommandGroup, short_help="Counters and limits: ls, get, set, reset, watch.")
def limit() -> None:
    """Counters of a Throttr listener, such as throttr://127.0.0.1:9000?value=uint64."""


@limit.command(short_help="List counters and buffers.")
@click.argument("pattern", default="*")
@_connection
@options.as_json
def ls(pattern: str, url: str | None, timeout: float, as_json: bool) -> None:
    """List what is stored under keys that match PATTERN, such as user:*; without it everything."""
    with _connect(url, timeout) as client:
        found = _rows(client, pattern)
    output.rows("mqcore.limit.ls/1", "limits", found, _COLUMNS, as_json=as_json)


@limit.command(short_help="Show one counter or buffer.")
@click.argument("key")
@_connection
@options.as_json
def get(key: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Show what KEY holds and how long it lives."""
    with _connect(url, timeout) as client, client.pipeline() as pipe:
        pipe.query(key).get(key).stat(key)
    counter, buffer, uses = pipe.results
    if counter is None:
        raise _missing(key)
    shown: dict[str, object] = {"key": key, "left": counter.quota, "expires_in": _seconds(counter)}
    if buffer is not None and buffer.value:
        shown.update(output.readable_body(buffer.value))
    if uses is not None:
        shown.update(output.plain(uses))
    output.record("mqcore.limit.get/1", shown, as_json=as_json)


@limit.command("set", short_help="Create a counter, or change one.")
@click.argument("key")
@click.argument("quota", type=click.IntRange(min=0))
@click.option("--ttl", type=options.DURATION, help="How long it lives. Not given: the counter is there, and lives on.")
@_connection
@options.as_json
def set_(key: str, quota: int, ttl: float | None, url: str | None, timeout: float, as_json: bool) -> None:
    """Let KEY have QUOTA left."""
    with _connect(url, timeout) as client:
        if ttl is None:
            changed = client.update(key, quota)
            if not changed:
                raise _missing(key, "; create a counter with --ttl, for example --ttl 60s")
        else:
            unit, amount = _expressed(ttl, client.value_max)
            with client.pipeline() as pipe:
                pipe.purge(key).insert(key, quota, amount, unit=unit)
    output.done("mqcore.limit.set/1", f"{key}: {quota} left", {"key": key, "left": quota, "ttl": ttl}, as_json=as_json)


@limit.command(short_help="Forget what keys hold.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_connection
@options.as_json
def reset(keys: tuple[str, ...], url: str | None, timeout: float, as_json: bool) -> None:
    """Forget what each KEY holds: its whole limit is there again."""
    with _connect(url, timeout) as client, client.pipeline() as pipe:
        for key in keys:
            pipe.purge(key)
    forgotten = [key for key, done in zip(keys, pipe.results, strict=True) if done]
    if not forgotten:
        raise _missing(", ".join(keys))
    output.done("mqcore.limit.reset/1", f"reset {', '.join(forgotten)}", {"keys": forgotten}, as_json=as_json)


@limit.command(short_help="Print counters as they change.")
@click.argument("pattern", default="*")
@click.option("--interval", type=options.DURATION, default="1s", show_default=True, help="How often to look.")
@click.option("--count", type=click.IntRange(min=1), help="Leave after so many lines. [default: never]")
@_connection
@options.as_json
def watch(pattern: str, interval: float, count: int | None, url: str | None, timeout: float, as_json: bool) -> None:
    """Print counters that match PATTERN whenever what they have left has changed, until Ctrl-C."""
    last: dict[str, Any] = {}
    seen = 0
    with _connect(url, timeout) as client:
        output.talk("watching")
        while True:
            now = {row["key"]: row for row in _rows(client, pattern)}
            gone = [{"key": key, "kind": "gone", "left": None, "expires_in": None} for key in last.keys() - now.keys()]
            for row in [row for key, row in now.items() if last.get(key) != row["left"]] + gone:
                if as_json:
                    output.stream("mqcore.limit.watch/1", row)
                else:
                    click.echo(f"{row['key']}\t{row['kind']}\t{row['left']}")
                seen += 1
                if seen == count:
                    return
            last = {key: row["left"] for key, row in now.items()}
            time.sleep(interval)


def _rows(client: SyncClient, pattern: str) -> list[dict[str, Any]]:
    keys = [key for key in client.list() if fnmatchcase(_text(key.key), pattern)]
    rows = []
    for begin in range(0, len(keys), _BATCH):
        batch = keys[begin : begin + _BATCH]
        with client.pipeline() as pipe:
            for key in batch:
                pipe.query(key.key)
        for key, counter in zip(batch, pipe.results, strict=True):
            if counter is not None:
                kind = "buffer" if key.is_buffer else "counter"
                left = None if key.is_buffer else counter.quota
                rows.append({"key": _text(key.key), "kind": kind, "left": left, "expires_in": _seconds(counter)})
    return rows


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _seconds(counter: Any) -> float:
    from mqcore.throttr import Unit

    try:
        unit = Unit(counter.unit)
    except ValueError:
        # What no unit has, a server takes as seconds.
        unit = Unit.SECONDS
    return float(counter.ttl * unit.nanoseconds / 1e9)


def _expressed(ttl: float, value_max: int) -> tuple[int, int]:
    """The finest unit in which a time to live fits, rounded up."""
    from mqcore.throttr import Unit

    nanoseconds = round(ttl * 1e9)
    for unit in Unit:
        amount = -(-nanoseconds // unit.nanoseconds)
        if amount <= value_max:
            return unit, amount
    raise click.UsageError(f"a listener of this width cannot say {ttl} s; its largest value is {value_max}")


def _missing(key: str, what: str = "; 'mqcore limit ls' lists those that are") -> Exception:
    from mqcore import errors

    return errors.NotFound(f"nothing is stored under {key}{what}", code=404, target=key)
