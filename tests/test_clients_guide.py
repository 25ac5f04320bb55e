"""docs/guides/clients.md: its programs run, and its configurations have the described effect."""

import json
import re
import tomllib
from pathlib import Path

import pytest

_GUIDE = (Path(__file__).parents[1] / "docs/guides/clients.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL)
_URL = "http://127.0.0.1:8000"


def _blocks(kind):
    return [text for found, text in _BLOCKS if found == kind]


def _events(server, path, body):
    """Returns the names of a stream's events."""
    status, content = server.fetch("POST", path, body)
    assert status == 200, content
    return re.findall(r"^event: (\S+)$", content.decode(), re.MULTILINE)


@pytest.mark.parametrize("code", _blocks("python"))
def test_programs_print_an_answer(tiny_server, capsys, code):
    exec(code.replace(_URL, tiny_server.url), {})
    assert len(capsys.readouterr().out) > 10


def test_configurations_name_the_routes():
    (toml,) = map(tomllib.loads, _blocks("toml"))
    provider = toml["model_providers"][toml["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == (f"{_URL}/v1", "responses")
    (options,) = (
        provider["options"] for provider in json.loads(_blocks("json")[0])["provider"].values()
    )
    assert options["baseURL"] == f"{_URL}/v1"
    (shell,) = _blocks("sh")
    assert f"ANTHROPIC_BASE_URL={_URL}\n" in shell


def test_an_agents_turn_over_responses(tiny_server):
    """A request in Codex's form: hosted tools among functions, a developer message, SSE."""
    body = {
        "model": "tiny",
        "instructions": "You are a coding agent.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Stay in the folder."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello!"}],
            },
        ],
        "tools": [{"type": "web_search"}, {"type": "local_shell"}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0f0e0d0c",
        "text": {"verbosity": "medium"},
        "max_output_tokens": 16,
    }
    events = _events(tiny_server, "/v1/responses", body)
    assert events[0] == "response.created"
    assert "response.output_text.done" in events
    assert events[-1] in ("response.completed", "response.incomplete")


def test_an_agents_turn_over_messages(tiny_server):
    """A request in Claude Code's form: betas, cache marks, a billing header, metadata."""
    body = {
        "model": "tiny",
        "max_tokens": 16,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}
                ],
            }
        ],
        "tools": [],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    assert _events(tiny_server, "/v1/messages?beta=true", body)[-1] == "message_stop"
