"""`mqcore bench` against a real broker, and its comparison of two results."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import mqcore
from ports import free_port
from served import ServedBroker, serving, wait_until
from test_cli import mqcore as run
from test_cli import one
from test_cli_answers import said
from test_cli_messages import next_line, rest, running

SHORT = ("--seconds", "0.2", "--messages", "700", "--rate", "500")
FIGURES = [
    ("publish", "messages/s", "higher"),
    ("confirmed", "p50 us", "lower"),
    ("confirmed", "p99 us", "lower"),
    ("consume", "messages/s", "higher"),
    ("latency", "p50 us", "lower"),
    ("latency", "p99 us", "lower"),
    ("latency", "p999 us", "lower"),
    ("request", "p50 us", "lower"),
    ("request", "p99 us", "lower"),
]
DURABLE = [("durable", "messages/s", "higher"), ("durable", "p50 us", "lower")]


def channels(broker: ServedBroker) -> list[str]:
    """Names of all channels of the broker."""
    with mqcore.sync.connect(broker.url) as client:
        return [channel.name for channel in client.channels()]


def measured(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The figures of a result without their values, which are positive."""
    assert all(figure["value"] > 0 for figure in result["figures"])
    return [(figure["scenario"], figure["what"], figure["better"]) for figure in result["figures"]]


def test_broker_with_a_data_directory_runs_all_scenarios(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data")) as broker:
        result = one(run("bench", *SHORT, "--json", url=broker.url))
        assert result["schema"] == "mqcore.bench/1"
        assert measured(result) == FIGURES + DURABLE
        assert (result["version"], result["skipped"]) == (mqcore.__version__, {})
        assert (result["seconds"], result["body_bytes"], result["rate"], result["messages"]) == (0.2, 128, 500, 700)
        assert channels(broker) == []


def test_broker_without_a_data_directory_skips_what_saves(served: ServedBroker) -> None:
    code, text, talk = said("bench", *SHORT, "--scenario", "durable", "--scenario", "confirmed", url=served.url)
    assert code == 0
    # In the order in which scenarios run, not in that of the options.
    assert talk.splitlines()[:2] == ["measuring confirmed ...", "measuring durable ..."]
    assert "skipped durable: cannot publish to mqcore-bench-" in talk
    assert "start it with a data directory" in talk
    assert [line.split("\t")[:2] for line in text.splitlines()] == [
        ["scenario", "what"],
        ["confirmed", "p50 us"],
        ["confirmed", "p99 us"],
    ]
    assert channels(served) == []


def test_latency_counts_from_the_time_at_which_a_message_was_due(served: ServedBroker) -> None:
    # A rate that no client reaches: each message waits behind those that are late, and its age shows that.
    result = one(
        run("bench", "--scenario", "latency", "--rate", "1000000", "--seconds", "0.05", "--json", url=served.url)
    )
    ages = {figure["what"]: figure["value"] for figure in result["figures"]}
    assert ages["p99 us"] > ages["p50 us"] > 10_000


def test_own_messages_of_users_stay(served: ServedBroker) -> None:
    with mqcore.sync.connect(served.url) as client:
        client.declare("orders", 1, mqcore.QueueOptions(status="pull"))
        client.publish("orders/1", b"kept")
    assert run("bench", *SHORT, "--scenario", "consume", url=served.url).returncode == 0
    with mqcore.sync.connect(served.url) as client:
        assert [message.body for message in client.queue("orders/1").pull()] == [b"kept"]


def test_interrupted_run_removes_its_channel(served: ServedBroker) -> None:
    with running("bench", "--scenario", "confirmed", "--seconds", "60", url=served.url) as process:
        assert next_line(process, "stderr") == "measuring confirmed ...\n"
        wait_until(lambda: len(channels(served)) == 1, what="the channel of the run")
        process.send_signal(signal.SIGINT)
        assert rest(process) == (130, "", "\nmqcore: interrupted\n")
    assert channels(served) == []


def test_missing_broker_is_unreachable() -> None:
    code, text, talk = said("bench", *SHORT, url=f"tmqp://127.0.0.1:{free_port()}")
    assert (code, text) == (5, "")
    assert "cannot connect" in talk


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--scenario", "speed"), "'speed' is not one of 'publish'"),
        (("--seconds", "0"), "--seconds 0: too short; use a positive duration such as 3s"),
        (("--seconds", "soon"), "soon"),
        (("--rate", "0"), "0 is not in the range"),
        (("--url", "mqks://127.0.0.1:1"), "cannot measure mqks://; use a tmqp:// URL of the broker"),
    ],
)
def test_wrong_options_are_wrong_usage(arguments: tuple[str, ...], complaint: str) -> None:
    code, text, talk = said("bench", *arguments)
    assert (code, text) == (2, "")
    assert complaint in talk


def result(path: Path, **values: float) -> Path:
    """Write a result with these values."""
    figures = [
        {"scenario": "publish", "what": "messages/s", "better": "higher", "value": values["publish"]},
        {"scenario": "confirmed", "what": "p50 us", "better": "lower", "value": values["confirmed"]},
    ]
    if "durable" in values:
        figures.append({"scenario": "durable", "what": "messages/s", "better": "higher", "value": values["durable"]})
    path.write_text(json.dumps({"schema": "mqcore.bench/1", "figures": figures}))
    return path


def test_comparison_prints_ratios_of_what_both_have(tmp_path: Path) -> None:
    before = result(tmp_path / "before.json", publish=1000, confirmed=200, durable=5)
    after = result(tmp_path / "after.json", publish=3000, confirmed=50)
    compared = one(run("bench", "compare", str(before), str(after), "--json"))
    assert compared == {
        "schema": "mqcore.bench.compare/1",
        "figures": [
            {
                "scenario": "publish",
                "what": "messages/s",
                "before": 1000.0,
                "after": 3000.0,
                "ratio": 3.0,
                "better_by": 3.0,
            },
            {
                "scenario": "confirmed",
                "what": "p50 us",
                "before": 200.0,
                "after": 50.0,
                "ratio": 0.25,
                "better_by": 4.0,
            },
        ],
    }
    code, text, talk = said("bench", "compare", str(before), str(after))
    assert (code, talk) == (0, "")
    assert text.splitlines() == [
        "scenario\twhat\tbefore\tafter\tratio\tbetter_by",
        "publish\tmessages/s\t1,000\t3,000\t3.00\t3.00",
        "confirmed\tp50 us\t200.0\t50.00\t0.25\t4.00",
    ]


def test_results_of_real_runs_are_comparable(served: ServedBroker, tmp_path: Path) -> None:
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in paths:
        path.write_bytes(run("bench", *SHORT, "--scenario", "request", "--json", url=served.url).stdout)
    compared = one(run("bench", "compare", *map(str, paths), "--json"))
    assert [figure["what"] for figure in compared["figures"]] == ["p50 us", "p99 us"]


def test_value_of_zero_has_no_ratio(tmp_path: Path) -> None:
    before = result(tmp_path / "before.json", publish=0, confirmed=200)
    after = result(tmp_path / "after.json", publish=3000, confirmed=0)
    figures = one(run("bench", "compare", str(before), str(after), "--json"))["figures"]
    assert [(figure["ratio"], figure["better_by"]) for figure in figures] == [(None, None), (0.0, None)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read {path}: No such file or directory"),
        ("{", "{path} is not JSON: "),
        ("[1]", "{path} has the schema None, expected 'mqcore.bench/1'"),
        ('{"schema": "mqcore.queue.ls/1", "queues": []}', "{path} has the schema 'mqcore.queue.ls/1'"),
        ('{"schema": "mqcore.bench/1"}', "{path} has a figure without a valid 'figures'"),
        ('{"schema": "mqcore.bench/1", "figures": [{"better": "more"}]}', "{path} has a figure without a valid better"),
        ('{"schema": "mqcore.bench/1", "figures": [{"better": "lower"}]}', "without a valid 'scenario'"),
    ],
)
def test_file_with_another_content_is_wrong_usage(tmp_path: Path, content: str | None, complaint: str) -> None:
    good = result(tmp_path / "good.json", publish=1, confirmed=1)
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    for paths in ((good, bad), (bad, good)):
        code, text, talk = said("bench", "compare", *map(str, paths))
        assert (code, text) == (2, "")
        assert complaint.format(path=bad) in talk


def test_results_without_a_common_scenario_are_wrong_usage(tmp_path: Path) -> None:
    good = result(tmp_path / "good.json", publish=1, confirmed=1)
    other = tmp_path / "other.json"
    other.write_text('{"schema": "mqcore.bench/1", "figures": []}')
    code, text, talk = said("bench", "compare", str(good), str(other))
    assert (code, text) == (2, "")
    assert "have no scenario in common; measure the same --scenario" in talk
