"""`mqcore init`: writes a commented configuration file, and files with which other programs run the broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import click

from mqcore.cli import options, output

__all__ = ["init"]


class _Written(NamedTuple):
    template: str
    """Its name in the folder `templates`, which `make generate` also makes `contrib` of."""
    file: str
    next_step: str


_CONFIGURATION: Final = _Written("mqcore.toml", "mqcore.toml", "start the broker: mqcore serve --config {}")
_DEPLOYMENTS: Final = {
    "systemd": _Written("mqcore.service", "mqcore.service", "install the service as {} describes"),
    "container": _Written("Containerfile", "Containerfile", "build the image: podman build -t mqcore -f {} {folder}"),
    "kubernetes": _Written("kubernetes.yaml", "kubernetes.yaml", "set the image, then: kubectl apply -f {}"),
}


@click.command(short_help="Write a commented configuration file.")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--systemd", is_flag=True, help="Also write mqcore.service, a unit for systemd.")
@click.option("--container", is_flag=True, help="Also write a Containerfile, for podman and docker.")
@click.option("--kubernetes", is_flag=True, help="Also write kubernetes.yaml, with a stateful set and probes.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@options.as_json
def init(directory: Path, systemd: bool, container: bool, kubernetes: bool, force: bool, as_json: bool) -> None:
    """Write mqcore.toml into DIRECTORY, by default the current one. Existing files stay unless --force is given."""
    chosen = {"systemd": systemd, "container": container, "kubernetes": kubernetes}
    wanted = [_CONFIGURATION, *(_DEPLOYMENTS[name] for name, is_wanted in chosen.items() if is_wanted)]
    existing = [str(path) for each in wanted if os.path.lexists(path := directory / each.file)]
    if existing and not force:
        raise click.UsageError(f"{', '.join(existing)} exists; add --force to overwrite, or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for each in wanted:
        _write(directory / each.file, rendered(each.template), force=force)
    paths = [str(directory / each.file) for each in wanted]
    if as_json:
        output.document("mqcore.init/1", {"files": paths})
        return
    for each, written in zip(wanted, paths, strict=True):
        output.talk(f"wrote {written}; {each.next_step.format(written, folder=directory)}")


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file; without `force`, one that another program has created meanwhile stays too."""
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} exists; add --force to overwrite, or name another directory") from None


def rendered(template: str) -> str:
    """Return the text of a template, for this version of mqcore."""
    from importlib import resources

    import mqcore

    text = resources.files("mqcore.cli").joinpath("templates", template).read_text(encoding="utf-8")
    return text.replace("{{version}}", mqcore.__version__)
