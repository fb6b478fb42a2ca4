"""What MkDocs is asked to add to the pages here: the catalogue, its pictures and its navigation."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments.catalogue.drawings import NoPictureError, draw  # noqa: E402
from experiments.catalogue.entries import KINDS, entries  # noqa: E402
from experiments.catalogue.pages import ABOUT, kind_folder, pages, picture_path  # noqa: E402

CACHE = ROOT / ".cache" / "catalogue"
SOURCES = ("envs", "agents", "models", "experiments", "conf")
NAMED = re.compile(r"`docs/((?:\w+/)*)(\w+)\.md`")
LOG = logging.getLogger("mkdocs.plugins.catalogue")


def on_config(config: Any) -> Any:
    """Put the catalogue where the navigation says `Catalogue`."""
    for section in config.nav:
        if "Catalogue" in section:
            for kind in KINDS:
                mine = [entry.name for entry in entries() if entry.kind == kind]
                folder = kind_folder(kind)
                inside = [f"{folder}/index.md", *(f"{folder}/{name}.md" for name in mine)]
                section["Catalogue"].append({ABOUT[kind][0]: inside})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the pictures; a picture is drawn anew when the code has changed."""
    for page in pages():
        files.append(File.generated(config, page.path, content=page.text))
    folder = CACHE / _digest()
    if not folder.exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        folder.mkdir(parents=True)
    for entry in entries():
        picture = folder / f"{entry.kind}_{entry.name}.png"
        try:
            if not picture.exists():
                LOG.info("drawing %s", picture.name)
                part = picture.with_suffix(".part.png")  # a build that is stopped leaves no half
                draw(entry, part)
                part.replace(picture)
        except NoPictureError:
            continue
        files.append(File.generated(config, picture_path(entry), content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make a link of every page that a text names by its path in the checkout."""
    up = "../" * page.file.src_uri.count("/")
    return NAMED.sub(
        lambda name: f"[{name[2].replace('_', ' ')}]({up}{name[1]}{name[2]}.md)", markdown
    )


def _digest() -> str:
    """Of all code and all config that a picture may depend on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*")):
            if path.suffix in {".py", ".yaml"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
