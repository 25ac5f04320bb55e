"""The model card matches the committed report, and the report the committed weights."""

import hashlib
import json
import re
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def report():
    return json.loads((_PACKAGE / "evaluation.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def card(training):
    from tiny_training import card

    return card


def test_the_card_shows_the_figures_of_the_report(card, report):
    text = (_PACKAGE / "README.md").read_text(encoding="utf-8")
    assert card.parts(text)[1] == f"\n{card.table(report)}\n", "run `python -m training card`"


def test_the_card_has_no_figures_of_another_source(card):
    text = (_PACKAGE / "README.md").read_text(encoding="utf-8")
    before, _, after = card.parts(text)
    figures = r"\d %|\ba (?:half|third|quarter|fifth|tenth) of|\d+ seconds"
    assert not re.findall(figures, before + after, re.IGNORECASE)


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["valid_calls", "right", "ended", "said_beforehand"])
def test_one_answer_more_or_less_shows_on_the_card(card, report, mode, name):
    for index in range(len(report["families"])):
        other = json.loads(json.dumps(report))
        counts = other["families"][index][mode]
        if name == "right" and not counts["rated"]:
            continue
        if name == "said_beforehand" and not other["families"][index]["needs_call"]:
            continue
        counts[name] -= 1
        assert card.table(other) != card.table(report)


def test_the_card_is_written_between_its_marks(card, report, tmp_path):
    page = tmp_path / "README.md"
    # The old text may be empty, and may occur elsewhere on the page too.
    for old in ("old", "", "\n\n", card.table(report)):
        page.write_text(f"old\n\n{card.BEGIN}{old}{card.END}\n\nold", encoding="utf-8")
        card.update(page, report)
        text = page.read_text(encoding="utf-8")
        assert text == f"old\n\n{card.BEGIN}\n{card.table(report)}\n{card.END}\n\nold"
    for marks in (card.BEGIN, card.END + card.BEGIN, 2 * (card.BEGIN + card.END)):
        page.write_text(f"before {marks}", encoding="utf-8")
        with pytest.raises(ValueError, match="marks"):
            card.update(page, report)


def test_the_report_is_of_the_committed_weights_and_text(report, folder):
    weights = (folder / "model.safetensors").read_bytes()
    recipe = json.loads((folder / "recipe.json").read_text())
    assert report["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert report["text_digest"] == recipe["text_digest"]
    assert report["dtype"] == "float32"


def test_every_question_drawn_was_asked_or_left_out(report):
    for family in report["families"]:
        for mode in ("greedy", "sampled"):
            counts = family[mode]
            assert counts["asked"] + family["worded_as_training"] == report["drawn_per_family"]
            assert len(counts["wrong"]) == counts["rated"] - counts["right"]


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_the_requirements_are_met(card, report, mode):
    families = report["families"]
    units = [family for family in families if family["line"].startswith("units, ")]
    sums = [family for family in families if family["name"].endswith(" digits")]
    (days,) = (family for family in families if family["name"] == "days between two dates")
    assert len(units) >= 10
    assert len(sums) == 12
    needed = card.counted([family for family in families if family["needs_call"]], mode)
    assert needed["said_beforehand"] == 0
    assert needed["valid_calls"] >= 0.95 * needed["asked"] > 0
    everything = card.counted(families, mode)
    assert everything["ended"] >= 0.99 * everything["asked"] > 0
    for group in (units, sums, [days], *([family] for family in sums)):
        counts = card.counted(group, mode)
        assert counts["right"] >= 0.9 * counts["rated"] > 0
