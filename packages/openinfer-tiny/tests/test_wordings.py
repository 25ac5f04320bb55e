"""Questions whose held-out wording noise can make of a training one are found and not asked."""

from random import Random

import pytest

pytest.importorskip("jinja2")

_TIME = "Tell me the time now right now?"


@pytest.fixture(scope="module")
def wordings(training):
    from tiny_training import wordings

    return wordings


def test_noise_makes_a_training_question_a_held_out_one(training, wordings):
    from tiny_training.lessons import split_of

    greeted = f"Please {_TIME}"
    assert split_of(f"phrases:{_TIME}") == "train"
    assert split_of(f"phrases:{greeted}") == "held-out"
    assert wordings.Wordings([(_TIME, False)]).holds((greeted, False))


@pytest.mark.parametrize(
    ("trained", "asked", "expected"),
    [
        (("What is the time?", False), ("what is the time", False), True),
        (("What is the time?", False), ("Hey Tiny, what the time?", False), True),
        (("Hey, what is the time", False), ("What is the time?", False), True),
        (("What is the time?", True), ("What the time?", True), False),
        (("Tell the time.", False), ("Hey, tell the time.", False), False),
        (("What is the time?", False), ("What is the date?", False), False),
        (("Say {text} with the keys {keys}", True), ("Say {text} with the key {keys}", True), True),
    ],
)
def test_what_noise_can_do_is_known(wordings, trained, asked, expected):
    assert wordings.Wordings([trained]).holds(asked) is expected


def test_whatever_noise_makes_of_a_question_is_known(training, wordings, monkeypatch):
    from tiny_training import curriculum

    monkeypatch.setattr(curriculum, "_slip", lambda text, rng: text)
    rng, num_changed = Random(1), 0
    for lesson, _ in curriculum.CURRICULUM:
        for _ in range(60):
            for question, is_exact in wordings.wordings_of(lesson.draw("train", rng)):
                noisy = curriculum._noisy(question, is_exact, rng)
                num_changed += noisy != question
                assert wordings.Wordings([(question, is_exact)]).holds((noisy, is_exact))
    assert num_changed > 300


@pytest.mark.long
def test_the_evaluation_asks_nothing_worded_as_training_text(training, wordings):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_training.evaluate import draw_questions
    from tiny_training.questions import rows

    known = wordings.training_wordings(200, seed=1)
    num_left_out = 0
    for row in rows():
        if row.name not in ("+, 2 digits", "date and time of now", "hours and minutes", "self"):
            continue
        drawn, asked = draw_questions(row, 60), draw_questions(row, 60, known)
        num_left_out += len(drawn) - len(asked)
        worded = [wording for draw, _ in asked for wording in wordings.wordings_of(draw)]
        assert worded
        assert not any(map(known.holds, worded))
    assert num_left_out > 0
