"""Generates the reference pages of the site from the code."""

from __future__ import annotations

from pathlib import Path

import reference_broker
import reference_cli
import reference_http
import reference_python


def pages(root: Path) -> dict[str, str]:
    """Text of each generated page, by its name in reference/."""
    return {
        "cli.md": reference_cli.page(),
        "http.md": reference_http.page(root / "docs" / "openapi.json"),
        "configuration.md": reference_broker.configuration(),
        "metrics.md": reference_broker.metrics(),
        "events.md": reference_broker.events(root),
        "errors.md": reference_broker.errors(),
        **reference_python.pages(),
    }
