import re
from pathlib import Path


def test_the_readme_example_runs(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(program, {})
    assert "true" in capsys.readouterr().out
