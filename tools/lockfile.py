"""Keep `uv.lock` free of index addresses in git.

`clean`  reads a full uv.lock on stdin and writes the index-neutral form: versions, markers,
         file names and hashes stay, addresses go. tools/setup-git installs it as a git filter.
`check`  compares ./uv.lock, freshly written by `uv lock`, with the committed index-neutral
         one: the same packages and versions, every committed file hash unchanged, and for the
         members of the workspace the same requirements.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

Files = dict[tuple[str, str], dict[str, str]]


def clean(lock: str) -> str:
    lock = re.sub(r'registry = "[a-z]+://[^"]*"', 'registry = "default"', lock)
    lock = re.sub(
        r'\{ url = "[^"]*/([^/"]+)", hash = "([^"]+)"[^}]*\}',
        r'{ filename = "\1", hash = "\2" }',
        lock,
    )
    # Without a static version for the members uv re-resolves, preferring every locked version.
    lock = re.sub(
        r'(\[\[package\]\]\nname = "[^"]+"\n)version = "[^"]+"\n'
        r"(source = \{ (?:editable|virtual|directory) )",
        r"\1\2",
        lock,
    )
    if "://" in lock:
        line = next(line for line in lock.splitlines() if "://" in line)
        raise SystemExit(f"uv.lock still names a host: {line.strip()[:120]}")
    return lock


def files(lock: str) -> Files:
    found: Files = {}
    for package in tomllib.loads(lock)["package"]:
        entry = found.setdefault((package["name"], package.get("version", "")), {})
        sdist = [package["sdist"]] if "sdist" in package else []
        for file in [*package.get("wheels", []), *sdist]:
            entry[file["filename"]] = file["hash"]
    return found


def requirements(lock: str) -> dict[str, object]:
    """Returns each workspace member's requirements, declared and resolved."""
    return {
        package["name"]: [
            package.get(field)
            for field in ("dependencies", "optional-dependencies", "dev-dependencies", "metadata")
        ]
        for package in tomllib.loads(lock)["package"]
        if "registry" not in package["source"]
    }


def check() -> int:
    show = subprocess.run(
        ["git", "show", "HEAD:uv.lock"], check=True, capture_output=True, text=True
    )
    committed_lock, fresh_lock = clean(show.stdout), clean(Path("uv.lock").read_text())
    committed, fresh = files(committed_lock), files(fresh_lock)
    asked, now_asked = requirements(committed_lock), requirements(fresh_lock)
    problems = [
        f"{name}: its requirements are not those of the committed lock; run uv lock and commit"
        for name in asked.keys() & now_asked.keys()
        if asked[name] != now_asked[name]
    ]
    if committed.keys() != fresh.keys():
        problems.append(f"package set differs: {sorted(committed.keys() ^ fresh.keys())}")
    problems += [
        f"{package}: {name} is {fresh[package].get(name)}, committed {digest}"
        for package, entry in committed.items()
        if package in fresh
        for name, digest in entry.items()
        if fresh[package].get(name) != digest
    ]
    print("\n".join(problems) or f"uv.lock ok: {len(fresh)} packages")
    return bool(problems)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["clean"]:
            sys.stdout.write(clean(sys.stdin.read()))
        case ["check"]:
            sys.exit(check())
        case _:
            sys.exit(__doc__)
