"""The checkpoint's sampling defaults, as far as the engine supports them."""

import logging

from openinfer_contract import EngineInfo
from openinfer_text import GenerationDefaults, TextModel

_logger = logging.getLogger("openinfer")


def keep_honoured_defaults(text: TextModel, info: EngineInfo) -> GenerationDefaults:
    """Removes the sampling defaults that the engine would refuse, and logs a warning.

    A client that does not ask for such a control must not be refused because of it.

    Returns:
        The remaining defaults, which are now the text model's.
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
