import os

import pytest
import torch

# Kernels are interpreted where there is no GPU; it is decided when a kernel's module is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def triton_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def native_cases_need_the_kernels(request):
    """Skips cases of the native backends, with the reason, where they do not run."""
    # Imported late: it is when a Triton kernel's module is imported that the above counts.
    from openinfer_kernels.native import why_not

    params = getattr(request.node, "callspec", None) and request.node.callspec.params
    if params and params.get("backend") == "native":
        reason = why_not(params.get("dtype", torch.bfloat16), torch.device("cpu"))
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fresh tensors hold NaN, so an output that is not written shows."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs))
    )


# dtype -> (relative, absolute) tolerance of one op against the reference.
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
}


@pytest.fixture(scope="session")
def assert_close():
    def check(got: torch.Tensor, expected: torch.Tensor) -> None:
        relative, absolute = TOLERANCES[expected.dtype]
        torch.testing.assert_close(
            got.cpu(), expected.cpu(), rtol=relative, atol=absolute, equal_nan=False
        )

    return check


@pytest.fixture
def random():
    """Draws tensors, the same in every test of the same order."""
    generator = torch.Generator().manual_seed(42)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return draw


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param
