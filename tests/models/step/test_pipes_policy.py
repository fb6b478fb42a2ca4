"""`PipesPolicy`: it begins at a rule, pipes have no order, and its program says the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from envs.joint.piped import PIPE, SERVER, TOP, Traffic
from models.export.allocator import OnnxAllocator, export_allocator
from models.export.checkpoint import ModelCard
from models.step.channels import PipesConfig, PipesPolicy
from tests.refusal import refusal

ROWS, PIPES = 6, 5


def policy(trained: bool = True) -> PipesPolicy:
    torch.manual_seed(0)
    made = PipesPolicy(PipesConfig(hidden=8, initial_root=1.0, initial_spread=0.5))
    if trained:
        torch.nn.init.normal_(made.level.weight, std=0.3)
    return made


def seen(rows: int = ROWS, pipes: int = PIPES) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = torch.rand(rows, pipes) < 0.6
    return {
        "pipe_features": (torch.rand(rows, pipes, PIPE) - 0.5) * mask.unsqueeze(-1),
        "server_features": torch.randn(rows, SERVER),
        "pipe_mask": mask.to(torch.int8),
    }


def traffic(of: Mapping[str, Tensor]) -> Traffic:
    mask = of["pipe_mask"].numpy() > 0
    used = np.zeros((len(mask), len(mask)), np.bool_)
    used[~np.eye(len(mask), dtype=np.bool_)] = mask.ravel()
    return Traffic(used, of["pipe_features"].numpy(), of["server_features"].numpy())


def test_an_untrained_one_gives_the_levels_of_the_square_root_rule() -> None:
    given = seen()
    expected = (TOP * given["pipe_features"][..., 0]).round().long() + TOP
    known = given["pipe_mask"] > 0
    actions = policy(trained=False).compose(given, greedy=True).actions
    assert torch.equal(actions[known], expected[known])
    assert not actions[~known].any()


def test_what_is_drawn_has_the_probability_that_is_said() -> None:
    made, given = policy(), seen()
    with torch.no_grad():
        drawn = made.compose(given)
        said = made.appraise(given, drawn.actions)
    assert torch.equal(said.known, given["pipe_mask"] > 0)
    known = said.known
    torch.testing.assert_close(said.log_probabilities[known], drawn.log_probabilities[known])
    assert not drawn.log_probabilities[~known].any()
    logits = made(given["pipe_features"], given["server_features"], known)
    own = torch.log_softmax(logits, -1).gather(-1, drawn.actions.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(own[known], drawn.log_probabilities[known])


def test_pipes_have_no_order_and_padding_no_say() -> None:
    made, given = policy(), seen()
    known = given["pipe_mask"] > 0
    logits = made(given["pipe_features"], given["server_features"], known)
    turned = made(given["pipe_features"].flip(1), given["server_features"], known.flip(1))
    torch.testing.assert_close(turned.flip(1), logits)
    wider = [torch.nn.functional.pad(given["pipe_features"], (0, 0, 0, 2), value=3.0),
             given["server_features"], torch.nn.functional.pad(known, (0, 2))]  # fmt: skip
    torch.testing.assert_close(made(*wider)[:, :PIPES], logits)


@pytest.mark.slow
def test_the_program_gives_the_most_probable_levels(tmp_path: Path) -> None:
    made = policy()
    card = ModelCard("Levels", "None.", "", {})
    allocator = OnnxAllocator(export_allocator(made, tmp_path / "levels", card))
    for rows, pipes in ((PIPES + 1, PIPES), (3, 2)):
        given = seen(rows, pipes)
        known = given["pipe_mask"].numpy() > 0
        expected = made.compose(given, greedy=True).actions.numpy() - TOP
        assert (allocator.levels(traffic(given))[known] == expected[known]).all()
    spec = tmp_path / "levels" / "spec.json"
    spec.write_text(spec.read_text().replace('"octave": 2', '"octave": 3'))
    with refusal("other features"):
        OnnxAllocator(tmp_path / "levels")
