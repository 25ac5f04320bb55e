"""The README's example runs as printed."""

import re
from pathlib import Path


def test_example_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
