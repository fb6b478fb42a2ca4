from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.cluster.batch import PackedLinks, PackedRows, PaddedLinks, PaddedRows, Rows, mean
from tests.strength import SEEDS, examples

sizes = st.tuples(SEEDS, st.integers(1, 8), st.integers(1, 8), st.integers(0, 20))


def edges(seed: int, firsts: int, seconds: int, number: int) -> tuple[Tensor, ...]:
    """Ends and weights, in doubles."""
    torch.manual_seed(seed % 2**31)
    first, second = torch.randint(firsts, (number,)), torch.randint(seconds, (number,))
    return first, second, *torch.rand(2, number, dtype=torch.float64)


def dense(first: Tensor, second: Tensor, weight: Tensor, firsts: int, seconds: int) -> Tensor:
    """(seconds, firsts) matrix of the sum towards the second kind."""
    matrix = torch.zeros(seconds, firsts, dtype=torch.float64)
    return matrix.index_put((second, first), weight, accumulate=True)


@examples(30)
@given(sizes)
def test_sums_are_products_with_the_matrix_of_the_edges(drawn: tuple[int, int, int, int]) -> None:
    seed, firsts, seconds, number = drawn
    first, second, up, down = edges(seed, firsts, seconds, number)
    real = torch.ones(number, dtype=torch.bool)
    kinds: list[PackedLinks | PaddedLinks] = [
        PackedLinks(first, second, (firsts, seconds), (down, up)),
        PaddedLinks(first, second, (firsts, seconds), (down, up), real),
    ]
    below = torch.rand(firsts, 3, dtype=torch.float64)
    above = torch.rand(seconds, 3, dtype=torch.float64)
    for links in kinds:
        expected = dense(first, second, up, firsts, seconds) @ below
        torch.testing.assert_close(links.to_second(below), expected)
        expected = dense(first, second, down, firsts, seconds).T @ above
        torch.testing.assert_close(links.to_first(above), expected)


@examples(10)
@given(sizes)
def test_gradients_are_slopes(drawn: tuple[int, int, int, int]) -> None:
    seed, firsts, seconds, number = drawn
    first, second, up, down = edges(seed, firsts, seconds, number)
    links = PackedLinks(first, second, (firsts, seconds), (down, up))
    below = torch.rand(firsts, 3, dtype=torch.float64, requires_grad=True)
    above = torch.rand(seconds, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(links.to_second, (below,))
    assert torch.autograd.gradcheck(links.to_first, (above,))


def test_padding_falls_into_the_sink() -> None:
    first, second, up, down = edges(0, 4, 3, 10)
    real = torch.arange(10) < 6
    padded = PaddedLinks(first, second, (4, 3), (down, up), real)
    plain = PackedLinks(first[:6], second[:6], (4, 3), (down[:6], up[:6]))
    below = torch.rand(4, 2, dtype=torch.float64)
    torch.testing.assert_close(padded.to_second(below), plain.to_second(below))


@pytest.mark.parametrize("kind", [PackedRows, PaddedRows])
def test_rows_go_there_and_back(kind: type[PackedRows] | type[PaddedRows]) -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.int8)
    values = torch.arange(24.0).view(3, 4, 2)
    rows: Rows = kind(mask)
    present = mask.bool()
    packed = rows.pack(values)
    torch.testing.assert_close(rows.unpack(packed)[present], values[present])
    expected = (values * mask.unsqueeze(-1)).sum(1)
    torch.testing.assert_close(rows.total(packed), expected)
    torch.testing.assert_close(mean(rows, packed), expected / torch.tensor([[3.0], [1.0], [2.0]]))
    graphs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    spread = rows.unpack(rows.spread(graphs))
    torch.testing.assert_close(spread[present], graphs.unsqueeze(1).expand(3, 4, 2)[present])
    numbers = torch.arange(12)[present.flatten()]
    torch.testing.assert_close(
        packed[rows.number(numbers)], values.flatten(0, 1)[present.flatten()]
    )
