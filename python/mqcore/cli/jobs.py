"""`mqcore jobs`: sends jobs by the names of their tasks, waits for results, and tells what waits and who works."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqcore.cli import options, output
from mqcore.cli.program import CommandGroup

if TYPE_CHECKING:
    from mqcore.jobs import Jobs

__all__ = ["jobs"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _broker(command: _F) -> _F:
    command = click.option(
        "--timeout", type=options.DURATION, default="15s", show_default=True, help="How long an answer may take."
    )(command)
    return click.option(
        "--broker",
        metavar="URL",
        help="Where the broker's workers connect. [default: MQCORE_JOBS_URL, or emqp://127.0.0.1:47290]",
    )(command)


def _jobs(broker: str | None, timeout: float) -> Jobs:
    from mqcore.jobs import Jobs

    return Jobs(broker, token=options.token(), timeout=timeout)


@click.group(cls=CommandGroup, short_help="Jobs: enqueue, status, workers, watch, schedules, unschedule.")
def jobs() -> None:
    """Jobs of a broker that speaks EventMQ's protocol, such as emqp://127.0.0.1:47290."""


@jobs.command(short_help="Send a job.")
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT...]")
@click.option("--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="A named argument; repeatable.")
@click.option("--queue", default="default", show_default=True, help="Where it waits.")
@click.option("--retries", type=click.IntRange(min=0), default=0, show_default=True, help="How often to try it again.")
@click.option("--limit", type=options.DURATION, help="How long an attempt may take. [default: what the task says]")
@click.option("--run-after", type=options.DURATION, help="Not before so long.")
@click.option("--unique", metavar="KEY", help="Not while a job of this key waits or runs in the queue.")
@click.option("--wait", is_flag=True, help="Wait for the result, for up to --timeout, and print it.")
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
    """Send a job of TASK, such as shop.send_email, with ARGUMENTs that are JSON, or text if they are none.

    With --wait its result is printed as JSON; a job that failed ends this with its error.
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
            raise RequestTimeout(f"{error}; brokers other than mqcore keep results to themselves") from None
    if as_json:
        output.document("mqcore.jobs.result/1", {"id": job.id, "task": task, "queue": queue, "result": result})
    else:
        click.echo(json.dumps(result, ensure_ascii=False))


@jobs.command(short_help="What waits, runs and was done, by queue.")
@_broker
@options.as_json
def status(broker: str | None, timeout: float, as_json: bool) -> None:
    """Tell for each queue how many jobs wait, run and were done, and how long the last ones took, in milliseconds."""
    told = _jobs(broker, timeout).status(timeout)
    columns = {
        "waiting": "waiting_messages_by_queue",
        "running": "inflight_messages_by_queue",
        "done": "processed_messages_by_queue",
        "latency_ms": "latency_messages_by_queue",
        "latency_max_ms": "max_latency_messages_by_queue",
    }
    queues = sorted({queue for key in columns.values() for queue in told.get(key) or {}})
    rows = [
        {"queue": queue, **{name: (told.get(key) or {}).get(queue, 0) for name, key in columns.items()}}
        for queue in queues
    ]
    output.rows("mqcore.jobs.status/1", "queues", rows, ("queue", *columns), as_json=as_json)


@jobs.command(short_help="Who works, on which queues.")
@_broker
@options.as_json
def workers(broker: str | None, timeout: float, as_json: bool) -> None:
    """List the workers that the broker knows, with their queues, the weights of these, and the slots that are free."""
    told = _jobs(broker, timeout).workers(timeout).get("connected_workers") or {}
    rows = [
        {
            "worker": name,
            "queues": [":".join(map(str, reversed(queue))) for queue in known.get("queues", ())],
            "free": known.get("available_slots"),
        }
        for name, known in sorted(told.items())
    ]
    output.rows("mqcore.jobs.workers/1", "workers", rows, ("worker", "queues", "free"), as_json=as_json)


@jobs.command(short_help="How far jobs are, as they tell it.")
@click.argument("job", required=False, metavar="[ID]")
@click.option("--for", "pause", type=options.DURATION, help="End when nothing has come for so long. [default: never]")
@click.option(
    "--broker",
    metavar="URL",
    help="Where the broker's workers connect. [default: MQCORE_JOBS_URL, or emqp://127.0.0.1:47290]",
)
@options.as_json
def watch(job: str | None, pause: float | None, broker: str | None, as_json: bool) -> None:
    """Print a line whenever a job says how far it is, of the job ID or of all, until Ctrl-C."""
    import msgspec

    for progress in _jobs(broker, 5.0).watch(job or "", pause):
        if as_json:
            output.stream("mqcore.jobs.progress/1", msgspec.to_builtins(progress))
        else:
            click.echo(f"{progress.id}\t{progress.task}\t{progress.fraction:4.0%}\t{progress.note}")
            sys.stdout.flush()


@jobs.command(short_help="What the broker runs again and again, and when next.")
@options.admin_side(timeout="15s")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@options.as_json
def schedules(url: str, limit: int, timeout: float, token: str | None, as_json: bool) -> None:
    """List the schedules that a broker keeps, those that are due next first."""
    from mqcore import admin

    rows = [
        {
            "due": kept.due.isoformat(timespec="milliseconds"),
            "when": kept.cron or f"every {(kept.interval_ms or 0) / 1000:g}s",
            **output.plain(kept),
        }
        for kept in admin.schedules(url, limit=limit, token=token, timeout=timeout).schedules
    ]
    columns = ("due", "when", "timezone", "catch_up", "queue", "runs", "left", "id", "job")
    output.rows("mqcore.jobs.schedules/1", "schedules", rows, columns, as_json=as_json)


@jobs.command(short_help="End schedules.")
@click.argument("schedule_ids", nargs=-1, required=True, metavar="ID...")
@options.admin_side(timeout="15s")
@options.as_json
def unschedule(schedule_ids: tuple[str, ...], url: str, timeout: float, token: str | None, as_json: bool) -> None:
    """End the schedules of these IDs, which 'mqcore jobs schedules' tells. No job is lost: runs that are due are made.

    A worker whose program has the schedule sends it again when it starts. Needs a token.
    """
    from mqcore import admin, errors

    for schedule_id in schedule_ids:
        try:
            admin.unschedule(url, schedule_id, token=token, timeout=timeout)
        except errors.InvalidArgument as error:
            raise click.BadParameter(str(error), param_hint="ID") from None
        output.done("mqcore.jobs.unschedule/1", f"ended {schedule_id}", {"id": schedule_id}, as_json=as_json)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{text!r} is no named argument; write NAME=VALUE", param_hint="--keyword")
    return name, _value(value)
