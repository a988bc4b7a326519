"""`mqcore init`: a broker starts with the file that it writes, and it overwrites nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mqcore as package
from mqcore.cli.init import rendered
from served import ROOT, serving
from test_cli import complaint, one
from test_cli import mqcore as run
from test_cli_config import with_examples

ALL = ("--systemd", "--container", "--kubernetes")
FILES = ("mqcore.toml", "mqcore.service", "Containerfile", "kubernetes.yaml")


def test_broker_starts_with_the_written_file(tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert one(run("init", str(new), "--json")) == {"schema": "mqcore.init/1", "files": [str(new / "mqcore.toml")]}
    assert run("config", "check", str(new / "mqcore.toml")).returncode == 0
    ports = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving("--config", str(new / "mqcore.toml"), *ports, cwd=tmp_path) as broker:
        assert one(run("status", "--url", broker.admin_url, "--json"))["status"] in {"healthy", "starting"}
        assert (tmp_path / "mqcore-data").is_dir()
        assert broker.terminate() == 0


def test_broker_starts_with_all_examples_of_the_written_file(tmp_path: Path) -> None:
    text = with_examples(rendered("mqcore.toml"))
    assert text.count("\n#") < rendered("mqcore.toml").count("\n#") - 20
    # No certificate exists here.
    text = text.replace('[tls]\ncert = "server.pem"\nkey = "server.key"\n', "")
    (tmp_path / "mqcore.toml").write_text(text)
    ports = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving("--config", str(tmp_path / "mqcore.toml"), *ports, cwd=tmp_path) as broker:
        names = [queue["queue"] for queue in one(run("queue", "ls", "--json", url=broker.url))["queues"]]
        assert sorted(names) == ["orders/1001", "orders/9"]


def test_files_of_all_deployments_are_written(tmp_path: Path) -> None:
    result = run("init", str(tmp_path), *ALL)
    assert (result.returncode, result.stdout) == (0, b"")
    lines = result.stderr.decode().splitlines()
    assert [line.partition(";")[0] for line in lines] == [f"wrote {tmp_path / name}" for name in FILES]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    for name in FILES:
        text = (tmp_path / name).read_text()
        assert "{{" not in text
    assert f"mqcore=={package.__version__} " in (tmp_path / "Containerfile").read_text()
    assert f"image: mqcore:{package.__version__}\n" in (tmp_path / "kubernetes.yaml").read_text()
    # The container starts the broker with the file that is beside it.
    assert "COPY mqcore.toml /etc/mqcore/mqcore.toml" in (tmp_path / "Containerfile").read_text()


def test_service_and_manifest_are_those_of_contrib(tmp_path: Path) -> None:
    run("init", str(tmp_path), *ALL)
    contrib = ROOT / "contrib"
    assert (tmp_path / "mqcore.service").read_text() == (contrib / "systemd" / "mqcore.service").read_text()
    assert (tmp_path / "kubernetes.yaml").read_text() == (contrib / "kubernetes" / "mqcore.yaml").read_text()
    # The containers differ in how they get the program, not in how it runs.
    end = "USER 10001:10001"
    ours, theirs = (
        [line for line in path.read_text().partition(end)[2].splitlines() if not line.startswith("CMD")]
        for path in (tmp_path / "Containerfile", contrib / "container" / "Containerfile")
    )
    assert ours == theirs


@pytest.mark.parametrize("existing", FILES)
def test_nothing_is_written_if_one_file_exists(existing: str, tmp_path: Path) -> None:
    (tmp_path / existing).write_text("mine")
    result = run("init", str(tmp_path), *ALL)
    assert result.returncode == 2
    assert f"{tmp_path / existing} exists; add --force to overwrite, or name another directory" in complaint(result)
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"
    assert run("init", str(tmp_path), *ALL, "--force").returncode == 0
    assert (tmp_path / existing).read_text() != "mine"


def test_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("init", str(tmp_path / "file" / "inner"))
    assert result.returncode == 2
    assert "file" in complaint(result)


def test_current_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("init", "--json").stdout)["files"] == ["mqcore.toml"]
    assert (tmp_path / "mqcore.toml").is_file()
