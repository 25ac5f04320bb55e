from collections.abc import Callable

import msgspec
import pytest

from openinfer_contract import GREEDY_TEMPERATURE, GenerateRequest, Sampling, pack_ids


@pytest.mark.parametrize(
    ("sampling", "is_greedy"),
    [
        (Sampling(temperature=0.0), True),
        (Sampling(temperature=GREEDY_TEMPERATURE / 2), True),
        (Sampling(top_k=1), True),
        (Sampling(), False),
        (Sampling(temperature=GREEDY_TEMPERATURE), False),
    ],
)
def test_greedy(sampling: Sampling, is_greedy: bool) -> None:
    assert sampling.is_greedy is is_greedy


def test_requests_are_values(make_request: Callable[..., GenerateRequest]) -> None:
    one = make_request()
    assert one == make_request()
    with pytest.raises(AttributeError):
        one.request_id = "other"  # type: ignore[misc]


def test_a_request_survives_the_wire(make_request: Callable[..., GenerateRequest]) -> None:
    one = make_request(prompt_token_ids=pack_ids(range(1000)), tenant="t", want=("x",))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=GenerateRequest)
    assert again == one
    assert again.num_prompt_tokens == 1000


def test_a_long_prompt_travels_as_bytes(make_request: Callable[..., GenerateRequest]) -> None:
    one = make_request(prompt_token_ids=pack_ids([2**31] * 100_000))
    assert len(msgspec.msgpack.encode(one)) < 4 * 100_000 + 200
