from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from numpy.random import mtrand
from torch import nn

from agents.rllib.restore import KEPT, has_checkpoint, restore, save, seeded_generators
from agents.rllib.step.training import Progress
from envs.errors import InputError

IDENTITY = {"seed": 0}


def network(seed: int = 0) -> tuple[nn.Linear, torch.optim.Adam]:
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    return module, optimizer


def listed(
    made: tuple[nn.Linear, torch.optim.Adam],
) -> tuple[nn.Linear, list[torch.optim.Optimizer]]:
    module, optimizer = made
    return module, [optimizer]


def advance(module: nn.Linear, optimizer: torch.optim.Adam) -> None:
    optimizer.zero_grad()
    module(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


def test_training_after_a_restore_equals_training_without(tmp_path: Path) -> None:
    module, optimizer = network()
    advance(module, optimizer)
    progress = Progress(
        iteration=1, best_step_time=2.5, best_plan={"device": [0, 1]}, trajectory=[(1, 3)]
    )
    save(tmp_path, progress, module, [optimizer], IDENTITY)
    advance(module, optimizer)
    other, other_optimizer = network(seed=1)
    assert restore(tmp_path, other, [other_optimizer], IDENTITY, Progress) == progress
    advance(other, other_optimizer)
    torch.testing.assert_close(other.weight, module.weight, atol=0, rtol=0)


def test_a_state_before_the_first_update_restores_too(tmp_path: Path) -> None:
    save(tmp_path, Progress(), *listed(network()), IDENTITY)
    assert restore(tmp_path, *listed(network(seed=1)), IDENTITY, Progress) == Progress()


def test_the_last_checkpoints_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    for iteration in (8, 9, 10, 1_000_000):
        save(tmp_path, Progress(iteration=iteration), *listed(network()), IDENTITY)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["iteration_000010", "iteration_1000000"]
    assert len(names) == KEPT
    assert restore(tmp_path, *listed(network()), IDENTITY, Progress).iteration == 1_000_000


def test_a_half_written_checkpoint_is_not_seen(tmp_path: Path) -> None:
    save(tmp_path, Progress(iteration=1), *listed(network()), IDENTITY)
    (tmp_path / "checkpoints" / ".iteration_000002.abc").mkdir()
    assert restore(tmp_path, *listed(network()), IDENTITY, Progress).iteration == 1


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "random.safetensors"]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, Progress(), *listed(network()), IDENTITY)
    (folder / name).write_bytes(b"damaged")
    with pytest.raises(InputError, match=rf"{name}: the file was changed or damaged"):
        restore(tmp_path, *listed(network()), IDENTITY, Progress)


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path, Progress(), *listed(network()), IDENTITY)
    state = json.loads((folder / "state.json").read_text())
    for change, message in (
        ({"schema_version": 0}, "field 'schema_version': is 0"),
        ({"progress": None}, "field 'progress': is missing"),
        ({"progress": {"unknown": 1}}, "state.json: is not what a run writes"),
        ({"identity": {"seed": 3}}, "field 'seed': the checkpoint was written with 3"),
    ):
        (folder / "state.json").write_text(json.dumps({**state, **change}))
        with pytest.raises(InputError, match=message):
            restore(tmp_path, *listed(network()), IDENTITY, Progress)
    (folder / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"state\.json: not a readable JSON"):
        restore(tmp_path, *listed(network()), IDENTITY, Progress)


def test_another_networks_weights_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, Progress(), *listed(network()), IDENTITY)
    other = nn.Linear(5, 2)
    with pytest.raises(InputError, match=r"weights\.safetensors: .*size mismatch"):
        restore(tmp_path, other, [torch.optim.Adam(other.parameters())], IDENTITY, Progress)
    assert folder.is_dir()


def test_global_generators_are_seeded_inside_and_left_alone_outside() -> None:
    def draws() -> tuple[float, ...]:
        return random.random(), float(mtrand.random_sample()), float(torch.rand(1))

    outside = mtrand.get_bit_generator()
    with seeded_generators(3):
        first = draws()
    with seeded_generators(3):
        assert draws() == first
    with seeded_generators(4):
        assert draws() != first
    assert mtrand.get_bit_generator() is outside
