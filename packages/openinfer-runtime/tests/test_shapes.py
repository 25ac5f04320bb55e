"""The sizes that steps are padded to."""

from types import SimpleNamespace

import pytest

from openinfer_runtime._shapes import MAX_TOKENS, StepShape, StepShapes


def plan_of(*counts):
    return SimpleNamespace(rows=counts, num_tokens=sum(counts))


SHAPES = StepShapes(max_num_seqs=200, max_num_tokens=8192)


@pytest.mark.parametrize(
    ("counts", "shape"),
    [
        ((1,), StepShape(1, 1, True)),
        ((1,) * 3, StepShape(4, 4, True)),
        ((1,) * 9, StepShape(16, 16, True)),
        ((1,) * 193, StepShape(200, 200, True)),
        ((32,), StepShape(32, 1, False)),
        ((33,), StepShape(64, 1, False)),
        ((1024, *(1,) * 7), StepShape(1152, 8, False)),
        ((2, *(1,) * 140), StepShape(256, 200, False)),
        ((MAX_TOKENS + 1,), None),
    ],
)
def test_the_smallest_that_holds_a_plan(counts, shape):
    assert SHAPES.of(plan_of(*counts)) == shape


def test_every_shape_is_listed_once():
    shapes = [*SHAPES.decode(), *SHAPES.prefill()]
    assert len(shapes) == len(set(shapes)) == SHAPES.count
    for shape in shapes:
        counts = [1] * shape.num_seqs
        counts[0] += 0 if shape.is_decode else max(1, shape.num_tokens - shape.num_seqs)
        assert SHAPES.of(plan_of(*counts)) in shapes


def test_no_shape_is_larger_than_a_step():
    small = StepShapes(max_num_seqs=3, max_num_tokens=40)
    assert [shape.num_seqs for shape in small.decode()] == [3, 2, 1]
    assert {shape.num_tokens for shape in small.prefill()} == {16, 32, 40}
    assert {shape.num_seqs for shape in small.prefill()} == {1, 3}
    assert (small.max_num_tokens, small.max_num_seqs) == (40, 3)
