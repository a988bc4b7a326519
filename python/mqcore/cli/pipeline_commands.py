"""`mqcore pipeline replay`, `quality`, `cost` and `anomalies`: pipelines with options of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from mqcore.cli import options, output, target
from mqcore.cli.pipeline_source import place_options

__all__ = ["COMMANDS"]

_F = TypeVar("_F", bound=Callable[..., Any])

_TIME: Final = "ISO 8601 in UTC such as 2026-11-21T08:00, or a time before now such as 2h"


def _place(command: _F) -> _F:
    """Add the options that say which history is read, and where the results go."""
    return place_options(options.as_json(command))


def _broker(what: str) -> Callable[[_F], _F]:
    """Add the options that name the broker to publish to."""

    def add(command: _F) -> _F:
        admin_help = (
            "URL of the admin API of the same broker, to publish each message once even after a kill. "
            "[default: mqcore --admin, MQCORE_ADMIN, or that of the context]"
        )
        command = click.option("--admin", metavar="URL", help=admin_help)(command)
        url_help = f"URL of the broker {what}. [default: that of --context, else MQCORE_URL, else the context]"
        return click.option("--url", metavar="URL", help=url_help)(command)

    return add


def _access(url: str | None, admin: str | None) -> dict[str, Any]:
    """The options of a pipeline that publishes."""
    found = target.listener(url)
    beside = target.admin_beside(found, admin)
    if beside is None:
        output.talk("no --admin: if this run is killed, its last messages may be published twice by the next one")
    return {"url": found.url, "token": found.token, "admin": None if beside is None else beside.url}


def _run(name: str, place: dict[str, Any], **chosen: Any) -> int:
    """Run a pipeline like `mqcore pipeline run`, with the options that have a value."""
    ctx = click.get_current_context()
    group = ctx.parent.command if ctx.parent is not None else None
    assert isinstance(group, click.Group)
    given = tuple(f"{key}={value}" for key, value in chosen.items() if value not in (None, ""))
    result: int = ctx.invoke(group.commands["run"], names=(name,), given=given, follow=False, every=10.0, **place)
    return result


@click.command(short_help="Publish messages of the history again.")
@click.option("--since", metavar="TIME", help=f"Replay messages published at or after TIME: {_TIME}.")
@click.option("--until", metavar="TIME", help="Replay messages published before TIME.")
@click.option(
    "--where",
    metavar="SQL",
    help="Condition in Spark SQL on columns of the messages, such as queue, channel, body, headers or producer_name.",
)
@click.option(
    "--kind",
    type=click.Choice(["produced", "arrived", "all"]),
    default="produced",
    show_default=True,
    help="How the message entered its queue: from a producer, or from another queue, such as a dead letter.",
)
@click.option(
    "--to",
    metavar="QUEUE",
    multiple=True,
    help="Destination of all messages, or QUEUE=QUEUE for those of one queue. Repeatable. [default: the same queue]",
)
@click.option(
    "--ids",
    type=click.Choice(["keep", "new"]),
    default="keep",
    show_default=True,
    help="Message ids: the original ones, or new ones with the original one in the header Replayed-Id.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=1000.0,
    show_default=True,
    metavar="N",
    help="Maximum messages per second; 0 is unlimited.",
)
@click.option("--dry-run", is_flag=True, help="Count what would be published; publish nothing.")
@click.option(
    "--run",
    metavar="NAME",
    help="Name of this replay. Repeat the command with the same name to continue after an interruption.",
)
@_broker("that receives the messages")
@_place
def replay(
    since: str | None,
    until: str | None,
    where: str | None,
    kind: str,
    to: tuple[str, ...],
    ids: str,
    rate: float,
    dry_run: bool,
    run: str | None,
    url: str | None,
    admin: str | None,
    **place: Any,
) -> int:
    """Publish a time range of the history again, to the same queues or to others.

    Each message is published once, also if the command is interrupted and repeated with the same --run NAME. Headers
    Replayed-From and Replayed-Time name its origin. Messages whose body is not recorded are counted, not published.

    \b
    Count first:
      mqcore pipeline replay --journal /var/lib/mqcore --out reports --since 2h \\
          --where "channel = 'orders' AND producer_name = 'shop'" --dry-run
    Publish to another queue, at most 500 messages per second:
      mqcore pipeline replay --journal /var/lib/mqcore --out reports --rate 500 --run incident-17 \\
          --since 2026-11-21T08:00 --until 2026-11-21T09:00 --to orders/1=orders-copy/1 \\
          --url tmqp://127.0.0.1:2622 --admin http://127.0.0.1:2627
    """
    if not dry_run and not run:
        raise click.UsageError("give --dry-run to count, or --run NAME to publish")
    access = {} if dry_run else {"run": run, **_access(url, admin)}
    return _run(
        "replay",
        place,
        since=since,
        until=until,
        where=where,
        kind=kind,
        to=",".join(to),
        ids=ids,
        rate=rate,
        **access,
    )


@click.command(short_help="Check JSON bodies: schema, drift, violations.")
@click.option("--queue", metavar="QUEUE", help="Examine one queue, such as orders/1. [default: all]")
@click.option(
    "--period",
    metavar="FROM/UNTIL",
    help=f"Examined period. Each time is {_TIME}; an empty one is open. [default: everything after the baseline]",
)
@click.option("--baseline", metavar="FROM/UNTIL", help="Period to compare with. [default: none]")
@click.option(
    "--schema",
    metavar="RULE",
    multiple=True,
    help="JSON Schema file, or MODULE:TYPE for a type that msgspec decodes; QUEUE=RULE for one queue. Repeatable.",
)
@click.option(
    "--moved",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Distance of two distributions that counts as drift.",
)
@click.option(
    "--fields", type=click.IntRange(min=1), default=500, show_default=True, help="Maximum number of fields per queue."
)
@_place
def quality(
    queue: str | None,
    period: str | None,
    baseline: str | None,
    schema: tuple[str, ...],
    moved: float,
    fields: int,
    **place: Any,
) -> int:
    """Infer the schema of JSON bodies by queue, compare two periods, and check bodies with a given schema.

    Exits with code 6 if a message violates its rule. Bodies that are not JSON are counted.

    \b
    This week against the week before:
      mqcore pipeline quality --journal /var/lib/mqcore --out reports --baseline 14d/7d --period 7d/
    Check the messages of one queue:
      mqcore pipeline quality --journal /var/lib/mqcore --out reports --schema orders/1=order.schema.json
    """
    rules = ",".join(schema)
    return _run(
        "quality", place, queue=queue, period=period, baseline=baseline, schema=rules, moved=moved, fields=fields
    )


@click.command(short_help="Show bytes, requests and storage by queue and client.")
@click.option("--since", metavar="TIME", help=f"Count events at or after TIME: {_TIME}.")
@click.option("--until", metavar="TIME", help="Count events before TIME.")
@click.option(
    "--price-per-gb", type=click.FloatRange(min=0), metavar="X", help="Price of 10^9 published or delivered bytes."
)
@click.option(
    "--price-per-million", type=click.FloatRange(min=0), metavar="X", help="Price of a million requests and deliveries."
)
@click.option(
    "--price-per-gb-month", type=click.FloatRange(min=0), metavar="X", help="Price of storing 10^9 bytes for a month."
)
@click.option("--currency", metavar="TEXT", help="Name of the currency in the report.")
@_place
def cost(
    since: str | None,
    until: str | None,
    price_per_gb: float | None,
    price_per_million: float | None,
    price_per_gb_month: float | None,
    currency: str | None,
    **place: Any,
) -> int:
    """Count bytes, requests, deliveries, redeliveries and storage by queue and client, with shares and prices.

    \b
    The last 30 days with prices:
      mqcore pipeline cost --journal /var/lib/mqcore --out reports --since 30d \\
          --price-per-gb 0.09 --price-per-million 0.40 --price-per-gb-month 0.08 --currency EUR
    """
    prices = {"price_per_gb": price_per_gb, "price_per_million": price_per_million}
    prices["price_per_gb_month"] = price_per_gb_month
    return _run("cost", place, since=since, until=until, currency=currency, **prices)


@click.command(short_help="Find unusual rates and latencies; send alerts.")
@click.option("--hours", type=click.IntRange(min=1), default=168, show_default=True, help="Latest hours to examine.")
@click.option(
    "--weeks", type=click.IntRange(min=2), default=8, show_default=True, help="Earlier weeks to compare an hour with."
)
@click.option(
    "--min-weeks", type=click.IntRange(min=2), default=3, show_default=True, help="Earlier weeks that an hour needs."
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0, min_open=True),
    default=6.0,
    show_default=True,
    help="Deviation from the median that is an anomaly, in usual deviations.",
)
@click.option(
    "--until", metavar="TIME", help="End of the last hour; 0s is now, so that silence counts. [default: the last event]"
)
@click.option(
    "--alerts-to", metavar="QUEUE", help="Publish an alert for each anomaly to this queue, once. [default: none]"
)
@_broker("that receives alerts")
@_place
def anomalies(
    hours: int,
    weeks: int,
    min_weeks: int,
    threshold: float,
    until: str | None,
    alerts_to: str | None,
    url: str | None,
    admin: str | None,
    **place: Any,
) -> int:
    """Compare rates and latencies of each queue and hour with the same hour of the week (UTC) in earlier weeks.

    An hour needs --min-weeks earlier weeks in the history; the result says how many values were too new. Repeated runs
    with the same --out announce each anomaly once.

    \b
    The last day, with alerts:
      mqcore pipeline anomalies --journal /var/lib/mqcore --out reports --hours 24 --until 0s \\
          --alerts-to alerts/1 --url tmqp://127.0.0.1:2622 --admin http://127.0.0.1:2627
    """
    access = _access(url, admin) if alerts_to else {}
    return _run(
        "anomalies",
        place,
        hours=hours,
        weeks=weeks,
        min_weeks=min_weeks,
        threshold=threshold,
        until=until,
        alerts=alerts_to,
        **access,
    )


COMMANDS: Final = (replay, quality, cost, anomalies)
"""Commands that the group `mqcore pipeline` has besides its own."""
