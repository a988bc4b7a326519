"""`mqcore publish` and `mqcore consume` over MQKS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import programs
from mqks_peer import MqksPeer
from served import ServedBroker, clean_environment, serving, wait_until
from test_cli import complaint, lines, mqcore, one


@pytest.fixture
def served() -> Iterator[ServedBroker]:
    """A broker in a process of its own that speaks MQKS."""
    with serving("--listen", "mqks://127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def url(served: ServedBroker) -> str:
    return f"mqks://{served.ready['listeners']['mqks']}"


def consuming(url: str, *arguments: str) -> subprocess.Popen[bytes]:
    """`mqcore consume` in the background."""
    return programs.Popen(
        [sys.executable, "-m", "mqcore", "consume", *arguments, "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )


def bound(url: str, event: str) -> None:
    """Wait until a queue is bound to an event: what is published is put into one."""
    with MqksPeer(url) as peer:

        def is_bound() -> bool:
            before = peer.ask("n _eval state.queued")
            peer.ask(f"probe publish --confirm {event} probe")
            return peer.ask("n _eval state.queued") != before

        wait_until(is_bound, limit=20)


def test_published_event_is_printed_by_its_consumers(url: str) -> None:
    process = consuming(url, "greetings", "--event", "hi", "--event", "hello", "--count", "2", "--json")
    bound(url, "hello")
    published = one(mqcore("publish", "hi", "world", "--json", url=url))
    assert (published["queue"], published["confirmed_by"]) == ("hi", "server")
    stdout, stderr = process.communicate(timeout=30)
    finished = subprocess.CompletedProcess("consume", process.returncode, stdout, stderr)
    first, second = lines(finished)
    assert (first["headers"], first["body"]) == ({"Topic": "hello"}, "probe")
    assert (second["queue"], second["headers"], second["body"]) == ("greetings", {"Topic": "hi"}, "world")


def test_a_queue_is_bound_to_the_event_of_its_name(url: str) -> None:
    process = consuming(url, "orders", "--count", "1")
    bound(url, "orders")
    assert process.communicate(timeout=30)[0] == b"probe\n"


def test_nacked_messages_are_redelivered(url: str) -> None:
    process = consuming(url, "orders", "--count", "2", "--nack", "no", "--json")
    bound(url, "orders")
    stdout, stderr = process.communicate(timeout=30)
    _, again = lines(subprocess.CompletedProcess("consume", process.returncode, stdout, stderr))
    assert again["headers"] == {"Topic": "orders", "Retry": "1"}


def test_request_unsupported_by_mqks_is_one_line_and_an_exit_code(url: str) -> None:
    for arguments, words in [
        (("publish", "hello", "x", "--header", "a:b"), "MQKS has no headers"),
        (("publish", "hello", ""), "invalid body"),
        (("publish", "--", "--hello", "x"), "must not start with"),
        (("channel", "ls"), "MQKS has no operation"),
        (("consume", "q", "--keep-events", "--event", "x"), "--keep-events"),
        (("consume", "q", "--event", "a b"), "must not contain"),
    ]:
        result = mqcore(*arguments, url=url)
        assert words in complaint(result), arguments
        assert result.returncode in {1, 2}, arguments


def test_lines_of_stdin_are_messages(url: str) -> None:
    published = one(mqcore("publish", "hello", "--stdin", "--json", url=url, stdin="a\nb\nc\n"))
    assert (published["published"], published["bytes"]) == (3, 3)


def test_events_belong_to_mqks(served: ServedBroker) -> None:
    with serving() as other:
        assert "TMQP/2.0 has no events" in complaint(mqcore("consume", "q", "--event", "x", url=other.url))
