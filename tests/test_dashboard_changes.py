"""Changes from the dashboard in a real browser: what an administrator can do, and what a viewer cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mqcore import QueueOptions, QueueStatus
from served import serving, wait_until
from test_admin_changes import SAVING, WORK, Place, fail_all, new_token
from test_dashboard import browser, page, playwright, pytestmark  # noqa: F401 (fixtures and marks)

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with an administrator and a viewer."""
    data = tmp_path_factory.mktemp("dashboard") / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, rule) for name, rule in (("all", "*"), ("viewer", "inspect"))}
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--auto-create") as broker:
        yield Place(broker, tokens)


def open_queue(page: Page, place: Place, queue: str, who: str) -> None:  # noqa: F811
    """Log in and open the page of a queue."""
    page.goto(f"{place.url}/#/queue?name={queue}")
    page.get_by_label("Token with the right").fill(place.tokens[who])
    page.get_by_role("button", name="show the dashboard").click()
    page.get_by_role("heading", name=queue).wait_for()
    page.get_by_text(who, exact=True).or_(page.get_by_text(f"{who} (may only look)")).first.wait_for()


def test_a_queue_is_purged_only_after_its_name_is_typed(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("purged", 1, SAVING)
        client.publish_many("purged/1", ["1", "2", "3"])
    open_queue(page, place, "purged/1", "all")
    page.get_by_role("button", name="purge …").click()
    dialog = page.get_by_role("dialog", name="Purge purged/1")
    playwright.expect(dialog.get_by_text("This removes 3 messages for good.")).to_be_visible()
    confirm = dialog.get_by_role("button", name="purge")
    playwright.expect(confirm).to_be_disabled()
    dialog.get_by_label("Type purged/1 to confirm").fill("purged/2")
    playwright.expect(confirm).to_be_disabled()
    dialog.get_by_label("Type purged/1 to confirm").press("Enter")
    assert place.contents("purged/1").ready == 3, "another name confirms nothing"
    page.keyboard.press("Escape")
    playwright.expect(dialog).to_be_hidden()
    assert place.contents("purged/1").ready == 3
    page.get_by_role("button", name="purge …").click()
    dialog.get_by_label("Type purged/1 to confirm").fill("purged/1")
    confirm.click()
    playwright.expect(page.get_by_text("purged/1 is empty")).to_be_visible()
    assert place.contents("purged/1").ready == 0


def test_dead_letters_return_to_their_queue(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("letters", 1, WORK)
        fail_all(client, "letters/1", ["a", "b"])
    wait_until(lambda: place.contents("letters/65535").ready == 2, what="both are dead letters")
    open_queue(page, place, "letters/65535", "all")
    page.get_by_role("button", name="return to their queues").click()
    playwright.expect(page.get_by_text("moved 2 messages; 0 are left")).to_be_visible()
    assert place.contents("letters/1").ready == 2


def test_messages_move_and_a_rejection_is_shown(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("from", 1, SAVING)
        client.declare("to", 1, QueueOptions(status=QueueStatus.PULL, message_limit=1))
        client.publish_many("from/1", ["1", "2"])
    open_queue(page, place, "from/1", "all")
    page.get_by_role("button", name="move …", exact=True).click()
    dialog = page.get_by_role("dialog", name="Move the messages of from/1")
    dialog.get_by_label("To queue").fill("to/1")
    dialog.get_by_role("button", name="move", exact=True).click()
    playwright.expect(page.get_by_text(re.compile(r"moved 1 messages; 1 are left: queue to/1 is full"))).to_be_visible()


def test_a_queue_is_paused_and_continues_as_before(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("paused", 1, WORK)
    open_queue(page, place, "paused/1", "all")
    page.get_by_role("button", name="pause", exact=True).click()
    playwright.expect(page.get_by_text("paused/1 is paused")).to_be_visible()
    page.get_by_role("button", name="continue as roundrobin").click()
    playwright.expect(page.get_by_text("paused/1 is roundrobin")).to_be_visible()
    assert place.contents("paused/1").status == "roundrobin"


def test_a_viewer_sees_neither_buttons_nor_messages_and_is_refused(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("viewed", 1, SAVING)
        client.publish("viewed/1", "secret")
    open_queue(page, place, "viewed/1", "viewer")
    playwright.expect(page.get_by_text("viewer (may only look)")).to_be_visible()
    for name in ("pause", "move …", "purge …", "remove …", "show the next messages"):
        assert page.get_by_role("button", name=name, exact=True).count() == 0, name
    status = page.evaluate(
        """async (token) => {
            const answer = await fetch("/queues/viewed/1/purge", {
                method: "POST", headers: { Authorization: `Bearer ${token}` },
            });
            return answer.status;
        }""",
        place.tokens["viewer"],
    )
    assert status == 403
    assert place.contents("viewed/1").ready == 1
    page.get_by_role("button", name="log out").click()
    page.get_by_label("Token with the right").wait_for()
