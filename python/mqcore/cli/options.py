"""Options and arguments shared by several commands, and the connection that they configure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

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
    "root_admin_url",
    "split_header",
    "token",
]

DEFAULT_URL = "tmqp://127.0.0.1:2622"
DEFAULT_ADMIN = "http://127.0.0.1:2627"

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


def as_json(command: _F) -> _F:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with a schema name.")(command)


def connection(command: _F) -> _F:
    """Add `--url` and `--timeout` to a command that connects to a broker."""
    command = click.option(
        "--timeout", type=DURATION, default="15s", show_default=True, help="Time to wait for each answer."
    )(command)
    return click.option("--url", metavar="URL", default=None, help="URL of the broker. [default: MQCORE_URL]")(command)


def admin_side(timeout: str) -> Callable[[_F], _F]:
    """Add `--url`, `--timeout` and `--token` to a command that uses the broker's admin API."""

    def add(command: _F) -> _F:
        access = "Access token with the right to administer the broker. [env: MQCORE_TOKEN]"
        command = click.option("--token", envvar="MQCORE_TOKEN", help=access)(command)
        timeout_help = "Time to wait for each answer."
        command = click.option("--timeout", type=DURATION, default=timeout, show_default=True, help=timeout_help)(
            command
        )
        url_help = f"URL of the admin API. [default: an http:// or https:// MQCORE_URL, else {DEFAULT_ADMIN}]"
        return click.option("--url", metavar="ADMIN", callback=_admin_url, help=url_help)(command)

    return add


def root_admin_url() -> str | None:
    """Return `mqcore --url` or MQCORE_URL if it is an http:// or https:// URL, else `None`.

    Raises `click.UsageError` if `mqcore --url` is a URL of another protocol. MQCORE_URL may name a broker's message
    listener; commands that use the admin API then ignore it.
    """
    context = click.get_current_context().find_root()
    url: str | None = context.meta.get("mqcore.url")
    if url is None or url.startswith(("http://", "https://")):
        return url
    if context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--url {url} is not a URL of the admin API; use --url http://HOST:PORT")
    return None


def _admin_url(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str:
    return value or root_admin_url() or DEFAULT_ADMIN


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
    channel, number = QUEUE.convert(queue, None, click.get_current_context())
    return f"{channel}/{number}"


def connect(
    url: str | None, timeout: float, *, name: str = "mqcore-cli", kind: str = "mqcore-cli", client_id: str | None = None
) -> sync.Client:
    """Connect to the broker that the command line names. `timeout` is in seconds, per request.

    Raises `mqcore.errors.TransportError` if no connection can be made.
    """
    from mqcore import sync

    chosen = chosen_url(url)
    return sync.connect(chosen, id=client_id, name=name, kind=kind, token=token(), request_timeout=timeout)


def token() -> str | None:
    """Return the value of `mqcore --token` or MQCORE_TOKEN, or `None`."""
    given: str | None = click.get_current_context().find_root().meta.get("mqcore.token")
    return given


def chosen_url(url: str | None) -> str:
    """Return `url`, else `mqcore --url` or MQCORE_URL, else the default URL of a broker."""
    return url or click.get_current_context().find_root().meta.get("mqcore.url") or DEFAULT_URL


def split_header(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Convert the values of `--header KEY:VALUE` to a dictionary. Raises `click.BadParameter` for other forms."""
    headers = {}
    for value in values:
        key, colon, content = value.partition(":")
        if not colon or not key.strip():
            raise click.BadParameter(f"invalid header {value!r}; use KEY:VALUE", ctx, param)
        headers[key.strip()] = content.strip()
    return headers
