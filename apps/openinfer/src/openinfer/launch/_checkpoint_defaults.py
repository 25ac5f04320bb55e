"""The checkpoint's recommendations, as far as the engine can follow them."""

import logging

from openinfer_contract import EngineInfo
from openinfer_text import GenerationDefaults, TextModel

_logger = logging.getLogger("openinfer")


def keep_honoured_defaults(text: TextModel, info: EngineInfo) -> GenerationDefaults:
    """Takes from a text model the sampling defaults that its engine would refuse, with a warning.

    What a client asks for is honoured or refused; what nobody asked for must refuse nobody.

    Returns:
        The defaults that are left, which now are the text model's own.
    """
    text.generation, dropped = text.generation.honoured_by(info)
    if dropped:
        named = ", ".join(f"{field} {value}" for field, value in dropped.items())
        _logger.warning(
            "generation_config.json recommends %s, which this engine cannot honour: "
            "requests that do not ask for it go without",
            named,
        )
    return text.generation
