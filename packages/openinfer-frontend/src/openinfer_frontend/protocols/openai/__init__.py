"""Completions, chat completions, and the routes of the tokenizer."""
