"""Faults that the gate must see: a gate that cannot fail proves nothing.

Each fault leaves shapes right and text fluent on a real model. They are made in the layers as
`forward` is written, where each part is a module of its own.
"""

from dataclasses import replace

import pytest
import torch

from openinfer_testing.torch import run_gate

SHAPE = "gqa2-d64-untied"


class Patched:
    """An op that gets changed arguments."""

    def __init__(self, op, change):
        self.op, self.change = op, change

    def __call__(self, *args):
        return self.op(*self.change(*args))


def _attentions(harness):
    """The attention of each layer, whose parts are modules."""
    return [layer.attention for layer in harness.model.layers]


def _paged(harness):
    """The paged attention of each layer."""
    return [attention.attention for attention in _attentions(harness)]


def query_one_position_late(harness):
    # Shifting queries and keys together changes nothing: rotation encodes distances alone.
    rotary = _attentions(harness)[0].rotary  # layers share it
    forward = rotary.forward

    def rotate(q, k, positions):
        return forward(q, k, positions + 1)[0], forward(q, k, positions)[1]

    rotary.forward = rotate


def wrong_theta(harness):
    rotary = _attentions(harness)[0].rotary
    head_dim = rotary.cos_sin.shape[1]
    frequencies = 1_000_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(rotary.cos_sin.shape[0]).float(), frequencies)
    rotary.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)


def no_qk_norm(harness):
    for attention in _attentions(harness):
        attention.q_norm.forward = attention.k_norm.forward = lambda x: x


def a_token_sees_the_next(harness):
    for attention in _paged(harness):

        def look_ahead(q, k, v, step):
            longest = torch.tensor(step.block_table.shape[1] * 16)
            longer = torch.minimum(step.seq_lens + 1, longest).int()
            return q, k, v, replace(step, seq_lens=longer, max_seqlen_k=step.max_seqlen_k + 1)

        attention._attend = Patched(attention._attend, look_ahead)


def a_token_does_not_see_itself(harness):
    for attention in _paged(harness):

        def look_behind(q, k, v, step):
            return q, k, v, replace(step, seq_lens=(step.seq_lens - 1).clamp(min=1))

        attention._attend = Patched(attention._attend, look_behind)


def one_stale_block(harness):
    pack = harness.pack

    def packed(rows):
        inputs = pack(rows)
        table = inputs.block_table.clone()
        # The first block of a long sequence is another block, already written.
        long = (inputs.seq_lens > 32).nonzero().flatten()
        if len(long) and table.shape[1] > 1:
            table[long[-1], 0] = table[long[-1], 1]
        return replace(inputs, block_table=table)

    harness.pack = packed


def wrong_kv_head(harness):
    for attention in _paged(harness):

        def roll(q, k, v, *rest):
            return (q, k.roll(1, dims=2), v.roll(1, dims=2), *rest)

        attention._attend = Patched(attention._attend, roll)


def interleaved_kv_heads(harness):
    """Makes query head h read h % num_kv_heads, not h // group."""
    for attention in _paged(harness):
        attend = attention._attend

        def permuted(q, *rest, attend=attend):
            order = [0, 2, 1, 3]
            return attend(q[:, order].contiguous(), *rest)[:, order]

        attention._attend = permuted


FAULTS = [
    query_one_position_late,
    wrong_theta,
    no_qk_norm,
    a_token_sees_the_next,
    a_token_does_not_see_itself,
    one_stale_block,
    wrong_kv_head,
    interleaved_kv_heads,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_gate_goes_red(way, fault, dtype, checkpoint, harness, prompts):
    # A decode step that looks ahead reads an unwritten slot, so the arena must hold no NaN.
    folder = checkpoint(SHAPE)
    model = harness(folder, dtype, is_fused=False)
    with torch.inference_mode():
        for index in range(model.cache.spec.num_layers):
            for plane in model.cache.layer(index):
                plane.zero_()
    fault(model)
    report = run_gate(folder, lambda ids: way(model, ids), prompts, dtype)
    assert not report.is_accurate, report
    with pytest.raises(AssertionError, match="not what transformers computes"):
        report.check()


@pytest.mark.parametrize("fault", [wrong_theta, one_stale_block], ids=lambda fault: fault.__name__)
def test_the_gate_goes_red_over_fused_attention(way, fault, checkpoint, harness, prompts):
    """A fault of the model's inputs is seen on the path that a CPU takes by default, too."""
    folder = checkpoint(SHAPE)
    model = harness(folder, torch.bfloat16)
    fused_attention = model.model.layers[0].fused._attend._attend
    assert not hasattr(fused_attention, "_rope"), "the parts run in turn on this path"
    fault(model)
    report = run_gate(folder, lambda ids: way(model, ids), prompts, torch.bfloat16)
    assert not report.is_accurate, report


def the_newest_token_is_lost_at_length(harness):
    for attention in _paged(harness):

        def shorter(q, k, v, step):
            is_long = (step.seq_lens > 256) & (step.max_seqlen_q == 1)
            return q, k, v, replace(step, seq_lens=step.seq_lens - is_long.int())

        attention._attend = Patched(attention._attend, shorter)


def a_block_is_read_twice_at_length(harness):
    for attention in _paged(harness):

        def repeated(q, k, v, step):
            table = step.block_table.clone()
            if step.max_seqlen_q == 1:
                table[:, 16:17] = table[:, 15:16]
            return q, k, v, replace(step, block_table=table)

        attention._attend = Patched(attention._attend, repeated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "fault",
    [the_newest_token_is_lost_at_length, a_block_is_read_twice_at_length],
    ids=lambda fault: fault.__name__,
)
def test_the_gate_of_long_decodes_goes_red(
    fault, dtype, checkpoint, harness, long_way, long_prompts, long_shape
):
    folder = checkpoint(long_shape)
    model = harness(folder, dtype, is_fused=False)
    fault(model)
    report = run_gate(folder, lambda ids: long_way(model, ids), long_prompts, dtype)
    assert not report.is_accurate, report


def test_a_path_that_reports_nothing_is_refused(checkpoint, prompts):
    def silent(sequences):
        return [torch.full((len(ids) - 1, 320), float("nan")).numpy() for ids in sequences]

    with pytest.raises(ValueError, match="sequence 0, row 0: no logprob reported"):
        run_gate(checkpoint(SHAPE), silent, prompts)


def test_a_path_may_report_few(checkpoint, harness, ways, prompts):
    folder = checkpoint(SHAPE)
    model = harness(folder)

    def forced_only(sequences):
        rows = ways["alone"](model, sequences)
        few = [torch.full(r.shape, float("nan")).numpy() for r in rows]
        for ids, full, part in zip(sequences, rows, few, strict=True):
            for row, token in enumerate(ids[1:]):
                part[row, token] = full[row, token]
        return few

    report = run_gate(folder, forced_only, prompts)
    assert report.num_compared == sum(len(ids) - 1 for ids in prompts)
    report.check()
