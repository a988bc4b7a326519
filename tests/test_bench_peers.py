"""Report and plots of `make bench-peers`; `make test-peers` runs the comparison itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
# At the end: other files there have the names of test modules.
sys.path.append(str(ROOT / "benches"))

from peers import plots, report  # noqa: E402
from peers.measuring import Competitor, Effort, Sample  # noqa: E402
from peers.place import Missing, Program  # noqa: E402
from peers.rows import ROWS  # noqa: E402

# A benchmark has the name of the package `hostile` of the tests, and would be imported instead of it.
sys.path.remove(str(ROOT / "benches"))


def sample(**values: float) -> Sample:
    """A run whose server used 2 s of processor time and has 10 MiB."""
    return Sample(values, 2.0, 10.0, 0.25)


def found() -> dict[str, Any]:
    """A result of two rows: of rates, and of times. One broker of each is skipped."""
    rates = [
        Competitor("mqcore", [sample(rate=rate, messages=1e6) for rate in (900, 3000, 1000)]),
        Competitor("redis", [sample(rate=500, messages=4e6)] * 3),
        Competitor("nats", [], "no listener"),
    ]
    times = [
        Competitor("mqcore", [sample(p50=200, p99=400, messages=0)]),
        Competitor("nats", [sample(p50=50, p99=60, messages=10)]),
    ]
    rows = [(ROWS["publish-unconfirmed"], rates), (ROWS["publish-confirmed"], times)]
    installed: dict[str, Program | Missing] = {"rabbitmq": Missing("no package")}
    return report.result(rows, installed, {"nats-py": "2.0"}, Effort(3, 1.5))


def test_result_has_medians_costs_and_reasons() -> None:
    result = found()
    assert result["schema"] == "mqcore.bench-peers/1"
    assert (result["skipped"], result["versions"]) == ({"rabbitmq": "no package"}, {"nats-py": "2.0"})
    ours = result["rows"][0]["competitors"]["mqcore"]
    assert (ours["median"], ours["smallest"], ours["largest"]) == (1000, 900, 3000)
    assert ours["values"] == [900, 3000, 1000]
    assert (ours["cpu_seconds_per_million"], ours["resident_mib"], ours["disturbance"]) == (2.0, 10.0, 0.25)
    assert result["rows"][0]["competitors"]["redis"]["cpu_seconds_per_million"] == 0.5
    assert result["rows"][0]["competitors"]["nats"] == {"skipped": "no listener"}
    assert result["rows"][1]["competitors"]["nats"]["others"]["p99"]["median"] == 60
    # No message, no cost of one.
    assert result["rows"][1]["competitors"]["mqcore"]["cpu_seconds_per_million"] is None


def test_table_states_by_how_much_mqcore_is_better_in_both_directions() -> None:
    lines = report.table(found()).splitlines()
    cells = {line.split(" | ")[1]: line.split(" | ") for line in lines if line.startswith(("| Python", "|  |"))}
    redis, nats = cells["redis"], cells["nats"]
    assert redis[4] == "2.00 x"
    assert nats[2:5] == ["50; p99 60", "50..50", "0.25 x"]
    assert [line for line in lines if "no listener" in line] == []
    assert any(line.startswith("| nats | core, or JetStream") for line in lines)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_longest_bar_is_the_best_in_both_directions(theme: str) -> None:
    picture = ElementTree.fromstring(plots.plot(found(), theme))
    namespace = "{http://www.w3.org/2000/svg}"
    bars = [float(bar.attrib["width"]) for bar in picture.iter(f"{namespace}rect") if "rx" in bar.attrib]
    ours, redis, slower, nats = bars
    assert (redis, slower) == (ours / 2, nats / 4)
    shown = " ".join(text.text or "" for text in picture.iter(f"{namespace}text"))
    assert "1,000 messages/s" in shown
    assert "less is better; the longest bar is the best" in shown


def test_table_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.insert(found(), page, "images")
        text = page.read_text()
        assert text.startswith(f"before\n{report.BEGIN}\n")
        assert text.endswith(f"{report.END}\nafter\n")
        assert "old" not in text
        assert text.count("| work |") == 1
        assert 'srcset="images/peers-dark.svg"' in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="add them where the table belongs"):
        report.insert(found(), page, "images")


def test_page_about_performance_has_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text())
    report.insert(found(), page, "images")


def test_every_row_has_mqcore_first_and_one_program_for_each_competitor() -> None:
    for row in ROWS.values():
        assert next(iter(row.entries)) == "mqcore"
        for entry in row.entries.values():
            is_load = entry.program == "load"
            assert is_load == bool(row.load)
            assert is_load or (ROOT / "benches" / "peers" / "clients" / f"{entry.program}.py").exists()
            assert (entry.server is None) == (not entry.addresses)
