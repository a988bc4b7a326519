"""Parts of reports: pictures, tables and figures as HTML, without Spark and without a browser."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from mqcore.spark.pipelines.report import Page, Series, bars, lines, others, svg_lines, table, tiles

NEW_YEAR = 1_577_836_800
"""Unix seconds of 2020-01-01."""
NOON = datetime(2026, 11, 1, 12, 0, 1, 234567)
SECOND = '<span><i style="background:#c8553d"></i>'


def picture(drawn: str) -> ElementTree.Element:
    """The picture in a part of a report."""
    return ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + len("</svg>")])


def words(part: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in part.iter("text")]


def test_curve_spans_the_grid_and_its_values_are_on_the_lines_of_their_numbers() -> None:
    drawn = picture(svg_lines("ms", [Series("one", [(10.0, 0.0), (11.0, 4.0), (12.0, 10.0)])]))
    assert drawn.get("viewBox") == "0 0 860 260"
    grid = {float(line.get("y1", "")): (line.get("x1"), line.get("x2")) for line in drawn.iter("line")}
    assert list(grid) == [230.0, 186.4, 142.8, 99.2, 55.6, 12.0]
    assert set(grid.values()) == {("66", "848")}
    (curve,) = drawn.iter("polyline")
    assert curve.get("points") == "66.0,230.0 457.0,142.8 848.0,12.0"
    assert words(drawn) == ["0", "2", "4", "6", "8", "10", "ms", "10", "10.5", "11", "11.5", "12"]
    labels = [(text.get("x"), text.get("y"), text.get("text-anchor")) for text in drawn.iter("text")]
    assert labels[0] == ("60", "234.0", "end")
    assert labels[6] == ("70", "20", None)
    assert labels[7:] == [
        ("66.0", "252", "start"),
        *((f"{x}", "252", "middle") for x in (261.5, 457.0, 652.5)),
        ("848.0", "252", "end"),
    ]


def test_single_point_is_a_dot_in_the_middle_with_one_label() -> None:
    drawn = picture(svg_lines("ms", [Series("one", [(5.0, 3.0)])]))
    assert list(drawn.iter("polyline")) == []
    (dot,) = drawn.iter("circle")
    assert (dot.get("cx"), dot.get("cy")) == ("457.0", "12.0")
    below = [text for text in drawn.iter("text") if text.get("y") == "252"]
    assert [(text.text, text.get("x"), text.get("text-anchor")) for text in below] == [("5", "457.0", "middle")]


def test_values_over_time_count_until_the_next_point_and_have_no_slopes() -> None:
    first = Series("counts", [(NEW_YEAR, 4.0), (NEW_YEAR + 60, 0.0), (NEW_YEAR + 120, None), (NEW_YEAR + 180, 2.0)])
    limit = Series("limit", [(NEW_YEAR, 4.0), (NEW_YEAR + 180, 4.0)])
    drawn = picture(svg_lines("messages", [first, limit], times=True))
    # Four minutes: the last interval takes as much room as the others.
    points = ["66.0,12.0 261.5,12.0 261.5,230.0 457.0,230.0", "652.5,121.0 848.0,121.0", "66.0,12.0 652.5,12.0"]
    curves = [curve.get("points", "") for curve in drawn.iter("polyline")]
    assert curves == [*points[:2], f"{points[2]} 652.5,12.0 848.0,12.0"]
    for curve in curves:
        places = [tuple(map(float, place.split(","))) for place in curve.split()]
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))
    assert words(drawn)[-1] == "00:04:00"
    alone = picture(svg_lines("messages", [Series("one", [(NEW_YEAR, 3.0)])], times=True))
    assert (len(list(alone.iter("circle"))), len(list(alone.iter("polyline")))) == (1, 0)
    assert [others(count, "queue") for count in (1, 1200)] == ["1 other queue", "1,200 other queues"]


def test_gaps_interrupt_a_curve_and_each_curve_has_a_color_of_its_own() -> None:
    first = Series("first", [(0, 1.0), (1, 1.0), (2, None), (3, 1.0), (4, 1.0)])
    drawn = lines("Rate", "1/s", [first, Series("a < b", [(0, 2.0), (4, 2.0)])])
    assert drawn.startswith("<h2>Rate</h2>")
    assert words(picture(drawn))[-5:] == ["0", "1", "2", "3", "4"]
    assert [each.get("stroke") for each in picture(drawn).iter("polyline")] == ["#2f6f9f", "#2f6f9f", "#c8553d"]
    assert '<i style="background:#c8553d"></i>a &lt; b</span>' in drawn
    named = [Series(letter * length, [(0, 1.0)]) for letter, length in (("x", 60), ("y", 61))]
    assert lines("Rate", "1/s", named).endswith(f"</i>{'x' * 60}</span>{SECOND}{'y' * 59}…</span></div>")
    assert lines("Rate", "1/s", [Series("none", [(0, None)])]) == "<h2>Rate</h2><p>No data.</p>"


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0.0, [0.0, 1.0]),
        (1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1.2, [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]),
        (2.0, [0.0, 0.5, 1.0, 1.5, 2.0]),
        (3.0, [0.0, 1.0, 2.0, 3.0]),
        (7.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (0.15, [0.0, 0.05, 0.1, 0.15]),
        (480.0, [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]),
    ],
)
def test_grid_has_round_numbers_up_to_the_largest_value(most: float, ticks: list[float]) -> None:
    drawn = picture(svg_lines("", [Series("one", [(0.0, 0.0), (1.0, most)])]))
    numbers = [float(text.replace(",", "")) for text in words(drawn)[: len(ticks)]]
    assert numbers == pytest.approx(ticks)
    assert len(list(drawn.iter("line"))) == len(ticks)


@pytest.mark.parametrize(
    ("span", "first", "last"),
    [
        (3599, "00:00:00", "00:59:59"),
        (3600, "01-01 00:00", "01-01 01:00"),
        (30 * 86400 - 1, "01-01 00:00", "01-30 23:59"),
        (30 * 86400, "2020-01-01", "2020-01-31"),
    ],
)
def test_times_are_as_exact_as_their_span_needs(span: int, first: str, last: str) -> None:
    drawn = picture(svg_lines("", [Series("one", [(NEW_YEAR, 1.0), (NEW_YEAR + span / 2, 1.0)])], times=True))
    assert [words(drawn)[-5], words(drawn)[-1]] == [first, last]


def test_bars_are_as_long_as_their_values_in_the_given_order() -> None:
    part = bars("Causes", "messages", [("a", 10), ("b" * 36, 5), ("x" * 37, 0)], otherwise="none")
    drawn = picture(part)
    assert drawn.get("viewBox") == "0 0 860 76"
    places = [tuple(bar.get(name) for name in ("x", "y", "width", "height")) for bar in drawn.iter("rect")]
    assert {bar.get("fill") for bar in drawn.iter("rect")} == {"#2f6f9f"}
    assert places == [("230", "4", "540.0", "17"), ("230", "28", "270.0", "17"), ("230", "52", "1.0", "17")]
    assert [(text.get("x"), text.get("y")) for text in drawn.iter("text")][:2] == [("222", "17"), ("776.0", "17")]
    assert words(drawn) == ["a", "10", "b" * 36, "5", f"{'x' * 35}…", "0"]
    assert [title.text for title in drawn.iter("title")] == [
        "a: 10 messages",
        f"{'b' * 36}: 5 messages",
        f"{'x' * 37}: 0 messages",
    ]
    assert "more" not in part
    many = bars("Causes", "messages", [(str(number), number) for number in range(30)], otherwise="none")
    assert len(list(picture(many).iter("rect"))) == 24
    assert many.endswith('<p class="soft">6 more</p>')
    part = bars("Causes", "messages", [(str(number), number) for number in range(30)], otherwise="none", of=1030)
    assert part.endswith('<p class="soft">1,006 more</p>')
    assert "more" not in bars("Causes", "messages", [("x", number) for number in range(24)], otherwise="none")
    assert bars("Causes", "messages", [], otherwise="no <cause>") == "<h2>Causes</h2><p>no &lt;cause&gt;</p>"


def test_cells_are_text_or_numbers_that_can_be_read() -> None:
    row = ["<a>", 1234567, 0.12345, 12.0, 1234.56, True, False, None, 99.96, 100.44, -99.96, NOON]
    shown = table("Table", ["x"] * len(row), [row], of=3)
    cells = [
        "&lt;a&gt;",
        "1,234,567",
        "0.123",
        "12",
        "1,234.6",
        "yes",
        "no",
        "–",
        "100",
        "100.4",
        "-100",
        "2026-11-01 12:00:01",
    ]
    assert [cell.partition("</td>")[0].partition(">")[2] for cell in shown.split("<td")[1:]] == cells
    assert shown.count('class="text"') == 1
    assert shown.endswith('<p class="soft">1 of 3</p>')
    assert " of " not in table("Table", ["x"], [["a"]])
    assert " of " not in table("Table", ["x"], [["a"]], of=1)
    assert tiles(("messages", 1500)).count("<b>1,500</b><span>messages</span>") == 1


def test_page_has_its_title_and_its_parts_in_order() -> None:
    page = Page("Title <1>", "about").add("<p>one</p>").say("bad & sad").say("fine", good=True)
    text = page.html()
    places = [text.index(part) for part in ("Title &lt;1&gt;", "about", "<p>one</p>", "bad &amp; sad", "fine")]
    assert places == sorted(places)
    assert '<p class="say">bad' in text
    assert '<p class="say good">fine' in text
