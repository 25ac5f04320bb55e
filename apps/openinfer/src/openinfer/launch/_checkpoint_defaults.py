"""The checkpoint's sampling defaults, as far as the engine supports them."""

import logging

from openinfer_contract import EngineInfo
from openinfer_text import GenerationDefaults, TextModel

_logger = logging.getLogger("openinfer")


def keep_honoured_defaults(text: TextModel, info: EngineInfo) -> GenerationDefaults:
    """Removes the sampling defaults that the engine would refuse, and logs a warning.

    Otherwise every request would be refused because of a default that its client did not set.

    Returns:
        The remaining defaults. The text model uses them from now on.
    """
    text.generation, dropped = text.generation.honoured_by(info)
    if dropped:
        named = ", ".join(f"{field} {value}" for field, value in dropped.items())
        _logger.warning(
            "generation_config.json recommends %s, which this engine cannot honour: "
            "they are not applied",
            named,
        )
    return text.generation
