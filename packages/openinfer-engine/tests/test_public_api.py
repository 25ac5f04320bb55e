import subprocess
import sys

import openinfer_engine
from openinfer_contract import OpenInferError


def test_all_names_exist_once() -> None:
    names = openinfer_engine.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(openinfer_engine, name) is not None


def test_all_is_what_is_public() -> None:
    public = {
        name
        for name, value in vars(openinfer_engine).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert public == set(openinfer_engine.__all__)


def test_errors_have_one_root() -> None:
    for name in openinfer_engine.__all__:
        value = getattr(openinfer_engine, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, openinfer_engine.EngineError)
            assert issubclass(value, OpenInferError)


def test_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import openinfer_engine; "
        "openinfer_engine.installed_lines()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
