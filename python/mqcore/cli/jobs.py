"""`mqcore jobs`: sends jobs, waits for results, retries failed jobs, and shows queues, workers and schedules."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output, target
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.figures import age
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from mqcore.admin import PeekedMessage
    from mqcore.jobs import Jobs

__all__ = ["jobs"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _broker(command: _F) -> _F:
    command = click.option(
        "--timeout", type=options.DURATION, default="15s", show_default=True, help="Time to wait for each answer."
    )(command)
    return click.option(
        "--broker",
        metavar="URL",
        help="URL of the broker's listener for workers. [default: that of --context, else MQCORE_JOBS_URL, "
        "else that of the context, else emqp://127.0.0.1:47290]",
    )(command)


def _jobs(broker: str | None, timeout: float) -> Jobs:
    from mqcore import credentials
    from mqcore.jobs import Jobs

    found = None if broker is not None else target.listener_of("emqp", "MQCORE_JOBS_URL", "--broker emqp://HOST:PORT")
    url, token = (broker, target.token()) if found is None else (found.url, found.token)
    made = Jobs(url, token=token, timeout=timeout)
    if target.named_context() is not None and token is None and credentials.split(url or "")[1] is None:
        # `Jobs` takes MQCORE_TOKEN by itself, which is not for the broker of --context.
        made.credentials = None
    return made


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Manage jobs over EventMQ's protocol, for example at emqp://127.0.0.1:47290."""


@jobs.command(short_help="Send a job.")
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT...]")
@click.option("--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="Keyword argument. Repeatable.")
@click.option("--queue", default="default", show_default=True, help="Queue of the job.")
@click.option("--retries", type=click.IntRange(min=0), default=0, show_default=True, help="Retries after a failure.")
@click.option("--limit", type=options.DURATION, help="Time limit of one attempt. [default: the task's]")
@click.option("--run-after", type=options.DURATION, help="Delay before the first attempt. [default: none]")
@click.option("--unique", metavar="KEY", help="Reject the job while one with this key waits or runs in the queue.")
@click.option("--wait", is_flag=True, help="Wait up to --timeout for the result and print it.")
@_broker
@options.as_json
def enqueue(
    task: str,
    arguments: tuple[str, ...],
    keywords: tuple[str, ...],
    queue: str,
    retries: int,
    limit: float | None,
    run_after: float | None,
    unique: str | None,
    wait: bool,
    broker: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send a job of TASK, for example shop.send_email. An ARGUMENT that is not JSON is passed as text.

    With --wait, print the result as JSON; if the job fails, exit with its error.
    """
    from mqcore.errors import RequestTimeout

    named = dict(_named(keyword) for keyword in keywords)
    with _jobs(broker, timeout) as sender:
        job = sender.send(
            task,
            [_value(argument) for argument in arguments],
            named,
            queue=queue,
            retries=retries,
            timeout=limit,
            run_after=run_after,
            unique=unique or False,
        )
        if not wait:
            sent = {"id": job.id, "task": task, "queue": queue}
            output.done("mqcore.jobs.enqueue/1", f"sent {job.id} to {queue}", sent, as_json=as_json)
            return
        try:
            result = job.result(timeout)
        except RequestTimeout as error:
            raise RequestTimeout(f"{error}; only mqcore brokers return results") from None
    if as_json:
        output.document("mqcore.jobs.result/1", {"id": job.id, "task": task, "queue": queue, "result": result})
    else:
        click.echo(json.dumps(result, ensure_ascii=False))


@jobs.command(short_help="Wait for the result of a job.")
@click.argument("job", metavar="ID")
@_broker
@options.as_json
def result(job: str, broker: str | None, timeout: float, as_json: bool) -> None:
    """Wait up to --timeout for the result of the job ID, and print it as JSON.

    If the job failed, exit with its error.
    """
    with _jobs(broker, timeout) as asked:
        value = asked.result(job, timeout)
    if as_json:
        output.document("mqcore.jobs.result/1", {"id": job, "result": value})
    else:
        click.echo(json.dumps(value, ensure_ascii=False))


@jobs.command(short_help="Show whether a job runs, its progress, or how it ended.")
@click.argument("job", metavar="ID")
@_broker
@options.as_json
def state(job: str, broker: str | None, timeout: float, as_json: bool) -> None:
    """Show what the broker knows about the job ID: whether it runs, its last progress report, and how it ended."""
    import msgspec

    with _jobs(broker, timeout) as asked:
        known = msgspec.to_builtins(asked.state(job, timeout))
    progress = known["progress"]
    if progress is not None:
        progress = f"{progress['fraction']:.0%} {progress['note']}".rstrip()
    rows = {**known, "progress": progress}
    if as_json:
        output.document("mqcore.jobs.state/1", known)
    else:
        for name in ("status", "queue", "progress", "expires"):
            if rows[name] is not None:
                click.echo(f"{name}\t{rows[name]}")


@jobs.command(short_help="Cancel jobs.")
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--queue", help="Queue of the jobs. [default: that of a running job, or of a job of a flow]")
@click.option("--hard", is_flag=True, help="Kill the process of a running job instead of asking it to end.")
@_broker
@options.as_json
def cancel(
    job_ids: tuple[str, ...], queue: str | None, hard: bool, broker: str | None, timeout: float, as_json: bool
) -> int:
    """Cancel the jobs with these IDs. Waiting jobs do not run; running ones are asked to end, or killed with --hard.

    Exit code 1 if one of them had ended.
    """
    from mqcore.errors import InvalidArgument

    ended = 0
    with _jobs(broker, timeout) as asked:
        for job_id in job_ids:
            try:
                is_cancelled = asked.cancel(job_id, queue=queue, hard=hard, timeout=timeout)
            except InvalidArgument as error:
                raise click.UsageError(f"{error.args[0].partition('; ')[0]}; name it with --queue") from None
            ended += not is_cancelled
            text = f"cancelled {job_id}" if is_cancelled else f"{job_id} has ended already"
            output.done("mqcore.jobs.cancel/1", text, {"id": job_id, "cancelled": is_cancelled}, as_json=as_json)
    return ExitCode.REFUSED if ended else ExitCode.DONE


@jobs.command(short_help="Show waiting, running and finished jobs per queue.")
@_broker
@options.as_json
def status(broker: str | None, timeout: float, as_json: bool) -> None:
    """Show waiting, running and finished jobs per queue, and the latency of recent jobs in milliseconds."""
    answer = _jobs(broker, timeout).status(timeout)
    columns = {
        "waiting": "waiting_messages_by_queue",
        "running": "inflight_messages_by_queue",
        "done": "processed_messages_by_queue",
        "latency_ms": "latency_messages_by_queue",
        "latency_max_ms": "max_latency_messages_by_queue",
    }
    queues = sorted({queue for key in columns.values() for queue in answer.get(key) or {}})
    rows = [
        {"queue": queue, **{name: (answer.get(key) or {}).get(queue, 0) for name, key in columns.items()}}
        for queue in queues
    ]
    output.rows("mqcore.jobs.status/1", "queues", rows, ("queue", *columns), as_json=as_json)


@jobs.command(short_help="List workers and their queues.")
@_broker
@options.as_json
def workers(broker: str | None, timeout: float, as_json: bool) -> None:
    """List connected workers with their queues, queue weights and free slots."""
    connected = _jobs(broker, timeout).workers(timeout).get("connected_workers") or {}
    rows = [
        {
            "worker": name,
            "queues": [":".join(map(str, reversed(queue))) for queue in known.get("queues", ())],
            "free": known.get("available_slots"),
        }
        for name, known in sorted(connected.items())
    ]
    output.rows("mqcore.jobs.workers/1", "workers", rows, ("worker", "queues", "free"), as_json=as_json)


@jobs.command(short_help="Print the progress of jobs as they report it.")
@click.argument("job", required=False, metavar="[ID]")
@click.option("--for", "pause", type=options.DURATION, help="Exit after this long without progress. [default: never]")
@click.option(
    "--broker",
    metavar="URL",
    help="URL of the broker's listener for workers. [default: that of --context, else MQCORE_JOBS_URL, "
    "else that of the context, else emqp://127.0.0.1:47290]",
)
@options.as_json
def watch(job: str | None, pause: float | None, broker: str | None, as_json: bool) -> None:
    """Print each progress report of the job ID, or of all jobs, until Ctrl-C."""
    import msgspec

    for progress in _jobs(broker, 5.0).watch(job or "", pause):
        if as_json:
            output.stream("mqcore.jobs.progress/1", msgspec.to_builtins(progress))
        else:
            click.echo(f"{progress.id}\t{progress.task}\t{progress.fraction:4.0%}\t{progress.note}")
            sys.stdout.flush()


@jobs.command(short_help="List schedules and their next runs.")
@options.admin_side(timeout="15s")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of schedules."
)
@options.as_json
def schedules(url: str, limit: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List the broker's schedules, ordered by their next run."""
    from mqcore import admin

    rows = [
        {
            "due": schedule.due.isoformat(timespec="milliseconds"),
            "when": schedule.cron or f"every {(schedule.interval_ms or 0) / 1000:g}s",
            **output.plain(schedule),
        }
        for schedule in admin.schedules(url, limit=limit, token=token, timeout=timeout).schedules
    ]
    columns = ("due", "when", "timezone", "catch_up", "queue", "runs", "left", "id", "job")
    output.rows("mqcore.jobs.schedules/1", "schedules", rows, columns, as_json=as_json)


@jobs.command(short_help="Remove schedules.")
@click.argument("schedule_ids", nargs=-1, required=True, metavar="ID...")
@options.admin_side(timeout="15s")
@options.as_json
def unschedule(schedule_ids: tuple[str, ...], url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """Remove the schedules with these IDs, listed by 'mqcore jobs schedules'. Runs that are already due still happen.

    A worker whose program declares the schedule registers it again when the worker starts. Requires a token.
    """
    from mqcore import admin, errors

    for schedule_id in schedule_ids:
        try:
            admin.unschedule(url, schedule_id, token=token, timeout=timeout)
        except errors.InvalidArgument as error:
            raise click.BadParameter(str(error), param_hint="ID") from None
        output.done("mqcore.jobs.unschedule/1", f"removed {schedule_id}", {"id": schedule_id}, as_json=as_json)


_FAILED_COLUMNS = ("id", "job", "error", "attempts", "failed")
_PAGE = 500
_IDS_MAX = 1_000
"""The broker looks for ids among so many messages."""


@jobs.command(short_help="List jobs that failed for good.")
@click.argument("queue")
@options.admin_side(timeout="15s")
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Maximum jobs.")
@options.as_json
def failed(queue: str, url: str, count: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List jobs of QUEUE that failed for good, with the error of the last attempt.

    They wait as dead letters. If other queues have the same dead-letter queue, only its first 1,000 messages are read.
    """
    import time

    found, now = _failed_jobs(url, _address(queue), timeout, token, bodies=True), time.time()
    rows = [_failed_job(message, now) for message in found[:count]]
    output.rows("mqcore.jobs.failed/1", "jobs", rows, _FAILED_COLUMNS, as_json=as_json)


def _failed_job(message: PeekedMessage, now: float) -> dict[str, Any]:
    # A job that failed twice has two of each; the last ones are about the last time.
    headers = dict(message.headers)
    return {
        "id": message.id,
        "job": _called(message.body),
        "error": headers.get("Dead-Letter-Error"),
        "attempts": headers.get("Dead-Letter-Attempts"),
        "failed": age(now - message.received_ms / 1000) if message.received_ms else None,
    }


def _called(body: bytes | None) -> str | None:
    """The function that a job calls; the beginning of the job if it has another form."""
    if body is None:
        return None
    try:
        _, call = json.loads(body)
        return f"{call['path']}.{call['callable']}"
    except (ValueError, TypeError, KeyError):
        return body[:60].decode(errors="replace")


@jobs.command(short_help="Run jobs that failed for good again.")
@click.argument("queue")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only the job with this id; repeatable.")
@options.admin_side(timeout="60s")
@options.as_json
def retry(queue: str, ids: tuple[str, ...], url: str, timeout: float, token: str | None, as_json: bool) -> int:
    """Return jobs of QUEUE that failed for good to it, so that workers run them again with all their attempts.

    Dead letters of other queues stay. Needs a token. Exit code 1 if jobs stay that should return.
    """
    from mqcore import admin

    address, returned, rejection = _address(queue), 0, None
    wanted = set(ids)
    while True:
        found = [message.id for message in _failed_jobs(url, address, timeout, token, bodies=False) if message.id]
        chosen = [each for each in found if not wanted or each in wanted][:_IDS_MAX]
        if not chosen:
            break
        letters = admin.dead_letter_queue(url, address, token=token, timeout=timeout)
        assert letters is not None, "it has messages"
        result = admin.move(url, letters, ids=chosen, token=token, timeout=timeout)
        returned += result.moved
        rejection = result.rejection
        if result.moved < len(chosen) or wanted:
            break
    content = {"queue": address, "returned": returned, "rejection": rejection}
    output.done("mqcore.jobs.retry/1", f"returned {returned:,} failed jobs to {address}", content, as_json=as_json)
    if rejection is not None:
        output.talk(f"the others stay: {rejection}")
    elif returned < len(wanted):
        output.talk(f"{len(wanted) - returned:,} ids are not among the failed jobs of {address}")
    return ExitCode.REFUSED if rejection is not None or returned < len(wanted) else ExitCode.DONE


def _address(queue: str) -> str:
    """The address of a queue of jobs: a name alone stands for its queue 0."""
    _, slash, number = queue.rpartition("/")
    return queue if slash and number.isdecimal() else f"{queue}/0"


def _failed_jobs(url: str, queue: str, timeout: float, token: str | None, *, bodies: bool) -> list[PeekedMessage]:
    """Dead letters of a queue, the first ones of its dead-letter queue."""
    from mqcore import admin, errors

    letters = admin.dead_letter_queue(url, queue, token=token, timeout=timeout)
    if letters is None:
        raise errors.NotFound(f"queue {queue} drops failed jobs: its option dead_letter is drop", 404, queue)
    found: list[PeekedMessage] = []
    for offset in range(0, _IDS_MAX, _PAGE):
        try:
            page = admin.peek(
                url,
                letters,
                offset=offset,
                limit=_PAGE,
                body_bytes=4_096 if bodies else 0,
                token=token,
                timeout=timeout,
            )
        except errors.NotFound:
            # The broker creates it for the first dead letter.
            break
        found += page
        if len(page) < _PAGE:
            break
    return [message for message in found if _is_of(message, queue)]


def _is_of(message: PeekedMessage, queue: str) -> bool:
    return dict(message.headers).get("Dead-Letter-Queue", "").lower() == queue.lower()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"invalid keyword argument {text!r}; use NAME=VALUE", param_hint="--keyword")
    return name, _value(value)
