"""The base of request bodies that are translated into a chat."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._field_names import FieldNames
from openinfer_frontend.protocols._generation_request import RequestModel
from openinfer_frontend.protocols._validation_errors import renaming_errors
from openinfer_frontend.protocols.openai._chat_request import ChatRequest


class ConversationRequest(RequestModel):
    """A body of another protocol than chat completions, which holds a conversation."""

    def conversation(self) -> ChatRequest:
        """Translates the body into a chat.

        Raises:
            ApiError: 400, naming the field that cannot be translated or that a chat does not
                accept.
        """
        fields = self.chat_fields()
        with renaming_errors(self.field_names()):
            return ChatRequest(**fields)

    @abstractmethod
    def chat_fields(self) -> dict[str, Any]:
        """Returns the fields of the chat.

        Raises:
            ApiError: 400, naming the field that cannot be translated.
        """

    @abstractmethod
    def field_names(self) -> FieldNames:
        """Returns this protocol's names of a chat's fields."""


def string_field(item: Mapping[str, Any], name: str, place: str) -> str:
    """Returns a field of an object within the body.

    Raises:
        ApiError: 400, if the field is missing or no string.
    """
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError.invalid(f"{place}.{name}", "must be a string")
    return value
