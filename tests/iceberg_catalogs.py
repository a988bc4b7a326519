"""Iceberg catalogs for tests: Iceberg's own REST server, SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from object_stores import answers
from served import wait_until
from spark.maven import jars_or_skip


@dataclass(frozen=True)
class IcebergCatalog:
    """A catalog that runs."""

    url: str
    """The option `catalog` of a broker."""
    kind: str
    """Type of the catalog in PyIceberg."""

    def table(self, namespace: str, name: str) -> Any:
        """A table, opened by PyIceberg."""
        from pyiceberg.catalog import load_catalog

        # PyIceberg's driver for PostgreSQL is psycopg2.
        uri = self.url.replace("postgresql://", "postgresql+psycopg2://")
        return load_catalog("mqcore", type=self.kind, uri=uri).load_table((namespace, name))


@contextlib.contextmanager
def rest_catalog(directory: Path) -> Iterator[IcebergCatalog]:
    """A server with Iceberg's REST protocol. Its database is below `directory`."""
    jars = jars_or_skip("rest-catalog")
    port = free_port()
    settings = {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{directory}/catalog.db",
        "CATALOG_WAREHOUSE": str(directory / "warehouse"),
        "CATALOG_REST_PORT": str(port),
    }
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    command = [java, "-Xmx256m", "-cp", os.pathsep.join(map(str, jars)), "org.apache.iceberg.rest.RESTCatalogServer"]
    with running(command, port, directory / "log", settings):
        yield IcebergCatalog(f"http://127.0.0.1:{port}", "rest")


@contextlib.contextmanager
def sqlite_catalog(directory: Path) -> Iterator[IcebergCatalog]:
    """A database in a file below `directory`."""
    yield IcebergCatalog(f"sqlite:///{directory}/catalog.db", "sql")


@contextlib.contextmanager
def postgresql_catalog(directory: Path) -> Iterator[IcebergCatalog]:
    """A PostgreSQL server with an empty database, which asks for a password."""
    tools = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
    found = tools or shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL is missing (apt-get install postgresql)")
    place = Path(found).parent
    port = free_port()
    # The server does not run as root, and its user cannot enter pytest's directories.
    with tempfile.TemporaryDirectory() as private:
        owner = ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []
        Path(private).chmod(0o777)
        password = Path(private, "password")
        password.write_text("secret-of-tests")
        data = f"{private}/data"
        init = [*owner, str(place / "initdb"), "-D", data, "-U", "mq", "--auth=scram-sha-256", f"--pwfile={password}"]
        subprocess.run(init, check=True, capture_output=True)
        command = [*owner, str(place / "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", private]
        with running([*command, "-c", "fsync=off"], port, directory / "log", {}):
            url = f"postgresql://mq:secret-of-tests@127.0.0.1:{port}/postgres"
            yield IcebergCatalog(url, "sql")


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path, settings: dict[str, str]) -> Iterator[None]:
    """A server in a process of its own, from when it listens."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: answers(port) or process.poll() is not None, limit=90, what="the start of the catalog's server"
        )
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port of this machine on which no one listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
