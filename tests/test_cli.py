"""The program `mqcore`, run as users run it: in a process of its own, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import programs
from served import ServedBroker, clean_environment, serving, wait_until
from tmqp_peer import PeerClosed, TmqpPeer

posix_only = pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")


def mqcore(
    *arguments: str, url: str | None = None, stdin: str | bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run `mqcore` and return how it ended."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        input=given or b"",
        capture_output=True,
        timeout=30,
        check=False,
        env=clean_environment() | ({"MQCORE_URL": url} if url else {}) | environment,
    )


def lines(result: subprocess.CompletedProcess[bytes]) -> list[Any]:
    """The JSON objects on stdout."""
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.splitlines()]


def one(result: subprocess.CompletedProcess[bytes]) -> Any:
    """The one JSON document on stdout."""
    (document,) = lines(result)
    return document


def complaint(result: subprocess.CompletedProcess[bytes]) -> str:
    """The one line with which the program said what was wrong."""
    said = result.stderr.decode().splitlines()
    assert result.stdout == b""
    assert len(said) == 1, said
    assert said[0].startswith("mqcore: ")
    return said[0]


# --- help, versions, usage ------------------------------------------------------------------------------------


def test_help_imports_neither_rich_nor_the_network_nor_the_extension_module() -> None:
    script = (
        "import sys, mqcore.cli.program as program\n"
        "assert program.run(['--help']) == 0\n"
        "assert program.run(['queue', 'create', '--help']) == 0\n"
        "heavy = {'rich', 'socket', 'asyncio', 'ssl', 'msgspec', 'mqcore._core', 'mqcore.broker', 'mqcore.sync'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout


def test_every_command_explains_itself() -> None:
    import click

    from mqcore.cli.program import root

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            assert names, path
            for name in names:
                child = command.get_command(context, name)
                assert child is not None, (path, name)
                assert child.name == name
                walk(child, (*path, name))

    walk(root(), ())


def test_a_command_imports_no_other_command() -> None:
    script = (
        "import sys, mqcore.cli.program as program\n"
        "assert program.run(['version']) == 0\n"
        "print({name for name in sys.modules if name.startswith('mqcore.cli.')})"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "mqcore.cli.version" in result.stdout
    assert "mqcore.cli.serve" not in result.stdout
    assert "mqcore.cli.queue" not in result.stdout


def test_the_version_is_that_of_the_package() -> None:
    import mqcore as package

    assert mqcore("version").stdout.decode().strip() == package.__version__
    assert mqcore("--version").stdout.decode().strip() == package.__version__
    output = one(mqcore("version", "--json"))
    assert output["schema"] == "mqcore.version/1"
    assert output["version"] == package.__version__
    assert output["python"].count(".") == 2


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("pubish",), "mqcore publish"),
        (("queue", "statsu"), "mqcore queue status"),
        (("user", "ad"), "mqcore user add"),
        (("token", "creat"), "mqcore token create"),
        (("contxt", "ls"), "mqcore context"),
        (("context", "us"), "mqcore context use"),
        (("config", "chek"), "mqcore config check"),
        (("inti",), "mqcore init"),
        (("chanel", "ls"), "mqcore channel"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(arguments: tuple[str, ...], meant: str) -> None:
    result = mqcore(*arguments)
    assert result.returncode == 2
    assert f"did you mean '{meant}'" in complaint(result)


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "orders/99999", "x"),
        ("publish", "orders/1"),
        ("publish", "orders/1", "x", "--stdin"),
        ("publish", "orders/1", "x", "--header", "no colon"),
        ("consume", "orders/1", "--idle", "soon"),
        ("queue", "set", "orders/1"),
        ("queue", "status", "orders/1", "sleeping"),
        ("serve", "--listen", "amqp://127.0.0.1:1"),
        ("serve", "--listen", "tmqp://10.1.2.3:1"),
        ("serve", "--app", "no_such_module:handlers"),
        ("serve", "--app", "os:sep"),
        ("serve", "--config", "no-such-file.toml"),
        ("config", "show", "--config", "no-such-file.toml"),
        ("config", "check", "no-such-file.toml"),
        ("context", "use"),
        ("context", "add", "prod"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = mqcore(*arguments, url="tmqp://127.0.0.1:1")
    assert result.returncode == 2
    complaint(result)


def test_a_broker_that_is_not_there_is_exit_code_5_and_named() -> None:
    result = mqcore("publish", "orders/1", "x", url="tmqp://127.0.0.1:1")
    assert result.returncode == 5
    assert "127.0.0.1:1" in complaint(result)


# --- serve ----------------------------------------------------------------------------------------------------


def test_the_ready_line_names_what_is_bound_and_is_all_of_stdout(served: ServedBroker) -> None:
    assert served.ready["event"] == "ready"
    assert served.ready["pid"] == served.process.pid
    assert set(served.ready) == {"event", "listeners", "admin", "pid"}
    with TmqpPeer(*served.address) as peer:
        peer.hello()
    host, _, port = served.ready["admin"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert served.terminate() == 0
    assert served.process.stdout is not None
    assert served.process.stdout.read() == ""


def test_memory_only_is_said_in_one_warning_line(served: ServedBroker) -> None:
    served.terminate()
    wait_until(lambda: any("stopped" in line for line in served.stderr_lines))
    records = [json.loads(line) for line in served.stderr_lines]
    warnings = [record for record in records if record["level"] == "warning"]
    assert len(warnings) == 1
    assert "memory" in warnings[0]["message"]


def test_console_logs_are_for_people(tmp_path: Path) -> None:
    with serving("--log-format", "console") as broker:
        broker.terminate()
        wait_until(lambda: any("stopped" in line for line in broker.stderr_lines))
        assert "WARNING" in broker.stderr_lines[0]


@posix_only
def test_the_first_signal_drains_and_the_second_one_stops_now() -> None:
    with serving("--drain-timeout", "60s") as broker, TmqpPeer(*broker.address) as peer:
        peer.hello()
        # A peer that does not read its own messages delays the drain.
        peer.ask(603, "stuck")
        peer.ask(610, "stuck", headers={"Queue-Id": "0"})
        peer.ask(601, "stuck")
        body = b"x" * 100_000
        for _ in range(200):
            peer.publish("stuck", 0, body)
        broker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any("draining" in line for line in broker.stderr_lines), what="the drain")
        assert broker.process.poll() is None
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(10) == 128 + signal.SIGTERM


@posix_only
def test_ctrl_c_drains_too() -> None:
    with serving() as broker:
        broker.process.send_signal(signal.SIGINT)
        assert broker.process.wait(10) == 0


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mqcore.toml"
    file.write_text('listen = ["tmqp://127.0.0.1:1"]\nadmin = "http://127.0.0.1:0"\nauto_create_channels = true\n')
    environment = {"MQCORE_LISTEN": "tmqp://127.0.0.1:2", "MQCORE_AUTO_CREATE_QUEUES": "yes"}
    with serving("--config", str(file), environment=environment) as broker, TmqpPeer(*broker.address) as peer:
        assert broker.ready["admin"] is not None
        peer.hello()
        peer.publish("orders", 1, b"x", confirm=True)
        assert peer.receive().header("Nack-Reason") is None


def test_a_setting_that_does_not_exist_is_an_error_that_names_it() -> None:
    result = mqcore("serve", MQCORE_LISTENN="tmqp://127.0.0.1:0")
    assert result.returncode == 2
    assert "listenn" in complaint(result)


def test_an_address_in_use_is_an_error_that_names_it(served: ServedBroker) -> None:
    result = mqcore("serve", "--listen", served.url)
    assert result.returncode == 2
    assert served.ready["listeners"]["tmqp"] in complaint(result)


APP = '''
"""Refuses what says no."""

import mqcore


class Choosy(mqcore.DeliveryHandler):
    """Refuses what says no."""

    def received_from_producer(self, queue, message, producer):
        """Refuse what says no."""
        if message.body == b"no":
            return mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)


handlers = {"choosy": Choosy()}
broker = mqcore.Broker(
    listen="tmqp://127.0.0.1:0", delivery_handler="choosy", auto_create_channels=True, auto_create_queues=True
)
broker.delivery_handlers["choosy"] = Choosy()
silent = mqcore.Broker()
'''


def answers(broker: ServedBroker) -> list[str | None]:
    """Answers to a producer about `yes` and about `no`."""
    heard = []
    with TmqpPeer(*broker.address) as peer:
        peer.hello()
        for body in (b"yes", b"no"):
            peer.publish("orders", 1, body, confirm=True)
            heard.append(peer.receive().header("Nack-Reason"))
    return heard


@pytest.mark.parametrize("attribute", ["handlers", "broker"])
def test_an_app_decides(attribute: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    arguments = ["--app", f"shop:{attribute}"]
    if attribute == "handlers":
        arguments += ["--listen", "tmqp://127.0.0.1:0", "--auto-create"]
    with serving(*arguments, cwd=tmp_path, environment={"MQCORE_DELIVERY_HANDLER": "choosy"}) as broker:
        accepted, refused = answers(broker)
    assert accepted is None
    assert refused is not None


def test_an_app_that_is_a_broker_takes_no_flags_and_must_listen(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    contradiction = mqcore("serve", "--app", "shop:broker", "--listen", "tmqp://127.0.0.1:0", **path)
    assert contradiction.returncode == 2
    assert "--listen" in complaint(contradiction)
    silent = mqcore("serve", "--app", "shop:silent", **path)
    assert silent.returncode == 2
    assert "without listeners" in complaint(silent)


def test_two_listeners_of_one_protocol_are_both_on_the_ready_line() -> None:
    free = "tmqp://127.0.0.1:0"
    with serving("--listen", free, "--listen", free) as broker:
        assert set(broker.ready["listeners"]) == {"tmqp", "tmqp-2"}
        for address in broker.ready["listeners"].values():
            host, _, port = address.rpartition(":")
            with TmqpPeer(host, int(port)) as peer:
                peer.hello()


# --- publish, consume, pull -----------------------------------------------------------------------------------


def test_published_message_is_consumed(served: ServedBroker) -> None:
    created = mqcore("queue", "create", "orders/1", "--status", "roundrobin", "--acknowledge", url=served.url)
    assert created.returncode == 0, created.stderr
    published = mqcore("publish", "orders/1", "héllo", "--header", "Schema: v1", "--json", url=served.url)
    assert one(published) | {"seconds": 0} == {
        "schema": "mqcore.publish/1",
        "queue": "orders/1",
        "published": 1,
        "bytes": 6,
        "confirmed_by": "server",
        "failed_copies": [],
        "seconds": 0,
    }
    message = one(mqcore("consume", "orders/1", "--count", "1", "--json", url=served.url))
    assert message["schema"] == "mqcore.message/1"
    assert message["queue"] == "orders/1"
    assert message["body"] == "héllo"
    assert message["headers"] == {"Schema": "v1"}
    assert message["id"]


def test_stdout_is_data_and_stderr_is_talk(served: ServedBroker) -> None:
    published = mqcore("publish", "orders/1", "plain", url=served.url)
    assert published.stdout == b""
    assert b"1 message to orders/1, confirmed by server" in published.stderr
    assert mqcore("consume", "orders/1", "--count", "1", url=served.url).stdout == b"plain\n"


def test_the_url_may_stand_before_or_after_the_command_and_wins_over_the_environment(served: ServedBroker) -> None:
    nobody = "tmqp://127.0.0.1:1"
    assert mqcore("--url", served.url, "channel", "ls", url=nobody).returncode == 0
    assert mqcore("channel", "ls", "--url", served.url, url=nobody).returncode == 0
    assert mqcore("--url", nobody, "channel", "ls", "--url", served.url).returncode == 0


def test_many_messages_keep_their_order(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", "--status", "roundrobin", "--acknowledge", url=served.url)
    text = "".join(f"line {number}\n" for number in range(1000))
    published = one(mqcore("publish", "orders/1", "--stdin", "--json", url=served.url, stdin=text))
    assert published["published"] == 1000
    consumed = mqcore("consume", "orders/1", "--count", "1000", url=served.url)
    assert consumed.stdout.decode() == text


def test_files_arrive_whole_in_a_folder(served: ServedBroker, tmp_path: Path) -> None:
    bodies = [bytes(range(256)) * 300, b"", b"\n\n"]
    files = []
    for number, body in enumerate(bodies):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(body)
        files += ["--file", str(path)]
    published = one(mqcore("publish", "files/0", *files, "--json", url=served.url))
    assert published["bytes"] == sum(map(len, bodies))
    output = lines(
        mqcore("consume", "files/0", "--count", "3", "--into", str(tmp_path / "in"), "--json", url=served.url)
    )
    arrived = [path.read_bytes() for path in (tmp_path / "in").iterdir()]
    assert sorted(arrived) == sorted(bodies)
    assert "body_base64" in output[0]
    assert "body" in output[1]


def test_count_repeats_a_message(served: ServedBroker) -> None:
    assert one(mqcore("publish", "orders/1", "x", "--count", "700", "--json", url=served.url))["published"] == 700
    assert one(mqcore("queue", "show", "orders/1", "--json", url=served.url))["received_messages"] == 700


def test_a_refused_message_comes_back(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", "--status", "roundrobin", "--acknowledge", url=served.url)
    mqcore("publish", "orders/1", "again", url=served.url)
    refused = one(mqcore("consume", "orders/1", "--count", "1", "--nack", "not now", "--json", url=served.url))
    accepted = one(mqcore("consume", "orders/1", "--count", "1", "--json", url=served.url))
    assert refused["id"] == accepted["id"]
    shown = one(mqcore("queue", "show", "orders/1", "--json", url=served.url))
    assert (shown["acks"], shown["messages"]) == (1, 0)
    # It may have come back to the one that refused it before that one had left.
    assert shown["negative_acks"] >= 1


def test_pull_delivers_on_demand_in_either_order(served: ServedBroker) -> None:
    mqcore("queue", "create", "reports/7", "--status", "pull", url=served.url)
    mqcore("publish", "reports/7", "--stdin", url=served.url, stdin="a\nb\nc\n")
    assert mqcore("pull", "reports/7", url=served.url).stdout == b"a\n"
    assert mqcore("pull", "reports/7", "--count", "9", "--order", "lifo", url=served.url).stdout == b"c\nb\n"
    empty = mqcore("pull", "reports/7", "--fail-if-empty", url=served.url)
    assert (empty.returncode, empty.stdout) == (1, b"")
    assert mqcore("pull", "reports/7", url=served.url).returncode == 0


def test_a_cache_queue_gives_its_latest_message_as_often_as_it_is_asked(served: ServedBroker) -> None:
    mqcore("queue", "create", "prices/0", "--status", "cache", url=served.url)
    mqcore("publish", "prices/0", "--stdin", url=served.url, stdin="1\n2\n")
    assert [mqcore("pull", "prices/0", url=served.url).stdout for _ in range(2)] == [b"2\n", b"2\n"]


def test_an_idle_consumer_leaves_and_can_say_that_nothing_came(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    arguments = ("consume", "orders/1", "--idle", "100ms")
    assert mqcore(*arguments, url=served.url).returncode == 0
    assert mqcore(*arguments, "--fail-if-empty", url=served.url).returncode == 1


@posix_only
def test_ctrl_c_ends_a_consumer_with_130(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    mqcore("publish", "orders/1", "seen", url=served.url)
    process = subprocess.Popen(
        [sys.executable, "-m", "mqcore", "consume", "orders/1", "--url", served.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"seen\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    # The first line end is for the terminal, where ^C stands.
    assert said.strip() == b"mqcore: interrupted"


def test_closed_output_pipe_is_not_an_error(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", "--status", "roundrobin", "--acknowledge", url=served.url)
    mqcore("publish", "orders/1", "x" * 1000, "--count", "500", url=served.url)
    process = subprocess.Popen(
        [sys.executable, "-m", "mqcore", "consume", "orders/1", "--url", served.url, "--idle", "5s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(15) == 0
        assert process.stderr.read() == b""


# --- clients --------------------------------------------------------------------------------------------------


def test_a_request_is_answered_by_name(served: ServedBroker) -> None:
    import threading

    from mqcore import sync

    with sync.connect(served.url, name="echo", kind="service") as client:
        with client.requests() as requests:

            def answer() -> None:
                for request in requests:
                    request.respond(request.raw.upper())

            thread = threading.Thread(target=answer)
            thread.start()
            asked = mqcore("request", "@name:echo", "hello", url=served.url)
            output = one(mqcore("request", "@type:service", "hello", "--json", url=served.url))
        thread.join()
    assert asked.stdout == b"HELLO\n"
    assert output["body"] == "HELLO"
    assert output["source"]


def test_send_to_an_unknown_client_exits_with_3(served: ServedBroker) -> None:
    result = mqcore("request", "@name:nobody", "hello", "--timeout", "5s", url=served.url)
    assert result.returncode == 3
    assert "@name:nobody" in complaint(result)


def test_a_sent_message_arrives(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as peer:
        peer.hello(Client_Name="kiosk")
        sent = mqcore("send", "@name:kiosk", "hi", "--content-type", "7", "--header", "A:b", url=served.url)
        assert sent.returncode == 0, sent.stderr
        frame = peer.receive()
    assert (frame.payload, frame.content_type, frame.header("A")) == (b"hi", 7, "b")


def test_connected_clients_are_listed_and_shown(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as peer:
        peer.hello(Client_Id="me", Client_Name="kiosk", Client_Type="screen")
        peer.ask(603, "orders")
        peer.ask(601, "orders")
        listed = one(mqcore("client", "ls", "scr*", "--json", url=served.url))
        joined = one(mqcore("client", "ls", "--channel", "orders", "--json", url=served.url))
        shown = one(mqcore("client", "show", "me", "--json", url=served.url))
        missing = mqcore("client", "show", "you", url=served.url)
    assert [client["id"] for client in listed["clients"]] == ["me"]
    assert [client["id"] for client in joined["clients"]] == ["me"]
    assert (shown["name"], shown["kind"]) == ("kiosk", "screen")
    assert missing.returncode == 3
    assert "'mqcore client ls'" in complaint(missing)


def test_a_client_is_disconnected(served: ServedBroker) -> None:
    with TmqpPeer(*served.address) as peer, TmqpPeer(*served.address) as other:
        peer.hello(Client_Id="me", Client_Name="kiosk")
        other.hello(Client_Id="other")
        assert mqcore("client", "disconnect", "@name:kiosk", url=served.url).returncode == 0
        with pytest.raises(PeerClosed):
            peer.receive()
        listed = one(mqcore("client", "ls", "--json", url=served.url))
        missing = mqcore("client", "disconnect", "me", url=served.url)
    assert "other" in [client["id"] for client in listed["clients"]]
    assert "me" not in [client["id"] for client in listed["clients"]]
    assert missing.returncode == 3
    assert "me" in complaint(missing)


# --- channels and queues --------------------------------------------------------------------------------------


def test_channels_are_created_listed_shown_and_removed(served: ServedBroker) -> None:
    assert mqcore("channel", "create", "orders", "--client-limit", "5", url=served.url).returncode == 0
    again = mqcore("channel", "create", "orders", url=served.url)
    assert again.returncode == 1
    complaint(again)
    assert one(mqcore("channel", "show", "orders", "--json", url=served.url))["client_limit"] == 5
    mqcore("channel", "create", "reports", url=served.url)
    listed = one(mqcore("channel", "ls", "ord*", "--json", url=served.url))
    assert [channel["name"] for channel in listed["channels"]] == ["orders"]
    mqcore("queue", "create", "orders/1", url=served.url)
    mqcore("publish", "orders/1", "x", url=served.url)
    asked = mqcore("channel", "rm", "orders", url=served.url)
    assert asked.returncode == 2
    assert "loses 1 message;" in complaint(asked)
    removed = one(mqcore("channel", "rm", "orders", "--yes", "--json", url=served.url))
    assert removed["messages_lost"] == 1
    gone = mqcore("channel", "show", "orders", url=served.url)
    assert gone.returncode == 3
    assert "orders" in complaint(gone)


def test_queue_options_are_set_and_shown(served: ServedBroker) -> None:
    options = ["--status", "pull", "--acknowledge", "--acknowledge-timeout", "30s", "--message-limit", "9"]
    mqcore("queue", "create", "orders/1", *options, "--tag", "fresh", url=served.url)
    shown = one(mqcore("queue", "show", "orders/1", "--json", url=served.url))
    assert shown["schema"] == "mqcore.queue.show/1"
    assert (shown["queue"], shown["status"], shown["tag_name"]) == ("orders/1", "pull", "fresh")
    assert (shown["request_acknowledge"], shown["acknowledge_timeout"], shown["message_limit"]) == (True, 30.0, 9)
    changed = one(mqcore("queue", "set", "orders/1", "--no-acknowledge", "--json", url=served.url))
    assert changed["changed"] == {"request_acknowledge": False}
    shown = one(mqcore("queue", "show", "orders/1", "--json", url=served.url))
    assert (shown["request_acknowledge"], shown["message_limit"]) == (False, 9)


def test_every_option_of_a_queue_is_shown(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/9", url=served.url)
    given = {
        "--only-first": ("only_first_acquirer", True),
        "--acknowledge": ("request_acknowledge", True),
        "--acknowledge-timeout 30s": ("acknowledge_timeout", 30.0),
        "--message-timeout 1m": ("message_timeout", 60.0),
        "--wait": ("wait_for_acknowledge", True),
        "--hide-names": ("hide_client_names", True),
        "--message-limit 70": ("message_limit", 70),
        "--message-size-limit 4096": ("message_size_limit", 4096),
        "--tag fresh": ("tag_name", "fresh"),
        "--handler at-least-once": ("delivery_handler", "at-least-once"),
        "--put-back-limit 3": ("put_back_limit", 3),
        "--retry-delay 2s": ("retry_delay", 2.0),
        "--retry-delay-max 9s": ("retry_delay_max", 9.0),
        "--dead-letter orders/9": ("dead_letter", "orders/9"),
        "--durability os": ("durability", "os"),
        "--deduplication-window 30s": ("deduplication_window", 30.0),
        "--publish-limit 100/s": ("publish_limit", "100/s"),
    }
    options = [part for option in given for part in option.split()]
    created = mqcore("queue", "create", "orders/1", "--status", "pull", *options, url=served.url)
    assert created.returncode == 0, complaint(created)
    shown = one(mqcore("queue", "show", "orders/1", "--json", url=served.url))
    assert {name: shown[name] for name, _ in given.values()} == dict(given.values())
    assert shown["in_flight"] == 0
    assert set(shown["dropped_messages"].values()) <= {0}


def test_lists_without_a_terminal_are_tab_separated_with_a_heading(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    mqcore("queue", "create", "reports/2", "--status", "pull", url=served.url)
    heading, *rows = mqcore("queue", "ls", url=served.url).stdout.decode().splitlines()
    assert heading.split("\t")[:3] == ["queue", "status", "ready"]
    assert sorted(row.split("\t")[:3] for row in rows) == [["orders/1", "push", "0"], ["reports/2", "pull", "0"]]
    only = one(mqcore("queue", "ls", "rep*", "--json", url=served.url))
    assert [queue["queue"] for queue in only["queues"]] == ["reports/2"]


def test_a_status_is_changed_by_any_of_its_names(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    for word, status in (("pause", "paused"), ("round-robin", "roundrobin"), ("pull", "pull")):
        assert mqcore("queue", "status", "orders/1", word, url=served.url).returncode == 0
        assert one(mqcore("queue", "show", "orders/1", "--json", url=served.url))["status"] == status


def test_stopping_tells_what_is_lost_and_asks_first(served: ServedBroker) -> None:
    mqcore("publish", "orders/1", "x", "--count", "3", url=served.url)
    asked = mqcore("queue", "status", "orders/1", "stop", url=served.url)
    assert asked.returncode == 2
    assert "loses 3 messages; add --yes" in complaint(asked)
    assert one(mqcore("queue", "show", "orders/1", "--json", url=served.url))["messages"] == 3
    stopped = one(mqcore("queue", "status", "orders/1", "stop", "--yes", "--json", url=served.url))
    assert stopped["messages_lost"] == 3
    refused = mqcore("publish", "orders/1", "x", url=served.url)
    assert refused.returncode == 1, "not 4, which says that a right is missing"
    assert "stopped" in complaint(refused)
    assert "orders/1" in complaint(refused)


def test_clearing_and_removing_ask_first(served: ServedBroker) -> None:
    mqcore("publish", "orders/1", "x", "--count", "2", url=served.url)
    for verb in ("clear", "rm"):
        assert mqcore("queue", verb, "orders/1", url=served.url).returncode == 2
    assert one(mqcore("queue", "clear", "orders/1", "--yes", "--json", url=served.url))["messages_lost"] == 2
    assert one(mqcore("queue", "show", "orders/1", "--json", url=served.url))["messages"] == 0
    assert mqcore("queue", "rm", "orders/1", "--yes", url=served.url).returncode == 0
    assert mqcore("queue", "show", "orders/1", url=served.url).returncode == 3


def test_publishing_to_a_missing_queue_is_exit_code_3() -> None:
    with serving() as broker:
        result = mqcore("publish", "orders/1", "x", url=broker.url)
    assert result.returncode == 3
    assert "orders/1" in complaint(result)


# --- tail -----------------------------------------------------------------------------------------------------


def test_events_are_printed_as_they_happen_and_nothing_is_consumed(served: ServedBroker) -> None:
    mqcore("queue", "create", "orders/1", url=served.url)
    arguments = ["tail", "--events", "--queue", "orders/1", "--count", "5", "--json", "--url", served.url]
    process = programs.Popen(
        [sys.executable, "-m", "mqcore", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"watching\n"
        mqcore("publish", "orders/1", "x", url=served.url)
        mqcore("channel", "create", "reports", url=served.url)
        output, _ = process.communicate(timeout=20)
    events = [json.loads(line) for line in output.splitlines()]
    assert {event["schema"] for event in events} == {"mqcore.event/1"}
    kinds = [event["kind"] for event in events]
    assert kinds[:3] == ["ClientConnected", "MessageProduced", "ClientDisconnected"]
    assert (events[1]["channel"], events[1]["queue"]) == ("orders", 1)
    assert one(mqcore("queue", "show", "orders/1", "--json", url=served.url))["messages"] == 1
