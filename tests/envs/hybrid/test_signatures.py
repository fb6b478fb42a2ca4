"""Boxing bytes against OneFlow's, and the signatures of operators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.files import read_json
from envs.graphs.motifs import Sketch, step_graph
from envs.graphs.op_graph import NONE, Kind
from envs.hybrid.signatures import (
    BROADCAST,
    FEATURES,
    PARTIAL,
    ROWS,
    ForwardOperators,
    Operator,
    Signature,
    boxing_bytes,
    signatures,
)

SBP = {str(form): form for form in (ROWS, FEATURES, BROADCAST, PARTIAL)}


def test_boxing_bytes_are_those_of_oneflow(data: Path) -> None:
    cases: list[dict[str, Any]] = read_json(data / "oracles/parallel/sbp_boxing.json")["cases"]
    same = [case for case in cases if case["placement"] == "same"]
    assert same
    for case in same:
        found = boxing_bytes(SBP[case["src"]], SBP[case["dst"]], case["T"], case["p"])
        total = case["bytes_total"]  # or a text: there is no boxing
        assert found == pytest.approx(np.inf if isinstance(total, str) else total, rel=1e-12), case


def operator(kind: Kind, *inputs: bool, **facts: Any) -> Operator:
    known = dict.fromkeys(("weights", "heads", "channels", "scalar", "statistics"), False)
    return Operator(kind, inputs=inputs, **{**known, **facts})


def shown(signature: Signature) -> str:
    """Forward and backward, as "inputs -> output | gradient -> gradients"."""
    forward = f"{','.join(map(str, signature.inputs))}->{signature.output}"
    gradients = ",".join(map(str, signature.input_gradients))
    return f"{forward}|{signature.output_gradient}->{gradients}"


def test_signatures_of_products() -> None:
    product = signatures(operator(Kind.MATMUL, True, weights=True))
    assert [(shown(s), str(s.weight)) for s in product] == [
        ("B->B|B->B", "B"), ("S0->S0|S0->S0", "B"), ("B->S1|S1->P", "S1"), ("S1->P|B->S1", "S0")
    ]  # fmt: skip
    activations = signatures(operator(Kind.MATMUL, True, False))
    assert [shown(s) for s in activations] == [
        "B,B->B|B->B,B", "S0,S0->S0|S0->S0,S0", "S1,S1->S1|S1->S1,S1"
    ]  # fmt: skip


def test_signatures_of_other_kinds() -> None:
    def offered(kind: Kind, *inputs: bool, **facts: Any) -> set[str]:
        return {shown(s) for s in signatures(operator(kind, *inputs, **facts))}

    assert "S1,B->S1|S1->S1,P" in offered(Kind.ELEMENTWISE, True, False)
    assert not any("P->" in s for s in offered(Kind.ELEMENTWISE, True))
    assert "P->P|B->B" in offered(Kind.DATA_MOVEMENT, True)
    assert offered(Kind.NORMALIZATION, True, weights=True) == {"B->B|B->B", "S0->S0|S0->S0"}
    assert "S1->S1|S1->S1" in offered(Kind.NORMALIZATION, True, heads=True)
    assert "->P|B->" in offered(Kind.EMBEDDING, weights=True)
    assert "S1->P|B->S1" in offered(Kind.REDUCTION, True, scalar=True)
    assert offered(Kind.REDUCTION, True) == {"B->B|B->B", "S0->S0|S0->S0"}
    assert offered(Kind.OTHER, True) == {"B->B|B->B"}
    wide = signatures(operator(Kind.NORMALIZATION, True, statistics=12.0))[-1]
    assert (wide.forward_summed, wide.backward_summed) == (24.0, 12.0)


def test_what_is_read_off_a_graph() -> None:
    """Rows of a product, heads between products of activations, logits behind them."""
    rows, width = 512.0, 256.0
    sketch = Sketch(np.random.default_rng(0), 4 * rows * width, width, taps=1, spread=0.0)
    table = sketch.add(Kind.EMBEDDING, (), 0.0, sketch.activation, sketch.table(4e5))
    keys = sketch.dense(table)
    scores = sketch.add(Kind.MATMUL, (keys,), 1e6, 1e6, NONE)
    softmax = sketch.free(Kind.NORMALIZATION, scores)
    mixed = sketch.add(Kind.MATMUL, (softmax, keys), 1e6, sketch.activation, NONE)
    logits = sketch.free(Kind.NORMALIZATION, sketch.dense(mixed, wide=3.0))
    loss = sketch.add(Kind.REDUCTION, (logits,), 0.0, 4.0, NONE)
    mask = sketch.add(Kind.DATA_MOVEMENT, (), 0.0, 8.0, NONE)
    sketch.free(Kind.ELEMENTWISE, mask, keys)
    known = ForwardOperators(step_graph(sketch, "attention", 2, 1.0))
    assert known.learned[known.forward].tolist() == [k != mask for k in range(len(sketch.layers))]
    operators = [known[op] for op in np.flatnonzero(known.forward).tolist()]
    assert [k for k, one in enumerate(operators) if one.heads] == [scores, softmax, mixed]
    assert [k for k, one in enumerate(operators) if one.weights] == [table, keys, 5]
    assert operators[logits].statistics == pytest.approx(4 * rows)
    assert operators[loss].scalar
    assert operators[-1].inputs == (True,)
