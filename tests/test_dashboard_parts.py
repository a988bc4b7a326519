"""Jobs, limits and router tests in the dashboard, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from job_processes import broker_url, working
from mqcore import QueueOptions, QueueStatus, admin, errors
from mqcore.jobs import Jobs
from mqcore.throttr import SyncClient
from served import wait_until
from test_admin_changes import Place
from test_admin_parts import folder, gate, job_queue, place, throttr  # noqa: F401 (fixtures)
from test_dashboard import browser, page, playwright, pytestmark, serious_findings  # noqa: F401 (fixtures and marks)
from test_dashboard_pages import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

HELD = '''
"""Jobs that run until a file exists."""

import pathlib
import time

from mqcore.jobs import Jobs

jobs = Jobs()


@jobs.task(queue="held")
def hold(path: str) -> str:
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return "released"
'''


def test_failed_jobs_are_shown_with_their_errors_and_retried(
    page: Page,  # noqa: F811
    place: Place,  # noqa: F811
    gate: Path,  # noqa: F811
) -> None:
    open_page(page, place, "/jobs")
    queues = page.get_by_role("region", name="queues of jobs")
    playwright.expect(queues.locator("tbody tr", has_text="mail").locator("td").nth(5)).to_have_text("3")
    playwright.expect(page.get_by_role("region", name="workers", exact=True)).to_contain_text("mail (weight 10)")
    queues.get_by_role("button", name="3 failed jobs in mail/65535").click()
    failed = page.get_by_role("region", name="failed jobs", exact=True)
    playwright.expect(failed.locator("tbody tr")).to_have_count(3)
    playwright.expect(failed).to_contain_text("ValueError: mailbox 0 is full")
    playwright.expect(failed).to_contain_text("mail_jobs.send")
    assert serious_findings(page) == []

    report = page.get_by_role("region", name="Failed jobs in mail/65535").locator(".report")
    failed.get_by_role("button", name="discard").last.click()
    playwright.expect(report).to_have_text("1 jobs are discarded")
    gate.touch()
    failed.get_by_role("button", name="retry").first.click()
    playwright.expect(report).to_have_text("1 jobs are returned to their queues")
    playwright.expect(failed.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="retry all").click()
    playwright.expect(page.get_by_text("There are no failed jobs.")).to_be_visible()
    wait_until(lambda: (found := job_queue(place, "mail")) is not None and found.finished >= 5, what="both retries")
    playwright.expect(queues.locator("tbody tr", has_text="mail").locator("td").nth(5)).to_have_text("0")


def test_a_viewer_sees_no_keys_of_limits_and_no_tests_of_routers(page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, "/limits", "viewer")
    playwright.expect(page.get_by_role("note")).to_contain_text("administer:/limits")
    page.goto(f"{place.url}/#/routing")
    playwright.expect(page.get_by_role("region", name="bindings of events")).to_be_visible()
    assert page.get_by_role("button", name="where would a message go?").count() == 0


def test_a_counter_is_found_changed_and_reset(page: Page, place: Place) -> None:  # noqa: F811
    with SyncClient(throttr(place)) as client:
        for number in range(120):
            client.insert(f"user:{number:03}", number, 600)
        open_page(page, place, "/limits")
        limits = page.get_by_role("region", name="counters and buffers")
        page.get_by_placeholder("filter by key").fill("user:")
        playwright.expect(limits.locator("tbody tr")).to_have_count(100)
        limits.get_by_role("button", name="left", exact=True).click()
        playwright.expect(limits.locator("tbody tr").first).to_contain_text("user:119")
        page.get_by_role("button", name="next").click()
        playwright.expect(limits.locator("tbody tr")).to_have_count(20)
        page.get_by_placeholder("filter by key").fill("user:007")
        limits.get_by_role("button", name="set user:007", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Left").fill("x")
        playwright.expect(dialog.get_by_role("button", name="set", exact=True)).to_be_disabled()
        dialog.get_by_label("Left").fill("77")
        dialog.get_by_role("button", name="set", exact=True).click()
        playwright.expect(page.locator(".report")).to_have_text("user:007 has 77 left")
        counter = client.query("user:007")
        assert counter is not None
        assert counter.quota == 77
        assert serious_findings(page) == []
        limits.get_by_role("button", name="reset user:007").click()
        playwright.expect(page.locator(".report")).to_contain_text("is reset")
        assert client.query("user:007") is None


def test_the_routing_page_shows_where_a_message_would_go(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("orders-fr", 1, QueueOptions(status=QueueStatus.PULL))
    open_page(page, place, "/routing")
    page.get_by_role("button", name="where would a message go? (by-country)").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Headers").fill("nonsense")
    dialog.get_by_role("button", name="test", exact=True).click()
    playwright.expect(dialog.get_by_role("alert")).to_contain_text("has no colon")
    dialog.get_by_label("Headers").fill("Country: fr\n")
    dialog.get_by_role("button", name="test", exact=True).click()
    route = dialog.get_by_role("region", name="route")
    playwright.expect(route).to_contain_text("orders-fr/1")
    playwright.expect(route).to_contain_text("accepts")
    playwright.expect(dialog.get_by_role("status")).to_contain_text("Nothing was sent")
    assert serious_findings(page) == []
    dialog.get_by_role("button", name="close").click()
    playwright.expect(dialog).to_have_count(0)
    assert admin.queues(place.url, matching="orders-fr", token=place.token).queues[0].ready == 0


@pytest.fixture
def hold(place: Place, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Any]]:  # noqa: F811
    """A file that lets jobs end, and the jobs; a worker runs one at a time."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "held_jobs.py").write_text(HELD)
    url = broker_url(place.broker).replace("://", f"://{place.tokens['staff']}@")
    arguments = ("--queues", "held", "--concurrency", "1")
    with Jobs(url) as jobs, working(url, *arguments, app="held_jobs:jobs"):
        task = jobs.task(name="held_jobs.hold", queue="held")(hold_until)
        yield tmp_path / "gate", task


def hold_until(path: str) -> str:
    """Have the signature of the task in `HELD`."""
    return path


def test_running_and_waiting_jobs_are_cancelled_after_a_question(
    page: Page,  # noqa: F811
    place: Place,  # noqa: F811
    hold: tuple[Path, Any],
) -> None:
    released, task = hold
    soft, hard, waits, stays = (task.enqueue(str(released)) for _ in range(4))
    wait_until(lambda: [job.id for job in running(place)] == [soft.id], what="the first job")
    open_page(page, place, "/jobs")
    jobs, report = page.get_by_role("region", name="running jobs", exact=True), page.locator(".report")
    playwright.expect(jobs.locator("tbody tr")).to_have_count(1)
    playwright.expect(jobs).to_contain_text("held/0")

    page.get_by_role("button", name=f"cancel {soft.id}").click()
    page.get_by_role("button", name="keep it").click()
    assert [job.id for job in running(place)] == [soft.id]
    page.get_by_role("button", name=f"cancel {soft.id}").click()
    page.get_by_role("button", name="ask it to end").click()
    playwright.expect(report).to_have_text(f"job {soft.id} is cancelled")
    with pytest.raises(errors.JobCancelled):
        soft.result("10s")

    page.get_by_role("button", name=f"cancel {hard.id}").click()
    assert serious_findings(page) == []
    page.get_by_role("button", name="kill its process").click()
    playwright.expect(report).to_have_text(f"job {hard.id} is cancelled")
    with pytest.raises(errors.JobCancelled):
        hard.result("10s")
    wait_until(lambda: [job.id for job in running(place)] == [waits.id], what="the third job")
    released.touch()
    assert waits.result("10s") == "released"
    assert stays.result("10s") == "released"


def test_a_waiting_job_is_cancelled_after_a_question(
    page: Page,  # noqa: F811
    place: Place,  # noqa: F811
    hold: tuple[Path, Any],
) -> None:
    released, task = hold
    runs, waits, stays = (task.enqueue(str(released)) for _ in range(3))
    wait_until(lambda: [job.id for job in running(place)] == [runs.id], what="the first job")
    open_page(page, place, "/jobs")
    page.get_by_role("button", name="2 waiting jobs in held/0").click()
    rows = page.get_by_role("region", name="waiting jobs", exact=True).locator("tbody tr")
    playwright.expect(rows).to_have_count(2)
    playwright.expect(rows.first).to_contain_text("held_jobs.hold")
    assert serious_findings(page) == []
    page.get_by_role("button", name=f"cancel {waits.id}").click()
    page.get_by_role("button", name="cancel the job").click()
    playwright.expect(page.get_by_text(f"job {waits.id} is cancelled")).to_be_visible()
    playwright.expect(rows).to_have_count(1)
    playwright.expect(rows).to_contain_text(stays.id)
    with pytest.raises(errors.JobCancelled):
        waits.result("10s")
    released.touch()
    assert [runs.result("10s"), stays.result("10s")] == ["released", "released"]


def test_a_viewer_sees_running_jobs_and_cannot_cancel_them(
    page: Page,  # noqa: F811
    place: Place,  # noqa: F811
    hold: tuple[Path, Any],
) -> None:
    released, task = hold
    job = task.enqueue(str(released))
    wait_until(lambda: len(running(place)) == 1, what="the job")
    open_page(page, place, "/jobs", "viewer")
    jobs = page.get_by_role("region", name="running jobs", exact=True)
    playwright.expect(jobs).to_contain_text(job.id)
    assert jobs.get_by_role("button").count() == 0
    released.touch()
    assert job.result("10s") == "released"


def running(place: Place) -> tuple[admin.RunningJob, ...]:  # noqa: F811
    """Running jobs."""
    return admin.jobs(place.url, token=place.token).running
