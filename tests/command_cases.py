"""How each command of `mqcore` is run in its shortest real form, for the tests of every command's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CASES", "ELSEWHERE", "Case"]


@dataclass(frozen=True)
class Case:
    """Arguments of a command, and what it needs. `{n}` is the number of the run; other names are those of the world."""

    arguments: str = ""
    before: tuple[str, ...] = ()
    """Commands that run before it. The stdout of the last one is in the file `{output}`."""
    beside: str | None = None
    """A command that runs at the same time, started before it."""
    meanwhile: str | None = None
    """A command that runs once this one has written its first line to stderr."""
    stdin: str = ""
    codes: frozenset[int] = frozenset({0})
    schema: str | None = ""
    """Schema of its JSON; empty: named after the command; `None`: the command has no `--json`."""
    plain_schema: str | None = None
    """Schema of what a command without `--json` prints, if that is JSON."""


def _shop(queue: str) -> str:
    return f"queue create {queue} --status pull"


_CHANNEL: Final = "channel create ch-{n}"
_CONTEXT: Final = "context add other-{n} --url tmqp://broker.example --force"
_ROUTER: Final = ("router create r-{n}", "router bind r-{n} shop/1 --name b-{n}")
_USER: Final = "user add ann-{n} --no-password --certificate cn:ann-{n} --store {store}"
_LIMIT: Final = "limit set key-{n} 5 --ttl 60s"
_POLICY: Final = "policy set p-{n} none-{n}/* --message-limit 5"
_JOB: Final = "jobs enqueue shop.send_email 1 --queue line-{n}"
_BENCH: Final = "--scenario confirmed --seconds 0.05"

CASES: Final = {
    "init": Case("{files}/init-{n}"),
    "config show": Case(),
    "config check": Case("{files}/mqcore.toml", before=("init {files} --force",)),
    "config schema": Case(schema=None),
    "context ls": Case(before=(_CONTEXT,)),
    "context add": Case("new-{n} --url tmqp://broker.example"),
    "context use": Case("other-{n}", before=(_CONTEXT,)),
    "context rm": Case("other-{n}", before=(_CONTEXT,)),
    "context show": Case("other-{n}", before=(_CONTEXT,)),
    "publish": Case("shop/1 hello"),
    "consume": Case("line-{n}/1 --count 1", before=("publish line-{n}/1 hello",), schema="mqcore.message/1"),
    "pull": Case("shop/1", schema="mqcore.message/1"),
    "peek": Case("shop/1"),
    "send": Case("@name:desk-{n} hello", beside="receive --name desk-{n}"),
    "request": Case("@name:desk-{n} hello", beside="receive --name desk-{n} --reply fine", schema="mqcore.response/1"),
    "receive": Case("--name me-{n} --count 1", meanwhile="send @name:me-{n} hello", schema="mqcore.direct/1"),
    "tail": Case("--events --count 1", meanwhile="channel create seen-{n}", schema="mqcore.event/1"),
    "status": Case(),
    "top": Case("--once"),
    "dead ls": Case(),
    "dead show": Case("sick/65535"),
    "dead replay": Case("sick/65535 --count 1"),
    "dead discard": Case("sick/65535 --count 1 --yes"),
    "report stuck": Case(),
    "report slow-consumers": Case(),
    "report dead": Case(),
    # Queues without consumers need attention.
    "doctor": Case(codes=frozenset({0, 1})),
    "channel ls": Case(),
    "channel show": Case("shop"),
    "channel create": Case("new-{n}"),
    "channel set": Case("ch-{n} --client-limit 5", before=(_CHANNEL,)),
    "channel rm": Case("ch-{n} --yes", before=(_CHANNEL,)),
    "queue ls": Case(),
    "queue show": Case("shop/1"),
    "queue create": Case("shop/1{n}"),
    "queue set": Case("shop/2{n} --message-limit 5", before=(_shop("shop/2{n}"),)),
    "queue status": Case("shop/3{n} paused", before=(_shop("shop/3{n}"),)),
    "queue clear": Case("shop/4{n} --yes", before=(_shop("shop/4{n}"),)),
    "queue move": Case("shop/5{n} shop/6{n}", before=(_shop("shop/5{n}"), _shop("shop/6{n}"))),
    "queue rm": Case("shop/7{n} --yes", before=(_shop("shop/7{n}"),)),
    "router ls": Case(),
    "router show": Case("r-{n}", before=_ROUTER),
    "router create": Case("r-{n}"),
    "router rm": Case("r-{n}", before=_ROUTER),
    "router bind": Case("r-{n} shop/1", before=_ROUTER[:1]),
    "router unbind": Case("r-{n} b-{n}", before=_ROUTER),
    "router enable": Case("r-{n}", before=_ROUTER),
    "router disable": Case("r-{n}", before=_ROUTER),
    "router test": Case("r-{n}", before=_ROUTER),
    "definitions export": Case(schema=None, plain_schema="mqcore.definitions/1"),
    "definitions diff": Case("{output}", before=("definitions export",)),
    "definitions import": Case("{output}", before=("definitions export",)),
    "client ls": Case(),
    "client show": Case("shown-{n}", beside="receive --id shown-{n}"),
    "client disconnect": Case("gone-{n}", beside="receive --id gone-{n}"),
    "errors": Case(),
    "stack": Case("idle"),
    "trace": Case("traced"),
    "user add": Case("bob-{n} --store {store}", stdin="a long secret\n"),
    "user ls": Case("--store {store}"),
    "user passwd": Case("ann-{n} --store {store}", before=(_USER,), stdin="a long secret\n"),
    "user rm": Case("ann-{n} --yes --store {store}", before=(_USER,)),
    "user hash": Case(stdin="a long secret\n", schema=None),
    "token create": Case("new-{n} --allow * --store {store}"),
    "token generate": Case("new-{n} --allow *"),
    "token ls": Case("--store {store}"),
    "token revoke": Case("{token_id_{n}} --store {store}"),
    "limit ls": Case(before=(_LIMIT,)),
    "limit get": Case("key-{n}", before=(_LIMIT,)),
    "limit set": Case("key-{n} 5 --ttl 60s"),
    "limit reset": Case("key-{n}", before=(_LIMIT,)),
    "limit watch": Case("--count 1", before=(_LIMIT,)),
    "policy ls": Case(before=(_POLICY,)),
    "policy show": Case("p-{n}", before=(_POLICY,)),
    "policy set": Case("new-{n} none-{n}/* --message-limit 5"),
    "policy rm": Case("p-{n}", before=(_POLICY,)),
    "jobs enqueue": Case("shop.send_email 1"),
    "jobs state": Case("no-such-job"),
    "jobs cancel": Case("no-such-job-{n} --queue line-{n}"),
    "jobs status": Case(),
    "jobs workers": Case(),
    "jobs failed": Case("line-{n}", before=(_JOB,)),
    "jobs retry": Case("line-{n}", before=(_JOB,)),
    "jobs schedules": Case(),
    "jobs unschedule": Case("{schedule_id_{n}}"),
    "node ls": Case(),
    "journal ls": Case("{stopped}"),
    "journal verify": Case("{stopped}"),
    "journal export": Case("{stopped} --queue shop/1", schema=None, plain_schema="mqcore.journal.message/1"),
    "journal replay": Case("{stopped} --to shop/8{n}", before=(_shop("shop/8{n}"),)),
    "journal compact": Case("{stopped}"),
    "journal accept-loss": Case("--data-dir {stopped}"),
    "backup": Case("--to {files}/backup-{n}.tar", schema="mqcore.backup.made/1"),
    "restore": Case("{files}/b-{n}.tar --data-dir {files}/restored-{n}", before=("backup --to {files}/b-{n}.tar",)),
    "bench": Case(_BENCH),
    "bench compare": Case("{output} {output}", before=(f"bench {_BENCH} --json",)),
    "pipeline ls": Case(),
    "completion": Case("bash", schema=None),
    "version": Case(),
}

ELSEWHERE: Final = {
    "serve": "runs until a signal: test_serve_prints_its_ready_line_only",
    "drain": "stops a broker: test_drain_reports_what_it_started",
    "cluster force-new": "needs a stopped node of a cluster: tests/test_cluster_damage.py",
    "cluster promote": "needs a cluster: test_an_operator_chooses_the_leader in tests/test_cluster.py",
    "cluster ls": "needs a cluster: test_the_command_line_lists_the_nodes in tests/test_cluster.py",
    "run": "runs until a signal: tests/test_cli_run.py",
    "docs asyncapi": "needs an app: tests/test_asyncapi.py",
    "worker": "runs until a signal: test_worker_and_watch_print_data_until_a_signal",
    "jobs result": "needs a worker: test_results_and_states_of_jobs_are_read_by_id in tests/jobs/test_jobs_cli.py",
    "jobs watch": "runs until a signal, and needs a worker: the same test",
    "pipeline run": "starts Spark, which takes a minute: tests/spark/test_program.py",
    "pipeline replay": "starts Spark: tests/spark/test_pipeline_replay.py",
    "pipeline quality": "starts Spark: tests/spark/test_pipeline_quality.py",
    "pipeline cost": "starts Spark: tests/spark/test_pipeline_cost.py",
    "pipeline anomalies": "starts Spark: tests/spark/test_pipeline_anomalies.py",
    "pipeline schedule": "waits for a time and starts Spark: tests/spark/test_pipeline_site.py",
    "pipeline site": "needs reports: tests/spark/test_pipeline_site.py",
}
"""Commands without a case, and why."""
