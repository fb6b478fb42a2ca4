"""A report in headless Chromium: no fault on its console, every figure drawn, light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import ran
from run_folders import metrics, run_folder, step_result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine"),
]
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
LOOK = (  # what a test reads of a page that has been drawn
    "<script>addEventListener('load',()=>setTimeout(()=>{document.body.dataset.background="
    "getComputedStyle(document.body).backgroundColor;document.body.dataset.overflow="
    "document.documentElement.scrollWidth-document.documentElement.clientWidth},8000))</script>"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ratios, and the curves of two seeds."""
    folder = tmp_path_factory.mktemp("report")
    for seed in range(2):
        own = run_folder(folder / str(seed), step_result(0.2 + seed / 50), seed=seed, app="train")
        (own / "metrics.csv").write_text(metrics())
    run_folder(folder / "b", step_result(0.3, "<b>&lt;x</b>"), config="b: 1\n")
    runs = ",".join(str(folder / name) for name in ("0", "1", "b"))
    ran("report", f"runs=[{runs}]", run=folder / "out")
    return folder / "out/report.html"


def drawn(page: Path, *options: str) -> tuple[str, str]:
    """The page as it is after its scripts have run, and what they said on the console."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        "--virtual-time-budget=20000", *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("width", [1400, 520])
def test_every_figure_is_drawn_and_the_console_is_empty(page: Path, theme: str, width: int) -> None:
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    found, console = drawn(page, scheme, f"--window-size={width},1200")
    assert console == ""
    assert 'data-drawn="3"' in found
    for figure in found.split("<figure>")[1:]:
        plot = figure.split("</figure>")[0]
        assert 'class="main-svg"' in plot
        assert len(re.findall(r'class="(?:point|lines|trace)', plot)) > 0


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_page_follows_the_readers_theme_and_fits_a_phone(page: Path, theme: str) -> None:
    """The probe is a script of its own, for which the page's policy makes room here alone."""
    text = page.read_text()
    looked = page.with_name(f"look_{theme}.html")
    policy = re.sub(r"script-src [^\"]*", "script-src 'unsafe-inline'", text, count=1)
    looked.write_text(policy.replace("</body>", f"{LOOK}</body>"))
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    found, _ = drawn(looked, scheme, "--window-size=520,1200")
    assert f'data-background="{BACKGROUNDS[theme]}"' in found
    assert 'data-overflow="0"' in found


def test_a_script_that_is_not_ours_is_not_run(page: Path) -> None:
    """Were an escape ever forgotten, the browser would refuse what comes through."""
    foreign = page.with_name("foreign.html")
    script = "<script>document.title='owned'</script>"
    foreign.write_text(page.read_text().replace("</main>", f"{script}</main>"))
    found, console = drawn(foreign)
    assert "<title>Three runs</title>" in found
    assert "Content Security Policy" in console
