"""The example of the README runs unchanged."""

import re
from pathlib import Path


def test_the_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})
    assert "ShortestPrefillFirst" in capsys.readouterr().out.splitlines()[1]
