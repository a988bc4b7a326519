"""Lists the public Python API for mkdocstrings, which renders signatures and docstrings."""

from __future__ import annotations

import importlib

import mqcore

# Pages, and the modules whose `__all__` each shows. `mqcore` itself is the first page.
MODULES = {
    "sync": ("mqcore.sync",),
    "client": ("mqcore.client",),
    "app": ("mqcore.app",),
    "jobs": ("mqcore.jobs",),
    "frameworks": ("mqcore.fastapi", "mqcore.django", "mqcore.flask", "mqcore.notebook"),
    "ratelimit": ("mqcore.ratelimit", "mqcore.throttr"),
    "testing": ("mqcore.testing",),
    "admin": ("mqcore.admin", "mqcore.backup"),
    "journal": ("mqcore.journal",),
    "authority": ("mqcore.authority",),
    "extensions": ("mqcore.extensions", "mqcore.micromessage"),
    "spark": ("mqcore.spark",),
    "otel": ("mqcore.otel",),
}
TITLES = {
    "client": "Clients: mqcore.client",
    "frameworks": "Web frameworks and notebooks: mqcore.fastapi, mqcore.django, mqcore.flask, mqcore.notebook",
    "ratelimit": "Rate limits: mqcore.ratelimit, mqcore.throttr",
    "admin": "Administration: mqcore.admin, mqcore.backup",
    "extensions": "Protocol extensions: mqcore.extensions, mqcore.micromessage",
}


def pages() -> dict[str, str]:
    """The pages of the Python reference, by their names in reference/."""
    found = {"python/mqcore.md": page("mqcore", [("mqcore", "", public_names("mqcore"))])}
    shown = set(public_names("mqcore"))
    for name, modules in MODULES.items():
        sections = []
        for module in modules:
            names = [entry for entry in public_names(module) if name != "client" or entry not in shown]
            sections.append((module, (importlib.import_module(module).__doc__ or "").partition("\n")[0], names))
        found[f"python/{name}.md"] = page(TITLES.get(name, f"mqcore.{name}"), sections)
    return found


def public_names(module: str) -> list[str]:
    """The public names of a module that have a documentation of their own."""
    names = importlib.import_module(module).__all__
    return [name for name in names if not name.startswith("__")]


def page(title: str, sections: list[tuple[str, str, list[str]]]) -> str:
    """A page with the names of one or more modules."""
    parts = [f"# {title}\n"]
    for module, text, names in sections:
        if len(sections) > 1:
            parts.append(f"## {module}\n")
        if text:
            parts.append(text + "\n")
        parts.extend(f"::: {module}.{name}\n" for name in names)
    if title == "mqcore":
        parts.insert(1, (mqcore.__doc__ or "") + "\n")
    return "\n".join(parts)
