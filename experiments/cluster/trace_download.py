"""`action=download`: public traces from where their owners keep them."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import re
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from envs.bounds import Count, Positive, bounded
from envs.errors import InputError, in_one_line, require_one_of
from envs.files import write_atomically
from envs.units import MEBI
from experiments.cluster.trace_source import TraceConfig
from experiments.run.artifacts import write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import content_hash, file_hash, installed_version

DATA_VARIABLE, DOWNLOADS = "MESHWRIGHT_DATA", "downloads"
CHUNK = 1 << 20  # bytes read at a time
SCHEMES = ("http", "https")
PARTIAL, UNSATISFIABLE = 206, 416  # HTTP status

Report = Callable[[int, int | None], None]  # bytes so far, of so many


@dataclass(frozen=True)
class PublicTrace:
    """A file of somebody's public data; the hashes are None where they are not known."""

    url: str
    file: str  # its name here
    format: str  # a name under trace.formats
    licence: str
    about: str
    unpack: str | None = None  # the command that makes files of that format of it
    # files in it, or itself, to their place below the folder of data
    members: Mapping[str, str] = field(default_factory=dict)
    sha256: str | None = None  # of the file, in place of the one below
    git_blob: str | None = None  # git's id of its content


@bounded
@dataclass(frozen=True)
class TraceDownload:
    """Fetches `sources[source]`, checks it and lays out its files; without `source` it says what
    there is.

    `folder` is the folder of data, that of MESHWRIGHT_DATA: the file comes to `downloads` in it,
    and what splits and apps read to where they look for it, compressed.

    `sha256` is checked in place of the one in the table.
    """

    # sha256, git_blob (git's id of the content): checked; null: not known. members: where
    # files in it go
    sources: Mapping[str, PublicTrace]
    folder: str  # of data: files come to `downloads` in it, and to where splits look for them
    source: str | None = None  # a name under sources
    sha256: str | None = None  # of the file, in place of the one below
    attempts: Count = 5  # connections before giving up; what has come is kept
    timeout_s: Positive = 60.0  # longest silence of the server

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """The file, or the table of files."""
        if self.source is None:
            for name, public in self.sources.items():
                known = "SHA-256" if public.sha256 else "git blob" if public.git_blob else "nothing"
                run.console.say(
                    f"action.source={name}: {public.about}\n"
                    f"    trace.format={public.format}, {public.licence}, checked by {known}\n"
                    f"    {public.url}"
                )
            listed = {name: asdict(source) for name, source in self.sources.items()}
            return Result({"sources": listed}, run.provenance)
        require_one_of(self.source, self.sources, file="config key 'action.source'")
        public = self.sources[self.source]
        folder = Path(self.folder)
        path = folder / DOWNLOADS / public.file
        download = Download(
            public.url, path, self.sha256 or public.sha256, public.git_blob,
            self.attempts, self.timeout_s,
        )  # fmt: skip
        run.console.print(f"{public.url}\nlicence: {public.licence}", soft_wrap=True)
        began = time.monotonic()
        with ProgressDisplay(run.console) as display:
            task = display.begin(public.file)

            def report(done: int, total: int | None) -> None:
                of = "" if total is None else f" of {total / MEBI:.1f}"
                display.update(task, time.monotonic() - began, f"{done / MEBI:.1f}{of} MiB")

            fetched = download.run(report)
            display.end(task, "is here")
        found = file_hash(path)
        if not download.checked:
            message = (
                "[bold]NOT CHECKED[/bold]: no hash of this file is known here. Its SHA-256 is "
                f"{found}: compare it with its owner's, and give action.sha256={found} from now on."
            )
            run.console.print(message, soft_wrap=True)
        write_sidecar(path, run.provenance, "download", url=public.url, licence=public.licence)
        laid_out = [str(place) for place in lay_out(path, public.members, folder)]
        for place in laid_out:
            run.console.say(place)
        if public.unpack and not public.members:
            run.console.print(f"an archive; unpack it: {public.unpack}", soft_wrap=True)
        if laid_out and Path(os.environ.get(DATA_VARIABLE, "")).resolve() != folder.resolve():
            text = f"splits and studies look there with: export {DATA_VARIABLE}={folder.resolve()}"
            run.console.say(text)
        return Result(
            {
                "file": str(path),
                "bytes": path.stat().st_size,
                "sha256": found,
                "checked": download.checked,
                "fetched": fetched,
                "format": public.format,
                "unpack": public.unpack,
                "laid_out": laid_out,
                "licence": public.licence,
                "url": public.url,
            },
            run.provenance.with_inputs(**{path.name: found}),
        )


def lay_out(path: Path, members: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Write the members of an archive, or the file itself, to their places, as gzip; the places.

    Raises:
        InputError: the archive is damaged or has no such member; a place cannot be written, or
            holds something else.
    """
    for member, place in members.items():
        try:
            if member == path.name:
                content = path.read_bytes()
            else:
                with tarfile.open(path) as archive:
                    file = archive.extractfile(member)
                    if file is None:
                        raise KeyError(member)
                    content = file.read()
        except KeyError as error:
            raise InputError("is not in the archive", file=path, record=member) from error
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise InputError(f"is damaged ({error})", file=path, record=member) from error
        where = folder / place
        if where.exists() and content_hash(where) != hashlib.sha256(content).hexdigest():
            text = f"is there, and not what {path.name} has: move it away, or name action.folder"
            raise InputError(text, file=where)
        write_atomically(where, gzip.compress(content, mtime=0))
        yield where


@dataclass(frozen=True)
class Download:
    """One file to be had from `url`.

    `sha256` and `git_blob` (the id git gives to the content, a SHA-1) are what it must have; None:
    not known. `attempts` counts connections, broken ones among them; `timeout_s` is the longest
    silence of the server.

    Raises:
        InputError: the address is not one of HTTP, or a hash is none.
    """

    url: str
    path: Path
    sha256: str | None
    git_blob: str | None
    attempts: int
    timeout_s: float

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in SCHEMES:
            raise InputError("is no address of http or https", file=self.url)
        for name, value, digits in (("sha256", self.sha256, 64), ("git_blob", self.git_blob, 40)):
            if value is not None and not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
                raise InputError(f"{value!r} is not {digits} hexadecimal digits", field=name)

    @property
    def part(self) -> Path:
        """What has come so far."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def checked(self) -> bool:
        """Whether the content is checked at the end: then any part of it may be tried."""
        return self.sha256 is not None or self.git_blob is not None

    def run(self, report: Report) -> bool:
        """Fetch the file unless it is there; whether it had to be fetched.

        A transfer that broke off leaves `<path>.part`, from which the next one goes on where a hash
        will tell whether the two are of one file. The file appears under its name when all of it is
        there and has the hashes it must have.

        Raises:
            InputError: the server cannot be reached, refuses, or breaks off every time; the
                content, or the file that is there already, has another hash.
        """
        if self.path.exists():
            self._verify(self.path)
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fault = ""
        for _ in range(self.attempts):
            have = self._kept() if self.checked else 0
            try:
                if not self._go_on(have, report):
                    fault = "the server closed the connection"
                    continue
                self._verify(self.part)
            except InputError as error:
                self.part.unlink()
                if not have:
                    raise
                fault = error.message  # the part was of something else
            except urllib.error.HTTPError as error:
                text = f"the server answers {error.code} {error.reason}"
                raise InputError(text, file=self.url) from error
            except (OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                fault = in_one_line(cause) or type(cause).__name__
            else:
                os.replace(self.part, self.path)
                return True
        if self.checked and (kept := self._kept()):
            fault += f"); {kept} bytes are kept in {self.part.name} (the next run goes on there"
        raise InputError(f"cannot be downloaded ({fault})", file=self.url)

    def _kept(self) -> int:
        """Bytes of the part."""
        return self.part.stat().st_size if self.part.exists() else 0

    def _go_on(self, have: int, report: Report) -> bool:
        """One connection, for what comes after so many bytes; whether all is there at its end."""
        headers = {"User-Agent": f"meshwright/{installed_version()}", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        request = urllib.request.Request(self.url, headers=headers)
        try:
            response = urllib.request.urlopen(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            if error.code == UNSATISFIABLE:  # nothing comes after them
                error.close()
                return True
            raise
        with response:
            partial, sent = response.status == PARTIAL, response.headers
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", sent.get("Content-Range", "").strip())
            if partial and (span is None or int(span[1]) != have):
                raise http.client.HTTPException(f"the server sends {sent.get('Content-Range')}")
            length = span[2] if partial and span is not None else sent.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            with self.part.open("ab" if partial else "wb") as file:
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    report(file.tell(), total)
                return total is None or file.tell() == total

    def _verify(self, path: Path) -> None:
        for name, wanted, found_in in (
            ("SHA-256", self.sha256, file_hash), ("git blob", self.git_blob, git_blob),
        ):  # fmt: skip
            if wanted is not None and (found := found_in(path)) != wanted:
                raise InputError(f"{name} is {found}, not {wanted}", file=path)


def git_blob(path: Path) -> str:
    """The id git gives to a file's content: SHA-1 of `blob <size>`, a zero byte and the content."""
    begun = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: begun).hexdigest()
