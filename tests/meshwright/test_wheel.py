"""The wheel: everything below `meshwright`, beside anybody's `envs`, `agents` and `models`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from envs.cost import RooflineCost
from envs.files import read_json
from envs.hardware.topology import Topology
from experiments.config.targets import build, name_here, object_in_file
from hatch_build import renamed
from tests.envs.topologies import topology_text
from tests.paths import ROOT

pytestmark = pytest.mark.slow
FLAT = ("agents", "conf", "envs", "experiments", "models")
EXTRA = ("fastapi", "onnx", "plotly", "ray", "torch", "torch_geometric", "transformers")
IN_CORE = f"""
import sys
class Blocked:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {EXTRA!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked)
import meshwright
import gymnasium
assert gymnasium.spec("meshwright/Placement-v0").entry_point.startswith("meshwright.envs.")
import meshwright.agents.cluster.checkpoint, meshwright.envs, meshwright.models.export.checkpoint
from meshwright.command import main
asked = ["plan", "env=placement_toy", "agent=heft", "cost=envs.cost.RooflineCost"]
assert main([*asked, "hydra.run.dir=run"]) == 0
assert main(["trace", "action=summary", "trace.format=synthetic", "trace.jobs=40"]) == 0
assert main(["train", "env=bandwidth_toy", "agent=ppo_bandwidth", "model=channels"]) == 2
from meshwright.experiments.config.targets import may_be_named
assert may_be_named("envs.cost.RooflineCost") and may_be_named("meshwright.envs.cost.RooflineCost")
assert not may_be_named("os.system") and not may_be_named("envs.files.write_atomically")
assert meshwright.Topology.__module__ == "meshwright.envs.hardware.topology"
taken = set({FLAT!r}) & set(sys.modules)
assert not taken, taken
"""


def built(folder: Path, form: str) -> zipfile.ZipFile:
    program = f"import hatchling.build; hatchling.build.build_{form}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(tmp_path_factory.mktemp("wheel"), "wheel")


def test_an_editable_install_runs_no_code_at_every_start(tmp_path: Path) -> None:
    editable = built(tmp_path, "editable")
    (name,) = [x for x in editable.namelist() if x.endswith(".pth")]
    assert editable.read(name).decode().split() == [str(ROOT)]


def test_the_wheel_has_every_file_below_one_name(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"meshwright"}
    asked = ["git", "-C", str(ROOT), "ls-files", "--", "meshwright", *FLAT]
    kept = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    missing = {
        name
        for name in kept
        if f"meshwright/{name.removeprefix('meshwright/')}" not in names and (ROOT / name).exists()
    }
    assert not missing
    entry_points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "meshwright = meshwright.command:main" in wheel.read(entry_points).decode()


def test_nothing_in_it_names_a_package_of_the_checkout(wheel: zipfile.ZipFile) -> None:
    flat = "|".join(FLAT)
    imports = re.compile(rf"^\s*(?:from|import) (?:{flat})\b.*", re.MULTILINE)
    found = []
    for name in wheel.namelist():
        text = wheel.read(name).decode() if name.endswith((".py", ".yaml")) else ""
        if name.endswith(".py"):
            found += [(name, x) for x in imports.findall(text)]
            used = {x.id for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name)}
            assert "meshwright" not in used, name  # an attribute that was taken for a module
        if name.startswith("meshwright/conf/"):
            found += [(name, x) for x in re.findall(rf"_target_: (?:{flat})\.\S+", text)]
    assert found == []


def test_it_works_beside_other_packages_of_the_same_names_and_without_extras(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path / "site")
    project = tmp_path / "project"
    for name in FLAT:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise RuntimeError('of somebody else')\n")
    done = subprocess.run(
        [sys.executable, "-c", IN_CORE], check=False, cwd=project, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert " needs the extra 'train': pip install 'meshwright[train]'\n" in done.stderr
    assert read_json(project / "run/result.json")["status"] == "feasible"
    saved = yaml.safe_load((project / "run/config.yaml").read_text())
    assert saved["agent"]["_target_"] == "meshwright.agents.placement.list_planners.Heft"


def test_a_config_of_an_installed_run_is_read_in_a_checkout(tmp_path: Path) -> None:
    assert name_here("meshwright.envs.cost.RooflineCost") == "envs.cost.RooflineCost"
    for of_others in ("envs.of_somebody.Thing", "meshwright.plan", "numpy.array", "agents"):
        assert name_here(of_others) == of_others
    earlier = "experiments.step.worker.RecordedStage"  # by its module of an earlier version
    assert name_here(earlier) == "experiments.execution.worker.RecordedStage"
    assert isinstance(build({"_target_": "meshwright.envs.cost.RooflineCost"}), RooflineCost)
    text = topology_text("t4_pcie").replace(": envs.", ": meshwright.envs.")
    (tmp_path / "topology.yaml").write_text(text)
    assert "meshwright.envs.hardware" in text
    assert isinstance(
        object_in_file(str(tmp_path / "topology.yaml"), "topology", Topology), Topology
    )


@pytest.mark.parametrize(
    ("written", "led"),
    [
        ("import envs", "from meshwright import envs"),
        ("import envs.cost", "import meshwright.envs.cost; from meshwright import envs"),
        ("import envs.cost as cost, os", "import meshwright.envs.cost as cost, os"),
        ("    import envs  # noqa", "    from meshwright import envs  # noqa"),
        ("from envs import cost", "from meshwright.envs import cost"),
        ("from envs.cost import x", "from meshwright.envs.cost import x"),
        ("import experiments.plan as plan", "import meshwright.experiments.plan as plan"),
        ("from experiments.plan import main", "from meshwright.experiments.plan import main"),
        ("from .envs import x", "from .envs import x"),
        ("import environments", "import environments"),
        ("x = 'envs.cost.RooflineCost'", "x = 'meshwright.envs.cost.RooflineCost'"),
        ("x = 'envs.placement.env:toy'", "x = 'meshwright.envs.placement.env:toy'"),
        ("x = 'partial envs.units:of'", "x = 'partial meshwright.envs.units:of'"),
        ("x = 'experiments.plan'", "x = 'meshwright.experiments.plan'"),
        ("x.startswith('envs.cluster.')", "x.startswith('envs.cluster.')"),
        ("envs.step(actions), self.envs.units", "envs.step(actions), self.envs.units"),
        ("# see envs.cost.", "# see meshwright.envs.cost."),
        ("_target_: envs.cost.RooflineCost", "_target_: meshwright.envs.cost.RooflineCost"),
        ("python -m experiments.studies.cells", "python -m meshwright.experiments.studies.cells"),
        ("x = 'agents.fifo'", "x = 'agents.fifo'"),
        ("x = f'agents.{name}'", "x = f'agents.{name}'"),
        ("x = 'envs'", "x = 'envs'"),
        ("é = 'envs.cost'; y = 'ü', 'envs.units'",
         "é = 'meshwright.envs.cost'; y = 'ü', 'meshwright.envs.units'"),
        ("'''python -m experiments.plan agent=heft'''", "'''meshwright plan agent=heft'''"),
        ("f'ask experiments.plan for {x}'", "f'ask meshwright plan for {x}'"),
        ("'our experiments.'", "'our experiments.'"),
    ],
)  # fmt: skip
def test_how_a_module_is_named_in_the_wheel(written: str, led: str) -> None:
    assert renamed(written, str(ROOT)) == led
