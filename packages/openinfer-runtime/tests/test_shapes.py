"""The sizes that steps are padded to."""

from types import SimpleNamespace

import pytest

from openinfer_runtime.steps._step_shapes import MAX_TOKENS, StepShape, StepShapes


def plan_of(*counts):
    """Returns a plan with these numbers of known tokens per row."""
    rows = [SimpleNamespace(token_ids=[0] * count) for count in counts]
    return SimpleNamespace(rows=rows, num_tokens=sum(counts))


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
        ((1024, *(1,) * 7), StepShape(1152, 32, False)),
        ((2, *(1,) * 140), StepShape(256, 200, False)),
        ((MAX_TOKENS + 1,), None),
    ],
)
def test_the_smallest_that_holds_a_plan(counts, shape):
    assert SHAPES.of(plan_of(*counts)) == shape


def test_shared_prefixes_have_shapes_of_their_own():
    assert SHAPES.of(plan_of(*(1,) * 9), shares_prefixes=True) == StepShape(16, 16, True, True)
    assert SHAPES.of(plan_of(*(1,) * 40), shares_prefixes=True) == StepShape(64, 64, True, True)
    assert not any(SHAPES.is_urgent(shape) for shape in SHAPES.all() if shape.shares_prefixes)


def test_every_shape_is_listed_once():
    shapes = SHAPES.all()
    assert len(shapes) == len(set(shapes)) == SHAPES.count
    for shape in shapes:
        counts = [1] * shape.num_seqs
        counts[0] += 0 if shape.is_decode else max(1, shape.num_tokens - shape.num_seqs)
        found = SHAPES.of(plan_of(*counts), shares_prefixes=shape.shares_prefixes)
        assert found == shape or not shape.is_decode
        assert found in shapes


def test_urgent_shapes_come_first():
    are_urgent = [SHAPES.is_urgent(shape) for shape in SHAPES.all()]
    assert are_urgent == sorted(are_urgent, reverse=True)
    assert 4 < sum(are_urgent) < 12


def test_no_shape_is_larger_than_a_step():
    small = StepShapes(max_num_seqs=3, max_num_tokens=40)
    decode = [shape for shape in small.all() if shape.is_decode and not shape.shares_prefixes]
    others = [shape for shape in small.all() if not shape.is_decode]
    shared = [shape for shape in small.all() if shape.shares_prefixes]
    assert [shape.num_seqs for shape in decode] == [1, 2, 3]
    assert shared == [StepShape(3, 3, True, True)]
    assert {shape.num_tokens for shape in others} == {16, 32, 40}
    assert {shape.num_seqs for shape in others} == {1, 3}
    assert (small.max_num_tokens, small.max_num_seqs) == (40, 3)
