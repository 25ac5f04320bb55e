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


def test_no_fill_is_in_both_splits(curriculum, lessons):
    rng = Random(4)
    for lesson, _ in curriculum.CURRICULUM:
        keys = {
            split: {lessons.draw_from(lesson, split, rng).key for _ in range(200)}
            for split in ("train", "held-out")
        }
        assert not keys["train"] & keys["held-out"]


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
        for _ in range(300):
            drawn = lesson.draw(rng)
            assert not drawn.accepted or drawn.opening[-1]["content"] in drawn.accepted


def test_talks_alternate_and_end_with_the_assistant(curriculum):
    rng = Random(6)
    for _ in range(300):
        roles = [message["role"] for message in curriculum.talk("train", rng)]
        if roles[0] == "system":
            del roles[0]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_text_is_clean(curriculum):
    rng = Random(7)
    for _ in range(1000):
        for message in curriculum.talk("train", rng):
            text = message["content"]
            assert text == text.strip()
            assert not set(text) & set("[]|{}")
            if message["role"] == "assistant":
                assert text[0].isupper()
                assert text[-1] in ".!?"
                assert "  " not in text
