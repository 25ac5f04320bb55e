from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openinfer_kernels import (
    FusedAttentionSpec,
    PagedAttentionSpec,
    PrefixGroup,
    PrefixTable,
    plan_fused_attention,
)
from openinfer_kernels.ops.fused_attention import _shared_prefixes, _tuning

BLOCK_SIZE = 16
# Triton's interpreter converts loaded loop bounds in a way that numpy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Queries and length of each sequence.
STEPS = {
    "decode": [(1, 1), (1, 16), (1, 17), (1, 70)],
    "padding": [(1, 12), (0, 0), (1, 33)],
    "a-row-for-padding": [(1, 12), (1, 0)],
    "prefill": [(37, 37), (3, 20)],
}
HEADS = {"H4-K4-D32": (4, 4, 32), "H4-K2-D64": (4, 2, 64), "H7-K1-D64": (7, 1, 64)}


def _problem(heads, lengths, dtype, random, *, eps=1e-6):
    num_heads, num_kv_heads, head_dim = heads
    attention = PagedAttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK_SIZE,
        scale=head_dim**-0.5,
        dtype=dtype,
    )
    counts = [-(-length // BLOCK_SIZE) for _, length in lengths]
    num_blocks = sum(counts) + 3
    # Layer 1 of three, keys and values separate, blocks in random order: as in the runtime's arena.
    # The last block belongs to no sequence; padding writes to it.
    arena = random(num_blocks, 3, 2, BLOCK_SIZE, num_kv_heads, head_dim, dtype=dtype)
    blocks = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(1)).tolist()
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    positions, slots = [], []
    for row, (count, (queries, length)) in enumerate(zip(counts, lengths, strict=True)):
        mine = [blocks.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        for position in range(length - queries, length):
            block = mine[position // BLOCK_SIZE] if length else num_blocks - 1
            positions.append(max(position, 0))
            slots.append(block * BLOCK_SIZE + positions[-1] % BLOCK_SIZE)
        if length:
            # Slots from this step's first token on must not be read before they are written.
            begin = length - queries
            for position in range(begin, count * BLOCK_SIZE):
                arena[mine[position // BLOCK_SIZE], :, :, position % BLOCK_SIZE] = float("nan")
    begins = torch.tensor([0] + [queries for queries, _ in lengths]).cumsum(0)
    step = SimpleNamespace(
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        cu_seqlens_q=begins.to(torch.int32),
        seq_lens=torch.tensor([length for _, length in lengths], dtype=torch.int32),
        block_table=table,
        max_seqlen_q=max(queries for queries, _ in lengths),
        max_seqlen_k=max(length for _, length in lengths),
        shared=None,
    )
    angles = torch.arange(4096)[:, None] * 10_000.0 ** -torch.linspace(0, 1, head_dim // 2)
    return FusedAttentionSpec(attention=attention, norm_eps=eps), SimpleNamespace(
        qkv=random(int(begins[-1]), num_heads + 2 * num_kv_heads, head_dim, dtype=dtype),
        norms=(random(head_dim, dtype=dtype) + 1, random(head_dim, dtype=dtype) - 1),
        cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1),
        step=step,
        arena=arena,
    )


def _run(spec, problem, device, backend):
    """Returns the output, and the whole arena after the step."""
    step = SimpleNamespace(
        **{
            name: x.to(device) if isinstance(x, torch.Tensor) else x
            for name, x in vars(problem.step).items()
        }
    )
    if step.shared is not None:
        table = PrefixTable(len(step.seq_lens), spec.attention.num_kv_heads)
        step.shared = table.view(torch.from_numpy(table.packed(step.shared)).to(device))
    arena = problem.arena.clone().to(device)
    norms = tuple(norm.to(device) for norm in problem.norms) if spec.norm_eps else None
    op = plan_fused_attention(spec, device, backend)
    qkv, cos_sin = problem.qkv.clone().to(device), problem.cos_sin.to(device)
    out = op(qkv, norms, cos_sin, step, arena[:, 1, 0], arena[:, 1, 1])
    return out, arena


def _check(spec, problem, device, backend):
    expected, expected_arena = _run(spec, problem, "cpu", "reference")
    got, arena = _run(spec, problem, device, backend)
    _assert_near(got, expected)
    is_nan = expected_arena.isnan()
    assert torch.equal(arena.cpu().isnan(), is_nan)
    _assert_near(arena[~is_nan.to(device)], expected_arena[~is_nan])


# Keys are rounded after the norm and after the rotation, which cancels some.
_ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def _assert_near(got, expected):
    error = (got.cpu().float() - expected.float()).abs()
    allowed = _ERRORS[expected.dtype]
    assert error.square().mean().sqrt() <= allowed * expected.float().square().mean().sqrt()
    assert error.max() <= 4 * allowed * expected.abs().max()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("backend", ["composed", "native"])
def test_on_the_cpu(backend, step, heads, dtype, random):
    spec, problem = _problem(heads, step, dtype, random)
    _check(spec, problem, "cpu", backend)


# A task of the native kernel takes 60 queries of these heads, and 64 keys at a time.
LONG_STEPS = {
    "ends": [(60, 60), (61, 61), (64, 64), (65, 65), (2, 2)],
    "after-a-prefix": [(59, 200), (1, 130), (130, 257)],
    "nothing-to-see": [(2, 0), (70, 70)],
}


@pytest.mark.parametrize("backend", ["native"])
@pytest.mark.parametrize("heads", [(4, 2, 64), (6, 1, 32), (2, 2, 128), (1, 1, 256)])
@pytest.mark.parametrize("step", LONG_STEPS.values(), ids=LONG_STEPS)
def test_long_steps(backend, step, heads, random):
    spec, problem = _problem(heads, step, torch.bfloat16, random)
    _check(spec, problem, "cpu", backend)


@pytest.mark.parametrize("backend", ["native"])
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_native_rounds_where_its_parts_do(backend, eps, random):
    spec, problem = _problem((4, 2, 64), STEPS["prefill"], torch.bfloat16, random, eps=eps)
    composed, theirs = _run(spec, problem, "cpu", "composed")
    fused, ours = _run(spec, problem, "cpu", backend)
    assert torch.equal(fused, composed)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))


SIZES = _tuning.SIZES["default"]


def _use_sizes(monkeypatch, decode, *, extra_programs, whole_keys=0):
    """Cuts steps of any number of sequences up with the given sizes of the decode kernel."""
    decode = replace(decode, max_seqs=_tuning.MAX_SEQS, extra_programs=extra_programs)
    sizes = replace(SIZES, decode=(decode,), whole_keys=whole_keys)
    monkeypatch.setitem(_tuning.SIZES, "default", sizes)


@pytest.mark.parametrize("sizes", SIZES.decode, ids=lambda sizes: f"up-to-{sizes.max_seqs}")
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_triton(step, heads, sizes, random, triton_device, dtype, monkeypatch):
    # Few extra programs: the interpreter runs idle ones as well.
    _use_sizes(monkeypatch, sizes, extra_programs=4)
    if dtype is torch.bfloat16 and triton_device == "cpu":
        pytest.skip("the interpreter multiplies bf16 matrices wrongly")
    spec, problem = _problem(heads, step, dtype, random)
    _check(spec, problem, triton_device, "triton")


@pytest.mark.parametrize("step", [[(1, 9)], [(5, 9), (2, 2)]], ids=["decode", "prefill"])
def test_triton_without_head_norms(step, random, triton_device):
    spec, problem = _problem(HEADS["H4-K2-D64"], step, torch.float32, random, eps=None)
    _check(spec, problem, triton_device, "triton")


@pytest.mark.parametrize("num_programs", [1, 4, 24])
@pytest.mark.parametrize(("length", "whole_keys"), [(64, 0), (65, 0), (1100, 256), (200, 256)])
def test_triton_splits_long_sequences(
    length, whole_keys, num_programs, random, triton_device, monkeypatch
):
    sizes = SIZES.decode_sizes(1)
    _use_sizes(monkeypatch, sizes, extra_programs=num_programs, whole_keys=whole_keys)
    steps = [(1, length), (1, 3), (1, 130)]
    spec, problem = _problem((2, 1, 32), steps, torch.float32, random)
    _check(spec, problem, triton_device, "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("num_seqs", [1, 7, 20])
def test_split_sequences_in_real_shapes(num_seqs, random):
    steps = [(1, 700 + 13 * index) for index in range(num_seqs)]
    spec, problem = _problem((32, 8, 128), steps, torch.bfloat16, random)
    expected, _ = _run(spec, problem, "cuda", "reference")
    first, second = (_run(spec, problem, "cuda", "triton")[0] for _ in range(2))
    assert torch.equal(first, second)
    _assert_near(first, expected.cpu())


# Lengths of the sequences; for each group its members and the tokens that they share.
SHARING = {
    "all": ([50, 40, 33], [((1, 2, 0), 32)]),
    "groups-and-alone": (
        [150, 33, 0, 200, 50, 140, 300],
        [((0, 3, 5), 112), ((4, 1), 32)],
    ),
    "chunks": ([700, 641, 800, 20], [((2, 0, 1), 640)]),
    "nobody": ([20, 40], []),
}


def _share(problem, groups):
    """Gives the members of a group the leading blocks of its first member."""
    for members, num_tokens in groups:
        blocks = problem.step.block_table[members[0], : num_tokens // BLOCK_SIZE]
        problem.step.block_table[list(members), : len(blocks)] = blocks.clone()
    problem.step.shared = [
        PrefixGroup(members=np.array(members), num_tokens=num_tokens)
        for members, num_tokens in groups
    ]


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("sharing", SHARING.values(), ids=SHARING)
def test_triton_over_shared_prefixes(sharing, heads, random, triton_device, dtype, monkeypatch):
    if triton_device != "cpu" and heads != HEADS["H7-K1-D64"]:
        pytest.skip("compiles for long, and shapes of models are tested below")
    if dtype is torch.bfloat16 and triton_device == "cpu":
        pytest.skip("the interpreter multiplies bf16 matrices wrongly")
    _check_sharing(*sharing, heads, dtype, random, triton_device, monkeypatch)


# Many members mean many programs, which take long to interpret; one shape is enough.
@pytest.mark.long
def test_triton_over_a_prefix_of_members_of_two_units(random, triton_device, monkeypatch):
    lengths, groups = [20] * 40 + [5], [(tuple(range(1, 38)), 16)]
    heads = next(iter(HEADS.values()))
    _check_sharing(lengths, groups, heads, torch.float32, random, triton_device, monkeypatch)


def _check_sharing(lengths, groups, heads, dtype, random, triton_device, monkeypatch):
    _use_sizes(monkeypatch, SIZES.decode_sizes(64), extra_programs=4, whole_keys=64)
    monkeypatch.setattr(_shared_prefixes, "_TARGET_PROGRAMS", 8)
    spec, problem = _problem(heads, [(int(n > 0), n) for n in lengths], dtype, random)
    _share(problem, groups)
    _check(spec, problem, triton_device, "triton")


@pytest.mark.parametrize("backend", ["composed", "native"])
def test_what_is_shared_may_be_ignored(backend, dtype, random):
    spec, problem = _problem((4, 2, 64), [(1, 70), (1, 50)], dtype, random)
    _share(problem, [((0, 1), 48)])
    _check(spec, problem, "cpu", backend)


@pytest.mark.gpu
@pytest.mark.parametrize("num_seqs", [4, 8, 40])
def test_shared_prefixes_in_real_shapes(num_seqs, random):
    lengths = [540 + 7 * index for index in range(num_seqs)]
    steps = [(1, length) for length in lengths]
    spec, problem = _problem((32, 8, 128), steps, torch.bfloat16, random)
    _share(problem, [(tuple(range(0, num_seqs, 2)), 512), (tuple(range(1, num_seqs, 2)), 528)])
    expected, _ = _run(spec, problem, "cuda", "reference")
    first, second = (_run(spec, problem, "cuda", "triton")[0] for _ in range(2))
    assert torch.equal(first, second)
    _assert_near(first, expected.cpu())


@pytest.mark.parametrize("seed", range(20))
def test_units_hold_every_shared_key_of_every_member_once(seed):
    rng = np.random.default_rng(seed)
    num_seqs = int(rng.integers(1, 300))
    order, groups = rng.permutation(num_seqs), []
    for members in np.split(order, np.sort(rng.integers(0, num_seqs + 1, 8)))[:8]:
        if len(members):
            num_tokens = int(rng.integers(1, 400)) * BLOCK_SIZE
            groups.append(PrefixGroup(members=members, num_tokens=num_tokens))
    table = PrefixTable(num_seqs, int(rng.integers(1, 9)))
    shared = table.view(torch.from_numpy(table.packed(groups)))
    units, rows = shared.units.numpy(), shared.rows.numpy()
    alone = np.ones(num_seqs, bool)
    for group in groups:
        for member in group.members:
            num_tokens, place, step, count = rows[member]
            assert num_tokens == group.num_tokens
            unit, index = divmod(place, _shared_prefixes.UNIT_MEMBERS)
            mine = units[unit : unit + step * count : step]
            assert (mine[:, 4 + index] == member).all()
            assert (index < mine[:, 0]).all()
            assert mine[0, 1] == 0
            assert mine[-1, 2] == num_tokens
            assert (mine[1:, 1] == mine[:-1, 2]).all()
            assert (mine[:, 1] < mine[:, 2]).all()
            assert (mine[:, 1] % _shared_prefixes.UNIT_KEYS == 0).all()
            assert np.isin(mine[:, 4], group.members).all()
            alone[member] = False
    assert (rows[alone] == 0).all()
    # Each member is in as many units as its row says.
    in_units = sum(int(unit[0]) for unit in units)
    assert in_units == rows[:, 3].sum()
