"""Bodies of millions of wrong items are refused at the first one."""

import pytest
from pydantic import ValidationError

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols.anthropic._messages_request import (
    CountTokensRequest,
    MessagesRequest,
)
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._completion_request import CompletionRequest
from openinfer_frontend.protocols.openai._token_requests import DetokenizeRequest, TokenizeRequest
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest
from openinfer_frontend.routes._admin_routes import AbortRequest

MODELS = (
    *(AbortRequest, ChatRequest, CompletionRequest, CountTokensRequest, MessagesRequest),
    *(ResponsesRequest, DetokenizeRequest, TokenizeRequest),
)
WRONG = (
    [1] * 2000,
    ["x" * 2000] * 2000,
    [-1] * 2000,
    [{"role": "user", "content": [1] * 2000}] * 3,
    [[-1] * 2000] * 2000,
    {f"a{number}": [] for number in range(2000)},
)


def _num_errors(model, body):
    try:
        model.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    except ApiError:
        return 1
    return 0


@pytest.mark.parametrize("model", MODELS)
def test_no_field_collects_errors(model):
    for name in model.model_fields:
        for value in WRONG:
            # An object is read by slices of 64, with a key and a value each.
            assert _num_errors(model, {name: value}) <= 140, (name, str(value)[:40])


def test_biases_of_all_slices_count(client, engine):
    bias = {str(token_id): -1.0 for token_id in range(200)}
    client.complete("Hi", logit_bias=bias)
    assert len(engine.requests[-1].sampling.logit_bias) == 200
    bias["199x"] = 1.0
    refused = client.post("/v1/completions", {"prompt": "Hi", "logit_bias": bias})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")
