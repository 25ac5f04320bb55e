import torch
from torch import nn

from openinfer_nn import (
    AddLinear,
    Embedding,
    Linear,
    LMHead,
    MergedLinear,
    NormGateUp,
    NormLinear,
    QKVLinear,
    RMSNorm,
    SiluAndMul,
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


def test_fused_ops_are_the_arithmetic_of_their_modules():
    norm, gate_up, down = (
        RMSNorm(4, eps=1e-6, **ON),
        MergedLinear(4, (3, 3), **ON),
        Linear(3, 4, **ON),
    )
    for module in (norm, gate_up, down):
        _fill(module)
    (gate, up), down_weight = gate_up.parts(), down.weight.clone()
    x = torch.randn(2, 4)
    normed = torch.nn.functional.rms_norm(x, (4,), norm.weight, 1e-6)
    hidden = torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)
    expected = x + hidden @ down_weight.T
    merged = normed @ gate_up.weight.T
    for module in (gate_up, down):
        pack_weights(module)
    torch.testing.assert_close(NormLinear(norm, gate_up)(x), merged)
    torch.testing.assert_close(NormGateUp(norm, gate_up)(x), hidden)
    torch.testing.assert_close(AddLinear(down)(x.clone(), hidden), expected)
    activation = SiluAndMul(3, **ON)
    torch.testing.assert_close(x + down(activation(gate_up(norm(x)))), expected)


def test_qkv_splits_into_heads():
    qkv = QKVLinear(8, num_heads=4, num_kv_heads=2, head_dim=3, **ON)
    _fill(qkv)
    x = torch.randn(5, 8)
    wq, wk, wv = qkv.parts()
    assert (len(wq), len(wk), len(wv)) == (12, 6, 6)
    pack_weights(qkv)
    q, k, v = qkv.split_heads(x)
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
