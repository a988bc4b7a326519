"""Users and blocked handlers in the dashboard, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import test_handler_stacks
from mqcore import QueueOptions, QueueStatus, admin, errors, sync
from served import serving
from test_admin_changes import Place, new_token
from test_cli import mqcore
from test_dashboard import browser, page, playwright, pytestmark  # noqa: F401 (fixtures and marks)
from test_dashboard_pages import open_page, plain  # noqa: F401 (fixture)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from served import ServedBroker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with users and tokens."""
    data = tmp_path_factory.mktemp("users") / "data"
    data.mkdir(mode=0o700)
    tokens = {"all": new_token(data, "all", "*"), "viewer": new_token(data, "viewer", "inspect")}
    tokens["clerk"] = new_token(data, "clerk", "inspect", "administer:/users*", "administer:/tokens*")
    rules = ("--allow", "push,pull:orders/*", "--from", "10.0.0.0/8")
    made = mqcore("user", "add", "ann", *rules, "--data-dir", str(data), stdin="correct horse battery\n")
    assert made.returncode == 0, made.stderr
    made = mqcore("token", "create", "robot", "--allow", "push:*", "--expires", "2h", "--data-dir", str(data))
    assert made.returncode == 0, made.stderr
    listen = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving(*listen, "--data-dir", str(data)) as broker:
        yield Place(broker, tokens | {"robot": made.stdout.decode().strip()})


def rows(table: Locator) -> dict[str, list[str]]:
    """The cells of each row by the first cell."""
    found = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    return {cells[0]: cells[1:] for cells in found}


def test_users_and_tokens_are_listed_without_secrets(page: Page, place: Place) -> None:  # noqa: F811
    with (
        sync.connect(place.broker.url, token=place.tokens["robot"]),
        sync.connect(place.broker.url, token=place.tokens["robot"]),
    ):
        open_page(page, place, "/users")
        tokens = page.get_by_role("region", name="tokens")
        playwright.expect(tokens.locator("tbody tr", has_text="robot").locator("td").nth(5)).to_have_text("2")
        users = page.get_by_role("region", name="users", exact=True)
        assert rows(users)["ann"] == [
            "password",
            "push,pull:orders/*",
            "address 10.0.0.0/8",
            "0",
            "store",
            "remove …",
        ]
        shown = rows(tokens)
        assert shown.keys() == {"all", "viewer", "clerk", "robot"}
        assert shown["robot"][1] in ("in 119 min", "in 120 min")
        assert shown["robot"][2] == "push"
        assert shown["all"][1] == "never"
        text = page.content()
        for secret in (place.tokens["robot"].rsplit("_", 1)[1], "correct horse"):
            assert secret not in text
    playwright.expect(tokens.locator("tbody tr", has_text="robot").locator("td").nth(5)).to_have_text("0")


def test_tokens_are_created_and_revoked(page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, "/users")
    page.get_by_role("button", name="create a token …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("visitor")
    dialog.get_by_label("Rules, one in each line").fill("push:orders/*\n\ninspect")
    dialog.get_by_label("Days until it expires; empty: never").fill("2")
    dialog.get_by_role("button", name="create").click()
    created = page.get_by_role("dialog", name="Token visitor")
    secret = created.locator("pre").inner_text()
    created.get_by_role("button", name="done").click()
    row = page.get_by_role("region", name="tokens").locator("tbody tr", has_text="visitor")
    playwright.expect(row.locator("td").nth(3)).to_have_text("push:orders/* inspect ")
    with sync.connect(place.broker.url, token=secret):
        playwright.expect(row.locator("td").nth(5)).to_have_text("1")
        row.get_by_role("button", name="revoke visitor").click()
        page.get_by_role("dialog").get_by_role("button", name="revoke the token").click()
        page.get_by_text("token visitor is revoked").wait_for()
        playwright.expect(row).to_have_count(0)
    with pytest.raises(errors.AuthFailed):
        sync.connect(place.broker.url, token=secret)


def test_users_are_removed_after_a_question(page: Page, place: Place) -> None:  # noqa: F811
    admin.add_user(place.url, "bob", password="correct horse", token=place.token)
    open_page(page, place, "/users")
    row = page.get_by_role("region", name="users", exact=True).locator("tbody tr", has_text="bob")
    row.get_by_role("button", name="remove bob").click()
    page.get_by_role("dialog").get_by_role("button", name="keep it").click()
    playwright.expect(row).to_have_count(1)
    row.get_by_role("button", name="remove bob").click()
    page.get_by_role("dialog").get_by_role("button", name="remove the user").click()
    page.get_by_text("user bob is removed").wait_for()
    playwright.expect(row).to_have_count(0)


def test_a_refused_change_is_explained(page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, "/users", "clerk")
    page.get_by_role("button", name="create a token …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("chief")
    dialog.get_by_label("Rules, one in each line").fill("administer")
    dialog.get_by_role("button", name="create").click()
    page.get_by_text("your own credentials do not allow administer").wait_for()
    assert page.get_by_role("region", name="tokens").locator("tbody tr", has_text="chief").count() == 0


def test_viewer_learns_which_right_is_missing(page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, "/users", "viewer")
    note = page.get_by_role("note")
    playwright.expect(note).to_contain_text("administer:/users")
    assert page.get_by_role("region", name="users", exact=True).count() == 0


def test_broker_without_users_says_that_all_is_open(page: Page, plain: ServedBroker) -> None:  # noqa: F811
    page.goto(f"{plain.admin_url}/#/users")
    page.get_by_text("There are neither users nor tokens").wait_for()
    playwright.expect(page.locator("pre")).to_contain_text("mqcore token create")


def test_the_stack_of_a_blocked_handler_is_a_click_away(page: Page, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "shop.py").write_text(test_handler_stacks.APP)
    listen = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving("--app", "shop:app", *listen, environment={"PYTHONPATH": str(tmp_path)}) as broker:
        with sync.connect(broker.url) as mq:
            mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="sleeps"))
            mq.publish("work/1", "30", confirm=False)
            page.goto(broker.admin_url)
            finding = page.locator("li", has_text="blocked-handler")
            playwright.expect(finding).to_contain_text("mqcore stack sleeps", timeout=15_000)
            finding.get_by_role("button", name="show what it executes").click()
            stack = page.get_by_label("stack of sleeps")
            playwright.expect(stack).to_contain_text("time.sleep(float(body))")
            playwright.expect(stack).to_contain_text("in look_up")
            shown = mqcore("stack", "sleeps", "--url", broker.admin_url)
            assert shown.returncode == 0, shown.stderr
            assert "in received_from_producer" in shown.stdout.decode()
            assert shown.stdout.decode().rstrip().endswith("time.sleep(float(body))")
            assert "sleeps: running" in shown.stderr.decode()
            unknown = mqcore("stack", "nope", "--url", broker.admin_url)
            assert "there are sleeps, waits, holds it" in unknown.stderr.decode()
            assert unknown.returncode == 3
        broker.process.kill()
