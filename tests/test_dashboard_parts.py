"""Jobs, limits and router tests in the dashboard, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqcore import QueueOptions, QueueStatus, admin
from mqcore.throttr import SyncClient
from served import wait_until
from test_admin_changes import Place
from test_admin_parts import folder, gate, job_queue, place, throttr  # noqa: F401 (fixtures)
from test_dashboard import browser, page, playwright, pytestmark, serious_findings  # noqa: F401 (fixtures and marks)
from test_dashboard_pages import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page


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

    failed.get_by_role("button", name="discard").last.click()
    playwright.expect(page.locator(".report")).to_have_text("1 jobs are discarded")
    gate.touch()
    failed.get_by_role("button", name="retry").first.click()
    playwright.expect(page.locator(".report")).to_have_text("1 jobs are returned to their queues")
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
