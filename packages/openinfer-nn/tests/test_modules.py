import torch
from torch import nn

from openinfer_nn import (
    Embedding,
    Linear,
    LMHead,
    MergedLinear,
    QKVLinear,
    RMSNorm,
    pack_weights,
)

ON = {"device": "cpu", "dtype": torch.float32}


def _fill(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))


def test_a_merged_linear_is_its_parts_side_by_side():
    merged = MergedLinear(4, (3, 5), **ON)
    _fill(merged)
    x = torch.randn(2, 4)
    first, second = merged.parts()
    assert first.data_ptr() == merged.weight.data_ptr()
    expected = torch.cat((x @ first.T, x @ second.T), dim=1)
    pack_weights(merged)
    torch.testing.assert_close(merged(x), expected)


def test_what_stands_around_a_product_is_done_by_it():
    norm = RMSNorm(4, eps=1e-6, **ON)
    gated = MergedLinear(4, (3, 3), norm=norm, is_gated=True, **ON)
    added = Linear(3, 4, adds_residual=True, **ON)
    for module in (norm, gated, added):
        _fill(module)
    (gate, up), down = gated.parts(), added.weight
    x, weight = torch.randn(2, 4), norm.weight
    normed = torch.nn.functional.rms_norm(x, (4,), weight, 1e-6)
    hidden = torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)
    expected = x + hidden @ down.T
    for module in (gated, added):
        pack_weights(module)
    torch.testing.assert_close(added(gated(x), x.clone()), expected)
    # The norm belongs to whoever has made it.
    assert [name for name, _ in gated.named_parameters()] == ["weight"]


def test_qkv_splits_into_heads():
    qkv = QKVLinear(8, num_heads=4, num_kv_heads=2, head_dim=3, **ON)
    _fill(qkv)
    x = torch.randn(5, 8)
    wq, wk, wv = qkv.parts()
    assert (len(wq), len(wk), len(wv)) == (12, 6, 6)
    pack_weights(qkv)
    q, k, v = qkv.project(x).split(qkv.heads, dim=1)
    torch.testing.assert_close(q, (x @ wq.T).view(5, 4, 3))
    torch.testing.assert_close(k, (x @ wk.T).view(5, 2, 3))
    torch.testing.assert_close(v, (x @ wv.T).view(5, 2, 3))


def test_a_tied_head_has_no_weight_of_its_own():
    embedding = Embedding(7, 4, **ON)
    _fill(embedding)
    head = LMHead(7, 4, tied_to=embedding, **ON)
    assert head.weight is embedding.weight
    table = embedding.weight.clone()
    for _ in range(2):
        hidden = embedding(torch.tensor([2, 5]))
        assert torch.equal(hidden, table[[2, 5]])
        if not head.is_packed:
            pack_weights(head)
    torch.testing.assert_close(head(hidden), hidden @ table.T)
    assert sum(p.numel() for p in nn.ModuleList([embedding, head]).parameters()) == table.numel()


def test_nothing_keeps_gradients():
    for module in (Embedding(7, 4, **ON), RMSNorm(4, eps=1e-6, **ON), LMHead(7, 4, **ON)):
        assert not any(parameter.requires_grad for parameter in module.parameters())
