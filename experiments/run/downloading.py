"""Downloads over HTTP that go on where they stopped and are checked before they are there."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envs.errors import InputError
from experiments.run.provenance import file_hash, installed_version

CHUNK = 1 << 20  # bytes read at a time
SCHEMES = ("http", "https")
PARTIAL, UNSATISFIABLE = 206, 416  # HTTP status

Report = Callable[[int, int | None], None]  # bytes so far, of so many


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
    def _state(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part.json")

    def run(self, report: Report) -> bool:
        """Fetch the file unless it is there; whether it had to be fetched.

        A transfer that broke off leaves `<path>.part`, from which the next one goes on. The file
        appears under its name when all of it is there and has the hashes it must have.

        Raises:
            InputError: the server cannot be reached, refuses, or breaks off every time; the
                content, or the file that is there already, has another hash.
        """
        if self.path.exists():
            self._verify(self.path)
            return False
        try:
            self._fetch(report)
            try:
                self._verify(self.part)
            except InputError:
                self._forget()
                raise
            os.replace(self.part, self.path)
            self._state.unlink(missing_ok=True)
        except OSError as error:
            fault = f"cannot be written ({error.strerror or error})"
            raise InputError(fault, file=self.path) from error
        return True

    def _fetch(self, report: Report) -> None:
        fault = ""
        for _ in range(self.attempts):
            try:
                if self._go_on(report):
                    return
                fault = "the server closed the connection"
            except (
                urllib.error.URLError,
                http.client.HTTPException,
                TimeoutError,
                ConnectionError,
            ) as error:
                fault = _told(error)
                if isinstance(error, urllib.error.HTTPError):
                    raise InputError(f"the server answers {fault}", file=self.url) from error
        have = _size(self.part)
        kept = (
            f"; {have} bytes are kept in {self.part.name}: the next run goes on there"
            if have
            else ""
        )
        raise InputError(f"cannot be downloaded ({fault}){kept}", file=self.url)

    @property
    def _checked(self) -> bool:
        """Whether the content is checked at the end: then any part of it may be tried."""
        return self.sha256 is not None or self.git_blob is not None

    def _go_on(self, report: Report) -> bool:
        """One connection; whether everything is there at its end."""
        state = self._read_state()
        have = _size(self.part)
        validator = None if self._checked else state.get("validator")
        request = urllib.request.Request(self.url, headers=_headers(have, validator))
        try:
            response = urllib.request.urlopen(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            if error.code != UNSATISFIABLE:
                raise
            error.close()
            if have == state.get("total"):
                return True
            self._forget()  # what is here is longer than what the server has
            return False
        with response:
            start, total = _range(response)
            if start != (have if response.status == PARTIAL else 0):
                raise http.client.HTTPException(f"the server sends from byte {start} on")
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._state.write_text(
                json.dumps({"url": self.url, "validator": validator, "total": total})
            )
            with self.part.open("ab" if start else "wb") as file:
                done = start
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    report(done, total)
        return total is None or done == total

    def _read_state(self) -> Mapping[str, object]:
        """What is known of the part; it is given up where it is of something else."""
        try:
            state = json.loads(self._state.read_text())
            known = self._checked or state["validator"] is not None
            if known and state["url"] == self.url:
                return dict(state)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self._forget()
        return {}

    def _forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)

    def _verify(self, path: Path) -> None:
        if self.sha256 is not None and (found := file_hash(path)) != self.sha256:
            raise InputError(f"SHA-256 is {found}, not {self.sha256}", file=path)
        if self.git_blob is not None and (found := git_blob(path)) != self.git_blob:
            raise InputError(f"git blob is {found}, not {self.git_blob}", file=path)


def git_blob(path: Path) -> str:
    """The id git gives to a file's content: SHA-1 of `blob <size>`, a zero byte and the content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _headers(have: int, validator: object) -> dict[str, str]:
    headers = {"User-Agent": f"meshwright/{installed_version()}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    if have and validator is not None:
        headers["If-Range"] = str(validator)
    return headers


def _range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """The first byte that is sent, and the size of the whole file where it is told."""
    if response.status == PARTIAL:
        told = response.headers.get("Content-Range", "")
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", told.strip())
        if found is None:
            raise http.client.HTTPException(f"the server sends a range {told!r}")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = response.headers.get("Content-Length")
    return 0, None if length is None else int(length)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(cause).split()) or type(cause).__name__
