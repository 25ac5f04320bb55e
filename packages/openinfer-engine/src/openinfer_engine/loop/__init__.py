"""The step loop: intake of requests, commands, grammars and events around the scheduler."""
