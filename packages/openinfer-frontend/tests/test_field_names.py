"""Messages about a chat's fields, with another protocol's field names."""

import pytest

from openinfer_frontend.protocols._field_names import TOOL, FieldNames

NAMES = FieldNames(
    {
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "response_format": "text.format",
        "response_format.json_schema": "text.format",
        f"{TOOL}.function": TOOL,
    },
    tool_places=[2],
)


@pytest.mark.parametrize(
    ("field", "own"),
    [
        ("max_tokens", "max_output_tokens"),
        ("max_tokens_more", "max_tokens_more"),
        ("messages[1].content[0].text", "input"),
        ("messages_kept", "messages_kept"),
        ("response_format.type", "text.format.type"),
        ("response_format.json_schema.schema.properties.a", "text.format.schema.properties.a"),
        ("tools[0].function.parameters.type", "tools[2].parameters.type"),
        ("tools", "tools"),
    ],
)
def test_fields_have_the_clients_names(field, own):
    assert NAMES.client_name(field) == own
    assert NAMES.translate(f"{field}: is wrong", field) == f"{own}: is wrong"


@pytest.mark.parametrize(
    ("message", "reworded"),
    [
        ("must not exceed max_tokens", "must not exceed max_output_tokens"),
        ("is below x.max_tokens", "is below x.max_tokens"),
        ("is my_max_tokens or max_tokens_more", "is my_max_tokens or max_tokens_more"),
        ("needs response_format.json_schema", "needs text.format"),
        ("there are no messages", "there are no messages"),
    ],
)
def test_other_fields_that_a_message_mentions_have_them_too(message, reworded):
    assert NAMES.translate(f"seed: {message}", "seed") == f"seed: {reworded}"
    assert NAMES.translate(message, None) == reworded
