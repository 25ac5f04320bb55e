import subprocess
import sys

import openinfer_testing
import openinfer_testing.engine
import openinfer_testing.grammar


def test_all_names_exist_once() -> None:
    for module in (openinfer_testing, openinfer_testing.engine, openinfer_testing.grammar):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_no_torch_at_import() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; "
        "import openinfer_testing, openinfer_testing.engine, openinfer_testing.grammar"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
