import pytest

from openinfer_testing import wait_until


def test_it_asks_until_the_answer_is_true():
    answers = [0, "", "yes", "never asked for"]
    wait_until(lambda: answers.pop(0))
    assert answers == ["never asked for"]


def test_it_does_not_wait_for_ever():
    with pytest.raises(AssertionError, match="still false after"):
        wait_until(lambda: False, timeout_s=0.03)
