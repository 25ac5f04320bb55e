"""Parsers that find reasoning and tool calls in a model's text, and grammars of tool calls."""
