"""Results as bars: each row relative to its best competitor, as SVG for light and for dark pages."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from peers.report import number, rows_of

__all__ = ["plot", "write"]

_WIDTH = 860
_LABEL = 110
_BAR_HEIGHT, _GAP = 16, 5
_TITLE_HEIGHT = 30
_BARS = 520
_THEMES = {
    "light": {"page": "#ffffff", "text": "#1f2328", "weak": "#59636e", "mqcore": "#0969da", "other": "#afb8c1"},
    "dark": {"page": "#0d1117", "text": "#f0f6fc", "weak": "#9198a1", "mqcore": "#4493f8", "other": "#57606a"},
}


def plot(found: dict[str, Any], theme: str) -> str:
    """Return the picture. The longest bar of a row is the best; a bar of half its length is half as good."""
    colors = _THEMES[theme]
    parts: list[str] = []
    y = 16

    def text(x: float, at: float, content: str, color: str, size: int = 12, weight: int = 400, end: str = "") -> None:
        parts.append(
            f'<text x="{x:g}" y="{at:g}" fill="{color}" font-size="{size}" font-weight="{weight}"{end}>'
            f"{escape(content)}</text>"
        )

    for row, measured in rows_of(found):
        y += _TITLE_HEIGHT
        text(8, y - 8, row["title"], colors["text"], 13, 600)
        is_higher = row["better"] == "higher"
        direction = "more is better" if is_higher else "less is better; the longest bar is the best"
        # A median of zero has no reciprocal.
        goodness = {
            name: each["median"] if is_higher else 1 / max(each["median"], 1e-9) for name, each in measured.items()
        }
        best = max(goodness.values()) or 1
        for name, each in measured.items():
            length = max(1.5, goodness[name] / best * _BARS)
            text(8, y + _BAR_HEIGHT - 4, name, colors["text"])
            color = colors["mqcore" if name == "mqcore" else "other"]
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR_HEIGHT}" rx="2" fill="{color}"/>'
            )
            label = f"{number(each['median'])} {row['unit']}"
            text(_LABEL + length + 8, y + _BAR_HEIGHT - 4, label, colors["weak"])
            y += _BAR_HEIGHT + _GAP
        title_y = y - (_BAR_HEIGHT + _GAP) * len(measured) - 8
        text(_WIDTH - 8, title_y, direction, colors["weak"], 11, end=' text-anchor="end"')
    height = y + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="mqcore compared with other brokers">\n'
        f'<rect width="100%" height="100%" fill="{colors["page"]}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def write(found: dict[str, Any], directory: Path) -> None:
    """Write `peers-light.svg` and `peers-dark.svg`."""
    directory.mkdir(parents=True, exist_ok=True)
    for theme in _THEMES:
        (directory / f"peers-{theme}.svg").write_text(plot(found, theme))
