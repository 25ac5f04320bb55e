import os

import pytest
import torch

# Without a GPU, Triton's interpreter runs the kernels. Triton reads the variable when a kernel's
# module is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def triton_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def native_cases_need_the_kernels(request):
    """Skips cases of native back ends where they cannot run, with the reason."""
    # Imported here, after the variable above is set.
    from openinfer_kernels.native import why_not

    params = getattr(request.node, "callspec", None) and request.node.callspec.params
    if params and params.get("backend") == "native":
        reason = why_not(params.get("dtype", torch.bfloat16), torch.device("cpu"))
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fills new tensors with NaN, so that outputs that are not written fail the test."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs))
    )


# Dtype to (relative, absolute) tolerance of one op against the reference.
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
    """Draws random tensors: the same sequence in every test."""
    generator = torch.Generator().manual_seed(42)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return draw


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param
