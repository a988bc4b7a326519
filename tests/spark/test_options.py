"""Options of the data source and plans of queries, without a Spark session."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mqcore import errors
from mqcore.spark.objects import Joined, Objects
from mqcore.spark.options import EARLIEST, LATEST, Positions, ReadOptions, WriteOptions, byte_count
from mqcore.spark.origin import Directory, Ends, Remote
from mqcore.spark.place import ObjectArchive, archive_url, local_path, place_of
from mqcore.spark.plan import Bounds, Plan, columns_of, ddl

PATH = {"path": "/data"}
WRITE = {"url": "tmqp://127.0.0.1", "stagingLocation": "/staging"}


def read(**given: str) -> ReadOptions:
    return ReadOptions.parse(PATH | given)


def test_defaults_of_reading() -> None:
    assert read() == ReadOptions(
        paths=("/data",),
        admin=None,
        token=None,
        view="messages",
        columns=None,
        include_headers=False,
        include_meta=False,
        queues=None,
        pattern=None,
        starting=None,
        ending="latest",
        since_us=None,
        until_us=None,
        rows_per_trigger=None,
        min_partitions=None,
        partition_bytes=64 << 20,
        fail_on_data_loss=True,
        assigned=None,
        since_by_shard=None,
        until_by_shard=None,
        min_rows_per_trigger=None,
        trigger_delay=900.0,
        fail_on_missing_queue=True,
        ca=None,
        cert=None,
        key=None,
        timeout=60.0,
        retries=10,
    )


def test_names_of_options_are_found_in_any_case_and_those_of_the_engine_are_ignored() -> None:
    given = {"PATH": "/data", "ViEw": " Steps ", "INCLUDEMETA": " TRUE ", "queryName": "q", "trigger": "1s"}
    options = ReadOptions.parse(given)
    assert (options.paths, options.view, options.include_meta) == (("/data",), "steps", True)


@pytest.mark.parametrize(
    ("given", "member", "value"),
    [
        ({"columns": " value, key ,,"}, "columns", ("value", "key")),
        ({"subscribe": "a,b/1"}, "queues", ("a", "b/1")),
        ({"subscribePattern": "a.*"}, "pattern", "a.*"),
        ({"includeHeaders": "true"}, "include_headers", True),
        ({"failOnDataLoss": "FALSE"}, "fail_on_data_loss", False),
        ({"startingOffsets": " EARLIEST "}, "starting", "earliest"),
        ({"startingOffsets": "latest"}, "starting", "latest"),
        ({"startingOffsets": '{"0": 5, "1": -2}'}, "starting", {0: 5, 1: -2}),
        ({"endingOffsets": '{"0": {"journal": "j", "sequence": 7}}'}, "ending", {0: 7}),
        ({"startingTimestamp": "1000"}, "since_us", 1_000_000),
        ({"startingTimestamp": "1970-01-01T00:00:02Z"}, "since_us", 2_000_000),
        ({"endingTimestamp": "1970-01-01T00:00:02.000003"}, "until_us", 2_000_003),
        ({"endingTimestamp": "1970-01-01T01:00:02+01:00"}, "until_us", 2_000_000),
        ({"maxOffsetsPerTrigger": "1"}, "rows_per_trigger", 1),
        ({"minPartitions": "2"}, "min_partitions", 2),
        ({"assign": '{"a": [0, 1], "b/1": [2]}'}, "assigned", {"a": {0, 1}, "b/1": {2}}),
        ({"assign": '{"a": [0, 1], "b/1": [2]}'}, "queues", ("a", "b/1")),
        (
            {"startingOffsetsByTimestamp": '{"0": 7, "1": "1970-01-01T00:00:02Z"}'},
            "since_by_shard",
            {0: 7000, 1: 2000000},
        ),
        ({"endingOffsetsByTimestamp": '{"0": "7"}'}, "until_by_shard", {0: 7000}),
        ({"minOffsetsPerTrigger": "3", "maxTriggerDelay": "2m"}, "min_rows_per_trigger", 3),
        ({"minOffsetsPerTrigger": "3", "maxTriggerDelay": "2m"}, "trigger_delay", 120.0),
        ({"minOffsetsPerTrigger": "3", "maxTriggerDelay": "1500ms"}, "trigger_delay", 1.5),
        ({"failOnMissingQueue": "false"}, "fail_on_missing_queue", False),
        ({"timeout": "2.5"}, "timeout", 2.5),
        ({"retries": "0"}, "retries", 0),
        ({"maxPartitionBytes": "1k"}, "partition_bytes", 1024),
    ],
    ids=str,
)
def test_options_of_reading_have_values(given: dict[str, str], member: str, value: object) -> None:
    assert getattr(read(**given), member) == value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"subscribed": "a"}, "unknown option 'subscribed' for reading mqcore; did you mean subscribe\\? use path"),
        ({"nonsense": "1"}, "unknown option 'nonsense' for reading mqcore; use path"),
        ({"view": "rows"}, "view must be messages or steps, not 'rows'"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern exclude each other"),
        ({"subscribe": " , "}, "subscribe must not be empty"),
        ({"columns": ""}, "columns must not be empty"),
        ({"includeMeta": "yes"}, "includeMeta must be true or false, not 'yes'"),
        ({"minPartitions": "0"}, "minPartitions must be an integer of at least 1, not '0'"),
        ({"minPartitions": "many"}, "minPartitions must be an integer of at least 1, not 'many'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be an integer of at least 1"),
        ({"startingOffsets": '{"0": -3}'}, "startingOffsets must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": "5"}'}, "startingOffsets must be earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets must be earliest, latest, or JSON"),
        ({"endingOffsets": "soon"}, "endingOffsets must be earliest, latest, or JSON"),
        ({"endingTimestamp": "noon"}, "endingTimestamp must be Unix milliseconds or a time .* not 'noon'"),
        ({"maxPartitionBytes": "0"}, "maxPartitionBytes must be a size such as 64m, not '0'"),
        ({"path": "hdfs://host/data"}, r"the file system hdfs cannot be read\. Mount it, .* option admin"),
        ({"path": "/here/hdfs:/data"}, "the file system hdfs cannot be read"),
        ({"assign": '{"a": [0]}', "subscribe": "b"}, "subscribe and assign exclude each other"),
        ({"assign": "[0, 1]"}, "assign must be JSON with the shards of each channel or queue"),
        ({"assign": '{"a": []}'}, "assign must be JSON with the shards"),
        ({"assign": '{"a": [-1]}'}, "assign must be JSON with the shards"),
        ({"assign": '{"a": [true]}'}, "assign must be JSON with the shards"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp must be JSON with Unix milliseconds"),
        ({"startingOffsetsByTimestamp": '{"0": "soon"}'}, "startingOffsetsByTimestamp must be JSON"),
        ({"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp must not be empty"),
        ({"startingOffsetsByTimestamp": '{"0": 5}', "startingTimestamp": "5"}, "exclude each other; use one of them"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            r"\(9\) must not exceed maxOffsetsPerTrigger \(8\)",
        ),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"},
            "maxTriggerDelay must be a time above 0 such as 30s",
        ),
        ({"timeout": "0"}, "timeout must be a time above 0 such as 30s or 15m, not '0'"),
        ({"retries": "-1"}, "retries must be an integer of at least 0, not '-1'"),
        ({"failOnMissingQueue": "no"}, "failOnMissingQueue must be true or false, not 'no'"),
        ({"paths": '["/a", "/b"]'}, "a query reads one data directory or archive"),
        ({"archive": "s3://bucket/prefix"}, "path and archive exclude each other"),
        ({"path": "/data", "archiveOptions": "aws_region=eu-central-1"}, "archiveOptions must be JSON with settings"),
        ({"path": "/data", "archiveOptions": "[1]"}, "archiveOptions must be JSON with settings"),
        ({"paths": "/a"}, "paths must be a JSON list of paths"),
        ({"admin": "http://127.0.0.1:2627"}, "path and admin exclude each other"),
    ],
    ids=str,
)
def test_invalid_options_of_reading_are_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        read(**given)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_end_of_a_stream_is_an_error(name: str) -> None:
    given = PATH | {name: '{"0": 5}' if name.endswith("ByTimestamp") else "5" if "Time" in name else "latest"}
    assert ReadOptions.parse(given) == ReadOptions.parse(given, streaming=False)
    with pytest.raises(errors.ConfigError, match=rf"{name} is only for spark\.read; a stream has no end"):
        ReadOptions.parse(given, streaming=True)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_size_of_a_batch_is_an_error_without_a_stream(name: str) -> None:
    given = PATH | {name: "5"}
    assert ReadOptions.parse(given) == ReadOptions.parse(given, streaming=True)
    with pytest.raises(errors.ConfigError, match=rf"{name} is only for spark\.readStream"):
        ReadOptions.parse(given, streaming=False)


def test_reading_needs_a_directory_or_an_admin_side() -> None:
    with pytest.raises(
        errors.ConfigError, match=r"say where the history is: the data directory .* CREATE TEMPORARY VIEW"
    ):
        ReadOptions.parse({})
    options = ReadOptions.parse({"admin": "http://127.0.0.1:2627", "token": "t"})
    assert (options.paths, options.admin, options.token) == ((), "http://127.0.0.1:2627", "t")
    assert isinstance(Plan.of(options, [("value", "binary")]).origin(), Remote)


def test_paths_are_absolute_and_of_the_local_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(path="data").paths == (str(tmp_path / "data"),)
    assert read(path="file:///srv/data").paths == ("/srv/data",)
    assert read(path="file:/srv/data").paths == ("/srv/data",)
    assert local_path("data_dir", str(tmp_path / "file:/srv/data")) == "/srv/data", "as pathlib makes it of a URL"
    assert read(paths='["/one"]').paths == ("/one",)
    plan = Plan.of(read(path=str(tmp_path)), [("value", "binary")])
    assert plan.options.paths == (str(tmp_path),)


def test_urls_of_object_stores_name_an_archive(tmp_path: Path) -> None:
    for url in ("s3://bucket/a/b", "s3a://bucket/a", "gs://bucket/a", "az://container/a", "abfss://c@a.host/b"):
        options = ReadOptions.parse({"path": url})
        assert (options.archive, options.paths, options.place) == (url, (), url)
        assert archive_url(str(Path("/here", url))) == url, "as pathlib makes it of a URL"
        assert place_of(Path(url)) == ObjectArchive(url)
    store = {"archiveOptions": '{"aws_region": "eu-central-1", "aws_allow_http": true}'}
    options = ReadOptions.parse({"archive": "s3://bucket/a", "admin": "http://127.0.0.1:2627", **store})
    assert options.archive_options == ("aws_region=eu-central-1", "aws_allow_http=true")
    assert options.place == "http://127.0.0.1:2627"
    origin = Plan.of(options, [("value", "binary")]).origin()
    assert isinstance(origin, Joined)
    assert isinstance(
        Plan.of(ReadOptions.parse({"archive": tmp_path.as_uri()}), [("value", "binary")]).origin(), Objects
    )
    with pytest.raises(errors.ConfigError, match=r"archive must be the URL of an archive .* not '/data'"):
        ReadOptions.parse({"archive": "/data"})
    with pytest.raises(errors.ConfigError, match="archiveOptions are for an archive on object storage"):
        ReadOptions.parse({"admin": "http://127.0.0.1:2627", **store})


def test_file_url_names_an_archive_if_it_has_tables(tmp_path: Path) -> None:
    tables = tmp_path / "lake" / "messages" / "metadata"
    tables.mkdir(parents=True)
    url = (tmp_path / "lake").as_uri()
    assert (read(path=url).archive, read(path=url).paths) == (url, ())
    (tmp_path / "lake" / "format").touch()
    assert (read(path=url).archive, read(path=url).paths) == (None, (str(tmp_path / "lake"),))
    assert place_of(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("1", 1), ("7b", 7), ("2k", 2048), ("2KB", 2048), (" 3 m ", 3 << 20)),
        *(("1mb", 1 << 20), ("1g", 1 << 30), ("2gb", 2 << 30)),
    ],
)
def test_sizes_have_the_units_of_spark(text: str, size: int) -> None:
    assert byte_count("size", text) == size


@pytest.mark.parametrize("text", ["", "m", "1t", "-1", "1.5m", "0k"])
def test_sizes_of_another_form_are_named(text: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"size must be a size such as 64m, not '{text}'"):
        byte_count("size", text)


def test_defaults_of_writing() -> None:
    assert WriteOptions.parse(WRITE, streaming=True) == WriteOptions(
        url="tmqp://127.0.0.1",
        token=None,
        queue=None,
        staging="/staging",
        sink=None,
        version=None,
        admin=None,
        admin_token=None,
        timeout=60.0,
        retries=10,
        window=32_768,
        rejected=None,
        message_bytes=64 << 20,
        creates_queues=False,
    )


@pytest.mark.parametrize(
    ("given", "member", "value"),
    [
        ({"channel": "orders"}, "queue", "orders/0"),
        ({"queue": "orders/1"}, "queue", "orders/1"),
        ({"sinkId": "s"}, "sink", "s"),
        ({"token": "t"}, "admin_token", "t"),
        ({"token": "t", "adminToken": "a"}, "admin_token", "a"),
        ({"timeout": "0.5"}, "timeout", 0.5),
        ({"retries": "0"}, "retries", 0),
        ({"window": "1"}, "window", 1),
        ({"rejectedQueue": "bad/1"}, "rejected", "bad/1"),
        ({"maxMessageBytes": "1m"}, "message_bytes", 1 << 20),
        ({"autoCreateQueues": "true"}, "creates_queues", True),
        ({"txnAppId": "app", "txnVersion": "0"}, "version", 0),
        ({"txnAppId": "app", "txnVersion": "0"}, "sink", "app"),
        ({"checkpointLocation": "/checkpoint"}, "staging", "/staging"),
    ],
    ids=str,
)
def test_options_of_writing_have_values(given: dict[str, str], member: str, value: object) -> None:
    assert getattr(WriteOptions.parse(WRITE | given, streaming=False), member) == value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"timeout": "0"}, "timeout must be more than 0 seconds, not '0'"),
        ({"timeout": "nan"}, "timeout must be more than 0 seconds, not 'nan'"),
        ({"timeout": "soon"}, "timeout must be more than 0 seconds, not 'soon'"),
        ({"retries": "-1"}, "retries must be an integer of at least 0, not '-1'"),
        ({"window": "0"}, "window must be an integer of at least 1, not '0'"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"channel": "a", "queue": "a/1"}, "set channel or queue, not both"),
    ],
    ids=str,
)
def test_invalid_options_of_writing_are_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        WriteOptions.parse(WRITE | given, streaming=False)


def test_stream_numbers_its_batches_itself_and_stages_at_its_checkpoint() -> None:
    with pytest.raises(errors.ConfigError, match=r"only for df\.write"):
        WriteOptions.parse(WRITE | {"txnAppId": "app", "txnVersion": "1"}, streaming=True)
    given = {"url": "tmqp://a", "checkpointLocation": "file:///checkpoint"}
    assert WriteOptions.parse(given, streaming=True).staging == "/checkpoint"


def test_columns_are_those_of_the_view_and_the_options() -> None:
    default = [name for name, _ in columns_of(read())]
    assert default == ["key", "value", "channel", "queue_id", "sequence", "timestamp", "shard"]
    with_headers = [name for name, _ in columns_of(read(includeHeaders="true"))]
    assert set(with_headers) - set(default) == {"headers"}
    with_meta = {name for name, _ in columns_of(read(includeMeta="true"))}
    assert {"kind", "message_id", "producer_id"} <= with_meta - set(default)
    assert "headers" not in with_meta
    named = columns_of(read(columns="timestamp,value"))
    assert ddl(named) == "`timestamp` timestamp, `value` binary"
    with pytest.raises(errors.ConfigError, match=r"unknown column 'body' in the view messages; use .*value"):
        columns_of(read(columns="value,body"))


def test_columns_of_a_given_schema_have_their_types() -> None:
    plan = Plan.of(read(), [("value", "string"), ("key", "binary"), ("channel", "string")])
    assert (plan.columns, plan.texts) == (("value", "key", "channel"), ("value",))
    assert json.loads(plan.request())["texts"] == ["value"]
    assert "texts" not in json.loads(plan.request(["sequence"]))
    for columns, why in (
        ([("body", "binary")], "unknown column 'body' in the view messages; use body_bytes, channel, "),
        ([("value", "int")], "'value' has the type binary or string, but the given schema has int"),
        ([("channel", "binary")], "'channel' has the type string, but the given schema has binary"),
    ):
        with pytest.raises(errors.ConfigError, match=why):
            Plan.of(read(), columns)


def test_filters_of_one_column_keep_what_both_let_pass() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

    from mqcore.spark.filters import narrow

    def narrowed(*filters: Filter) -> Plan:
        plan = Plan.of(read(), [("value", "binary")])
        for wanted in filters:
            narrow(plan, wanted)
        return plan

    kinds = narrowed(EqualTo(("kind",), "acked"), EqualTo(("kind",), "saved"))
    assert kinds.kinds == ("acked",)
    assert narrowed(EqualTo(("other",), "text")).kinds is None
    assert narrowed(In(("kind",), ("acked", None))).kinds is None
    assert narrowed(In(("shard",), (0, 1)), In(("partition",), (1, 2))).bounds.shards == {1}
    bounds = narrowed(
        GreaterThan(("sequence",), 5),
        GreaterThan(("sequence",), 3),
        LessThan(("offset",), 9),
        LessThanOrEqual(("offset",), 11),
        LessThan(("sequence",), "12"),
        GreaterThan(("sequence",), "12"),
    ).bounds
    # Spark applies the filters again, so that a plan may let one row more pass.
    assert (bounds.first, bounds.behind) == (5, 10)
    moment = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
    us = int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + 5
    later = moment.replace(hour=13)
    between = narrowed(
        GreaterThanOrEqual(("timestamp",), moment),
        GreaterThanOrEqual(("timestamp",), moment.replace(hour=11)),
        LessThanOrEqual(("timestamp",), later),
        LessThanOrEqual(("timestamp",), later.replace(hour=14)),
        LessThanOrEqual(("timestamp",), later.replace(hour=1, tzinfo=None)),
    )
    assert (between.since_us, between.until_us) == (us, us + 3_600_000_001)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("queue", [f"q{number}/0" for number in range(2000)]),
        ("channel", ["a"] * 1025),
        ("topic", [f"orders-of-a-customer-with-a-long-name-{number}/0" for number in range(200)]),
        ("queue", [f"\N{GREEK SMALL LETTER ALPHA}{number}/0" for number in range(600)]),
        ("kind", ["k" * 9000]),
    ],
    ids=["many", "one too many", "long", "escaped", "kinds"],
)
def test_filter_with_more_names_than_a_request_can_have_is_left_to_spark(column: str, values: list[str]) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import EqualTo, In

    from mqcore.spark.source import FilteringReader

    plan = Plan.of(ReadOptions.parse({"admin": "http://broker:2627"}), [("value", "binary")])
    filters = [In((column,), tuple(values)), EqualTo(("channel",), "a"), EqualTo(("kind",), "acked")]
    assert list(FilteringReader(plan).pushFilters(filters)) == filters
    assert (plan.queues, plan.kinds) == (("a",), ("acked",)), "other filters still apply"


def test_filter_with_as_many_names_as_possible_fits_into_a_request() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import In

    from mqcore.spark.filters import narrow
    from mqcore.spark.origin import _headers

    for name, count in (("q{}", 780), ("a", 1024), ("a-name-of-a-queue-with-{}/0", 240)):
        options = ReadOptions.parse({"admin": "http://broker:2627", "includeHeaders": "true", "includeMeta": "true"})
        plan = Plan.of(options, columns_of(options))
        names = tuple(name.format(number) for number in range(count))
        narrow(plan, In(("queue",), names))
        assert plan.queues == names
        stretches = [[shard, (1 << 50) + shard, (1 << 51) + shard] for shard in range(32)]
        question = {"do": "pieces", "request": plan.request(), "stretches": stretches, "target_bytes": 1 << 26}
        assert _headers(question)
    local = Plan.of(read(), [("value", "binary")])
    names = tuple(f"a-name-of-a-queue-with-{number}/0" for number in range(1024))
    narrow(local, In(("queue",), names))
    assert local.queues == names, "a data directory gets no such question"


ENDS = [Ends(0, "j0", 10, 40), Ends(1, "j1", 0, 7)]


def test_positions_are_those_of_each_shard() -> None:
    plan = Plan.of(read(), [("value", "binary")])

    def sequences(wanted: Positions) -> list[tuple[str, int]]:
        found = plan.positions(ENDS, wanted, "startingOffsets")
        assert list(found) == ["0", "1"]
        return [(place["journal"], place["sequence"]) for place in found.values()]

    assert sequences("earliest") == [("j0", 0), ("j1", 0)]
    assert sequences("latest") == [("j0", 40), ("j1", 7)]
    assert sequences({0: EARLIEST, 1: 5}) == [("j0", 0), ("j1", 5)]
    assert sequences({0: LATEST, 1: LATEST}) == [("j0", 40), ("j1", 7)]
    with pytest.raises(errors.ConfigError, match=r"startingOffsets must have .* shards \[0, 1\], not for \[0\]"):
        sequences({0: 5})


@pytest.mark.parametrize(
    ("place", "why", "rest"),
    [
        ({"journal": "j0", "sequence": 0}, None, 0),
        ({"journal": "j0", "sequence": 10}, None, 10),
        ({"journal": "j0", "sequence": 40}, None, 40),
        ({"journal": "", "sequence": 12}, None, 12),
        ({"journal": "j0", "sequence": 41}, "the history ends at sequence 40, before 41", 40),
        ({"journal": "j0", "sequence": 9}, "retention has removed the rows before sequence 10", 10),
        ({"journal": "old", "sequence": 12}, "the journal has changed from old to j0", 0),
    ],
    ids=str,
)
def test_offsets_of_rows_that_are_gone_are_an_error_unless_the_loss_is_accepted(
    place: dict[str, Any], why: str | None, rest: int
) -> None:
    strict, lenient = (Plan.of(read(failOnDataLoss=text), [("value", "binary")]) for text in ("true", "false"))
    if why is None:
        assert strict.checked({"0": place}, ENDS)["0"] == {"journal": "j0", "sequence": rest}
    else:
        with pytest.raises(errors.HistoryLost, match=f"history of shard 0 from .* is lost: {why}"):
            strict.checked({"0": place}, ENDS)
    found = lenient.checked({"0": place}, ENDS)
    assert found == {"0": {"journal": "j0", "sequence": rest}, "1": {"journal": "j1", "sequence": 0}}


@pytest.mark.parametrize("ends", [[], ENDS[1:]], ids=["no shard", "other shards"])
def test_shard_without_a_history_is_lost_or_keeps_its_offset(ends: list[Ends]) -> None:
    strict, lenient = (Plan.of(read(failOnDataLoss=text), [("value", "binary")]) for text in ("true", "false"))
    start = {"0": {"journal": "j0", "sequence": 10}}
    with pytest.raises(errors.HistoryLost, match=r"shard 0 from sequence 10 on is lost: .* does not have it now"):
        strict.checked(start, ends)
    assert lenient.checked(start, ends)["0"] == start["0"]
    assert strict.checked({}, ends) == {str(end.shard): {"journal": end.journal, "sequence": 0} for end in ends}


def test_requests_of_shards_have_their_own_times_and_queues() -> None:
    plan = Plan.of(
        read(
            assign='{"a": [0, 1], "b/1": [1]}',
            startingOffsetsByTimestamp='{"0": 3, "1": 4}',
            endingOffsetsByTimestamp='{"0": 9, "1": 8}',
        ),
        [("value", "binary")],
    )
    plan.until_us = 8_500
    requests = [json.loads(plan.request(shard=shard)) for shard in (0, 1)]
    assert [request["queues"] for request in requests] == [["a"], ["a", "b/1"]]
    assert [request["since_us"] for request in requests] == [3000, 4000]
    assert [request["until_us"] for request in requests] == [8500, 8000]
    end = {str(shard): {"journal": "j", "sequence": 40} for shard in (0, 1, 2)}
    assert plan.stretches({}, end) == [(0, 0, 40), (1, 0, 40)], "shard 2 is not assigned"


def test_stretches_are_between_two_offsets_and_within_the_bounds_of_filters() -> None:
    plan = Plan.of(read(), [("value", "binary")])
    end = {"0": {"journal": "j0", "sequence": 40}, "1": {"journal": "j1", "sequence": 7}}
    start = {"0": {"journal": "j0", "sequence": 15}, "1": {"journal": "", "sequence": 6}}
    assert plan.stretches(start, end) == [(0, 15, 40), (1, 6, 7)]
    assert plan.stretches({}, end) == [(0, 0, 40), (1, 0, 7)]
    assert plan.stretches(end, end) == []
    plan.bounds = Bounds(shards=frozenset({0}), first=20, behind=30)
    assert plan.stretches(start, end) == [(0, 20, 30)]
    plan.bounds = Bounds(first=7)
    assert plan.stretches(start, end) == [(0, 15, 40)]


def test_repeated_batch_of_a_replaced_journal_has_no_rows_of_the_new_one() -> None:
    """The next batch begins with the new journal, and has them."""
    lenient = Plan.of(read(failOnDataLoss="false"), [("value", "binary")])
    end = {"0": {"journal": "old", "sequence": 40}, "1": {"journal": "j1", "sequence": 7}}
    begin = lenient.checked({"0": {"journal": "old", "sequence": 10}, "1": {"journal": "j1", "sequence": 5}}, ENDS)
    assert lenient.stretches(begin, end) == [(1, 5, 7)]
    begin = lenient.checked(end, ENDS)
    assert lenient.stretches(begin, {"0": {"journal": "j0", "sequence": 40}}) == [(0, 0, 40)]


def test_directory_without_a_broker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.DataDirMissing, match="is not a data directory"):
        Directory.known(str(tmp_path)).ends()
