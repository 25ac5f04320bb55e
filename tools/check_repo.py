"""Gates over the repository itself: one line per defect, exit 1 if there is any.

- no package-index host and no machine path in any tracked file, nor `://` in the committed uv.lock
- every requirement between members has a lower and an upper bound, and the sibling's present
  version satisfies it (uv does not enforce ranges inside a workspace)
- every member declares what its source imports (another requirement may bring it today, and not
  tomorrow)
- every member has what its users expect: README, CHANGELOG, LICENSE, py.typed, tests
- every member is in the lists by which other gates know it: types, import order, sources, layers
- docstrings, comments and pages keep to the rules of tools/prose.py
"""

import ast
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from prose import check_prose

ROOT = Path(__file__).resolve().parent.parent
# Written so that this file does not match itself.
FORBIDDEN = re.compile(
    r"py[p]i\.org|python[h]osted|download\.py[t]orch|registry\.[n]pmjs|deb\.[d]ebian|/wor[k]/|/roo[t]/|/far[m]/|/hom[e]/|/User[s]/"
)


def members() -> dict[str, Path]:
    """Distribution name to folder, for every workspace member."""
    found = {}
    for pattern in ("packages/*", "apps/*"):
        for folder in sorted(ROOT.glob(pattern)):
            if (folder / "pyproject.toml").is_file():
                found[_project(folder)["name"]] = folder
    return found


def _project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def _tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in names.split("\0") if name]


def check_hosts() -> list[str]:
    problems = []
    for path in _tracked():
        if not path.is_file() or path.name == "uv.lock" or path.suffix == ".safetensors":
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                where = path.relative_to(ROOT)
                problems.append(f"{where}:{number}: names an index host or a machine path")
    lock = subprocess.run(
        ["git", "show", "HEAD:uv.lock"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    if "://" in lock:
        problems.append("uv.lock: the committed form names a host; run tools/setup-git")
    return problems


def check_bounds() -> list[str]:
    problems = []
    folders = members()
    versions = {name: Version(_project(folder)["version"]) for name, folder in folders.items()}
    for name, folder in folders.items():
        project = _project(folder)
        declared = list(project.get("dependencies", []))
        for extra in project.get("optional-dependencies", {}).values():
            declared += extra
        for text in declared:
            requirement = Requirement(text)
            operators = {spec.operator for spec in requirement.specifier}
            sibling = versions.get(requirement.name)
            if sibling is not None:
                if not (operators & {">=", "=="} and operators & {"<", "=="}):
                    problems.append(f"{name}: {text} needs a lower and an upper bound")
                elif sibling not in requirement.specifier:
                    problems.append(f"{name}: {text}, but the workspace has {sibling}")
            elif not operators & {">=", "==", "~="}:
                problems.append(f"{name}: {text} needs a lower bound")
    return problems


def check_imports() -> list[str]:
    problems = []
    providers = packages_distributions()
    for name, folder in members().items():
        project = _project(folder)
        asked = list(project.get("dependencies", []))
        for extra in project.get("optional-dependencies", {}).values():
            asked += extra
        declared = {canonicalize_name(Requirement(text).name) for text in asked} | {name}
        for path in sorted((folder / "src").rglob("*.py")):
            for module, line in _imported(path):
                known = {canonicalize_name(provider) for provider in providers.get(module, [])}
                if known and not known & declared:
                    where = f"{path.relative_to(ROOT)}:{line}"
                    problems.append(f"{where}: imports {module}, which {name} does not declare")
    return problems


def _imported(path: Path) -> list[tuple[str, int]]:
    """Top-level modules that a file imports, and where."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module.split(".")[0], node.lineno))
    return found


def check_members() -> list[str]:
    problems = []
    for name, folder in members().items():
        source = folder / "src" / name.replace("-", "_")
        for path in (
            folder / "README.md",
            folder / "CHANGELOG.md",
            folder / "LICENSE",
            source / "py.typed",
            source / "__init__.py",
            folder / "tests",
        ):
            if not path.exists():
                problems.append(f"{name}: {path.relative_to(folder)} is missing")
        version = _project(folder)["version"]
        if version not in (folder / "CHANGELOG.md").read_text():
            problems.append(f"{name}: CHANGELOG.md does not mention {version}")
    return problems


def check_lists() -> list[str]:
    """A gate that has not heard of a new member passes."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    linter = ConfigParser()
    linter.read(ROOT / ".importlinter")
    lists = {
        "pyproject.toml, tool.mypy.packages": tool["mypy"]["packages"],
        "pyproject.toml, tool.ruff.lint.isort.known-first-party": (
            tool["ruff"]["lint"]["isort"]["known-first-party"]
        ),
        "pyproject.toml, tool.uv.sources": [
            name.replace("-", "_") for name in tool["uv"]["sources"]
        ],
        ".importlinter, root_packages": linter["importlinter"]["root_packages"].split(),
        # `testing` is beside the layers: it imports what it tests, and its users are tests.
        ".importlinter, layers": [
            *linter["importlinter:contract:layers"]["layers"].replace("|", " ").split(),
            "openinfer_tiny",
            "openinfer_testing",
        ],
        ".importlinter, private modules": [
            *(
                section["protected_modules"].strip().removesuffix(".*")
                for section in linter.values()
                if section.get("type") == "protected"
            ),
            "openinfer",  # the top layer: no member imports it
            "openinfer_testing",
        ],
    }
    modules = {name.replace("-", "_") for name in members()}
    return [
        f"{where}: {', '.join(sorted(modules ^ set(listed)))} is missing here or is no member"
        for where, listed in lists.items()
        if modules != set(listed)
    ]


if __name__ == "__main__":
    checks = (check_hosts, check_bounds, check_imports, check_members, check_lists, check_prose)
    defects = [defect for check in checks for defect in check()]
    print("\n".join(defects) or f"repository ok: {len(members())} members")
    sys.exit(bool(defects))
