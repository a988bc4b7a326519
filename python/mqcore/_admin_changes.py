"""Requests to the admin side that change something. `mqcore.admin` has them under its own name."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqcore import errors as _errors
from mqcore._http import REFUSALS, AdminClient, queue_path, reading
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore.progress import Advanced
    from mqcore.tls import TLSConfig

__all__ = ["MoveResult", "cancel_job", "clear", "discard", "disconnect", "drain", "move", "remove_queue", "set_status"]

_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """The result of `move` or `discard`."""

    moved: int
    """Messages that are durable in their new queues, or removed for good."""
    without_origin: int
    """Messages that stay, because no ``Dead-Letter-Queue`` header names the queue that they come from."""
    left: int
    """Messages that wait in the queue now."""
    rejection: str | None
    """Why not all were moved: what a queue answered that rejects a message. ``None``: nothing was rejected."""


def move(
    url: str,
    queue: str,
    to: str | None = None,
    *,
    ids: Iterable[str] = (),
    limit: int | None = None,
    progress: Advanced | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> MoveResult:
    """Move waiting messages of a queue to the queue `to`, or dead letters back to the queues that they come from.

    `queue` and `to` are ``channel/id``. Without `to`, each message returns to the queue in its ``Dead-Letter-Queue``
    header, without the headers about that. `ids` are the ids of the messages to move, at most 1,000, among the first
    1,000 of the queue. Without them, all messages are moved, in their order, but at most `limit`. `progress` is called
    with the number of moved messages and the number to move.

    Moved messages begin anew: their attempts, delays and expiry are forgotten. They are saved in their new queues
    before they leave the old one, and consumers get them after that, so that a crash of the broker neither loses nor
    duplicates one. If it interrupts this call, call it again.

    Raises `ConfigError` for `ids` together with a `limit`, `NotFound` if there is no such queue, `LimitExceeded` if a
    queue is full before anything was moved, `Unauthorized` without a `token` that may administer the queue, and what
    `errors` raises.

    ::

        result = move("http://127.0.0.1:2627", "orders/65535", token=token)
        print(result.moved, "dead letters returned to their queues")
    """
    wanted = {"to": to, "ids": list(ids)} if to is not None else {"ids": list(ids)}
    return _in_batches(_Changes(url, token, timeout, tls), queue, "move", wanted, limit, progress)


def discard(
    url: str,
    queue: str,
    *,
    ids: Iterable[str] = (),
    limit: int | None = None,
    progress: Advanced | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> MoveResult:
    """Remove waiting messages of a queue. Arguments and exceptions are those of `move`."""
    return _in_batches(_Changes(url, token, timeout, tls), queue, "discard", {"ids": list(ids)}, limit, progress)


def clear(
    url: str, queue: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Remove all waiting messages of a queue at once. Messages in flight are not affected.

    Raises `NotFound` if there is no such queue, and what `move` raises.
    """
    _Changes(url, token, timeout, tls).post(_path(queue, "purge"), {})


def set_status(
    url: str,
    queue: str,
    status: str,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> None:
    """Change the delivery mode of a queue: ``push``, ``roundrobin``, ``pull``, ``paused``, ...

    ``stopped`` erases its messages. Raises `BadRequest` for an unknown status, and what `clear` raises.
    """
    _Changes(url, token, timeout, tls).post(_path(queue, "status"), {"status": status})


def remove_queue(
    url: str, queue: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Remove a queue with its messages. Raises what `clear` raises."""
    _Changes(url, token, timeout, tls).send("DELETE", _path(queue, None), None)


def disconnect(
    url: str, client: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Close the connections of the client with this id.

    Raises `NotFound` if none is connected, and what `clear` raises.
    """
    _Changes(url, token, timeout, tls).send("DELETE", f"/connections/{urllib.parse.quote(client, safe='')}", None)


def cancel_job(
    url: str,
    job_id: str,
    *,
    queue: str | None = None,
    hard: bool = False,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> bool:
    """Cancel the job with this id, as `mqcore.jobs.Jobs.cancel` does; false if it has ended already.

    A waiting job is not run. A running job is asked to end; with `hard`, its process is killed. `queue` is its queue,
    such as ``email`` or ``email/0``. It may be omitted if the job runs, has ended or is part of a flow. When the call
    returns, the cancellation is on disk. It needs a `token` with the rule ``administer:/jobs/*``.

    Raises `NotFound` if `queue` is omitted and the broker does not know the job, `BadRequest` for an id or a queue of
    another form, `Nacked` if the cancellation was not saved in time, and what `clear` raises.

    ::

        for job in jobs("http://127.0.0.1:2627", token=token).running:
            if job.seconds > 3600:
                cancel_job("http://127.0.0.1:2627", job.id, hard=True, token=token)
    """
    wanted: dict[str, Any] = {"hard": hard} if queue is None else {"queue": queue, "hard": hard}
    changes = _Changes(url, token, timeout, tls)
    answer = changes.post(f"/jobs/{urllib.parse.quote(job_id, safe='')}/cancel", wanted)
    with reading("cancelled jobs", changes.url):
        return bool(answer["cancelled"])


def drain(
    url: str,
    within: Duration = 30.0,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> None:
    """Stop the broker as SIGTERM does: it accepts nothing new, and ends when it has finished its work.

    It ends after `within` at the latest, a number of seconds or text such as ``"30s"``. The call returns when the
    broker has begun. Raises what `clear` raises.
    """
    _Changes(url, token, timeout, tls).post("/drain", {"seconds": seconds(within)})


class _Changes:
    def __init__(self, url: str, token: str | None, timeout: Duration, tls: TLSConfig | None) -> None:
        self._client = AdminClient(url, token=token, timeout=timeout, tls=tls)
        self.url = self._client.url

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        return self.send("POST", path, content)

    def send(self, method: str, path: str, content: dict[str, Any] | None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content).encode()
        return self._client.ask(method, path, body=body, rejections=REFUSALS)


def _in_batches(
    changes: _Changes,
    queue: str,
    what: str,
    wanted: dict[str, Any],
    limit: int | None,
    progress: Advanced | None,
) -> MoveResult:
    """Repeat a request until all messages are moved or none can be."""
    if limit is not None and limit < 1:
        raise _errors.ConfigError(f"limit is {limit}, but must be at least 1")
    if limit is not None and wanted["ids"]:
        raise _errors.ConfigError("give the ids of messages or a limit, not both")
    moved, total = 0, limit
    while True:
        most = _BATCH if limit is None else min(_BATCH, limit - moved)
        answer = changes.post(_path(queue, what), {**wanted, "max": most})
        try:
            result = MoveResult(
                moved=moved + int(answer["moved"]),
                without_origin=int(answer["without_origin"]),
                left=int(answer["left"]),
                rejection=answer["rejection"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _errors.BadAnswer(f"{changes.url} describes a move in another form: {error}") from error
        if total is None:
            # Messages that arrive later do not count: those that return and fail again would be moved forever.
            total = result.moved + result.left
        is_stuck = result.moved == moved or result.rejection is not None
        is_over = is_stuck or result.moved >= total or result.left == 0 or bool(wanted["ids"])
        moved = result.moved
        if progress is not None:
            progress(moved, max(moved, min(total, moved + result.left)))
        if is_over:
            return result


def _path(queue: str, what: str | None) -> str:
    path = queue_path(queue)
    return path if what is None else f"{path}/{what}"
