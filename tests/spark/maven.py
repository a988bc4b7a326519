"""Java packages that a test gives to Spark, from Maven, and the settings of Hadoop's S3 client."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from object_stores import CREDENTIALS, ObjectStore
from served import ROOT

CACHE = ROOT / "target" / "spark-jars"
"""Directory of the packages, kept between runs."""


def jars_or_skip(name: str, **properties: str) -> list[Path]:
    """Return the packages of ``jars/NAME-pom.xml``, and skip, with the reason, if Maven cannot provide them."""
    pom = Path(__file__).with_name("jars") / f"{name}-pom.xml"
    digest = hashlib.sha256(pom.read_bytes() + repr(sorted(properties.items())).encode()).hexdigest()[:12]
    place = CACHE / f"{name}-{digest}"
    if not place.exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("Maven (mvn) is missing; it provides Spark's packages for object storage")
        CACHE.mkdir(parents=True, exist_ok=True)
        # Another process may do the same at the same time: the first rename wins.
        with tempfile.TemporaryDirectory(dir=CACHE) as new:
            command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
            command += [f"-DoutputDirectory={new}/jars", *(f"-D{key}={value}" for key, value in properties.items())]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                reasons = [line for line in done.stdout.splitlines() if "ERROR" in line]
                pytest.skip(f"Maven cannot provide the packages of {pom.name}: {''.join(reasons[:1])[:300]}")
            with contextlib.suppress(OSError):
                Path(new, "jars").rename(place)
    return sorted(place.glob("*.jar"))


def s3_settings(store: ObjectStore) -> dict[str, str]:
    """Settings of Hadoop's S3 client, as docs/spark.md lists them."""
    return {
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": CREDENTIALS["AWS_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }


def listed(jars: list[Path]) -> str:
    """Packages as the value of ``spark.jars``."""
    return ",".join(map(str, jars))
