"""What MkDocs adds to the pages here: the catalogue, the pages of papers, and both to the menu."""

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

from docs.drawings import curve, draw  # noqa: E402
from docs.entries import ABOUT, entries, index, page  # noqa: E402
from experiments.config.papers import PAPERS, Paper  # noqa: E402

CACHE = ROOT / ".cache" / "catalogue"
SOURCES = ("envs", "agents", "models", "experiments", "meshwright", "conf")
NAMED = re.compile(r"`docs/((?:\w+/)*)(\w+)\.md`")
OF_PAPER = re.compile(r"\((?:\.\./)*experiments/papers/(\w+)/(?:README|page)\.md")  # a link
LOG = logging.getLogger("mkdocs.plugins.catalogue")


def on_config(config: Any) -> Any:
    """Put the catalogue and the papers where the navigation says so."""
    for section in config.nav:
        if "Catalogue" in section:
            for kind in ABOUT:
                inside = [entry.path for entry in entries() if entry.kind == kind]
                pages = [f"catalogue/{kind}s/index.md", *inside]
                section["Catalogue"].append({f"{kind.title()}s": pages})
        if "Papers" in section:
            section["Papers"] += [f"papers/{paper.folder.name}.md" for paper in PAPERS]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the pictures; a picture is drawn anew when the code has changed."""
    for paper in PAPERS:
        files.append(File.generated(config, f"papers/{paper.folder.name}.md", content=_of(paper)))
        for picture in paper.folder.glob("*.png"):
            path = f"papers/{picture.name}"
            files.append(File.generated(config, path, content=picture.read_bytes()))
    for kind in ABOUT:
        path = f"catalogue/{kind}s/index.md"
        files.append(File.generated(config, path, content=index(kind)))
    folder = CACHE / _digest()
    if not folder.exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        folder.mkdir(parents=True)
    for entry in entries():
        files.append(File.generated(config, entry.path, content=page(entry)))
        if entry.curve:
            files.append(File.generated(config, entry.curve, content=curve(entry)))
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
    """Make links of the site of those in the checkout, and of paths of pages in docstrings."""
    up = "../" * page.file.src_uri.count("/")
    markdown = OF_PAPER.sub(rf"({up}papers/\1.md", markdown)
    return NAMED.sub(
        lambda name: f"[{name[2].replace('_', ' ')}]({up}{name[1]}{name[2]}.md)", markdown
    )


def _of(paper: Paper) -> str:
    """The page of a paper: its README, then the rest."""
    first, rest = ((paper.folder / x).read_text("utf-8") for x in ("README.md", "page.md"))
    rest = rest.partition("\n")[2]  # without its title
    return f"{first.replace('(page.md)', '(#rest)')}\n<a id='rest'></a>\n{rest}".replace(
        "(../../../docs/", "(../"
    )


def _digest() -> str:
    """Of all code and all config that a picture may depend on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*")):
            if path.suffix in {".py", ".yaml"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
