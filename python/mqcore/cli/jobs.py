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
from mqcore.cli.moving import chosen_messages, move_messages

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
            result=wait,
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


_FAILED_COLUMNS = ("id", "job", "error", "attempts", "failed", "queue")


@jobs.command(short_help="List jobs that failed for good.")
@click.argument("name", metavar="QUEUE")
@options.admin_side(timeout="15s")
@click.option("--count", type=click.IntRange(1, 500), default=20, show_default=True, help="Maximum jobs.")
@options.as_json
def failed(name: str, url: str, count: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List the jobs of QUEUE that failed for good, with the error of the last attempt. They wait as dead letters."""
    import time

    from mqcore import admin

    letters, now = _failed_queue(url, name, timeout, token), time.time()
    found = () if letters is None else admin.peek(url, letters, limit=count, token=token, timeout=timeout)
    rows = [_failed_job(message, now) for message in found]
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
        "queue": headers.get("Dead-Letter-Queue"),
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
@click.argument("name", metavar="QUEUE")
@chosen_messages
def retry(name: str, **given: Any) -> int:
    """Return the jobs of QUEUE that failed for good to it, so that workers run them again with all their attempts.

    Needs a token. Exit code 1 if jobs stay that should return.
    """
    letters = _failed_queue(given["url"], name, given["timeout"], given["token"])
    if letters is None:
        content = {"queue": None, "to": None, "moved": 0, "without_origin": 0, "left": 0, "rejection": None}
        output.done("mqcore.jobs.retry/1", f"no job of {name} has failed", content, as_json=given["as_json"])
        return ExitCode.DONE
    return move_messages("mqcore.jobs.retry/1", letters, None, **given)


def _failed_queue(url: str, name: str, timeout: float, token: str | None) -> str | None:
    """The queue with the failed jobs of a queue; ``None`` if there are none."""
    from mqcore import admin, errors

    known = admin.jobs(url, matching=name, limit=10_000, token=token, timeout=timeout).queues
    found = next((queue for queue in known if name in {queue.name, queue.queue}), None)
    if found is None:
        raise errors.NotFound(
            f"no worker or client has used a queue of jobs {name} since the broker's start; list dead letters of all "
            "queues with 'mqcore dead ls'",
            404,
            name,
        )
    if found.failed_queue is None:
        raise errors.NotFound(f"queue {name} drops failed jobs: its option dead_letter is drop", 404, name)
    # The broker creates the dead-letter queue for the first one.
    return found.failed_queue if found.failed else None


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
