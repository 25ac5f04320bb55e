"""Tool definitions in many wordings, including tools that the model never calls."""

from __future__ import annotations

from random import Random
from typing import Any

from .grammar import draw, load

Tool = dict[str, Any]

_NO_PARAMETER_TEXT_SHARE = 0.35


def definitions(names: frozenset[str], rng: Random) -> list[Tool]:
    """Returns definitions of `names` (python, shell), sometimes with other tools, shuffled."""
    content = load("tools")
    num_others = rng.choice((0, 0, 0, 1, 2)) if names else rng.choice((1, 1, 2))
    chosen = [{"name": name, **content[name]} for name in sorted(names)]
    tools = [_definition(tool, rng) for tool in chosen + rng.sample(content["others"], num_others)]
    rng.shuffle(tools)
    return tools


def _definition(tool: dict[str, str], rng: Random) -> Tool:
    """Returns a tool in OpenAI's form; optional parts are sometimes left out."""
    parameter, schema = draw(tool["parameter"], rng), {"type": "string"}
    if rng.random() >= _NO_PARAMETER_TEXT_SHARE:
        schema["description"] = draw(tool["parameter_description"], rng)
    parameters: Tool = {"type": "object", "properties": {parameter: schema}}
    if rng.random() < 0.85:
        parameters["required"] = [parameter]
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function: Tool = {"name": tool["name"]}
    if rng.random() < 0.9:
        function["description"] = draw(tool["description"], rng)
    return {"type": "function", "function": {**function, "parameters": parameters}}
