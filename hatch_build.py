"""Hatchling's hook for the wheel, in which the folders of the tree are packages below `meshwright`.

In a checkout, its editable install and a source distribution `envs`, `agents`, `models`,
`experiments` and `conf` are top-level packages, names that an installed one should leave to others.
`pyproject.toml` moves them; here words that name a module of the tree are written as in the wheel.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLOORS = "agents|conf|envs|experiments|models"
IMPORT = re.compile(rf"^( *)import ({FLOORS})(?= *(?:#|$))", re.MULTILINE)
FROM = re.compile(rf"^( *from )(?=(?:{FLOORS}) import )", re.MULTILINE)
NAME = re.compile(
    rf"(?<![\w.])(python -m |from |import |[\"'])?({FLOORS})((?:\.\w+)++)(?![\w(]|\.[\"'])"
)


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Rewritten copies of modules and configs take the place of the files."""
        self.copies = tempfile.TemporaryDirectory()
        files = () if version == "editable" else self.build_config.builder.recurse_included_files()
        for file in files:
            name = file.distribution_path
            if name.endswith(".py") or "/conf/" in name:
                copy = Path(self.copies.name, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(renamed(Path(file.path).read_text("utf-8"), self.root), "utf-8")
                build_data["force_include"][str(copy)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.copies.cleanup()


def renamed(text: str, root: str) -> str:
    """A text with modules of the tree at `root` named as in the wheel."""

    def name(found: re.Match[str]) -> str:
        (before, floor, rest), after = found.groups(""), found.string[found.end() :]
        module = Path(root, floor, rest.split(".")[1])
        is_file = module.with_suffix(".py").exists()
        if not is_file and not module.is_dir():
            return found[0]
        is_whole = before in {"'", '"'} and after.startswith(before)
        is_verb = floor == "experiments" and is_file and rest.count(".") == 1 and not is_whole
        if is_verb and before not in {"from ", "import "}:
            return f"{before.removeprefix('python -m ')}meshwright {rest[1:]}"
        bound = before == "import " and not after.startswith(" as ")
        return f"{before}meshwright.{floor}{rest}" + f"; from meshwright import {floor}" * bound

    return NAME.sub(
        name, FROM.sub(r"\1meshwright.", IMPORT.sub(r"\1from meshwright import \2", text))
    )
