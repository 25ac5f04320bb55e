"""`--config`: flags in a YAML file."""

from collections.abc import Iterator
from typing import Any

from openinfer.errors import UsageError
from openinfer.options._named_options import named_options


def read_config_file(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads flags from a YAML file. Keys are spellings of flags without the leading dashes.

    Returns:
        Values by `Flag.dest`, and unknown keys for the model line.

    Raises:
        UsageError: the file is unreadable or not a mapping, a key is repeated, or a value does not
            convert.
    """
    import yaml

    where = f"--config {path}: "
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        content = yaml.safe_load(text) or {}
        repeated = next(_repeated_keys(yaml.compose(text, yaml.SafeLoader), set()), None)
    except OSError as error:
        raise UsageError(f"{where}{error.strerror}; name a YAML file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{where}{error}") from error
    if repeated is not None:
        line = repeated.start_mark.line + 1
        raise UsageError(f"{where}{repeated.value} is repeated in line {line}; keep one of them")
    if not isinstance(content, dict):
        raise UsageError(f"{where}must be a mapping of flags to values")
    return named_options(((str(key), value) for key, value in content.items()), where)


def _repeated_keys(node: Any, seen: set[int]) -> Iterator[Any]:
    """Yields repeated keys of mappings in a YAML tree; YAML's reader would keep the last value."""
    if id(node) in seen:  # an alias can make a node its own descendant
        return
    seen.add(id(node))
    if node is not None and node.id == "mapping":
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key.value, str):
                if key.value in keys:
                    yield key
                keys.add(key.value)
            yield from _repeated_keys(value, seen)
    elif node is not None and node.id == "sequence":
        for value in node.value:
            yield from _repeated_keys(value, seen)
