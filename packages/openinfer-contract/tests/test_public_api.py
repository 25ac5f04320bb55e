import sys

import openinfer_contract


def test_all_names_exist_once() -> None:
    names = openinfer_contract.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(openinfer_contract, name) is not None


def test_all_is_what_is_public() -> None:
    public = {
        name
        for name, value in vars(openinfer_contract).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert public == set(openinfer_contract.__all__)


def test_errors_have_one_root() -> None:
    errors = [
        value
        for value in vars(openinfer_contract).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert all(issubclass(error, openinfer_contract.OpenInferError) for error in errors)
