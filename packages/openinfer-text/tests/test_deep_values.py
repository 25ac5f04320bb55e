"""Deeply nested values in a request: their cost is linear in their size."""

import json
import shutil
import subprocess
import sys

import pytest

DEPTH = 190
SECONDS = 30
RENDER_TWICE = """
import json, sys
from openinfer_text import TextModel
model = TextModel.from_folder(sys.argv[1])
for _ in range(2):
    # Parsed anew each time: equal values, not the same objects.
    arguments = json.loads(sys.argv[2])
    print(len(model.encode_chat(**arguments).text))
model.close()
"""


def _nested(depth):
    return json.loads("[" * depth + "]" * depth)


def _call(arguments):
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


USER = {"role": "user", "content": "hello"}
PLACES = {
    "chat_template_kwargs": {"messages": [USER], "chat_template_kwargs": {"x": _nested(DEPTH)}},
    "an unknown message key": {"messages": [{**USER, "x": _nested(DEPTH)}]},
    "arguments of a call, as JSON": {"messages": [USER, _call(json.dumps({"x": _nested(DEPTH)}))]},
    "arguments of a call": {"messages": [USER, _call({"x": _nested(DEPTH)})]},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_deep_value_is_rendered_twice_at_once(checkpoints, templates, tmp_path, place):
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoints["qwen"], folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = templates["turns"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    # The test runs in another process, because a hang would hold the GIL and stop this process's
    # timeouts.
    command = [sys.executable, "-c", RENDER_TWICE, str(folder), json.dumps(PLACES[place])]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    first, second = found.stdout.split()
    assert first == second
