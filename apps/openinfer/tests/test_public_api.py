import types

import openinfer


def test_all_names_exist_in_order_of_meaning():
    assert openinfer.__all__ == [
        "LLM",
        "SamplingParams",
        "Completion",
        "AppError",
        "UsageError",
        "ModelNotFound",
        "RemoteServerError",
        "RequestRejected",
        "GenerationFailed",
    ]
    assert all(hasattr(openinfer, name) for name in openinfer.__all__)


def test_nothing_else_is_public():
    public = {
        name
        for name, value in vars(openinfer).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(openinfer.__all__)


def test_errors_share_one_root():
    for name in openinfer.__all__[4:]:
        assert issubclass(getattr(openinfer, name), openinfer.AppError)
