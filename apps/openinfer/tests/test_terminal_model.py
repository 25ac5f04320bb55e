import argparse

import pytest

from openinfer import UsageError
from openinfer._terminal_model import open_model, sampling_options


def test_flags_of_the_engine_have_no_effect_on_a_server():
    namespace = argparse.Namespace(url="http://x", model=None)
    with pytest.raises(UsageError, match="--line-option has no effect with --url"):
        open_model(namespace, ("--line-option", "3"), None)


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
