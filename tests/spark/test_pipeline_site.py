"""The page that lists reports, and runs every night."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from browser import MISSING, browsing, find_browser
from mqcore import errors
from mqcore.cli.program import run
from mqcore.spark import pipelines
from mqcore.spark.pipelines.schedule import next_run, time_of_day, units
from served import clean_environment, wait_until
from spark.made import archive_of
from spark.made import step as made
from spark.recorded import IN_TURN, LENIENT, java_or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*LENIENT, IN_TURN]

BERN = ZoneInfo("Europe/Zurich")


@pytest.fixture(scope="module")
def made_reports(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two reports, of which one found an unaccounted message."""
    directory = tmp_path_factory.mktemp("reports")
    steps = [made("started"), made("produced", 1), made("produced", 2, queue="<b>&/7"), made("delivered", 1)]
    steps += [made("acked", 1, last=True), made("acked", 1, last=True)]
    data = archive_of(directory / "data", steps)
    for name in ("lifecycle", "reconcile"):
        pipelines.run(name, spark, data, directory / "out")
    return directory / "out"


@pytest.fixture
def reports(made_reports: Path, tmp_path: Path) -> Path:
    """A copy of them, which a test may change."""
    return Path(shutil.copytree(made_reports, tmp_path / "out"))


def test_each_run_renews_a_page_that_links_reports_and_queues(reports: Path) -> None:
    page = (reports / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page)
    assert "1 of 2 reports found an error" in page
    # Pipelines with errors come first.
    assert page.index('<li class="bad"') < page.index("reconcile.html") < page.index("lifecycle.html")
    assert "1 unaccounted for" in page
    links = set(re.findall(r'href="([^"#]+)(#[^"]*)?"', page))
    assert {file for file, _ in links} == {"reconcile.html", "lifecycle.html"}
    assert all((reports / file).is_file() for file, _ in links)
    assert ("lifecycle.html", "#:~:text=%3Cb%3E%26%2F7") in links
    assert "&lt;b&gt;&amp;/7" in page
    assert "<b>&/7" not in page
    for name in ("reconcile", "lifecycle"):
        assert '<a href="index.html">' in (reports / f"{name}.html").read_text(encoding="utf-8")


def test_site_is_written_again_from_what_is_there(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (reports / "index.html").read_text(encoding="utf-8")
    (reports / "index.html").unlink()
    (reports / "reconcile.report.json").unlink()
    assert run(["pipeline", "site", "--out", str(reports), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "mqcore.pipeline.site/1",
        "index": str(reports / "index.html"),
    }
    page = (reports / "index.html").read_text(encoding="utf-8")
    assert ("reconcile.html" in before, "reconcile.html" in page) == (True, False)
    (reports / "lifecycle.report.json").write_text("{")
    with pytest.raises(errors.DataDirUnreadable, match=r"damaged description of a report: .*lifecycle\.report\.json"):
        pipelines.write_site(reports)
    (reports / "lifecycle.report.json").unlink()
    assert run(["pipeline", "site", "--out", str(reports)]) == 3
    assert "has no reports; make some with mqcore pipeline run" in capsys.readouterr().err


@pytest.mark.skipif(find_browser() is None, reason=MISSING)
def test_search_finds_reports_and_queues(reports: Path, tmp_path: Path) -> None:
    shown = """[...document.querySelectorAll("li")].filter(item => item.offsetHeight > 0)
      .map(item => item.textContent.trim().split(/\\s+/)[0])"""
    typed = """(text => { const box = document.querySelector("input"); box.value = text;
      box.dispatchEvent(new Event("input")); return document.querySelector("#none").hidden; })"""
    with browsing(tmp_path / "browser") as browser:
        seen = browser.show(reports / "index.html")
        assert (seen.complaints, seen.requests, seen.title) == ([], [], "Reports")
        assert len(browser.value(shown)) == 4
        assert browser.value(f"{typed}('ORDERS')") is True
        assert browser.value(shown) == ["orders/1"] or browser.value(shown)[-1].startswith("orders/1")
        assert browser.value(f"{typed}('unaccounted reconcile')") is True
        assert len(browser.value(shown)) == 1
        assert browser.value(f"{typed}('nothing like this')") is False
        assert browser.value(shown) == []


def test_next_run_is_at_the_local_time_also_when_clocks_change() -> None:
    at = time_of_day("02:30")

    def after(*moment: int) -> str:
        return next_run(datetime(*moment, tzinfo=BERN), at).astimezone(UTC).strftime("%m-%d %H:%M")  # type: ignore[misc]

    assert after(2026, 11, 28, 1) == "11-28 01:30"
    assert after(2026, 11, 28, 2, 30) == "11-29 01:30", "a run does not begin twice"
    assert after(2026, 7, 1, 23) == "07-02 00:30"
    # 02:30 does not exist on March 29, and there are two on October 25.
    assert after(2026, 3, 28, 12) == "03-29 01:30"
    assert after(2026, 10, 24, 12) == "10-25 00:30"
    now = datetime(2026, 11, 28, 1, tzinfo=BERN)
    delays = {(next_run(now, at, 600, chance=Random(seed)) - next_run(now, at)).total_seconds() for seed in range(50)}
    assert len(delays) == 50
    assert min(delays) >= 0
    assert 500 < max(delays) <= 600
    assert time_of_day("2:05:09").isoformat() == "02:05:09"
    for wrong in ("24:00", "12:60", "noon", "12", "12:00:60"):
        with pytest.raises(errors.ConfigError, match="invalid time of day"):
            time_of_day(wrong)


def test_units_of_systemd_start_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--journal", "/var/lib/my broker", "--out", "reports%$", "--set", "gap=60", "--systemd", str(tmp_path)]
    arguments = ["pipeline", "schedule", "sessions", "limits", *place, "--at", "03:15", "--jitter", "5m"]
    assert run([*arguments, "--user", "mqcore", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["files"] == [str(tmp_path / f"mqcore-pipelines.{kind}") for kind in ("service", "timer")]
    service, timer = (Path(path).read_text() for path in printed["files"])
    out = str(Path("reports%$").absolute()).replace("%", "%%").replace("$", "$$")
    assert (
        f"\nExecStart={sys.executable} -m mqcore pipeline run sessions limits --journal '/var/lib/my broker' "
        f"--out '{out}' --driver-memory 2g --set gap=60\n" in service
    )
    assert "\nUser=mqcore\n" in service
    assert "\nOnCalendar=*-*-* 03:15:00\nRandomizedDelaySec=300\n" in timer
    assert "\nPersistent=true\n" in timer
    assert "User=" not in units(["x"], time_of_day("1:00"), 0)["mqcore-pipelines.service"]
    assert run([*arguments[:-4], "--systemd", str(tmp_path / "missing")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    for wrong in (["--at", "25:00"], ["--set", "nothing=1"]):
        assert run([*arguments, *wrong]) == 2, "at once, not at night"


def soon(seconds: float = 2) -> str:
    """A time of day that comes after at least so many seconds."""
    return (datetime.now() + timedelta(seconds=seconds + 1)).strftime("%H:%M:%S")


def test_schedule_runs_at_its_time_and_continues_after_a_failure(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    (data / "archive" / "messages").mkdir(exist_ok=True)
    at, begun = soon(), time.time()
    names = ("features", "reconcile", "sessions")
    place = ("--journal", str(data), "--out", str(tmp_path / "out"), "--set", "queue=missing/1")
    code = run(["pipeline", "schedule", *names, *place, "--at", at, "--jitter", "0", "--count", "1", "--json"])
    assert time.time() - begun >= 2
    output = capsys.readouterr()
    assert f" {at} " in output.err.splitlines()[0]
    assert "mqcore: features: the history has no message of queue 'missing/1'" in output.err
    assert [json.loads(line)["name"] for line in output.out.splitlines()] == ["reconcile", "sessions"]
    assert code == 3, "that of the first failure"
    page = (tmp_path / "out" / "index.html").read_text()
    assert "reconcile.html" in page
    assert "sessions.html" in page


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "mqcore", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.full("starts a Spark of its own; test_schedule_runs_at_its_time_... uses the session of the other tests")
def test_a_scheduled_program_runs_until_it_is_stopped(tmp_path: Path) -> None:
    java_or_skip()
    data = archive_of(tmp_path / "data", [made("started"), made("produced", 1)])
    place = ("--journal", str(data), "--out", str(tmp_path / "out"), "--master", "local[2]", "--json")
    with program("pipeline", "schedule", "reconcile", *place, "--at", soon(8), "--jitter", "0") as process:
        report: Callable[[], bool] = (tmp_path / "out" / "index.html").exists
        wait_until(report, limit=200, what="the report")
        assert process.stdout is not None
        printed: dict[str, Any] = json.loads(process.stdout.readline())
        assert (printed["name"], printed["ok"]) == ("reconcile", True)
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) != 0
