import re
from pathlib import Path


def test_the_readme_example_runs(checkpoint):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names = {}
    exec(program, names)
    assert len(names["generate"](str(checkpoint()))) in range(1, 5)
