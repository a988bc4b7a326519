"""The files for operators in contrib/: their metrics exist, and the programs that read them accept them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from served import ROOT, ServedBroker, serving, started
from test_cli import mqcore as cli

CONTRIB = ROOT / "contrib"
ALERTS = CONTRIB / "prometheus" / "alerts.yaml"
GRAFANA = CONTRIB / "grafana" / "mqcore.json"
METRIC = re.compile(r"\bmqcore_[a-z_]+")

CONDITIONAL = {"mqcore_tls_certificate_expiry_seconds"}
"""Metrics that only a broker with TLS has; tests/test_tls.py reads them."""


@pytest.fixture(scope="module")
def broker() -> Any:
    """A broker with an admin side and a queue."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as served:
        cli("queue", "create", "orders/1", url=served.url)
        cli("publish", "orders/1", "hello", url=served.url)
        yield served


def metric_names(broker: ServedBroker) -> set[str]:
    """The names on the page of metrics, with those of single queues, and those of the parts of histograms."""
    names = set()
    with urllib.request.urlopen(f"{broker.admin_url}/metrics?queues=1", timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("# TYPE"):
                _, _, name, kind = line.split()
                names |= {name + part for part in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


def test_prometheus_accepts_the_page_of_metrics(broker: ServedBroker) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    with urllib.request.urlopen(f"{broker.admin_url}/metrics?queues=1", timeout=10) as page:
        checked = subprocess.run([promtool, "check", "metrics"], input=page.read(), capture_output=True, check=False)
    # It is for releases of exporters too, so it has opinions about names and help texts.
    assert b"error while linting" not in checked.stderr, checked.stderr.decode()


@pytest.mark.parametrize("file", [ALERTS, GRAFANA], ids=lambda path: path.name)
def test_every_metric_that_is_used_exists(file: Path, broker: ServedBroker) -> None:
    used = set(METRIC.findall(file.read_text(encoding="utf-8")))
    assert len(used) > 3
    assert used - CONDITIONAL <= metric_names(broker)


def test_the_grafana_dashboard_shows_something_in_every_panel() -> None:
    dashboard = json.loads(GRAFANA.read_text(encoding="utf-8"))
    assert dashboard["panels"]
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["targets"], panel["title"]
        assert all(METRIC.search(target["expr"]) for target in panel["targets"]), panel["title"]


def test_prometheus_accepts_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_scrapes_the_broker_and_evaluates_the_alerts(broker: ServedBroker, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("prometheus is not installed (Debian's package prometheus)")
    target = broker.admin_url.removeprefix("http://")
    config = tmp_path / "prometheus.yaml"
    config.write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\n"
        "scrape_configs:\n- job_name: mqcore\n  params: {queues: ['1']}\n"
        f"  static_configs: [{{targets: ['{target}']}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert query(port, 'mqcore_queue_ready{queue="orders/1"}') == "1"
            rules = api(port, "rules")["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} == {"ok"}
            for panel in json.loads(GRAFANA.read_text(encoding="utf-8"))["panels"]:
                for wanted in panel["targets"]:
                    expression = wanted["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
                    api(port, "query?" + urllib.parse.urlencode({"query": expression}))
        finally:
            process.terminate()


def api(port: int, path: str) -> Any:
    """The data of an answer of Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as page:
        answer = json.load(page)
    assert answer["status"] == "success", answer
    return answer["data"]


def query(port: int, expression: str) -> str:
    """The first value of an expression, as soon as there is one and the alerts were evaluated."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            result = api(port, "query?" + urllib.parse.urlencode({"query": expression}))["result"]
            rules = api(port, "rules")["groups"][0]["rules"]
            if result and all(rule["health"] == "ok" for rule in rules):
                return str(result[0]["value"][1])
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"Prometheus has no value of {expression}")


def test_systemd_accepts_the_unit_and_finds_it_safe(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "mqcore"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "mqcore.service"
    source = CONTRIB / "systemd" / "mqcore.service"
    unit.write_text(source.read_text(encoding="utf-8").replace("/opt/mqcore/bin/mqcore", str(program)))
    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in verified.stderr.splitlines() if "mqcore.service" in line]
    assert not complaints
    command = [analyze, "security", "--offline=true", "--threshold=20", str(unit)]
    secured = subprocess.run(command, capture_output=True, text=True, check=False)
    assert secured.returncode == 0, secured.stdout[-2000:] + secured.stderr


def test_the_service_manager_learns_when_the_broker_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(os.fspath(address))
        manager.settimeout(20)
        with serving(environment={"NOTIFY_SOCKET": str(address)}) as broker:
            ready = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
            assert (ready["READY"], ready["MAINPID"]) == ("1", str(broker.process.pid))
            assert broker.ready["listeners"]["tmqp"] in ready["STATUS"]
            assert broker.terminate() == 0
            assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"


# --- Kubernetes -----------------------------------------------------------------------------------------------

MANIFEST = CONTRIB / "kubernetes" / "mqcore.yaml"


def validated(manifest: str) -> subprocess.CompletedProcess[str]:
    """Compare a manifest with the schemas of Kubernetes, without unknown fields."""
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-"]
    return subprocess.run(command, input=manifest, capture_output=True, text=True, timeout=60, check=False)


def test_the_kubernetes_manifest_fits_the_schemas_of_kubernetes() -> None:
    checked = validated(MANIFEST.read_text(encoding="utf-8"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stderr.count("passed") + checked.stdout.count("passed") == 3


@pytest.mark.parametrize("manifest", ["mqcore.yaml", "mqcore-cluster.yaml"])
def test_brokers_start_as_the_manifest_says(manifest: str, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = (CONTRIB / "kubernetes" / manifest).read_text(encoding="utf-8")
    step = re.search(r"`mqcore (token generate [^`]+)`", text)
    assert step is not None
    table = cli(*shlex.split(step[1])).stdout.decode()
    files = next(part["data"] for part in yaml.safe_load_all(text) if part["kind"] == "ConfigMap")
    for number, content in enumerate(files.values()):
        # Other nodes are not needed to see whether it listens.
        alone = content.partition("[cluster]")[0].replace("/var/lib/mqcore", str(tmp_path / f"data-{number}"))
        given = tmp_path / f"{number}.toml"
        given.write_text(re.sub(r":\d+\"", ':0"', alone), encoding="utf-8")
        assert b"clients need no login" in cli("serve", "--config", str(given)).stderr
        given.write_text(given.read_text(encoding="utf-8") + table, encoding="utf-8")
        command = [sys.executable, "-m", "mqcore", "serve", "--config", str(given)]
        with started(command, {}, None) as (_, ready, _lines):
            assert set(ready["listeners"]) == {"tmqp"}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("terminationGracePeriodSeconds: 45", "terminationGracePeriod: 45"),
        ("replicas: 1", "replicas: one"),
        ("- { name: tmqp, port: 2622, targetPort: tmqp }", "- { name: tmqp, targetPort: tmqp }"),
    ],
)
def test_the_schemas_reject_a_manifest_with_a_mistake(line: str, wrong: str) -> None:
    manifest = MANIFEST.read_text(encoding="utf-8")
    assert line in manifest
    assert validated(manifest.replace(line, wrong)).returncode != 0


def test_a_pod_has_longer_to_stop_than_the_broker_takes() -> None:
    manifest = MANIFEST.read_text(encoding="utf-8")
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert grace is not None
    for probe, page in (("livenessProbe:", "/livez"), ("readinessProbe:", "/readyz")):
        assert page in manifest.split(probe)[1].splitlines()[1]
    # The drain timeout of `mqcore serve` is 10 s.
    assert int(grace[1]) >= 3 * 10
