"""The sizes that the tuning tables choose for Qwen3-4B and Qwen3-8B on an H100 or H200.

They were compared with the code that chose them before there were tables. A change here changes the
speed of these models, or the bits of their results: measure both first.
"""

from dataclasses import astuple
from types import SimpleNamespace

import pytest
import torch

from openinfer_kernels import FusedLinearSpec, LinearSpec, PagedAttentionSpec
from openinfer_kernels.gpu._family import gpu_family, num_multiprocessors, tuned_for
from openinfer_kernels.ops.fused_attention import _triton as fused_attention_triton
from openinfer_kernels.ops.fused_attention import _tuning as fused_attention
from openinfer_kernels.ops.fused_linear import _gluon_prompts, _triton, _tuning
from openinfer_kernels.ops.paged_attention import _triton as paged_attention_triton
from openinfer_kernels.ops.paged_attention import _tuning as paged_attention

NORM = {"norm_eps": 1e-6}
GATE = {"norm_eps": 1e-6, "is_gated": True}
ADD = {"adds_residual": True}
# name: fused parts, inputs, rows of the weight.
PRODUCTS = {
    "4b-qkv": (NORM, 2560, 6144),
    "4b-out": (ADD, 4096, 2560),
    "4b-gate": (GATE, 2560, 19_456),
    "4b-down": (ADD, 9728, 2560),
    "4b-logits": ({}, 2560, 151_936),
    "8b-qkv": (NORM, 4096, 6144),
    "8b-out": (ADD, 4096, 4096),
    "8b-gate": (GATE, 4096, 24_576),
    "8b-down": (ADD, 12_288, 4096),
    "8b-logits": ({}, 4096, 151_936),
}
# name: the kernel for one row; that for up to 8 and 16 rows in Triton; splits of the inputs and
# stages of the kernel for up to 8, 16, 32 and 64 rows in Gluon; rows from which prompts have one.
CHOSEN = {
    "4b-qkv": (
        (4, 512, 3, 2, False),
        [(16, 256, 6, 4, False), (32, 512, 3, 4, False)],
        [None, (1, 10), (1, 9), (1, 6)],
        None,
    ),
    "4b-out": (
        (4, 1024, 3, 4, True),
        [(16, 1024, 3, 8, False), (32, 256, 5, 4, False)],
        [None, (2, 11), (2, 9), (2, 7)],
        None,
    ),
    "4b-gate": (
        (2, 512, 3, 2, False),
        [(32, 512, 4, 8, True), (32, 512, 3, 8, False)],
        [None, None, (1, 5), (1, 4)],
        320,
    ),
    "4b-down": (
        (4, 1024, 4, 4, False),
        [(32, 256, 5, 8, False), (16, 256, 6, 4, False)],
        [(3, 12), (3, 11), (3, 9), (3, 7)],
        None,
    ),
    "4b-logits": ((2, 1024, 1, 2, False), [None, None], [None, None, None, None], None),
    "8b-qkv": (
        (4, 1024, 1, 2, False),
        [(16, 256, 6, 4, False), (32, 512, 3, 4, False)],
        [None, (1, 10), (1, 9), (1, 6)],
        None,
    ),
    "8b-out": (
        (4, 1024, 3, 2, True),
        [(16, 1024, 3, 8, False), (32, 256, 5, 4, False)],
        [None, (2, 11), (2, 9), (2, 7)],
        None,
    ),
    "8b-gate": (
        (2, 512, 5, 2, False),
        [(32, 512, 4, 8, True), (32, 512, 3, 8, False)],
        [None, None, (1, 5), (1, 4)],
        512,
    ),
    "8b-down": (
        (4, 2048, 3, 4, False),
        [(32, 256, 5, 8, False), (16, 256, 6, 4, False)],
        [(2, 12), (2, 11), (2, 9), (2, 7)],
        None,
    ),
    "8b-logits": ((2, 1024, 1, 2, False), [None, None], [None, None, None, None], None),
}
ATTENTION = PagedAttentionSpec(
    num_heads=32, num_kv_heads=8, head_dim=128, block_size=16, scale=1.0, dtype=torch.bfloat16
)


def _use_gpu(monkeypatch, capability, multiprocessors=132):
    major, minor = capability
    properties = SimpleNamespace(major=major, minor=minor, multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return torch.device("cuda")


def _product(name):
    parts, num_in, num_out = PRODUCTS[name]
    linear = LinearSpec(in_features=num_in, out_features=num_out, dtype=torch.bfloat16)
    return FusedLinearSpec(linear=linear, **parts)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_hopper(name, monkeypatch):
    device, spec = _use_gpu(monkeypatch, (9, 0)), _product(name)
    one_row, few_rows, many_rows, min_rows = CHOSEN[name]
    assert astuple(_tuning.one_row_sizes(spec, device)) == one_row
    few = [_tuning.few_rows_sizes(spec, tile, device) for tile in (8, 16)]
    assert [sizes and astuple(sizes) for sizes in few] == few_rows
    cuts = [
        _tuning.many_rows_cut(spec, tile, num_multiprocessors(device)) for tile in _tuning.ROW_TILES
    ]
    assert [cut and astuple(cut) for cut in cuts] == many_rows
    is_for_prompts = _gluon_prompts.why_not_prompts(spec, device) is None
    assert is_for_prompts == (min_rows is not None)
    if is_for_prompts:
        assert _tuning.first_match(_tuning.PROMPTS["hopper"].min_rows, spec) == min_rows


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), []),
        ((8, 9), []),
        ((9, 0), ["ManyRowsLauncher", "ManyRowsLauncher", "ManyRowsLauncher", "ManyRowsLauncher"]),
        ((10, 0), ["FewRowsLauncher", "FewRowsLauncher"]),
        ((12, 0), []),
    ],
    ids=str,
)
def test_each_family_has_its_kernels(capability, expected, monkeypatch):
    device, spec = _use_gpu(monkeypatch, capability), _product("8b-down")
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, dtype, device: zeros(*size, dtype=dtype))
    launches = _triton._launches(spec, device)
    assert [type(launch).__name__ for _, launch in launches] == expected


def _regimes(module, spec, device):
    return [(regime.rows, regime.kernel) for regime in module.regimes(spec, device)]


def test_regimes_of_a_gate_and_of_logits(monkeypatch):
    device = _use_gpu(monkeypatch, (9, 0))
    assert _regimes(_triton, _product("4b-gate"), device) == [
        ("1 row", "triton_one_row"),
        ("2 to 16 rows", "triton_few_rows"),
        ("17 to 64 rows", "gluon_many_rows"),
        ("320 rows and more", "gluon_prompts"),
        ("any other", "composed"),
    ]
    logits = _triton.regimes(_product("4b-logits"), device)
    assert [regime.kernel for regime in logits if not regime.why_not] == [
        "triton_one_row",
        "composed",
        "composed",
    ]
    device = _use_gpu(monkeypatch, (8, 0))
    (prompts,) = (
        regime
        for regime in _triton.regimes(_product("4b-gate"), device)
        if regime.kernel == "gluon_prompts"
    )
    assert "capability 9" in prompts.why_not


def test_regimes_of_attention(monkeypatch):
    device = _use_gpu(monkeypatch, (9, 0))
    assert _regimes(paged_attention_triton, ATTENTION, device) == [
        ("prefills of 256 rows and more", "gluon_prefill"),
        ("any other", "triton_prefill"),
    ]
    assert [kernel for _, kernel in _regimes(fused_attention_triton, ATTENTION, device)] == [
        "triton_decode",
        "triton_prefill",
    ]


def test_fewer_multiprocessors_split_inputs_less(monkeypatch):
    spec = _product("4b-down")
    cuts = [_tuning.many_rows_cut(spec, 64, number) for number in (132, 114, 78)]
    assert [cut and cut.num_splits for cut in cuts] == [3, 2, None]


def test_attention_takes_the_default_sizes_on_hopper(monkeypatch):
    device = _use_gpu(monkeypatch, (9, 0))
    sizes = tuned_for(paged_attention.TRITON_PREFILL, device)
    assert astuple(sizes) == (64, 64, 4, 2, 32, 256, 264)
    for max_seqlen_q, expected in [(1, 16), (2, 16), (4, 16), (8, 32), (16, 64), (1024, 64)]:
        assert paged_attention.prefill_block_m(ATTENTION, sizes, max_seqlen_q) == expected
    for programs, length, expected in [(8, 40_960, 32), (72, 4096, 3), (264, 40_960, 1)]:
        assert paged_attention.num_splits(sizes, programs, length) == expected
    assert paged_attention.GLUON_PREFILL["hopper"].min_programs == 64
    fused = tuned_for(fused_attention.SIZES, device)
    chosen = {num_seqs: astuple(fused.decode_sizes(num_seqs))[1:] for num_seqs in (1, 4, 5, 8, 9)}
    assert chosen[1] == chosen[4] == (264, 128, 8, None)
    assert chosen[5] == chosen[8] == (256, 64, 8, None)
    assert chosen[9] == astuple(fused.decode_sizes(1024))[1:] == (528, 64, 4, 128)
    assert astuple(fused)[1:] == (256, 64, 64, 2, 128, 16)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "rtx_blackwell"),
        ((7, 5), None),
    ],
    ids=str,
)
def test_families(capability, expected, monkeypatch):
    device = _use_gpu(monkeypatch, capability, multiprocessors=114)
    assert gpu_family(device) == expected
    assert num_multiprocessors(device) == 114
    table = {"default": 1, "hopper": 2}
    assert tuned_for(table, device) == (2 if expected == "hopper" else 1)
    assert gpu_family(torch.device("cpu")) is None
