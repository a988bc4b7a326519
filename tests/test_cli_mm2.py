"""`mqcore publish` and `mqcore consume` over MicroMessage2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from mqcore.micromessage import headers
from mqcore.sync import connect
from served import ServedBroker, clean_environment, serving, wait_until
from test_cli import complaint, lines, one
from test_cli import mqcore as run


@pytest.fixture
def served() -> Iterator[ServedBroker]:
    """A broker in a process of its own that speaks MicroMessage2."""
    with serving("--listen", "mm2://127.0.0.1:0", "--auto-create") as broker:
        yield broker


@pytest.fixture
def url(served: ServedBroker) -> str:
    return f"mm2://{served.ready['listeners']['mm2']}"


def test_message_published_to_a_queue_is_consumed(url: str) -> None:
    # The first receiver of a queue makes it.
    with connect(url) as mq, mq.queue("orders").consume():
        pass
    published = one(run("publish", "orders", "héllo", "--header", "Schema: v 1", "--json", url=url))
    assert (published["queue"], published["confirmed_by"]) == ("orders", "server")
    message = one(run("consume", "orders", "--count", "1", "--json", url=url))
    assert (message["queue"], message["body"]) == ("orders", "héllo")
    assert message["headers"] == {"Mm2-Properties": "Schema:Tv%201;"}


def test_a_topic_prints_what_passes_its_filter(url: str) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mqcore",
            "consume",
            "topic/news",
            "--filter",
            "price>N10",
            "--count",
            "1",
            "--url",
            url,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    with connect(url) as mq:

        def is_printed() -> bool:
            mq.publish("topic/news", b"cheap", headers=headers({"price": 5}))
            mq.publish("topic/news", b"dear", headers=headers({"price": 11}))
            return process.poll() is not None

        wait_until(is_printed, limit=30)
    assert process.communicate(timeout=30)[0] == b"dear\n"
    assert process.returncode == 0


def test_request_unsupported_by_micromessage_is_one_line_and_an_exit_code(url: str) -> None:
    for arguments, words in [
        (("publish", "orders", "x", "--high-priority"), "MicroMessage2 has no priorities"),
        (("publish", "or ders", "x"), "must not contain"),
        (("publish", "orders", "x", "--header", "a b: c"), "invalid header"),
        (("channel", "ls"), "MicroMessage2 has no operation"),
        (("consume", "topic/t", "--filter", "nonsense"), "invalid filter"),
        (("consume", "q", "--event", "e"), "MicroMessage2 has no events"),
        (("consume", "q", "--filter", "a=N1"), "filters apply to topics only"),
    ]:
        result = run(*arguments, url=url)
        assert words in complaint(result), arguments
        assert result.returncode in {1, 2}, arguments


def test_lines_of_stdin_are_messages(url: str) -> None:
    published = one(run("publish", "topic/t", "--stdin", "--json", url=url, stdin="a\nb\nc\n"))
    assert (published["published"], published["bytes"]) == (3, 3)


def test_a_broker_that_is_none_is_exit_code_5(served: ServedBroker) -> None:
    assert lines(run("version", "--json"))
    with serving() as other:
        result = run("publish", "orders", "x", url=other.url.replace("tmqp://", "mm2://"))
    assert result.returncode == 5
    assert "MicroMessage2" in complaint(result) or "cannot connect" in complaint(result)
