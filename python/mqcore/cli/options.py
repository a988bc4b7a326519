"""Options and arguments that several commands share, and the connection that they lead to."""

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
    "connect",
    "connection",
    "root_admin_url",
    "split_header",
    "token",
]

DEFAULT_URL = "tmqp://127.0.0.1:2622"
DEFAULT_ADMIN = "http://127.0.0.1:2627"

_PLAIN = ("mqks://", "mqkss://", "mqks+unix://", "mm2://", "mm2s://", "mm2+unix://")
"""Protocols in which a name is just a name."""

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
                f"{value!r} is no queue; write channel/id with an id up to 65535, such as orders/1001", param, ctx
            )
        return channel, int(number)


DURATION = _Duration()
"""Seconds, or text such as `30s`."""

QUEUE = _Queue()
"""`channel/id`; a channel alone means its queue 0."""


def as_json(command: _F) -> _F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with a schema, for programs.")(command)


def connection(command: _F) -> _F:
    """Add `--url` and `--timeout`, for commands that talk to a broker."""
    command = click.option(
        "--timeout", type=DURATION, default="15s", show_default=True, help="How long an answer may take."
    )(command)
    return click.option("--url", metavar="URL", default=None, help="The broker. [default: MQCORE_URL]")(command)


def admin_side(timeout: str) -> Callable[[_F], _F]:
    """Add `--url`, `--timeout` and `--token`, for commands that ask the admin side."""

    def add(command: _F) -> _F:
        whose = "Of one who may administer it. [env: MQCORE_TOKEN]"
        command = click.option("--token", envvar="MQCORE_TOKEN", help=whose)(command)
        how_long = "How long an answer may take."
        command = click.option("--timeout", type=DURATION, default=timeout, show_default=True, help=how_long)(command)
        where = f"URL of the admin side. [default: an http:// or https:// MQCORE_URL, else {DEFAULT_ADMIN}]"
        return click.option("--url", metavar="ADMIN", callback=_admin_url, help=where)(command)

    return add


def root_admin_url() -> str | None:
    """Return the URL before the command, or of MQCORE_URL, if it is that of an admin side.

    Raises `click.UsageError` for another one before the command. Another MQCORE_URL says where messages go; it is no
    mistake beside a command that asks the admin side.
    """
    context = click.get_current_context().find_root()
    url: str | None = context.meta.get("mqcore.url")
    if url is None or url.startswith(("http://", "https://")):
        return url
    if context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"this command asks the admin side: --url {url} is none; write --url http://HOST:PORT")
    return None


def _admin_url(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str:
    return value or root_admin_url() or DEFAULT_ADMIN


def address(queue: str, url: str | None) -> str:
    """Return where to publish or what to consume, as the protocol of the broker's URL writes it: `channel/id` in TMQP,
    and any name where names are plain."""
    if _chosen(url).startswith(_PLAIN):
        return queue
    channel, number = QUEUE.convert(queue, None, click.get_current_context())
    return f"{channel}/{number}"


def connect(url: str | None, timeout: float, *, name: str = "mqcore-cli") -> sync.Client:
    """Connect to the broker that the command line names."""
    from mqcore import sync

    chosen = _chosen(url)
    return sync.connect(chosen, name=name, kind="mqcore-cli", token=token(), request_timeout=timeout)


def token() -> str | None:
    """Return what `mqcore --token` says, if it does."""
    said: str | None = click.get_current_context().find_root().meta.get("mqcore.token")
    return said


def _chosen(url: str | None) -> str:
    return url or click.get_current_context().find_root().meta.get("mqcore.url") or DEFAULT_URL


def split_header(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read `--header KEY:VALUE`."""
    headers = {}
    for value in values:
        key, colon, content = value.partition(":")
        if not colon or not key.strip():
            raise click.BadParameter(f"{value!r} is no header; write KEY:VALUE", ctx, param)
        headers[key.strip()] = content.strip()
    return headers
