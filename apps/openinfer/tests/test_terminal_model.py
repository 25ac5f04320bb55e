import argparse

import pytest

from openinfer import UsageError
from openinfer.terminal._open_model import open_model, sampling_options


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("--qqq", "--qqq is not a flag of this command; flags of model lines have no effect"),
        (
            "--tempreature",
            "--tempreature is not a flag of this command; did you mean --temperature",
        ),
        ("--port=1", "--port has no effect with --url"),
        ("more", "unexpected argument 'more'"),
    ],
)
def test_what_nobody_takes_is_answered_by_the_nearest_with_a_server_too(extra, words):
    namespace = argparse.Namespace(url="http://x", model=None)
    with pytest.raises(UsageError, match=words):
        open_model(namespace, (extra, "3"), None)


@pytest.mark.parametrize(
    ("given", "environment", "key"), [("a", "b", "a"), (None, "b", "b"), (None, None, None)]
)
def test_the_key_of_a_server_is_given_or_in_the_environment(monkeypatch, given, environment, key):
    monkeypatch.delenv("OPENINFER_API_KEY", raising=False)
    if environment is not None:
        monkeypatch.setenv("OPENINFER_API_KEY", environment)
    namespace = argparse.Namespace(url="http://x", model="m", api_key=given)
    expected = {} if key is None else {"authorization": f"Bearer {key}"}
    headers = open_model(namespace, (), None)._headers
    assert headers == {"content-type": "application/json"} | expected


def test_a_key_needs_a_server():
    with pytest.raises(UsageError, match="--api-key has no effect without --url"):
        open_model(argparse.Namespace(url=None, model=None, api_key="a"), (), None)


@pytest.mark.parametrize(
    ("dest", "flag"),
    [
        ("max_num_seqs", "--max-num-seqs"),
        ("revision", "--revision"),
        ("tool_call_parser", "--tool-call-parser"),
    ],
)
def test_known_flags_that_a_server_would_not_see_are_refused(dest, flag):
    namespace = argparse.Namespace(url="http://x", model="m", **{dest: "4"})
    with pytest.raises(UsageError, match=f"{flag} has no effect with --url"):
        open_model(namespace, (), None)


def test_only_what_is_set_is_sent():
    namespace = argparse.Namespace(max_tokens=None, temperature=0.0, top_p=0.5)
    assert sampling_options(namespace) == {"temperature": 0.0, "top_p": 0.5}
