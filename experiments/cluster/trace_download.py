"""`action=download`: public traces from where their owners keep them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from envs.errors import InputError
from envs.units import MEBI
from experiments.cluster.trace_source import TraceConfig
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_json
from experiments.run.downloading import Download
from experiments.run.provenance import file_hash, stamp
from experiments.run.targets import unknown_key

SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class PublicTrace:
    """A file of somebody's public data; the hashes are None where they are not known."""

    url: str
    file: str  # its name here
    format: str  # a name under trace.formats
    unpack: str | None  # the command that makes files of that format of it
    licence: str
    about: str
    sha256: str | None
    git_blob: str | None


@dataclass(frozen=True)
class TraceDownload:
    """Fetches `sources[source]` into `folder`; without `source` it says what there is.

    `sha256` is checked in place of the one in the table.
    """

    sources: Mapping[str, PublicTrace]
    source: str | None
    folder: str
    sha256: str | None
    attempts: int
    timeout_s: float

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InputError(f"{self.attempts} is below 1", field="attempts")
        if not 0 < self.timeout_s < float("inf"):
            raise InputError(f"{self.timeout_s} is not positive and finite", field="timeout_s")

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """The file, or the table of files."""
        if self.source is None:
            run.console.print("\n".join(self._lines()), soft_wrap=True, highlight=False)
            listed = {name: asdict(source) for name, source in self.sources.items()}
            return Result({"sources": listed}, run.provenance)
        public = self.sources.get(self.source)
        if public is None:
            raise InputError(unknown_key(f"action.sources.{self.source}", self.sources))
        path = Path(self.folder) / public.file
        download = Download(
            public.url, path, self.sha256 or public.sha256, public.git_blob,
            self.attempts, self.timeout_s,
        )  # fmt: skip
        run.console.print(f"{public.url}\nlicence: {public.licence}", soft_wrap=True)
        fetched = download.run(_Progress(run.console))
        found = file_hash(path)
        checked = download.sha256 is not None or download.git_blob is not None
        if not checked:
            message = (
                "[bold]NOT CHECKED[/bold]: no hash of this file is known here. Its SHA-256 is "
                f"{found}: compare it with its owner's, and give action.sha256={found} from now on."
            )
            run.console.print(message, soft_wrap=True)
        self._write_origin(path, public, run)
        if public.unpack:
            run.console.print(f"an archive; unpack it: {public.unpack}", soft_wrap=True)
        values: dict[str, object] = {
            "file": str(path),
            "bytes": path.stat().st_size,
            "sha256": found,
            "checked": checked,
            "fetched": fetched,
            "format": public.format,
            "unpack": public.unpack,
            "licence": public.licence,
            "url": public.url,
        }
        return Result(values, run.provenance.with_inputs(**{path.name: found}))

    def _write_origin(self, path: Path, public: PublicTrace, run: Run) -> None:
        document = {
            "file": path.name,
            "sha256": file_hash(path),
            "url": public.url,
            "licence": public.licence,
        }
        stamped = stamp(document, run.provenance, kind="download")
        write_json(path.with_name(f"{path.name}.provenance.json"), stamped)

    def _lines(self) -> Iterator[str]:
        for name, source in self.sources.items():
            check = "SHA-256" if source.sha256 else "git blob" if source.git_blob else "nothing"
            yield f"action.source={name}: {source.about}"
            yield f"    trace.format={source.format}, {source.licence}, checked by {check}"
            yield f"    {source.url}"


class _Progress:
    """A line now and then."""

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, time.monotonic()

    def __call__(self, done: int, total: int | None) -> None:
        if done == total or time.monotonic() - self._said >= SAY_EVERY_S:
            self._said = time.monotonic()
            of = "" if total is None else f" of {total / MEBI:.1f}"
            self._console.print(f"{done / MEBI:.1f}{of} MiB")
