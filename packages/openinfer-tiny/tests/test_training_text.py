import re
from random import Random

import pytest


@pytest.fixture(scope="module")
def curriculum(training):
    from tiny_training import curriculum

    return curriculum


@pytest.fixture(scope="module")
def lessons(training):
    from tiny_training import lessons

    return lessons


def test_patterns_list_what_they_draw(training):
    from tiny_training.grammar import draw, readings

    pattern = "[a|b[c|]]d[|e]"
    assert readings(pattern) == ["ad", "ade", "bcd", "bcde", "bd", "bde"]
    rng = Random(0)
    assert {draw(pattern, rng) for _ in range(200)} == set(readings(pattern))


@pytest.mark.parametrize("pattern", ["a]", "[a", "[a|[b]"])
def test_unbalanced_patterns_are_refused(training, pattern):
    from tiny_training.grammar import readings

    with pytest.raises(ValueError, match="pattern"):
        readings(pattern)


def test_the_same_seed_makes_the_same_text(curriculum):
    assert curriculum.talk("train", Random(3)) == curriculum.talk("train", Random(3))


@pytest.mark.long
def test_no_fill_is_in_both_splits(curriculum, lessons):
    rng = Random(4)
    for lesson, _ in curriculum.CURRICULUM:
        keys = {
            split: {key for _ in range(100) for key in lesson.draw(split, rng).keys}
            for split in ("train", "held-out")
        }
        assert keys["train"]
        assert keys["held-out"]
        assert not keys["train"] & keys["held-out"]
        assert all(lessons.split_of(key) == split for split in keys for key in keys[split])


def test_a_family_without_a_fill_of_a_split_is_refused(lessons):
    other = {"train": "held-out", "held-out": "train"}[lessons.split_of("only")]
    with pytest.raises(ValueError, match="more readings"):
        lessons.pick(other, lambda: "only", lambda key: key)


def test_about_one_fill_in_sixteen_is_held_out(lessons):
    held_out = sum(lessons.split_of(str(number)) == "held-out" for number in range(16_000))
    assert 900 <= held_out <= 1100


def test_case_and_punctuation_make_no_other_fill(lessons):
    for number in range(100):
        splits = {lessons.split_of(f"a/is it {number}{end}") for end in ("", "?", ".", ", !")}
        assert splits == {lessons.split_of(f"a/IS it {number}")}


def test_every_answer_given_is_an_accepted_one(curriculum):
    rng = Random(5)
    for lesson, _ in curriculum.CURRICULUM:
        for _ in range(150):
            drawn = lesson.draw("train", rng)
            assert not drawn.accepted or drawn.opening[-1]["content"] in drawn.accepted


def test_talks_alternate_and_end_with_the_assistant(curriculum):
    rng = Random(6)
    for _ in range(300):
        talk = curriculum.talk("train", rng)
        roles = "".join(message["role"][0] for message in talk.messages)
        assert re.fullmatch("s?(ua(ta)*)+", roles)
        assert "t" not in roles or talk.tools


def test_text_is_clean(curriculum):
    rng = Random(7)
    for _ in range(1000):
        for message in curriculum.talk("train", rng).messages:
            text = message["content"]
            # "12 + 3 = ?" without its question mark still ends as people type it.
            assert text == text.strip() or (message["role"] == "user" and text.endswith("= "))
            assert not re.search(r"\{[a-z_]*\}|\[[\w ]*\||\|[\w ]*\]|  (?!File)", text)


def test_small_talk_is_in_sentences(curriculum):
    rng = Random(8)
    for lesson, _ in curriculum.CURRICULUM[:7]:
        for _ in range(200):
            text = lesson.draw("train", rng).opening[-1]["content"]
            assert not set(text) & set("[]|{}")
            assert text[0].isupper()
            assert text[-1] in ".!?"
