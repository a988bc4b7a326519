"""Errors for queues, shards and histories that do not exist, without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqcore import errors, sync
from mqcore.spark.options import ReadOptions
from mqcore.spark.plan import Plan
from mqcore.spark.subscription import check_start
from served import ServedBroker, serving, wait_until
from spark.recorded import ARCHIVE_SECONDS, HISTORY, archived, declare

JOURNAL = {**HISTORY, "MQCORE_ARCHIVE": "off"}


def check(place: dict[str, str], **options: str) -> None:
    plan = Plan.of(ReadOptions.parse(place | options), [("sequence", "bigint")])
    origin = plan.origin()
    check_start(plan, origin, origin.ends())


def missing(place: dict[str, str], **options: str) -> str:
    with pytest.raises(errors.NotFound) as raised:
        check(place, **options)
    return str(raised.value)


@pytest.fixture(scope="module", params=["journal", "archive"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A stopped broker's history of two queues, in the journal or in the archive."""
    path = tmp_path_factory.mktemp(request.param)
    environment = JOURNAL if request.param == "journal" else HISTORY
    with serving("--data-dir", str(path), "--auto-create", environment=environment) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1", "Logs/2")
            mq.publish("orders/1", "one")
            mq.publish("Logs/2", "two")
        if request.param == "archive":
            wait_until(lambda: archived(path, 2), limit=ARCHIVE_SECONDS, what="the archive")
        served.terminate()
    return {"path": str(path)}


@pytest.mark.parametrize("names", ["orders", "orders/1", "ORDERS/1,logs", "nobody*", "*"])
def test_queues_with_messages_and_patterns_are_accepted(history: dict[str, str], names: str) -> None:
    check(history, subscribe=names)
    check(history, subscribePattern="nobody.*")


def test_missing_queue_is_an_error_that_names_similar_ones(history: dict[str, str]) -> None:
    assert "'ordrs/1' in the history of" in missing(history, subscribe="orders,ordrs/1")
    assert "did you mean orders/1" in missing(history, subscribe="ordrs/1")
    assert "did you mean Logs" in missing(history, subscribe="logz")
    assert "it has Logs/2, orders/1." in missing(history, subscribe="zzz")
    assert "failOnMissingQueue=false" in missing(history, assign='{"zzz": [0]}')
    check(history, subscribe="zzz", failOnMissingQueue="false")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"assign": '{"orders": [0, 7]}'}, r"assign names the shard 7; the shards are \[0, 1\]"),
        ({"startingOffsetsByTimestamp": '{"0": 5}'}, r"startingOffsetsByTimestamp must have a time .* shards \[0, 1\]"),
        ({"endingOffsetsByTimestamp": '{"0": 5, "1": 5, "2": 5}'}, "endingOffsetsByTimestamp must have a time"),
    ],
    ids=str,
)
def test_missing_shard_is_an_error(history: dict[str, str], options: dict[str, str], why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        check(history, **options)


def test_times_are_needed_for_assigned_shards_only(history: dict[str, str]) -> None:
    check(history, assign='{"orders": [1], "logs": [1]}', startingOffsetsByTimestamp='{"1": 5}')


@pytest.fixture
def running(tmp_path: Path) -> Any:
    arguments = ("--data-dir", str(tmp_path), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment={**JOURNAL, "MQCORE_HISTORY": "off"}) as served:
        yield served


def test_data_directory_without_history_is_an_error(running: ServedBroker, tmp_path: Path) -> None:
    with sync.connect(running.url) as mq:
        declare(mq, "orders/1")
        mq.publish("orders/1", "unrecorded")
    for place in ({"path": str(tmp_path)}, {"admin": running.admin_url}):
        with pytest.raises(errors.DataDirMissing, match="has no history: run its broker with --history"):
            check(place)
        check(place, failOnMissingQueue="false")


def test_queue_without_messages_is_known_through_the_admin_side_only(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), "--admin", "http://127.0.0.1:0", environment=JOURNAL) as served:
        with sync.connect(served.url) as mq:
            declare(mq, "orders/1", "empty/1")
            mq.publish("orders/1", "one")
        place = {"path": str(tmp_path)}
        wait_until(lambda: any(end.latest > 0 for end in _ends(place)), what="the history")
        check({"admin": served.admin_url}, subscribe="empty")
        assert "'empty'" in missing(place, subscribe="empty")
        assert "did you mean empty" in missing({"admin": served.admin_url}, subscribe="emty")


def _ends(place: dict[str, str]) -> Any:
    return Plan.of(ReadOptions.parse(place), [("sequence", "bigint")]).origin().ends()
