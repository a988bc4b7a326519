"""A standalone cluster of Spark: one master and two workers on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

from ports import free_port
from served import clean_environment, wait_until

LIMIT = 120.0
"""Seconds until a part of the cluster answers: a JVM starts slowly on a busy machine."""


class Cluster:
    """One master and two workers on this machine."""

    def __init__(self, place: Path) -> None:
        import pyspark

        self.place = place
        self.home = Path(pyspark.__file__).parent
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        wait_until(lambda: self.said("I have been elected leader"), limit=LIMIT, what="the master")
        self.workers: list[subprocess.Popen[str]] = []
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        number = len(self.workers) + 1
        options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        self.start("worker.Worker", *options, "--work-dir", str(self.place / f"worker{number}"), self.url)
        self.workers.append(self.processes[-1])
        wait_until(lambda: self.said("Registering worker") >= number, limit=LIMIT, what=f"worker {number}")

    def said(self, words: str) -> int:
        return sum(words in line for line in self.lines)

    def start(self, name: str, *arguments: str) -> None:
        environment = {**clean_environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(self.home)}
        process = subprocess.Popen(
            [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.processes.append(process)
        threading.Thread(target=lambda: self.lines.extend(process.stderr or ()), daemon=True).start()

    def kill(self, process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
