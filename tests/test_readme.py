"""The commands and programs of the README run exactly as printed."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)
_URL = "http://127.0.0.1:8000"


def _block(language: str, word: str) -> str:
    (found,) = (text for kind, text in _BLOCKS if kind == language and word in text)
    return found


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_two_commands_stand_there():
    assert _block("sh", "uv>=") == 'pip install "uv>=0.13,<0.14" && uv run openinfer serve\n'
    assert _block("sh", "pytest") == "uv run pytest\n"


def test_curl_gets_an_answer(tiny_server):
    words = shlex.split(_block("sh", "curl").replace("\\\n", " ").replace(_URL, tiny_server.url))
    done = subprocess.run([*words, "--fail", "--silent"], capture_output=True, check=False)
    assert done.returncode == 0, done
    assert b'"content":"' in done.stdout.replace(b'": "', b'":"')
    assert b'"finish_reason"' in done.stdout


def test_the_openai_snippet_prints_an_answer(tiny_server):
    code = _block("python", "from openai")
    assert _URL in code
    text = _run(code.replace(_URL, tiny_server.url))
    assert text[0].isupper()
    assert len(text.split()) >= 2


def test_pip_is_given_a_package_with_all_its_siblings():
    (line,) = re.findall(r"`pip install (\./packages/.*?)`", _README)
    *_, wanted = named = [word.removeprefix("./packages/") for word in line.split()]
    assert f"uv pip install ./packages/{wanted}\n" == _block("sh", "uv pip install ./")
    for package in named:
        text = (_ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
        requirements = tomllib.loads(text)["project"]["dependencies"]
        siblings = {m[0] for r in requirements if (m := re.match(r"openinfer-[a-z0-9-]+", r))}
        assert siblings <= set(named), package


_MEMBERS = {
    tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]: path.parent
    for folder in ("packages", "apps")
    for path in (_ROOT / folder).glob("*/pyproject.toml")
}


def _brought_by(names):
    """Returns the distributions of an environment with these members and their dependencies."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if name in _MEMBERS:
            text = (_MEMBERS[name] / "pyproject.toml").read_text(encoding="utf-8")
            requirements = tomllib.loads(text)["project"]["dependencies"]
            left += [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]
    return found


def _used_by(code):
    """Returns the distributions that a program imports or names as `module:function`."""
    nodes = list(ast.walk(ast.parse(code)))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    roots = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    return {root.replace("_", "-") for root in {*roots, *re.findall(r"\bopeninfer_\w+", code)}}


@pytest.mark.parametrize("name", sorted(_MEMBERS))
def test_an_example_runs_where_what_its_page_says_is_installed(name):
    page = (_MEMBERS[name] / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"`uv pip install ((?:\./packages/[\w-]+ ?)+)`", page)
    named = [word.removeprefix("./packages/") for line in commands for word in line.split()]
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert _used_by(code) <= _brought_by({name, *named})


@pytest.mark.parametrize("name", sorted(_MEMBERS))
def test_a_member_is_tested_alone_with_what_its_tests_need(name):
    """A plain `pytest` exists only in the environment of the whole workspace."""
    page = (_MEMBERS[name] / "README.md").read_text(encoding="utf-8")
    folder = _MEMBERS[name].relative_to(_ROOT).as_posix()
    assert re.findall(r"`([^`]*pytest (?:packages|apps)/[^`]*)`", page) == [
        f"uv run --isolated --package {name} --group dev pytest {folder}"
    ]


@pytest.mark.parametrize("name", ["kv-cache", "scheduler", "sim"])
def test_a_package_for_research_names_all_that_is_public(name):
    module = import_module(f"openinfer_{name.replace('-', '_')}")
    page = (_MEMBERS[f"openinfer-{name}"] / "README.md").read_text(encoding="utf-8")
    main = {"kv-cache": ("KVCache", "SequenceCache"), "scheduler": ("Scheduler",)}.get(name, ())
    members = {m for kind in main for m in vars(getattr(module, kind)) if not m.startswith("_")}
    assert members | set(module.__all__) <= set(re.findall(r"\w+", page))


def test_the_llm_snippet_prints_two_texts():
    lines = _run(_block("python", "from openinfer")).strip().splitlines()
    assert len(lines) >= 2


@pytest.mark.parametrize("command", re.findall(r"`uv run openinfer (\w+)", _README))
def test_the_commands_it_names_exist(call_openinfer, command):
    status, stdout, _ = call_openinfer(command, "--help")
    assert status == 0
    assert f"openinfer {command}" in stdout


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", _README):
        assert (_ROOT / target).exists(), target


def test_every_package_is_on_the_map():
    folders = {path.parent.name for path in (_ROOT / "packages").glob("*/pyproject.toml")}
    assert folders | {"openinfer"} == set(re.findall(r"^\| \[([\w-]+)\]", _README, re.MULTILINE))


def test_the_applications_own_example_runs():
    text = (_ROOT / "apps/openinfer/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(_run(code).splitlines()) >= 4
