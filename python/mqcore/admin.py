"""What a broker's admin side tells a program by HTTP.

::

    for failed in errors("http://127.0.0.1:2627"):
        print(failed.at, failed.request, failed.why)
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mqcore import errors as _errors
from mqcore.config import Duration, seconds

__all__ = ["DEFAULT_URL", "FailedRequest", "ScheduleInfo", "ScheduleList", "errors", "schedules"]

DEFAULT_URL: Final = "http://127.0.0.1:2627"
"""Where an admin side is served if nothing else is said."""

# Far more than a thousand entries take.
_ANSWER_MAX = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request that could not be done, and of which its client was told a number."""

    id: str
    """The number: 20 digits of the time in UTC, and four characters."""
    request: str
    """The request's id as the client wrote it; octets that are no printable ASCII are escaped."""
    why: str
    """What was wrong and what to do."""
    at_ms: int
    """When: Unix milliseconds."""
    client: str
    """The client's id."""
    connection: int
    """The number of its connection."""
    protocol: str
    """What it speaks: ``mqks``."""

    @property
    def at(self) -> datetime:
        """When, in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule that a broker keeps, and how far it is."""

    id: str
    """A hash of the call that it makes, which tells schedules apart."""
    queue: str
    """The queue that it names."""
    headers: str
    """The headers of each run, as the protocol writes them."""
    job: str
    """The JSON of the job; of a long one the beginning."""
    interval_ms: int | None
    """Milliseconds between two runs; ``None``: it has a cron expression."""
    cron: str | None
    """Its cron expression."""
    timezone: str | None
    """The zone of that."""
    catch_up: str
    """What becomes of runs that were missed: ``none``, ``latest`` or ``all``."""
    due_ms: int
    """When it is due next: Unix milliseconds."""
    runs: int
    """How often it ran."""
    left: int | None
    """How often it still runs; ``None``: without end."""

    @property
    def due(self) -> datetime:
        """When it is due next, in UTC."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """Schedules of a broker."""

    total: int
    """How many there are in all."""
    schedules: tuple[ScheduleInfo, ...]
    """As many as were asked for, those that are due next first."""


def schedules(
    url: str = DEFAULT_URL, *, limit: int = 100, token: str | None = None, timeout: Duration = 15.0
) -> ScheduleList:
    """Return the schedules that the broker with this admin side keeps, those that are due next first.

    `limit` is how many at most, up to 10,000; `token` and `timeout` are as for `errors`, and so is what is raised.
    """
    content = _get(url, f"/schedules?limit={limit:d}", token, seconds(timeout))
    try:
        found = tuple(ScheduleInfo(**schedule) for schedule in content["schedules"])
        return ScheduleList(int(content["total"]), found)
    except (KeyError, TypeError, ValueError) as error:
        raise _errors.BadAnswer(f"{url} tells its schedules in another form: {error}") from error


def errors(
    url: str = DEFAULT_URL, *, limit: int = 100, token: str | None = None, timeout: Duration = 15.0
) -> tuple[FailedRequest, ...]:
    """Return the last requests that the broker with this admin side could not do, the latest first.

    `limit` is how many at most; a broker keeps the last 1,000. `token` is that of one who may administer it, where that
    is asked for. `timeout` is how long it may say nothing.

    Raises `ConfigError` for a URL of something else, `ConnectFailed` if nobody answers, `Unauthorized`, and `BadAnswer`
    if what answers is no broker of this version.
    """
    content = _get(url, f"/errors?limit={limit:d}", token, seconds(timeout))
    try:
        return tuple(FailedRequest(**failed) for failed in content["errors"])
    except (KeyError, TypeError) as error:
        raise _errors.BadAnswer(f"{url} tells its errors in another form: {error}") from error


def _get(url: str, page: str, token: str | None, patience: float) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _errors.ConfigError(
            f"{url} is no admin side; write http://HOST:PORT as the ready line of the broker tells"
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port or 2627, timeout=patience)
    try:
        connection.request("GET", page, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        status, octets = answer.status, answer.read(_ANSWER_MAX)
    except (http.client.HTTPException, OSError) as error:
        raise _errors.ConnectFailed(f"{url} does not answer: {error}") from error
    finally:
        connection.close()
    try:
        content = json.loads(octets)
        if status == http.client.OK:
            return dict(content)
        code, message = str(content["error"]["code"]), str(content["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise _errors.BadAnswer(f"{url} answers {status}, and not as the admin side of a broker does") from None
    if code in {"unauthorized", "forbidden"}:
        raise _errors.Unauthorized(message, 401)
    raise _errors.BadAnswer(f"{url}: {message}")
