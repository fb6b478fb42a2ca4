"""The built site: no dead link, nothing from elsewhere, no error in a browser, and a search."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.paths import ROOT

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None, reason="make docs installs what builds the site"
    ),
]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
LOOKED_AT = (
    "index.html", "api.html", "glossary.html", "catalogue/planners/index.html",
    "catalogue/schedulers/migrating_learned.html", "catalogue/environments/cluster.html",
)  # fmt: skip


class Page(HTMLParser):
    """The links, what is loaded, and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        message = dict(attrs)
        self.anchors |= {message[key] or "" for key in ("id", "name") if key in message}
        if tag == "a" and message.get("href"):
            self.links.append(str(message["href"]))
        if tag in LOADED and message.get(LOADED[tag]):
            self.loaded.append(str(message[LOADED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*build, str(folder)], cwd=ROOT, check=True, env=environment)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def targets(path: Path, page: Page, site: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, anchor, as it stands) of everything of the site that a page names."""
    for name in [*page.links, *page.loaded]:
        parts = urlsplit(name)
        if parts.scheme or parts.netloc:
            continue
        base = site if parts.path.startswith("/") else path.parent
        inside = unquote(parts.path).lstrip("/")
        yield (base / inside).resolve() if inside else path.resolve(), parts.fragment, name


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 80
    for path, page in pages.items():
        assert [name for name in page.loaded if urlsplit(name).netloc] == [], path


def test_every_link_anchor_and_picture_is_there(pages: dict[Path, Page], site: Path) -> None:
    by_file = {path.resolve(): page for path, page in pages.items()}
    dead = set()
    for path, page in pages.items():
        for file, anchor, name in targets(path, page, site):
            file = file / "index.html" if file.is_dir() else file  # noqa: PLW2901
            known = by_file.get(file)
            lost = known is not None and anchor and unquote(anchor) not in known.anchors
            if not file.is_file() or lost:
                dead.add(f"{path.relative_to(site)}: {name}")
    assert dead == set()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_has_no_error_to_tell(site: Path) -> None:
    for name in LOOKED_AT:
        _, message = browsed(site / name)
        assert [line for line in message.splitlines() if "CONSOLE" in line] == [], name


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_search_works_without_a_server(site: Path) -> None:
    found, message = browsed(site / "index.html", "?q=gittins")
    assert "CONSOLE" not in message
    assert "catalogue/schedulers/gittins.html" in found.partition("md-search-result__list")[2]


def browsed(page: Path, query: str = "") -> tuple[str, str]:
    """The document that a browser makes of a page from the file system, and what it tells."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    flags += ["--virtual-time-budget=8000", "--dump-dom", f"{page.as_uri()}{query}"]
    done = subprocess.run(
        [str(BROWSER), *flags], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, done.stderr
