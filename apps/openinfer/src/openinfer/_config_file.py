"""`--config`: flags out of a YAML file."""

from typing import Any

from openinfer._flags import FLAGS, convert_option
from openinfer.errors import UsageError


def read_config_file(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags in a YAML file, by their long spelling without dashes.

    Returns:
        Values by `FLAGS` destination, and what the table does not know, for the model's own line.

    Raises:
        UsageError: the file is unreadable, not a mapping, or a value does not convert.
    """
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path}: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: must be a mapping of flags to values")
    spelled = {name.lstrip("-"): flag for flag in FLAGS for name in (*flag.names, *flag.off)}
    values: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("_", "-")
        flag = spelled.get(name)
        if flag is None:
            unknown[str(key).replace("-", "_")] = value
        elif value is not None:
            converted = convert_option(flag, value, f"--config {path}: {key}")
            values[flag.dest] = converted != (f"--{name}" in flag.off) if flag.off else converted
    return values, unknown
