import re
from pathlib import Path


def test_the_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "Hallo 😀 "
