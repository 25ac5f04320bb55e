import pytest
import torch

from openinfer_kernels import (
    BackendUnavailable,
    LinearSpec,
    dequantize_weight,
    plan_linear,
    quantize_weight,
)

ROWS = [0, 1, 2, 3, 7, 8, 9, 17, 40]


@pytest.mark.parametrize("backend", ["native", "cpu", "torch"])
@pytest.mark.parametrize("num_tokens", ROWS)
@pytest.mark.parametrize(("out_features", "in_features"), [(130, 96), (16, 38), (33, 64), (20, 2)])
def test_linear(backend, num_tokens, out_features, in_features, dtype, random, assert_close):
    spec = LinearSpec(in_features=in_features, out_features=out_features, dtype=dtype)
    x = random(num_tokens, in_features, dtype=dtype) / 8
    weight = random(out_features, in_features, dtype=dtype)
    reference, linear = plan_linear(spec, "cpu", "reference"), plan_linear(spec, "cpu", backend)
    expected = reference(x, reference.pack(weight.clone()))
    assert_close(linear(x, linear.pack(weight)), expected)


@pytest.mark.parametrize("backend", ["native", "cpu"])
@pytest.mark.parametrize("num_tokens", ROWS)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(("out_features", "in_features"), [(130, 96), (48, 160), (16, 32)])
def test_quantized_linear_is_the_product_with_what_is_stored(
    backend, num_tokens, quantization, out_features, in_features, dtype, random, assert_close
):
    spec = LinearSpec(
        in_features=in_features,
        out_features=out_features,
        dtype=dtype,
        quantization=quantization,
    )
    if backend == "cpu" and (quantization == "int8" or out_features % 16):
        with pytest.raises(BackendUnavailable):
            plan_linear(spec, "cpu", backend)
        return
    linear = plan_linear(spec, "cpu", backend)
    x = random(num_tokens, in_features, dtype=dtype) / 8
    weight = random(out_features, in_features, dtype=dtype)
    stored = dequantize_weight(*quantize_weight(weight, quantization))
    expected = (x.float() @ stored.T).to(dtype)
    assert_close(linear(x, linear.pack(weight)), expected)


@pytest.mark.parametrize("backend", ["native", "cpu", "torch", "reference"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_rows_are_those_of_the_weight(backend, quantization, random):
    spec = LinearSpec(
        in_features=64,
        out_features=48,
        dtype=torch.bfloat16,
        quantization=quantization,
        is_looked_up=True,
    )
    try:
        linear = plan_linear(spec, "cpu", backend)
    except BackendUnavailable:
        assert quantization is not None
        assert (backend, quantization) != ("native", None)
        return
    weight = random(48, 64, dtype=torch.bfloat16)
    expected = weight.clone()
    if quantization is not None:
        stored = dequantize_weight(*quantize_weight(weight, quantization))
        expected = stored.bfloat16()
    packed = linear.pack(weight)
    index = torch.tensor([47, 0, 17, 17, 15, 16])
    assert torch.equal(linear.rows(packed, index), expected[index])
    assert linear.rows(packed, index[:0]).shape == (0, 64)


@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.0062), ("int4", 0.0875)])
def test_quantization_loses_what_its_bits_cost(quantization, bound, random):
    """A quantization step is sigma / 37 with 8 bits and sigma / 2.4 with 4 bits."""
    weight = random(256, 512)
    q, scales = quantize_weight(weight, quantization)
    error = dequantize_weight(q, scales) - weight
    assert error.square().mean().sqrt() / weight.square().mean().sqrt() < bound
    low, high = (-127, 127) if quantization == "int8" else (-8, 7)
    assert (q.min(), q.max()) == (low, high)
    assert (scales.shape, scales.dtype) == ((256, 16), torch.bfloat16)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_on_the_grid_are_kept_exactly(quantization):
    """Rows of one group, in which an extreme value determines the scale."""
    q = torch.arange(-8, 8, dtype=torch.float32).repeat(2, 2)
    q[1] *= -0.5
    if quantization == "int8":
        q[:, 0] = torch.tensor([-127.0, 63.5])
    assert torch.equal(dequantize_weight(*quantize_weight(q, quantization)), q)


def test_zeros_stay_zeros():
    for quantization in ("int8", "int4"):
        stored = dequantize_weight(*quantize_weight(torch.zeros(2, 64), quantization))
        assert torch.equal(stored, torch.zeros(2, 64))


# Groups, as bits of bf16, for which two scales have the same error except for the sum's order.
NEAR_TIES = [
    [
        -16569,
        16260,
        16180,
        16059,
        16206,
        16027,
        -16532,
        -16332,
        -16391,
        16831,
        16296,
        16205,
        16410,
        16167,
        -16451,
        16197,
        16227,
        16404,
        16442,
        -16255,
        16340,
        -15835,
        16259,
        16679,
        16202,
        16008,
        16039,
        16357,
        15756,
        -17021,
        16277,
        15939,
    ],
    [
        16492,
        -16688,
        15992,
        -16293,
        16354,
        -16629,
        16192,
        -16590,
        -16507,
        16498,
        16497,
        -16473,
        16028,
        16522,
        -16495,
        16975,
        16330,
        -16544,
        -16471,
        17043,
        16467,
        -16684,
        15984,
        -16456,
        16734,
        16415,
        15566,
        -16536,
        -16472,
        16275,
        16245,
        -16782,
    ],
    [
        -16487,
        -16704,
        -16977,
        -16063,
        15829,
        15933,
        17032,
        16495,
        16524,
        -16592,
        15761,
        -16261,
        -16043,
        -16473,
        -16183,
        16459,
        15924,
        16058,
        16102,
        15937,
        15599,
        16188,
        16246,
        -16526,
        -16344,
        -16168,
        -16220,
        -16183,
        -16702,
        -17112,
        16147,
        -16742,
    ],
    [
        17075,
        16174,
        16514,
        16520,
        16117,
        16124,
        16036,
        15705,
        -16351,
        15593,
        16780,
        -15988,
        -16649,
        -16293,
        16315,
        -16205,
        -16497,
        16038,
        15837,
        -16529,
        16289,
        -16254,
        -16630,
        -16319,
        -16884,
        15754,
        -16546,
        -16746,
        15866,
        16310,
        -16399,
        16350,
    ],
]


@pytest.mark.parametrize("backend", ["native"])
def test_where_two_scales_are_as_good_every_backend_takes_the_same(backend):
    weight = torch.tensor(NEAR_TIES, dtype=torch.int16).view(torch.bfloat16)
    spec = LinearSpec(
        in_features=32,
        out_features=len(weight),
        dtype=torch.bfloat16,
        quantization="int4",
        is_looked_up=True,
    )
    linear = plan_linear(spec, "cpu", backend)
    _, scales = quantize_weight(weight, "int4")
    packed = linear.pack(weight.clone())
    assert torch.equal(packed[1][0, 0, : len(weight)], scales[:, 0])


def shifted_groups(q, scales):
    return q, scales.roll(1, dims=1)


def transposed_scales(q, scales):
    return q, scales.flatten().view(scales.shape[1], scales.shape[0]).T.contiguous()


def wrong_zero(q, scales):
    return q + 1, scales


def swapped_neighbours(q, scales):
    return q.view(q.shape[0], -1, 2).flip(2).flatten(1), scales


@pytest.mark.parametrize(
    "fault",
    [shifted_groups, transposed_scales, wrong_zero, swapped_neighbours],
    ids=lambda fault: fault.__name__,
)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_comparison_sees_a_wrong_layout(fault, quantization, random, assert_close):
    x, weight = random(3, 128, dtype=torch.bfloat16) / 8, random(48, 128, dtype=torch.bfloat16)
    q, scales = quantize_weight(weight, quantization)
    expected = (x.float() @ dequantize_weight(q, scales).T).bfloat16()
    got = (x.float() @ dequantize_weight(*fault(q, scales)).T).bfloat16()
    with pytest.raises(AssertionError):
        assert_close(got, expected)


def test_a_bf16_weight_is_packed_in_place(random):
    spec = LinearSpec(in_features=64, out_features=32, dtype=torch.bfloat16)
    weight = random(32, 64, dtype=torch.bfloat16)
    (packed,) = plan_linear(spec, "cpu").pack(weight)
    assert packed.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("backend", ["native"])
def test_bytes_of_a_weight_are_known_before_it_is_packed(backend, random):
    for quantization, expected in ((None, 32 * 64 * 2), ("int8", 2176), ("int4", 1152)):
        spec = LinearSpec(
            in_features=64, out_features=32, dtype=torch.bfloat16, quantization=quantization
        )
        assert spec.weight_bytes == expected
        packed = plan_linear(spec, "cpu", backend).pack(random(32, 64, dtype=torch.bfloat16))
        assert sum(part.nbytes for part in packed) == expected


@pytest.mark.parametrize("backend", ["native"])
def test_a_row_does_not_depend_on_its_neighbours(backend, random):
    """A row's result is bit-identical alone and in a batch."""
    for quantization in (None, "int8", "int4"):
        spec = LinearSpec(
            in_features=96, out_features=48, dtype=torch.bfloat16, quantization=quantization
        )
        linear = plan_linear(spec, "cpu", backend)
        packed = linear.pack(random(48, 96, dtype=torch.bfloat16))
        x = random(30, 96, dtype=torch.bfloat16)
        assert torch.equal(linear(x[3:], packed)[:8], linear(x[3:11], packed))


def test_rows_of_broken_groups_are_refused():
    spec = LinearSpec(in_features=40, out_features=16, dtype=torch.bfloat16, quantization="int4")
    with pytest.raises(BackendUnavailable, match="int4 takes rows of a multiple of 32, got 40"):
        plan_linear(spec, "cpu")


def test_quantized_weights_are_not_on_cuda():
    spec = LinearSpec(in_features=64, out_features=16, dtype=torch.bfloat16, quantization="int8")
    with pytest.raises(BackendUnavailable, match="int8 weights are not on cuda yet"):
        plan_linear(spec, "cuda")


@pytest.mark.parametrize(("num_tokens", "is_enabled"), [(1, False), (2, False), (3, True)])
def test_onednn_is_off_for_one_and_two_rows_of_bf16(num_tokens, is_enabled, monkeypatch, random):
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.bfloat16)
    linear = plan_linear(spec, "cpu", "cpu")
    seen = []
    product = torch.nn.functional.linear

    def spy(x, weight):
        seen.append(torch.backends.mkldnn.enabled)
        return product(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    linear(random(num_tokens, 8, dtype=torch.bfloat16), (random(8, 8, dtype=torch.bfloat16),))
    assert seen == [is_enabled]
    assert torch.backends.mkldnn.enabled


def test_onednn_is_back_on_after_an_error():
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        plan_linear(spec, "cpu", "cpu")(
            torch.zeros(1, 7, dtype=torch.bfloat16), (torch.zeros(8, 8),)
        )
    assert torch.backends.mkldnn.enabled


def test_the_cpu_backend_is_for_the_cpu():
    spec = LinearSpec(in_features=8, out_features=8, dtype=torch.float32)
    with pytest.raises(BackendUnavailable, match="needs a CPU, this is cuda"):
        plan_linear(spec, "cuda", "cpu")
