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

from docs.drawings import draw  # noqa: E402
from docs.entries import ABOUT, entries, index, page  # noqa: E402

CACHE = ROOT / ".cache" / "catalogue"
SOURCES = ("envs", "agents", "models", "experiments", "meshwright", "conf")
NAMED = re.compile(r"`docs/((?:\w+/)*)(\w+)\.md`")
LOG = logging.getLogger("mkdocs.plugins.catalogue")


def on_config(config: Any) -> Any:
    """Put the catalogue where the navigation says `Catalogue`."""
    for section in config.nav:
        if "Catalogue" in section:
            for kind in ABOUT:
                inside = [entry.path for entry in entries() if entry.kind == kind]
                pages = [f"catalogue/{kind}s/index.md", *inside]
                section["Catalogue"].append({f"{kind.title()}s": pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the pictures; a picture is drawn anew when the code has changed."""
    for kind in ABOUT:
        path = f"catalogue/{kind}s/index.md"
        files.append(File.generated(config, path, content=index(kind)))
    folder = CACHE / _digest()
    if not folder.exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        folder.mkdir(parents=True)
    for entry in entries():
        files.append(File.generated(config, entry.path, content=page(entry)))
        if entry.picture.startswith("pictures/"):
            continue  # a training run, kept in `docs`
        picture = folder / Path(entry.picture).name
        if not picture.exists():
            LOG.info("drawing %s", picture.name)
            part = picture.with_suffix(".part.png")  # a build that is stopped leaves no half
            draw(entry, part)
            part.replace(picture)
        files.append(File.generated(config, entry.picture, content=picture.read_bytes()))
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
