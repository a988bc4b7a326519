"""Options and arguments shared by several commands, and the connection that they configure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import target

if TYPE_CHECKING:
    from mqcore import sync

__all__ = [
    "DURATION",
    "QUEUE",
    "address",
    "admin_side",
    "as_json",
    "chosen_url",
    "connect",
    "connection",
    "log_format",
    "split_header",
    "text_of",
]

_MM2 = ("mm2://", "mm2s://", "mm2+unix://")
_PLAIN = ("mqks://", "mqkss://", "mqks+unix://", *_MM2)
"""Protocols that address a queue by its name alone, without `/id`."""

_TOPIC = "@topic:"

_F = TypeVar("_F", bound=Callable[..., Any])


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from mqcore.config import seconds
        from mqcore.errors import ConfigError

        try:
            return seconds(float(value) if _is_number(value) else value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


class _Queue(click.ParamType[tuple[str, int]]):
    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        channel, slash, number = str(value).rpartition("/")
        if not slash:
            channel, number = str(value), "0"
        if not channel or not number.isascii() or not number.isdigit() or int(number) > 65535:
            self.fail(
                f"invalid queue {value!r}; use CHANNEL/ID with an id from 0 to 65535, for example orders/1001",
                param,
                ctx,
            )
        return channel, int(number)


DURATION = _Duration()
"""Parameter type of a duration: seconds, or a number with a unit such as `30s`. Converts to seconds."""

QUEUE = _Queue()
"""Parameter type of a queue: `channel/id`, or a channel alone for its queue 0. Converts to channel and id."""


def text_of(address: tuple[str, int]) -> str:
    """Return what `QUEUE` converted as `channel/id`."""
    return f"{address[0]}/{address[1]}"


def as_json(command: _F) -> _F:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with a schema name.")(command)


def log_format(command: _F) -> _F:
    """Add `--log-format` to a command that runs until it is stopped."""
    return click.option(
        "--log-format",
        type=click.Choice(["console", "json"]),
        envvar="MQCORE_LOG_FORMAT",
        help="Format of log lines. [default: console on a terminal, else json]",
    )(command)


def connection(command: _F) -> _F:
    """Add `--url` and `--timeout` to a command that connects to a broker."""
    command = click.option(
        "--timeout", type=DURATION, default="15s", show_default=True, help="Time to wait for each answer."
    )(command)
    return click.option(
        "--url",
        metavar="URL",
        default=None,
        help="URL of the broker. [default: that of --context, else MQCORE_URL, else the context]",
    )(command)


def admin_side(timeout: str) -> Callable[[_F], _F]:
    """Add `--url`, `--timeout` and `--token` to a command that uses the broker's admin API."""

    def add(command: _F) -> _F:
        access = "Access token; reading needs 'inspect' or 'administer', changes need 'administer'. [env: MQCORE_TOKEN]"
        command = click.option("--token", callback=_admin_token, help=access)(command)
        timeout_help = "Time to wait for each answer."
        command = click.option("--timeout", type=DURATION, default=timeout, show_default=True, help=timeout_help)(
            command
        )
        url_help = (
            "URL of the admin API. [default: mqcore --admin, that of --context, MQCORE_ADMIN, an http:// or https:// "
            f"MQCORE_URL, that of the context, else {target.DEFAULT_ADMIN}]"
        )
        # The context is looked for first, because the token may come from it.
        return click.option("--url", metavar="ADMIN", is_eager=True, callback=_admin_url, help=url_help)(command)

    return add


def _admin_url(ctx: click.Context, _option: click.Parameter, value: str | None) -> str:
    if ctx.resilient_parsing:
        return target.DEFAULT_ADMIN
    found = target.admin_side(value)
    if found is None:
        return target.DEFAULT_ADMIN
    ctx.meta["mqcore.admin_token"] = found.token
    return found.url


def _admin_token(ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    found: str | None = value or ctx.meta.get("mqcore.admin_token") or target.token()
    return found


def address(queue: str, url: str | None) -> str:
    """Return the address in the protocol of the broker's URL: `channel/id` for TMQP, else the name unchanged.

    A topic, `@topic:NAME`, is written the same way for all protocols. Raises `click.BadParameter` for an invalid TMQP
    queue, or a topic without a name.
    """
    chosen = chosen_url(url)
    if queue.startswith(_TOPIC):
        name = queue.removeprefix(_TOPIC)
        if not name:
            raise click.BadParameter(f"invalid topic {queue!r}; use @topic:NAME")
        if chosen.startswith(_MM2):
            return f"topic/{name}"
        return name if chosen.startswith(_PLAIN) else queue
    if chosen.startswith(_PLAIN):
        return queue
    return text_of(QUEUE.convert(queue, None, click.get_current_context()))


def connect(
    url: str | None, timeout: float, *, name: str = "mqcore-cli", kind: str = "mqcore-cli", client_id: str | None = None
) -> sync.Client:
    """Connect to the broker that the command line names. `timeout` is in seconds, per request.

    Raises `mqcore.errors.TransportError` if no connection can be made.
    """
    from mqcore import sync

    found = target.listener(url)
    return sync.connect(found.url, id=client_id, name=name, kind=kind, token=found.token, request_timeout=timeout)


def chosen_url(url: str | None) -> str:
    """Return `url`, else the URL that the options, the environment or a context name, else the default one."""
    return target.listener(url).url


def split_header(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Convert the values of `--header KEY:VALUE` to a dictionary. Raises `click.BadParameter` for other forms."""
    headers = {}
    for value in values:
        key, colon, content = value.partition(":")
        if not colon or not key.strip():
            raise click.BadParameter(f"invalid header {value!r}; use KEY:VALUE", ctx, param)
        headers[key.strip()] = content.strip()
    return headers
