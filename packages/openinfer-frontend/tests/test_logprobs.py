"""Logprobs that JSON or OpenAI's shapes cannot say as they are."""

from openinfer_contract import Finished, TokenEvent, TokenLogprobs, pack_floats, pack_ids


def test_minus_infinity_and_equal_spellings(client, engine):
    half = 0xC3  # two tokens that are parts of characters are spelled alike
    logprobs = TokenLogprobs(
        sampled=pack_floats([float("-inf")]),
        ranks=pack_ids([3]),
        num_top=2,
        top_ids=pack_ids([half, half + 1]),
        top=pack_floats([-1.0, -2.0]),
    )
    event = TokenEvent(token_ids=pack_ids([97]), logprobs=logprobs)
    engine.script = lambda _: [event, Finished(reason="length")]
    got = client.complete("Hi", logprobs=2)["choices"][0]["logprobs"]
    assert got["token_logprobs"] == [-9999.0]
    assert got["top_logprobs"] == [{"\ufffd": -1.0, "a": -9999.0}]
    got = client.chat("Hi", logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"][0]
    assert got["logprob"] == -9999.0
    assert [(top["logprob"], top["bytes"]) for top in got["top_logprobs"]] == [
        (-1.0, [half]),
        (-2.0, [half + 1]),
    ]
