"""The dashboard in a real browser: live figures, a broker that restarts, rights, the keyboard, both themes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqcore import QueueOptions, QueueStatus, sync
from ports import free_ports
from served import ROOT, ServedBroker, serving
from test_cli import mqcore as cli

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
INDEX = ROOT / "python" / "mqcore" / "_dashboard" / "index.html"

pytestmark = [
    pytest.mark.full("a browser needs seconds for each page"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian's package chromium)"),
    pytest.mark.skipif(not INDEX.exists(), reason="the dashboard is not built (make dashboard)"),
    pytest.mark.timeout(180),
]

WAIT_MS = 20_000
PAGES = (
    *(
        "#/",
        "#/queues",
        "#/connections",
        "#/routing",
        "#/trace",
        "#/jobs",
        "#/schedules",
        "#/limits",
        "#/users",
        "#/system",
    ),
    *("#/queue?name=orders/1", "#/trace?id=traced", "#/trace?id=unknown"),
)
MAIN = ROOT / "dashboard" / "src" / "main.tsx"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose console must stay silent."""
    complaints: list[str] = []
    opened = browser.new_page()
    opened.set_default_timeout(WAIT_MS)

    def hear(message: ConsoleMessage) -> None:
        # A broker that is down, or wants a token, makes the browser itself complain.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    opened.on("console", hear)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert not complaints


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """A broker with some queues."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as served:
        with sync.connect(served.url) as mq:
            mq.declare("orders", 1, QueueOptions(status=QueueStatus.PULL))
            for number in range(3):
                mq.publish("orders/1", f'{{"number": {number}}}', headers={"Color": "red"})
            mq.publish("orders/1", b"{}", id="traced")
            mq.declare("lonely", 1, QueueOptions(status=QueueStatus.PUSH))
            mq.publish("lonely/1", b"waits", confirm=False)
            mq.create_router("by-name")
            mq.bind("by-name", "orders/1")
        yield served


def row(page: Page, queue: str) -> Any:
    """The row of a queue."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=queue, exact=True))


def serious_findings(page: Page) -> list[str]:
    """Serious findings of axe about the page in its present state."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed (make dashboard)")
    # Not as a script of the page, which its policy forbids.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in {"serious", "critical"}]


def navigation() -> list[tuple[str, str, str]]:
    """Path, title and key of each page of one broker, in the order of the navigation."""
    table = MAIN.read_text(encoding="utf-8").partition("const PAGES: Page[] = [")[2].partition("];")[0]
    return re.findall(r'path: "([^"]+)", title: "([^"]+)", key: "(.)"', table)


def test_figures_change_without_a_reload(page: Page, broker: ServedBroker) -> None:
    page.goto(f"{broker.admin_url}/#/queues")
    row(page, "orders/1").get_by_role("cell", name="4", exact=True).wait_for()
    page.evaluate("window.stayed = true")
    with sync.connect(broker.url) as mq:
        mq.declare("fresh", 7, QueueOptions(status=QueueStatus.PULL))
        for _ in range(42):
            mq.publish("fresh/7", b"new")
    row(page, "fresh/7").get_by_role("cell", name="42", exact=True).wait_for()
    assert page.evaluate("window.stayed") is True


def test_the_first_page_names_what_needs_attention_with_its_remedy(page: Page, broker: ServedBroker) -> None:
    page.goto(broker.admin_url)
    page.get_by_text("mqcore consume lonely/1").wait_for()
    page.get_by_role("link", name="lonely/1").click()
    page.get_by_role("heading", name=re.compile("lonely.1 push")).wait_for()


def test_looking_at_messages_changes_nothing(page: Page, broker: ServedBroker) -> None:
    with sync.connect(broker.url) as mq:
        before = mq.queue_information("orders/1")
        page.goto(f"{broker.admin_url}/#/queue?name=orders/1")
        page.get_by_role("button", name="show the next messages").click()
        page.locator("details").first.locator("summary").click()
        page.get_by_text('"number": 0').wait_for()
        assert page.get_by_role("row", name="Color red").first.is_visible()
        assert mq.queue_information("orders/1") == before


def test_the_page_continues_by_itself_after_the_broker_restarted(page: Page, tmp_path: Path) -> None:
    tmqp, admin = free_ports(2)
    arguments = ("--listen", f"tmqp://127.0.0.1:{tmqp}", "--admin", f"http://127.0.0.1:{admin}", "--auto-create")
    arguments = (*arguments, "--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as first:
        page.goto(f"{first.admin_url}/#/queues")
        page.get_by_role("status").get_by_text("healthy").wait_for()
        page.evaluate("window.stayed = true")
        first.process.kill()
        first.process.wait()
        page.get_by_text("the broker does not answer").wait_for()
    with serving(*arguments) as second:
        with sync.connect(second.url) as mq:
            mq.declare("later", 1, QueueOptions(status=QueueStatus.PULL))
        row(page, "later/1").wait_for()
        assert page.get_by_text("the broker does not answer").count() == 0
        assert page.evaluate("window.stayed") is True


def test_ten_thousand_queues_are_sorted_filtered_and_paged(page: Page) -> None:
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as served:
        with sync.connect(served.url) as mq:
            for channel in range(10):
                mq.create_channel(f"many-{channel}")
                for number in range(1_000):
                    mq.create_queue(f"many-{channel}/{number}", QueueOptions(status=QueueStatus.PULL))
            mq.publish("many-7/777", b"the only one")
        page.goto(f"{served.admin_url}/#/queues")
        page.get_by_text("1–50 of 10,000 queues").wait_for()
        page.get_by_role("button", name="ready").click()
        first = page.locator("tbody tr").first
        first.get_by_role("link", name="many-7/777").wait_for()
        page.get_by_role("searchbox").fill("many-3/99")
        page.get_by_text("1–11 of 11 queues (10,000 in all)").wait_for()
        assert "filter=many-3%2F99" in page.url, "a link shows the same view"
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="next").click()
        page.get_by_text("51–100 of 10,000 queues").wait_for()


def test_a_broker_with_users_asks_for_a_token_and_keeps_it_in_the_tab(page: Page, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    made = cli("token", "create", "viewer", "--allow", "administer", "--data-dir", data)
    token = made.stdout.decode().strip().splitlines()[-1]
    with serving("--admin", "http://127.0.0.1:0", "--data-dir", data) as served:
        page.goto(served.admin_url)
        page.get_by_role("heading", name="This broker has users").wait_for()
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="show the dashboard").click()
        page.get_by_role("heading", name="This broker has users").wait_for()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="show the dashboard").click()
        page.get_by_text("Nothing needs attention.").wait_for()
        assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 1]


def test_the_keyboard_reaches_everything(page: Page, broker: ServedBroker) -> None:
    page.goto(broker.admin_url)
    page.get_by_role("heading", name="Needs attention").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.get_by_role("heading", name="Queues").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("lonely")
    page.get_by_text("1–1 of 1 queues").wait_for()
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="keys").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="keys").wait_for(state="hidden")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "lonely/1":
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=re.compile("lonely.1"), level=2).wait_for()


def test_every_page_is_checked_for_accessibility_and_has_a_key_of_its_own(page: Page, broker: ServedBroker) -> None:
    listed = navigation()
    assert len(listed) >= 7, "the table of pages in main.tsx has another form"
    assert {f"#{path}" for path, _, _ in listed} <= set(PAGES)
    page.goto(broker.admin_url)
    page.get_by_role("heading", name="Needs attention").wait_for()
    assert page.get_by_role("navigation", name="pages").first.get_by_role("link").all_inner_texts() == [
        title for _, title, _ in listed
    ]
    for path, title, key in reversed(listed):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"{broker.admin_url}/#{path}")
        current = page.locator("[aria-current=page]")
        playwright.expect(current).to_have_text(title)
        playwright.expect(page).to_have_title(f"mqcore – {title}")


def test_a_chart_is_also_a_table(page: Page, broker: ServedBroker) -> None:
    page.goto(broker.admin_url)
    figure = page.locator("figure").filter(has_text="Messages in queues")
    figure.get_by_role("img", name=re.compile("ready [1-9]")).wait_for()
    figure.get_by_role("button", name="table").click()
    figure.get_by_role("columnheader", name="in flight").wait_for()
    assert figure.locator("tbody tr").count() >= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_both_themes_have_no_serious_accessibility_findings(
    path: str, scheme: str, page: Page, broker: ServedBroker
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{broker.admin_url}/{path}")
    page.get_by_role("heading", level=2).first.wait_for()
    page.wait_for_timeout(1_500)
    assert not serious_findings(page)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_policy_of_the_page_forbids_scripts_of_others(page: Page, broker: ServedBroker) -> None:
    answer = page.goto(broker.admin_url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    hosts = page.evaluate("performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)")
    assert set(hosts) == {broker.admin_url}, "everything comes from the broker"
