"""The operator's guides name every flag and route, and their examples work."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from openinfer._engines import ENGINES, load_engine
from openinfer.options._config_file import read_config_file
from openinfer.options._flags import FLAGS
from openinfer_engine import flag_table, installed_lines

_GUIDES = Path(__file__).parents[1] / "docs/guides"
_SERVING, _FLAGS, _ERRORS = (
    (_GUIDES / f"{name}.md").read_text(encoding="utf-8") for name in ("serving", "flags", "errors")
)
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _SERVING + _ERRORS, re.MULTILINE | re.DOTALL)
_URL = "http://127.0.0.1:8000"


def _row(flag):
    return flag_table((flag,)).splitlines()[-1]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.dest)
def test_every_flag_has_its_row(flag):
    assert _row(flag) in _FLAGS, f"docs/guides/flags.md lacks the line\n{_row(flag)}"


def test_the_model_lines_own_flags_are_named_with_their_values():
    words = " ".join(_FLAGS.split())
    for line in installed_lines().values():
        for field in msgspec.structs.fields(line.options):
            choices = f" ({', '.join(get_args(field.type))})"
            assert f"`--{field.name.replace('_', '-')}`{choices}" in words


@pytest.mark.parametrize("name", ENGINES.names())
def test_the_flags_of_other_engines_are_named_with_their_values(name):
    words = " ".join(_FLAGS.split())
    assert f"`--engine {name}`" in words
    for field in msgspec.structs.fields(load_engine(name).options):
        (said,) = re.findall(rf"`--{field.name.replace('_', '-')}` \((.*?)\)", words)
        assert field.default is None or said.endswith(f"; `{field.default}`")


def test_no_row_names_a_flag_that_is_gone():
    rows = re.findall(r"^\| `--.*$", _FLAGS, re.MULTILINE)
    assert sorted(rows) == sorted(map(_row, FLAGS))


def test_the_config_file_is_understood(tmp_path):
    (text,) = (text for kind, text in _BLOCKS if kind == "yaml")
    file = tmp_path / "server.yaml"
    file.write_text(text)
    values, unknown = read_config_file(str(file))
    assert len(values) >= 4
    assert unknown == {}


@pytest.mark.parametrize(
    "command", [text for kind, text in _BLOCKS if kind == "sh" and "curl" in text]
)
def test_the_curl_commands_get_an_answer(tiny_server, command):
    for line in command.replace("\\\n", " ").strip().splitlines():
        words = shlex.split(line.replace(_URL, tiny_server.url))
        done = subprocess.run([*words, "--fail", "--silent"], capture_output=True, check=False)
        assert done.returncode == 0, (line, done)


def test_every_route_is_named(tiny_server):
    _, description = tiny_server.get("/openapi.json")
    for path in description["paths"]:
        assert path in _SERVING, path


def test_the_fields_it_says_are_refused_are_refused(tiny_server):
    (body,) = (text for kind, text in _BLOCKS if kind == "json" and "response_format" in text)
    status, answer = tiny_server.post("/v1/chat/completions", json.loads(body))
    param = "response_format.json_schema.schema.uniqueItems"
    assert (status, answer["error"]["param"]) == (400, param)


_TOOLS_GUIDE = (Path(__file__).parents[1] / "docs/guides/tools.md").read_text(encoding="utf-8")
_TOOLS_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _TOOLS_GUIDE, re.MULTILINE | re.DOTALL)


def test_the_tools_guides_request_is_answered(tiny_server):
    (command,) = (text for kind, text in _TOOLS_BLOCKS if kind == "sh" and "curl" in text)
    words = shlex.split(command.replace("\\\n", " ").replace(_URL, tiny_server.url))
    done = subprocess.run([*words, "--fail", "--silent"], capture_output=True, check=True)
    (choice,) = json.loads(done.stdout)["choices"]
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")


def _run_tools_program(word, url, tail):
    (code,) = (text for kind, text in _TOOLS_BLOCKS if kind == "python" and word in text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(_URL, url) + tail],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_the_tools_guides_loop_runs_the_call_and_answers_with_its_result(tiny_server):
    *printed, said = _run_tools_program("OpenAI", tiny_server.url, "print(json.dumps(messages))")
    _, asked, result, answer = json.loads(said)
    (call,) = asked["tool_calls"]
    assert call["function"]["name"] == "python"
    assert (result["tool_call_id"], result["content"]) == (call["id"], str(1234 * 5678))
    assert str(1234 * 5678) in answer["content"]
    assert printed == answer["content"].splitlines()


def test_the_tools_guides_program_without_a_server_ends_in_a_call(tiny_server):
    (line,) = _run_tools_program("from openinfer", tiny_server.url, "")
    assert line.startswith("tool_calls {")


def test_the_tools_guide_quotes_the_servers_log(tiny_server):
    (quoted,) = re.findall(r"INFO (chats: .*)$", _TOOLS_GUIDE, re.MULTILINE)
    assert any(quoted in line for line in tiny_server.log)


def test_the_guide_quotes_the_servers_first_and_last_words(tiny_server):
    (first,) = re.findall(r"begins with `(starting: .*?)`", _SERVING)
    assert tiny_server.log[0].endswith(first)
    (cache,) = re.findall(r"INFO (KV cache: .*)$", _SERVING, re.MULTILINE)
    (said,) = (line for line in tiny_server.log if "KV cache: " in line)
    per_token = [
        float(text.split("(")[1].split()[0]) / int(text.split("cache: ")[1].split()[0])
        for text in (cache, said)
    ]
    assert per_token[0] == pytest.approx(per_token[1], rel=0.05)
