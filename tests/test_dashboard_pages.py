"""Traces, schedules and the system in the dashboard, in a real browser, compared with the broker's own answers."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from authority import Authority
from eventmq_peer import EventmqPeer
from mqcore import QueueOptions, QueueStatus, admin, sync
from ports import free_ports
from served import ServedBroker, serving, wait_until
from test_admin_changes import SAVING, WORK, Place, fail_all, new_token
from test_dashboard import browser, page, playwright, pytestmark, serious_findings  # noqa: F401 (fixtures and marks)
from test_retries import APP

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

RULES = {
    "all": ("*",),
    "viewer": ("inspect",),
    "narrow": ("inspect:/stream", "inspect:/access", "inspect:/queues"),
}
EMQP = ("--listen", "tmqp://127.0.0.1:0", "--listen", "emqp://127.0.0.1:0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with users that records its history and speaks EventMQ."""
    data = tmp_path_factory.mktemp("pages") / "data"
    data.mkdir(mode=0o700)
    tokens = {name: new_token(data, name, *rules) for name, rules in RULES.items()}
    arguments = (*EMQP, "--admin", "http://127.0.0.1:0", "--data-dir", str(data), "--history", "--auto-create")
    with serving(*arguments) as broker:
        yield Place(broker, tokens)


@pytest.fixture(scope="module")
def plain() -> Iterator[ServedBroker]:
    """A broker without users, data directory and history."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as broker:
        with sync.connect(broker.url) as mq:
            mq.declare("orders", 1, QueueOptions(status=QueueStatus.PULL))
            mq.publish("orders/1", "waits", id="only-in-memory")
        yield broker


def open_page(page: Page, place: Place, path: str, who: str = "all") -> None:  # noqa: F811
    """Log in and open a page."""
    page.goto(f"{place.url}/#{path}")
    page.get_by_label("Token with the right").fill(place.tokens[who])
    page.get_by_role("button", name="show the dashboard").click()
    page.get_by_role("banner").get_by_text(re.compile(rf"^{who}( \(may only look\))?$")).wait_for()


def events(message: Locator) -> list[str]:
    """The texts of the events on a timeline, with single spaces."""
    return [" ".join(text.split()) for text in message.locator("ol.timeline > li").all_inner_texts()]


def is_ready(place: Place, queue: str) -> bool:
    """Whether a message waits in the queue and can be delivered now."""
    found = place.contents(queue)
    return (found.ready, found.delayed, found.in_flight) == (1, 0, 0)


def test_timeline_shows_what_happened_to_a_message(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("cards", 1, SAVING)
        client.publish("cards/1", "card", id="card-7")
    with sync.connect(place.broker.url, token=place.token, name="teller", kind="desk") as client, client.join("cards"):
        (delivered,) = client.queue("cards", 1).pull(1, str)
        time.sleep(0.3)
        delivered.nack("card was refused")
        wait_until(lambda: is_ready(place, "cards/1"), what="the end of its delay")
        client.queue("cards", 1).pull(1, str)[0].ack()
    wait_until(lambda: admin.trace(place.url, "card-7", token=place.token).outcome == "done", what="its end")
    steps = admin.trace(place.url, "card-7", token=place.token).steps
    open_page(page, place, "/trace?id=card-7")
    message = page.get_by_role("article", name="Message")
    playwright.expect(message.locator("h3")).to_contain_text("is done")
    shown = events(message)
    assert len(shown) == len(steps) >= 6
    words = {
        "produced": "published in cards/1 by",
        "delivered": "delivered in cards/1 to",
        "nacked": "negatively acknowledged in cards/1 by",
        "put-back": "requeued in cards/1",
        "acked": "acknowledged in cards/1 by",
    }
    for step, text in zip(steps, shown, strict=True):
        assert words.get(step.kind, step.kind) in text
        assert f".{step.at_ms % 1_000:03} " in text
        assert (f"attempt {step.attempt}" in text) == bool(step.attempt)
        if step.consumer is not None:
            assert f"teller (desk, {step.consumer.protocol})" in text
    for previous, step, text in zip(steps, steps[1:], shown[1:], strict=False):
        between = step.at_ms - previous.at_ms
        assert (f"+{between} ms" if between < 1_000 else f"+{between / 1_000:.1f} s") in text
    assert max(step.at_ms - previous.at_ms for previous, step in pairwise(steps)) >= 300
    assert sum("card was refused" in text for text in shown) == 1


def test_a_timeline_is_also_a_table(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("tables", 1, SAVING)
        client.publish("tables/1", "waits", id="in-a-table")
    open_page(page, place, "/trace?id=in-a-table")
    message = page.get_by_role("article", name="Message")
    message.get_by_text("waits for a consumer in tables/1 0 deliveries, saved").wait_for()
    message.get_by_role("button", name="table").click()
    headings = message.get_by_role("columnheader").all_inner_texts()
    assert headings == ["time", "since previous", "event", "queue", "attempt", "client", "reason", "target"]
    rows = message.locator("tbody tr")
    steps = admin.trace(place.url, "in-a-table", token=place.token).steps
    assert rows.count() == len(steps) == 2
    playwright.expect(rows.nth(0)).to_contain_text("published")
    playwright.expect(rows.nth(1)).to_contain_text(f"{steps[1].at_ms - steps[0].at_ms} ms")
    message.get_by_role("button", name="timeline").click()
    assert len(events(message)) == 3, "two events, and where it is now"


def test_the_message_browser_links_to_the_trace(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("linked", 1, SAVING)
        client.publish("linked/1", "a", id="id with space/and slash?")
    open_page(page, place, "/queue?name=linked/1")
    page.get_by_role("button", name="show the next messages").click()
    page.locator("details summary").first.click()
    page.get_by_role("link", name="trace this message").click()
    page.get_by_role("heading", name="Trace", exact=True).wait_for()
    playwright.expect(page.get_by_label("Message id")).to_have_value("id with space/and slash?")
    message = page.get_by_role("article", name="Message")
    message.get_by_text("published in linked/1").wait_for()
    message.get_by_role("link", name="linked/1").first.click()
    page.get_by_role("heading", name=re.compile("linked.1 pull")).wait_for()


def test_messages_with_one_id_have_a_timeline_each_across_queues(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        for queue in ("other/1", "twice/1"):
            client.declare(queue.partition("/")[0], 1, WORK)
        for queue, body in (("other/1", "c"), ("twice/1", "a"), ("twice/1", "b")):
            client.publish(queue, body, id="same")
        # An acknowledgement names the id, so each message has a consumer of its own.
        with (
            place.connect() as other,
            other.queue("twice", 1).consume(str, prefetch=1) as those,
            client.queue("twice", 1).consume(str, prefetch=1) as these,
        ):
            taken = {message.body: message for message in (next(iter(those)), next(iter(these)))}
            taken["b"].nack("broken b")
            wait_until(lambda: place.contents("twice/65535").ready == 1, what="the second one is a dead letter")
            taken["a"].nack("broken a")
        with client.queue("other", 1).consume(str) as messages:
            next(iter(messages)).nack("broken c")
    wait_until(lambda: place.contents("twice/65535").ready == 2, what="both are dead letters")
    wait_until(lambda: place.contents("other/65535").ready == 1, what="so is the one of another channel")
    admin.move(place.url, "twice/65535", "twice/9", limit=1, token=place.token)
    open_page(page, place, "/trace?id=same")
    page.get_by_text("3 messages have this id.").wait_for()
    articles = page.get_by_role("article")
    assert articles.count() == 3
    shown = [events(articles.nth(number)) for number in range(3)]
    for texts, body, channel in zip(shown, "cab", ("other", "twice", "twice"), strict=True):
        assert sum(f"published in {channel}/1" in text for text in texts) == 1
        assert [text.partition("broken ")[2][:1] for text in texts if "broken" in text] == [body]
        (dead,) = (text for text in texts if f"dead-lettered in {channel}/1 to {channel}/65535" in text)
        assert "it failed as often as its queue allows" in dead
        assert sum(f"arrived from another queue in {channel}/65535" in text for text in texts) == 1
    ends = [texts[-1] for texts in shown]
    assert "waits for a consumer in other/65535" in ends[0]
    assert "waits for a consumer in twice/65535" in ends[1]
    assert "waits for a consumer in twice/9" in ends[2], "the one that was a dead letter first was moved"
    assert any("moved by an operator in twice/65535 to twice/9" in text for text in shown[2])


def test_reading_a_trace_again_shows_what_happened_since(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("again", 1, SAVING)
        client.publish("again/1", "a", id="read-again")
        open_page(page, place, "/trace?id=read-again")
        page.get_by_text("waits for a consumer in again/1 0 deliveries").wait_for()
        with client.join("again"):
            client.queue("again", 1).pull(1, str)[0].ack()
    wait_until(lambda: place.contents("again/1").in_flight == 0, what="it is settled")
    page.get_by_role("button", name="read again").click()
    page.get_by_text("is done").wait_for()
    playwright.expect(page.locator("li.now")).to_have_count(0)


def test_unknown_id_is_reported_as_such(page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, "/trace?id=never-seen")
    page.get_by_text("Not found: no message never-seen is in any queue, nor is it in the history").wait_for()
    assert page.get_by_role("article").count() == 0


def test_broker_without_history_shows_only_where_the_message_is(page: Page, plain: ServedBroker) -> None:  # noqa: F811
    page.goto(f"{plain.admin_url}/#/trace")
    page.get_by_role("heading", name="Trace", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("only-in-memory")
    page.keyboard.press("Enter")
    page.get_by_text("This broker has recorded no history").wait_for()
    assert "trace?id=only-in-memory" in page.url, "a link shows the same trace"
    (now,) = events(page.get_by_role("article", name="Message"))
    assert "waits for a consumer in orders/1 0 deliveries, only in memory" in now


def test_viewer_learns_which_right_a_trace_needs(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("secret", 1, SAVING)
        client.publish("secret/1", "secret", id="secret")
    open_page(page, place, "/trace", "viewer")
    page.get_by_text("Traces need a token with the rule administer:/trace/*").wait_for()
    page.get_by_label("Message id").fill("secret")
    page.get_by_role("button", name="trace").click()
    page.get_by_text("You may not read traces").wait_for()
    assert page.get_by_role("article").count() == 0


def say_schedules(place: Place, *schedules: tuple[str, str, str, str]) -> None:
    """Send schedules as queue, headers, interval and cron expression; each calls a function named after its queue."""
    with EventmqPeer(f"emqp://{place.broker.ready['listeners']['emqp-frontend']}", token=place.token) as client:
        for queue, headers, interval, cron in schedules:
            client.say("SCHEDULE", "s", queue, headers, interval, call_of(queue), cron)
        wanted = {queue for queue, *_ in schedules}
        wait_until(lambda: wanted <= {each.queue for each in listed(place)}, what="the schedules")


def call_of(name: str) -> str:
    """The job of a schedule."""
    call = {"path": "shop", "callable": name, "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}
    return json.dumps(["run", call])


def listed(place: Place) -> tuple[admin.ScheduleInfo, ...]:
    """The broker's schedules."""
    return admin.schedules(place.url, token=place.token).schedules


def cells(row: Locator) -> list[str]:
    """The texts of a row, with single spaces."""
    return [" ".join(text.split()) for text in row.get_by_role("cell").all_inner_texts()]


def test_schedules_are_listed_and_ended_only_after_a_confirmation(page: Page, place: Place) -> None:  # noqa: F811
    nightly = ("nightly", "nohaste,timezone:Europe/Berlin,catch-up:all,run_count:7", "-1", "30 2 * * *")
    say_schedules(place, nightly, ("hourly", "create-queue", "5400", ""))
    due = {each.queue: each.due_ms for each in listed(place)}
    open_page(page, place, "/schedules")
    night = page.get_by_role("row").filter(has_text="shop.nightly")
    night.wait_for()
    shown = cells(night)
    local = page.evaluate("ms => new Date(ms).toLocaleString('sv-SE')", due["nightly"])
    assert shown[0].startswith(f"{local} in ")
    assert shown[1:7] == ["30 2 * * * Europe/Berlin", "nightly", "shop.nightly", "0", "7", "run all"]
    hour = page.get_by_role("row").filter(has_text="shop.hourly")
    assert cells(hour)[1:7] == ["every 90 min", "hourly", "shop.hourly", "1", "unlimited", "run the latest"]
    hour.get_by_role("button", name="end shop.hourly").click()
    dialog = page.get_by_role("dialog", name="End this schedule")
    dialog.get_by_text("will not run every 90 min any more").wait_for()
    dialog.get_by_role("button", name="cancel").click()
    playwright.expect(dialog).to_be_hidden()
    assert {"nightly", "hourly"} <= {each.queue for each in listed(place)}, "nothing is ended"
    hour.get_by_role("button", name="end shop.hourly").click()
    dialog.get_by_role("button", name="end the schedule").click()
    page.get_by_text("the schedule of shop.hourly is ended").wait_for()
    playwright.expect(hour).to_have_count(0)
    assert "hourly" not in {each.queue for each in listed(place)}
    assert "nightly" in {each.queue for each in listed(place)}


def test_ending_a_schedule_that_is_gone_reports_it(page: Page, place: Place) -> None:  # noqa: F811
    say_schedules(place, ("gone", "nohaste", "3600", ""))
    open_page(page, place, "/schedules")
    page.get_by_role("button", name="end shop.gone").click()
    (gone,) = (each.id for each in listed(place) if each.queue == "gone")
    admin.unschedule(place.url, gone, token=place.token)
    page.get_by_role("button", name="end the schedule").click()
    page.get_by_text(re.compile(f"cannot end the schedule: .*{gone}")).wait_for()


def test_keyboard_ends_a_schedule(page: Page, place: Place) -> None:  # noqa: F811
    say_schedules(place, ("keys", "nohaste", "7", ""))
    open_page(page, place, "/system")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_role("button", name="end shop.keys").wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.ariaLabel") == "end shop.keys":
            break
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="End this schedule")
    dialog.wait_for()
    page.keyboard.press("Escape")
    # The page removes a closed dialog a moment later, and until then cannot open another one.
    playwright.expect(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.ariaLabel") == "end shop.keys", "the focus returns"
    page.keyboard.press("Enter")
    dialog.wait_for()
    for _ in range(5):
        if page.evaluate("document.activeElement.textContent") == "end the schedule":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("the schedule of shop.keys is ended").wait_for()


def test_viewer_sees_schedules_but_cannot_end_them(page: Page, place: Place) -> None:  # noqa: F811
    say_schedules(place, ("viewed", "nohaste", "3600", ""))
    open_page(page, place, "/schedules", "viewer")
    page.get_by_role("row").filter(has_text="shop.viewed").wait_for()
    page.get_by_text("You may not end schedules.").wait_for()
    assert page.get_by_role("columnheader", name="end").count() == 0
    assert page.get_by_role("button", name=re.compile("^end ")).count() == 0


def test_a_long_list_of_schedules_grows_on_demand(page: Page, place: Place) -> None:  # noqa: F811
    say_schedules(place, *((f"many{number}", "nohaste", "3600", "") for number in range(3)))
    total = len(listed(place))
    open_page(page, place, "/schedules?limit=1")
    page.get_by_text(f"1 of {total} schedules, those due next.").wait_for()
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("button", name="show more").click()
    playwright.expect(page.locator("tbody tr")).to_have_count(min(total, 10))


def test_broker_without_schedules_explains_how_to_create_one(page: Page, plain: ServedBroker) -> None:  # noqa: F811
    page.goto(f"{plain.admin_url}/#/schedules")
    page.get_by_text("There are no schedules.").wait_for()
    playwright.expect(page.locator("pre")).to_contain_text("jobs.send_schedules()")
    assert page.get_by_role("table").count() == 0


@pytest.mark.parametrize(
    ("path", "missing"),
    [("/schedules", ("inspect:/schedules",)), ("/system", ("inspect:/overview", "inspect:/metrics"))],
)
def test_missing_rights_are_named(path: str, missing: tuple[str, ...], page: Page, place: Place) -> None:  # noqa: F811
    open_page(page, place, path, "narrow")
    for rule in missing:
        note = page.get_by_role("note").filter(has_text=rule)
        playwright.expect(note).to_contain_text("neither inspect nor administer is allowed for this page")


def figure(section: Locator, name: str) -> str:
    """The value of a figure."""
    return section.locator(".figure").filter(has=section.page.get_by_text(name, exact=True)).locator("dd").inner_text()


def section(page: Page, title: str) -> Locator:  # noqa: F811
    """A section of a page."""
    return page.get_by_role("region", name=title, exact=True)


def metric(url: str, name: str, token: str | None = None) -> int:
    """The value of a metric without labels."""
    request = urllib.request.Request(f"{url}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = re.search(rf"^{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_system_shows_what_the_broker_measures(page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("measured", 1, WORK)
        fail_all(client, "measured/1", ["a", "b"])
    wait_until(lambda: place.contents("measured/65535").ready == 2, what="both are dead letters")
    open_page(page, place, "/system", "viewer")
    journal = section(page, "Journals")
    journal.wait_for()

    def shows(title: str, name: str, metric_name: str, form: Callable[[int], str]) -> None:
        wait_until(
            lambda: figure(section(page, title), name) == form(metric(place.url, metric_name, place.token)), what=name
        )

    shows("Journals", "size of the files", "mqcore_journal_bytes", lambda size: f"{size / (1 << 20):.1f} MiB")
    shows("Journals", "saved messages", "mqcore_journal_live_records", "{:,}".format)
    assert re.fullmatch(r"[\d.]+ (µs|ms)", figure(journal, "time of a sync, on average"))
    shows("History and archive", "recorded events", "mqcore_history_events_total", "{:,}".format)
    assert metric(place.url, "mqcore_history_events_total", place.token) > 0
    section(page, "History and archive").get_by_text("up to date").wait_for()
    limit_metric = "mqcore_unsaved_memory_limit_bytes"
    shows("Memory", "limit of unsaved messages", limit_metric, lambda limit: f"{limit / (1 << 30):.1f} GiB")
    shows("Handlers", "open now", "mqcore_handler_questions_open", "{:,}".format)
    names = section(page, "connections by protocol").locator("tbody tr td:first-child").all_inner_texts()
    assert names == ["tmqp", "emqp"], "those of the listeners"
    page.get_by_text("No listener has a certificate").wait_for()
    page.get_by_text("There are no links to other brokers.").wait_for()
    playwright.expect(page.get_by_text("ready", exact=True)).to_be_visible()


def test_system_of_a_broker_without_data_directory_reports_it(page: Page, plain: ServedBroker) -> None:  # noqa: F811
    page.goto(f"{plain.admin_url}/#/system")
    section(page, "Journals").get_by_text("stores nothing").wait_for()
    section(page, "History and archive").get_by_text("This broker archives no history.").wait_for()
    assert section(page, "History and archive").get_by_text("files of the archive").count() == 0
    section(page, "Continuous backup").get_by_text("This broker makes no restore points.").wait_for()
    assert figure(section(page, "Journals"), "size of the files") == "0 B"


def test_system_shows_the_state_of_the_continuous_backup(page: Page, tmp_path: Path) -> None:  # noqa: F811
    store = tmp_path / "store"
    store.mkdir()
    environment = {"MQCORE_BACKUP_URL": f"file://{store}", "MQCORE_BACKUP_INTERVAL": "1s"}
    arguments = ("--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0")
    with serving(*arguments, environment=environment) as broker:
        page.goto(f"{broker.admin_url}/#/system")
        backup = section(page, "Continuous backup")
        backup.get_by_text("The latest moment that can be restored is").wait_for()
        backup.get_by_text("up to date").wait_for()
        wait_until(lambda: figure(backup, "restore points") != "0", what="a restore point")
        # Restore points have the place of a file now, so that none can be made.
        shutil.rmtree(store / "points")
        (store / "points").write_text("in the way")
        with sync.connect(broker.url) as client:
            client.create_channel("orders")
        backup.get_by_text("It has failed since").wait_for(timeout=30_000)
        backup.get_by_text("failing").wait_for()


TIMED = """
import shutil
import time
from mqcore import Decision, DeliveryHandler, SendAck

class Slow(DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        time.sleep(0.06)
        return Decision(acknowledge=SendAck.ALWAYS)

class Unused(DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        return Decision()

handlers = {"slow": Slow(), "unused": Unused()}
"""


def test_system_shows_the_time_in_handlers(page: Page, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "timed.py").write_text(TIMED)
    arguments = ("--admin", "http://127.0.0.1:0", "--listen", "tmqp://127.0.0.1:0")
    with serving("--app", "timed:handlers", *arguments, cwd=tmp_path) as broker, sync.connect(broker.url) as mq:
        mq.declare("slow", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="slow"))
        for number in range(3):
            mq.publish("slow/1", str(number))
        page.goto(f"{broker.admin_url}/#/system")
        times = section(page, "time in handlers").locator("tbody tr")
        playwright.expect(times).to_have_count(2)
        assert "unused" not in " ".join(times.all_inner_texts())
        handler, step, calls, average, most = times.nth(0).locator("td, th").all_inner_texts()
        assert (handler, step, calls) == ("slow", "received_from_producer", "3")
        assert re.fullmatch(r"(6\d|[7-9]\d|1\d\d)(\.\d)? ms", average), average
        assert most in ("100 ms", "250 ms")
        wait = times.nth(1).locator("td, th").all_inner_texts()
        assert wait[:2] == ["slow", "wait for the GIL"]


def test_system_shows_certificates_links_and_missing_handlers(page: Page, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "shop.py").write_text(APP)
    arguments = (
        "--data-dir",
        str(tmp_path / "data"),
        "--admin",
        "http://127.0.0.1:0",
        "--listen",
        "tmqp://127.0.0.1:0",
    )
    with serving("--app", "shop:handlers", *arguments, cwd=tmp_path) as before, sync.connect(before.url) as mq:
        mq.declare("homeless", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="s1"))
        mq.publish("homeless/1", "saved")
    certificate = Authority(tmp_path / "ca").issue("short.pem", "broker.example", days=5.5)
    upstream = f"tmqp://127.0.0.1:{free_ports(1)[0]}"
    secured = ("--listen", "tmqps://127.0.0.1:0", "--tls-cert", str(certificate))
    with serving(*arguments, *secured, "--upstream", upstream, "--keep-messages") as broker:
        page.goto(f"{broker.admin_url}/#/system")
        row = section(page, "certificates").locator("tbody tr")
        playwright.expect(row).to_contain_text("broker.example")
        playwright.expect(row).to_contain_text(re.compile("in [56] d"))
        link = section(page, "other brokers").locator("tbody tr")
        playwright.expect(link).to_contain_text("upstream")
        playwright.expect(link).to_contain_text("down")
        playwright.expect(section(page, "messages for upstream brokers").locator("tbody tr")).to_have_count(1)
        missing = section(page, "queues without their handler").locator("tbody tr")
        playwright.expect(missing).to_contain_text("homeless/1")
        playwright.expect(missing).to_contain_text("s1")
        missing.get_by_role("link", name="homeless/1").click()
        page.get_by_role("heading", name=re.compile("homeless.1"), level=2).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_filled_pages_have_no_serious_accessibility_findings(scheme: str, page: Page, place: Place) -> None:  # noqa: F811
    with place.connect() as client:
        client.declare("seen", 1, WORK)
        client.publish("seen/1", "a", id=f"seen-{scheme}")
        with client.queue("seen", 1).consume(str) as messages:
            next(iter(messages)).nack("broken")
    wait_until(
        lambda: (
            "dead-lettered" in {step.kind for step in admin.trace(place.url, f"seen-{scheme}", token=place.token).steps}
        ),
        what="it is a dead letter",
    )
    say_schedules(place, (f"seen{scheme}", "nohaste", "3600", ""))
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    open_page(page, place, f"/trace?id=seen-{scheme}")
    page.get_by_text("dead-lettered in").wait_for()
    assert not serious_findings(page)
    page.get_by_role("button", name="table").click()
    page.get_by_role("columnheader", name="reason").wait_for()
    assert not serious_findings(page)
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_role("button", name=f"end shop.seen{scheme}").click()
    page.get_by_role("dialog", name="End this schedule").wait_for()
    assert not serious_findings(page)
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("y")
    section(page, "Journals").wait_for()
    assert not serious_findings(page)
