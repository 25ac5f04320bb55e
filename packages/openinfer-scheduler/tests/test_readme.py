"""The README's example runs as printed."""

import re
from pathlib import Path


def test_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line for line in code.splitlines() if line and "import" not in line]
    assert len(lines) <= 10, "the example stays short"
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["scheduler"].is_idle
    assert capsys.readouterr().out.count("Finished(") == 1
