"""Queues, messages and other results as a notebook shows them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import mqcore
from mqcore import notebook
from mqcore.testing import TestBroker

HOSTILE = "<script>alert('x')</script>"


class Parsed(HTMLParser):
    """The tags of a page, and the text of its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag in {"td", "th"}:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in {"td", "th"}:
            self.cells[-1] += data


def shown(item: Any) -> Parsed:
    return Parsed(item._repr_html_())


async def test_queues_and_messages_are_tables_without_markup_of_their_own() -> None:
    async with mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker, broker.client() as client:
        options = mqcore.QueueOptions(status="push", tag=HOSTILE)
        await client.create_queue("orders/1", options)
        receipt = await client.publish("orders/1", HOSTILE.encode(), headers={"From": HOSTILE})
        assert "server" in shown(receipt).cells
        information = await client.queue("orders/1").information()
        page = shown(information)
        assert "script" not in page.tags
        pairs = dict(zip(page.cells[::2], page.cells[1::2], strict=True))
        assert (pairs["channel"], pairs["id"], pairs["messages"]) == ("orders", "1", "1")
        assert "timeout_messages" not in pairs
        async with client.queue("orders/1").consume() as messages:
            async for message in messages:
                page = shown(message)
                assert "script" not in page.tags
                assert page.cells[page.cells.index("body") + 1] == HOSTILE
                assert page.cells[page.cells.index("header From") + 1] == HOSTILE
                assert "Delivered" in message._repr_html_()
                row = Parsed(notebook.table([message])._repr_html_())
                assert HOSTILE in row.cells
                break
        both = shown(notebook.table([information, information]))
        assert both.tags.count("tr") == 3
        assert both.cells[0] == "channel"
        assert shown(notebook.table(broker.stats().queues)).tags.count("tr") == 2


async def test_stored_messages_are_tables() -> None:
    async with TestBroker(auto_create_channels=True, auto_create_queues=True) as mq:
        await mq.publish("orders/1", b"\xff\x00")
        (stored,) = mq.messages("orders/1")
        cells = shown(stored).cells
        assert cells[cells.index("body") + 1] == "2 bytes: ff 00"
        assert shown(notebook.table(mq.messages("orders/1"))).cells[:2] == ["id", "attempts"]


@pytest.mark.parametrize(
    ("items", "rows", "more"), [([], 0, False), ([{"a": 1}], 2, False), ([{"a": 1}] * 250, 201, True)]
)
def test_long_and_empty_lists_stay_small(items: list[Any], rows: int, more: bool) -> None:
    text = notebook.table(items)._repr_html_()
    assert text.count("<tr>") == rows
    assert ("<p>50 more</p>" in text) == more


def test_long_cells_are_cut() -> None:
    assert len(notebook.table([{"body": b"x" * 100_000}])._repr_html_()) < 1000
