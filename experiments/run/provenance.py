"""Where a file comes from: written into every file the apps make."""

from __future__ import annotations

import hashlib
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from envs.errors import InputError
from envs.files import check_file, read_content

DISTRIBUTION = "meshwright"
_ABSOLUTE_PATH = re.compile(r"(?<![\w.~:/-])/[^\s'\",;\[\]{}()]+")
UNITS = {"time": "s", "size": "byte", "work": "FLOP", "speed": "FLOP/s", "bandwidth": "byte/s"}


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's content.

    Raises:
        InputError: the file cannot be read.
    """
    check_file(path)
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", file=path) from error


def content_hash(path: str | Path) -> str:
    """SHA-256 of what a file holds, decompressed where it is gzip: who compressed does not matter.

    Raises:
        InputError: the file cannot be read, or is a damaged gzip.
    """
    return hashlib.sha256(read_content(path)).hexdigest()


def text_hash(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def command_line() -> str:
    """The command that started this process, ready for a shell."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    program = sys.argv[:1]
    if program[0].startswith((f"{DISTRIBUTION} ", "python -m ")):  # the command and its verb
        program = program[0].split(" ")
    elif spec is not None:
        program = ["python", "-m", spec.name]
    return shlex.join([*program, *sys.argv[1:]])


@cache
def installed_version() -> str:
    """The version of this package, `unknown` where it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def package_versions() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


@cache
def source_commit() -> str:
    """The commit of the checkout this code lies in; `-dirty` when files differ, else `unknown`."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"
    git = ["git", "-C", str(root)]
    try:
        commit = _output([*git, "rev-parse", "HEAD"])
        dirty = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{commit}-dirty" if dirty else commit


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def peak_rss_bytes() -> int:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Provenance:
    """Who made a file, from what, and how to make it again.

    `inputs` maps the name of each input (a graph, a topology, a file) to its SHA-256.
    """

    seed: int | None
    inputs: Mapping[str, str] = field(default_factory=dict)
    command: str = field(default_factory=command_line)
    package_version: str = field(default_factory=installed_version)
    git_commit: str = field(default_factory=source_commit)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def with_inputs(self, **inputs: str) -> Provenance:
        """The same origin with more inputs: name = SHA-256."""
        return replace(self, inputs={**self.inputs, **inputs})

    def with_files(self, *paths: str | Path) -> Provenance:
        """The same origin with more inputs, each a file by its name."""
        return self.with_inputs(**{Path(path).name: file_hash(path) for path in paths})

    def document(self) -> dict[str, object]:
        """As a JSON mapping."""
        return {
            "package": DISTRIBUTION,
            "package_version": self.package_version,
            "git_commit": self.git_commit,
            "seed": self.seed,
            "inputs_sha256": dict(self.inputs),
            "created": self.created,
            "command": self.command,
        }

    def text(self) -> dict[str, str]:
        """As text fields: the metadata of a picture."""
        inputs = " ".join(f"{name}={digest}" for name, digest in self.inputs.items())
        return {
            "Software": f"{DISTRIBUTION} {self.package_version}",
            "Creation Time": self.created,
            "Source": self.command,
            "Comment": f"schema_version=1 git_commit={self.git_commit} seed={self.seed} "
            f"units=seconds,bytes inputs_sha256: {inputs or 'none'}",
        }


def stamp(
    document: Mapping[str, object],
    provenance: Provenance,
    *,
    kind: str,
    schema_version: int = 1,
) -> dict[str, object]:
    """`document` with its kind, schema version, units and provenance; its own keys come first.

    Raises:
        ValueError: `document` already holds one of those keys.
    """
    mark: dict[str, object] = {
        "kind": f"{DISTRIBUTION}.{kind}",
        "schema_version": schema_version,
        "units": dict(UNITS),
        "provenance": provenance.document(),
    }
    taken = mark.keys() & document.keys()
    if taken:
        raise ValueError(f"the document already has {sorted(taken)}")
    return {**document, **mark}


def without_absolute_paths(value: object) -> object:
    """A document in whose texts every absolute path has become its last name.

    What a path led to is identified by the SHA-256 of the provenance.
    """
    if isinstance(value, str):
        return _ABSOLUTE_PATH.sub(lambda found: Path(found.group()).name, value)
    if isinstance(value, Mapping):
        return {key: without_absolute_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_absolute_paths(item) for item in value]
    return value


def portable(provenance: Provenance) -> Provenance:
    """The same origin, whose command names no folder of this machine."""
    return replace(provenance, command=str(without_absolute_paths(provenance.command)))
