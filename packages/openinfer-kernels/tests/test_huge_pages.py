"""Host memory in huge pages: its size and contents, and the pages where Linux gives them."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openinfer_kernels import empty_weight, zeros_in_huge_pages
from openinfer_kernels.memory import _huge_pages

MIB = 1 << 20


@pytest.mark.parametrize("shape", [(3, 5), (1024, 1024), (1000, 1111), (0, 4)])
def test_a_weight_is_whole_aligned_and_its_own(shape):
    weights = [empty_weight(shape, device="cpu", dtype=torch.bfloat16) for _ in range(3)]
    for index, weight in enumerate(weights):
        assert weight.shape == shape
        assert weight.dtype is torch.bfloat16
        assert weight.is_contiguous()
        if weight.nbytes >= 2 * MIB and hasattr(mmap, "MADV_HUGEPAGE"):
            assert weight.data_ptr() % (2 * MIB) == 0
        weight.fill_(index)
    for index, weight in enumerate(weights):
        assert weight.eq(index).all()


def test_a_stored_weight_can_be_given_back():
    weight = empty_weight((2048, 1024), device="cpu", dtype=torch.bfloat16)
    weight.untyped_storage().resize_(0)


def test_a_weight_of_another_device_is_torchs():
    assert empty_weight((2048, 1024), device="meta", dtype=torch.float16).is_meta


def test_packed_parts_share_mappings_but_no_bytes():
    sizes = [1, 63, 64, 65, 1 << 20, 3 << 20, 30 << 20, 17 << 20, 5]
    parts = [_huge_pages.empty_in_huge_pages((size,), torch.int8) for size in sizes]
    for index, part in enumerate(parts):
        assert part.data_ptr() % 64 == 0
        part.fill_(index)
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert part.shape == (size,)
        assert part.eq(index).all()
    assert _huge_pages.empty_in_huge_pages((0, 3), torch.int16).shape == (0, 3)


def test_zeros_are_zeros():
    zeros = zeros_in_huge_pages(5 * MIB + 3)
    assert zeros.shape == (5 * MIB + 3,)
    assert not zeros.any()


def test_another_system_gets_small_pages(monkeypatch):
    monkeypatch.setattr(_huge_pages, "_ADVICE", None)
    weight = empty_weight((2048, 1024), device="cpu", dtype=torch.bfloat16)
    assert weight.shape == (2048, 1024)
    assert not zeros_in_huge_pages(MIB).any()


@pytest.mark.long
def test_the_pages_are_huge():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no transparent huge pages")
    program = """
import torch
from openinfer_kernels import empty_weight, zeros_in_huge_pages
from openinfer_kernels.memory._huge_pages import empty_in_huge_pages
kept = [empty_weight((16 << 19,), device="cpu", dtype=torch.float32), zeros_in_huge_pages(32 << 20)]
kept += [empty_in_huge_pages((1 << 20,), torch.uint8) for _ in range(32)]
for tensor in kept:
    tensor.fill_(1)
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # A fragmented machine may give fewer.
    assert int(run.stdout) >= 90 * 1024 * 3 // 4, run.stderr
