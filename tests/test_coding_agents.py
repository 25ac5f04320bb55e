"""Claude Code, Codex and opencode each call a tool once, if their programs are installed.

`npm install @anthropic-ai/claude-code @openai/codex opencode-ai`, then OPENINFER_AGENTS names the
folder of their programs. They run with their own home and work folder, and reach only this server.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from openinfer_testing import install_scripted_line, write_scripted_checkpoint

_GUIDE = (Path(__file__).parents[1] / "docs/guides/clients.md").read_text(encoding="utf-8")
_AGENTS = os.environ.get("OPENINFER_AGENTS", "")
_COMMAND = "echo hi-$((40+2)) > out.txt; cat out.txt"
_CALLS = {
    "claude": ("Bash", {"command": _COMMAND, "description": "says hi"}),
    "codex": ("exec_command", {"cmd": _COMMAND}),
    "opencode": ("bash", {"command": _COMMAND, "description": "says hi"}),
}
_ARGUMENTS = {
    "claude": ["-p", "--allowedTools", "Bash", "--"],
    "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    "opencode": ["run", "-m", "openinfer/tiny"],
}
_ANSWER = "The shell printed it, and that is all there was to see."


def _block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL)
    return str(text)


def _configure(home: Path, work: Path, url: str) -> dict[str, str]:
    """Writes the guide's settings with this server's address; returns its environment variables."""
    shell, toml, settings = (
        _block(kind).replace("http://127.0.0.1:8000", url) for kind in ("sh", "toml", "json")
    )
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/config.toml").write_text(toml)
    own = json.loads(settings)
    own |= {"autoupdate": False, "share": "disabled", "permission": {"bash": "allow"}}
    own["provider"]["openinfer"]["models"]["tiny"]["limit"]["context"] = 500_000
    work.mkdir()
    (work / "opencode.json").write_text(json.dumps(own))
    variables = dict(re.findall(r"^export (\w+)=(.*)$", shell, re.MULTILINE))
    return variables | {
        "OPENINFER_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
    }


@pytest.mark.parametrize("agent", _CALLS)
def test_an_agent_goes_around_its_tools(agent, tmp_path, start_server):
    program = Path(_AGENTS).resolve() / agent
    if not (_AGENTS and program.exists()):
        pytest.skip(f"{agent} is not installed; OPENINFER_AGENTS names no folder that has it")
    name, arguments = _CALLS[agent]
    call = json.dumps({"name": name, "arguments": arguments})
    answers = [f"I look.\n<tool_call>\n{call}\n</tool_call>", _ANSWER]
    folder = write_scripted_checkpoint(tmp_path / "model", answers, max_model_len=1 << 19)
    site = install_scripted_line(tmp_path / "site")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    server = start_server(
        *("--model", str(folder), "--served-model-name", "tiny"), env={"PYTHONPATH": path}
    )
    work = tmp_path / "work"
    variables = _configure(tmp_path / "home", work, server.url)
    ran = subprocess.run(
        [str(program), *_ARGUMENTS[agent], "Say hi by the shell"],
        cwd=work,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (work / "out.txt").read_text() == "hi-42\n", ran.stdout + ran.stderr
    assert _ANSWER in ran.stdout, ran.stdout + ran.stderr
