import subprocess
import sys


def test_neither_torch_nor_a_backend_is_loaded_with_the_package():
    program = (
        "import sys, openinfer_grammar; "
        "print(*({'torch', 'llguidance', 'xgrammar', 'tokenizers'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stdout.strip()
