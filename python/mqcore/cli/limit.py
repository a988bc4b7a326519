"""`mqcore limit`: lists, shows, sets, resets and watches counters of a Throttr listener."""

from __future__ import annotations

import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output, target
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.throttr import Counter, SyncClient, Unit

__all__ = ["limit"]

_DEFAULT_URL = "throttr://127.0.0.1:9000"
_COLUMNS = ("key", "kind", "left", "expires_in")
_BATCH = 1000
"""Counters queried in one round trip."""
_SECOND_NS = 10**9

_F = TypeVar("_F", bound=Callable[..., Any])


def _connection(command: _F) -> _F:
    command = click.option(
        "--timeout", type=options.DURATION, default="15s", show_default=True, help="Time to wait for each answer."
    )(command)
    return click.option(
        "--url",
        metavar="URL",
        help="URL of the Throttr listener. [default: that of --context, else MQCORE_LIMIT_URL, else that of the "
        f"context, else {_DEFAULT_URL}]",
    )(command)


def _connect(url: str | None, timeout: float) -> SyncClient:
    from mqcore.throttr import SyncClient

    found = None if url is not None else target.listener_of("throttr", "MQCORE_LIMIT_URL", "--url throttr://HOST:PORT")
    return SyncClient(url or (_DEFAULT_URL if found is None else found.url), request_timeout=timeout)


@click.group(cls=CommandGroup)
def limit() -> None:
    """Manage counters of a Throttr listener, for example throttr://127.0.0.1:9000?value=uint64."""


@limit.command(short_help="List counters and buffers.")
@click.argument("pattern", default="*")
@_connection
@options.as_json
def ls(pattern: str, url: str | None, timeout: float, as_json: bool) -> None:
    """List counters and buffers, optionally those whose keys match PATTERN, for example user:*."""
    with _connect(url, timeout) as client:
        found = _rows(client, pattern)
    output.rows("mqcore.limit.ls/1", "limits", found, _COLUMNS, as_json=as_json)


@limit.command(short_help="Show one counter or buffer.")
@click.argument("key")
@_connection
@options.as_json
def get(key: str, url: str | None, timeout: float, as_json: bool) -> None:
    """Show the value of KEY and its remaining time to live in seconds."""
    with _connect(url, timeout) as client:
        with client.pipeline() as pipe:
            pipe.query(key).get(key).stat(key)
        counter, buffer, uses = pipe.results
        if counter is None:
            raise _missing(key)
        expires = None
        if _unit(counter).nanoseconds > _SECOND_NS:
            # QUERY rounds down to whole minutes or hours.
            expires = next((found.expires for found in client.list() if _text(found.key) == key), None)
    shown: dict[str, object] = {"key": key, "left": counter.quota, "expires_in": _expires_in(counter, expires)}
    if buffer is not None and buffer.value:
        shown.update(output.readable_body(buffer.value))
    if uses is not None:
        shown.update(output.plain(uses))
    output.record("mqcore.limit.get/1", shown, as_json=as_json)


@limit.command("set", short_help="Create a counter, or change one.")
@click.argument("key")
@click.argument("quota", type=click.IntRange(min=0))
@click.option(
    "--ttl",
    type=options.DURATION,
    help="Time to live of a new counter. [default: change an existing one and keep its time to live]",
)
@_connection
@options.as_json
def set_(key: str, quota: int, ttl: float | None, url: str | None, timeout: float, as_json: bool) -> None:
    """Set the remaining quota of KEY to QUOTA."""
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


@limit.command(short_help="Delete counters and buffers.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_connection
@options.as_json
def reset(keys: tuple[str, ...], url: str | None, timeout: float, as_json: bool) -> None:
    """Delete each KEY, which makes its full limit available again."""
    with _connect(url, timeout) as client, client.pipeline() as pipe:
        for key in keys:
            pipe.purge(key)
    deleted = [key for key, done in zip(keys, pipe.results, strict=True) if done]
    if not deleted:
        raise _missing(", ".join(keys))
    output.done("mqcore.limit.reset/1", f"reset {', '.join(deleted)}", {"keys": deleted}, as_json=as_json)


@limit.command(short_help="Print counters as they change.")
@click.argument("pattern", default="*")
@click.option("--interval", type=options.DURATION, default="1s", show_default=True, help="Time between queries.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many lines. [default: never]")
@_connection
@options.as_json
def watch(pattern: str, interval: float, count: int | None, url: str | None, timeout: float, as_json: bool) -> None:
    """Print the counters that match PATTERN whenever their remaining quota changes, until Ctrl-C."""
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
                rows.append(
                    {"key": _text(key.key), "kind": kind, "left": left, "expires_in": _expires_in(counter, key.expires)}
                )
    return rows


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _unit(counter: Counter) -> Unit:
    from mqcore.throttr import Unit

    try:
        return Unit(counter.unit)
    except ValueError:
        # Servers treat unknown units as seconds.
        return Unit.SECONDS


def _expires_in(counter: Counter, expires: int | None) -> float:
    """The remaining time to live in seconds.

    QUERY rounds it down to the unit of the counter. The Unix time of LIST is exact, but the clocks of the two hosts may
    differ, so it counts only within this unit.
    """
    unit = _unit(counter).nanoseconds
    rounded = counter.ttl * unit
    exact = rounded if expires is None else min(max(expires - time.time_ns(), rounded), rounded + unit)
    return round(exact / _SECOND_NS, 3)


def _expressed(ttl: float, value_max: int) -> tuple[int, int]:
    """The finest unit in which `ttl` seconds fit into `value_max`, and the amount, rounded up."""
    from mqcore.throttr import Unit

    nanoseconds = round(ttl * 1e9)
    for unit in Unit:
        amount = -(-nanoseconds // unit.nanoseconds)
        if amount <= value_max:
            return unit, amount
    raise click.UsageError(
        f"--ttl {ttl} s exceeds the listener's largest value, {value_max}; use a shorter time or a wider listener"
    )


def _missing(key: str, advice: str = "; list keys with 'mqcore limit ls'") -> Exception:
    from mqcore import errors

    return errors.NotFound(f"key {key} does not exist{advice}", code=404, target=key)
