"""Write the files of `contrib` that `mqcore init` writes too: `make generate`, or `--check` to compare only.

Their source is python/mqcore/cli/templates, because wheels do not contain `contrib`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "python" / "mqcore" / "cli" / "templates"

BUILD_STAGE = """\
# A broker in a container: `podman build -f contrib/container/Containerfile -t mqcore .` in the root of the project.
# The first stage builds the wheel, the second only installs it, and runs as a user without rights.

FROM docker.io/library/rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ make nodejs npm python3 \\
    python3-pip python3-venv
WORKDIR /src
COPY . .
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir 'maturin>=1.16,<2' \\
    && /build/bin/python tools/build_dashboard.py \\
    && /build/bin/maturin build --profile dist --locked --out /wheels

"""

# The image of the project has the wheel of the first stage, and no configuration of a user.
CONTAINER_CHANGES = (
    (
        "RUN pip install --no-cache-dir mqcore=={{version}} \\\n",
        "COPY --from=build /wheels /wheels\nRUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels \\\n",
    ),
    ("COPY mqcore.toml /etc/mqcore/mqcore.toml\n", ""),
    ('"--config", "/etc/mqcore/mqcore.toml", ', ""),
)


def template(name: str) -> str:
    """The text of a template."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def containerfile() -> str:
    """The Containerfile that builds the project."""
    _, separator, text = template("Containerfile").partition("FROM ")
    text = separator + text
    for before, after in CONTAINER_CHANGES:
        if before not in text:
            raise ValueError(f"the template Containerfile does not contain {before!r}")
        text = text.replace(before, after)
    return BUILD_STAGE + text


def targets() -> dict[Path, str]:
    """All files and their texts."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version = manifest["workspace"]["package"]["version"]
    contrib = ROOT / "contrib"
    return {
        contrib / "systemd" / "mqcore.service": template("mqcore.service"),
        contrib / "container" / "Containerfile": containerfile(),
        contrib / "kubernetes" / "mqcore.yaml": template("kubernetes.yaml").replace("{{version}}", version),
    }


def stale() -> list[Path]:
    """Files that are not what the templates make."""
    return [path for path, text in targets().items() if path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write the files that are stale; with `--check`, only name them."""
    found = stale()
    texts = targets()
    for path in found:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            path.write_text(texts[path], encoding="utf-8")
    return bool(found) and "--check" in sys.argv[1:]


if __name__ == "__main__":
    sys.exit(main())
