"""Reports of pipelines in a real browser: no errors, visible plots, and readable text in both color schemes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import MISSING, Browser, browsing, find_browser
from depth import FULL, choices
from mqcore.spark import pipelines
from spark.eventful import Eventful
from spark.made import archive_of
from spark.recorded import LENIENT
from spark.weeks import PLANTED, Weeks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT[1:], pytest.mark.timeout(900), pytest.mark.skipif(find_browser() is None, reason=MISSING)]

PLOTS = {
    "lifecycle": 5,
    "reconcile": 1,
    "deadletters": 1,
    "limits": 1,
    "sessions": 1,
    "features": 3,
    "compact": 2,
    "replay": 2,
    "quality": 1,
    "cost": 5,
    "anomalies": 5,
}
"""How many plots each report has at least, over this history."""

# A plot is seen if it has a size, if something is drawn within it that has one, and if no word of it is cut off.
LOOK = """(() => {
  const box = element => element.getBoundingClientRect();
  const plots = [...document.querySelectorAll("svg")].map(plot => {
    const frame = box(plot);
    const marks = [...plot.querySelectorAll("rect, polyline, circle")].map(box);
    const words = [...plot.querySelectorAll("text")].map(box);
    const inside = b => b.left >= frame.left - 1 && b.right <= frame.right + 1 && b.top >= frame.top - 1
      && b.bottom <= frame.bottom + 1;
    return {width: frame.width, height: frame.height, marks: marks.length,
      drawn: marks.filter(b => b.width >= 1 || b.height >= 1).length, inside: marks.every(inside),
      cut: words.filter(b => !inside(b)).length};
  });
  const lights = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = lights(getComputedStyle(document.body).backgroundColor);
  const contrast = element => {
    const style = getComputedStyle(element);
    const ink = lights(element instanceof SVGElement ? style.fill : style.color);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  };
  const read = [...document.querySelectorAll("h1, h2, p, td, th, svg text")];
  return {plots, ground, wide: document.documentElement.scrollWidth > innerWidth,
    contrast: Math.min(...read.map(contrast)), tables: document.querySelectorAll("td").length};
})()"""


@pytest.fixture(scope="module")
def report(spark: SparkSession, eventful: Eventful, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of the pipeline of a name, which runs once."""
    out = tmp_path_factory.mktemp("reports")
    options: dict[str, dict[str, Any]] = {"lifecycle": {"interval": 1}, "limits": {"window": 1, "limit": 50}}
    options["anomalies"] = {"hours": 48}
    assert set(PLOTS) == set(pipelines.NAMES), "every pipeline's report is looked at"

    def run(name: str) -> Path:
        # Only weeks have unusual hours.
        data = weeks_in(out / "weeks") if name == "anomalies" else eventful.data_dir
        return pipelines.run(name, spark, data, out, **options.get(name, {})).report

    return functools.cache(run)


def weeks_in(directory: Path) -> Path:
    """A history with planted anomalies."""
    weeks = Weeks(1)
    weeks.add("orders/1", 60, PLANTED)
    return archive_of(directory, weeks.steps, together=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.mark.parametrize("name", sorted(PLOTS) if FULL else sorted(choices(__name__).sample(sorted(PLOTS), 2)))
def test_a_report_is_seen_whole_by_day_and_by_night(name: str, report: Callable[[str], Path], browser: Browser) -> None:
    grounds = {}
    for dark in (False, True):
        seen = browser.show(report(name), dark=dark)
        assert seen.title
        assert (seen.complaints, seen.requests) == ([], [])
        looks = browser.value(LOOK)
        assert len(looks["plots"]) >= PLOTS[name]
        for plot in looks["plots"]:
            assert plot["width"] > 300
            assert plot["height"] > 15
            assert 0 < plot["marks"] == plot["drawn"]
            assert plot["inside"]
            assert plot["cut"] == 0
        assert looks["tables"] > 0
        assert not looks["wide"], "what is wide scrolls by itself, and the page does not"
        assert looks["contrast"] >= 4.5, "words can be read on this ground"
        grounds[dark] = looks["ground"]
    assert grounds[False] > 0.8 > 0.2 > grounds[True]


def test_wide_tables_scroll_and_their_headings_stay(report: Callable[[str], Path], browser: Browser) -> None:
    """No column is cut off: where the page is too narrow, the table scrolls, with the mouse and with the keyboard."""
    look = """(() => {
      const found = [...document.querySelectorAll(".wide")].map(box => {
        const table = box.querySelector("table"), last = table.querySelector("tr").lastElementChild;
        const needed = table.offsetWidth > box.clientWidth;
        box.scrollLeft = box.scrollWidth;
        const seen = last.getBoundingClientRect().right <= box.getBoundingClientRect().right + 1;
        const first = table.querySelector("th"), kept = first.getBoundingClientRect().left
          <= box.getBoundingClientRect().left + 1;
        return {needed, scrolls: getComputedStyle(box).overflowX, focus: box.tabIndex, seen, kept};
      });
      return {found, cut: [...document.querySelectorAll("td")].filter(cell => cell.scrollWidth > cell.clientWidth + 1)
        .map(cell => cell.textContent)};
    })()"""
    for width in (1400, 700):
        browser.show(report("lifecycle"), width=width)
        looks = browser.value(look)
        assert width == 1400 or any(each["needed"] for each in looks["found"])
        for each in looks["found"]:
            assert (each["scrolls"], each["focus"], each["seen"], each["kept"]) == ("auto", 0, True, True)
        assert looks["cut"] == []


def test_curves_over_time_have_steps(report: Callable[[str], Path], browser: Browser) -> None:
    browser.show(report("lifecycle"))
    slopes = browser.value(
        """[...document.querySelectorAll("polyline")].flatMap(curve => [...curve.points].slice(1).filter((point, at) =>
        point.x !== curve.points[at].x && point.y !== curve.points[at].y)).length"""
    )
    assert slopes == 0


def test_on_a_narrow_screen_the_page_does_not_scroll_sideways(report: Callable[[str], Path], browser: Browser) -> None:
    browser.show(report("reconcile"), width=380)
    assert not browser.value(LOOK)["wide"]
