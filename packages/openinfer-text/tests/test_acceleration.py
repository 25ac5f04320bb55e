"""fastokens is used exactly for tokenizers on which it was found to give the same ids."""

import json
import logging
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw

from openinfer_contract import unpack_ids
from openinfer_text import Tokenizer
from openinfer_text.tokens._accelerated_engine import AcceleratedEngine

fastokens = pytest.importorskip("fastokens", reason="it has no wheel for this platform")
NAMES = ["qwen", "llama3", "sentencepiece", "byte_window", "metaspace", "flagged"]


def _load(folder, verdicts=None, **options):
    tokenizer = Tokenizer.from_folder(
        folder, is_accelerated=True, verdict_folder=verdicts, **options
    )
    assert tokenizer.acceleration.wait(60) is not None
    return tokenizer


@pytest.fixture(scope="module")
def loaded(checkpoints):
    """Returns, by name, each tokenizer and the reference for its ids."""
    return {
        name: (_load(checkpoints[name]), Raw.from_file(str(checkpoints[name] / "tokenizer.json")))
        for name in NAMES
    }


def test_byte_level_tokenizers_are_encoded_by_fastokens(loaded):
    verdicts = {name: tokenizer.acceleration.verdict for name, (tokenizer, _) in loaded.items()}
    assert verdicts["qwen"] == verdicts["llama3"] == verdicts["flagged"] == "agrees", verdicts


PARTS = st.one_of(
    st.text(max_size=12),
    st.text(
        st.sampled_from("ab e\u0301\u0323\u00e9 \n\t\r12'st\u3000\x85\x1c😀\u200d👩ßǅ"), max_size=20
    ),
    st.sampled_from(
        [
            *(
                "<|im_start|>",
                "<|im_end|>",
                "<|eot|>",
                "<|eot|><|eot|>",
                "<|e",
                "<|bos|>",
                "<late>",
            ),
            *("<late", "xe", "<tool_call>", "<think>", "<mask>", "<s>", "</s>", "<|im_", "|>"),
            *("The quick brown", "def main():\n    ", "hello world", "12345", "安녕", "  "),
        ]
    ),
)


@pytest.mark.parametrize("name", NAMES)
@given(parts=st.lists(PARTS, max_size=12), cut=st.integers(0, 12))
@settings(max_examples=120, deadline=None)
def test_ids_are_those_of_a_cold_whole_encode(loaded, name, parts, cut):
    """Ids are equal by segments, cached or not, whatever text is at the borders of segments."""
    tokenizer, theirs = loaded[name]
    # The text of one turn is sent again with another turn after it, as in a conversation.
    for text in ("".join(parts[:cut]), "".join(parts), "".join(parts)):
        if any("\ud800" <= char < "\ue000" for char in text):
            continue
        ids = list(unpack_ids(tokenizer.encode(text, add_special_tokens=False)))
        assert ids == theirs.encode(text, add_special_tokens=False).ids


def test_a_verdict_is_found_once(checkpoints, tmp_path, monkeypatch):
    _load(checkpoints["qwen"], tmp_path / "new" / "verdicts")
    (kept,) = (tmp_path / "new" / "verdicts").iterdir()
    assert json.loads(kept.read_text()) == {"verdict": "agrees"}
    monkeypatch.setattr(AcceleratedEngine, "_compare", None)
    again = _load(checkpoints["qwen"], kept.parent)
    assert again.acceleration.verdict == "agrees"
    other = _load(checkpoints["llama3"], kept.parent)
    assert "NoneType" in other.acceleration.verdict, "another tokenizer is compared anew"
    monkeypatch.setattr("openinfer_text.tokens._accelerated_engine.version", lambda name: "9")
    newer = _load(checkpoints["qwen"], kept.parent)
    assert "NoneType" in newer.acceleration.verdict, "another version is compared anew"


def test_a_tokenizer_that_differs_is_never_used(checkpoints, tmp_path, monkeypatch, caplog):
    class Wrong:
        def __init__(self, good):
            self.good = good

        def no_truncation(self):
            self.good.no_truncation()

        def no_padding(self):
            self.good.no_padding()

        def encode_batch_flat(self, texts):
            return self.good.encode_batch_flat([text.replace("ǅ", "d") for text in texts])

    load = fastokens.Tokenizer.from_json_str
    monkeypatch.setattr(
        "fastokens.Tokenizer", type("T", (), {"from_json_str": lambda d: Wrong(load(d))})
    )
    with caplog.at_level(logging.INFO):
        tokenizer = _load(checkpoints["qwen"], tmp_path)
    assert tokenizer.acceleration.verdict.startswith("its ids differ on ")
    assert "by tokenizers, not by fastokens: its ids differ" in caplog.text
    theirs = Raw.from_file(str(checkpoints["qwen"] / "tokenizer.json"))
    assert (
        list(unpack_ids(tokenizer.encode("ǅ", add_special_tokens=False))) == theirs.encode("ǅ").ids
    )
    monkeypatch.setattr("fastokens.Tokenizer", None)
    assert _load(checkpoints["qwen"], tmp_path).acceleration.verdict.startswith("its ids differ")


def test_a_missing_or_failing_library_has_no_effect(checkpoints, monkeypatch):
    monkeypatch.setattr("fastokens.Tokenizer", None)
    tokenizer = _load(checkpoints["qwen"])
    assert "NoneType" in tokenizer.acceleration.verdict
    assert tokenizer.encode("hello")

    def version(name):
        raise AcceleratedEngineAbsent

    class AcceleratedEngineAbsent(__import__("importlib.metadata").metadata.PackageNotFoundError):
        pass

    monkeypatch.setattr("openinfer_text.tokens._accelerated_engine.version", version)
    assert _load(checkpoints["qwen"]).acceleration.verdict == "fastokens is not installed"


def test_a_folder_that_cannot_be_written_is_a_warning(checkpoints, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    tokenizer = _load(checkpoints["qwen"], tmp_path / "file" / "verdicts")
    assert tokenizer.acceleration.verdict == "agrees"
    assert "verdict" in caplog.text


def test_tokenizers_serves_until_the_verdict(checkpoints, monkeypatch):
    gate = threading.Event()
    judge = AcceleratedEngine._find_verdict

    def wait(self):
        assert gate.wait(60)
        return judge(self)

    monkeypatch.setattr(AcceleratedEngine, "_find_verdict", wait)
    tokenizer = Tokenizer.from_folder(checkpoints["qwen"], is_accelerated=True)
    before = tokenizer.encode("hello <|im_end|> wörld")
    assert tokenizer.acceleration.verdict is None
    assert tokenizer.acceleration.wait(0) is None
    gate.set()
    assert tokenizer.acceleration.wait(60) == "agrees"
    assert tokenizer.encode("hello <|im_end|> wörld", add_special_tokens=False) == before


def test_close_stops_the_comparison(checkpoints, monkeypatch):
    entered = threading.Event()

    def compare(self, fast):
        entered.set()
        while True:
            self._check_open()

    monkeypatch.setattr(AcceleratedEngine, "_compare", compare)
    tokenizer = Tokenizer.from_folder(checkpoints["qwen"], is_accelerated=True)
    assert entered.wait(60)
    tokenizer.close()
    assert tokenizer.acceleration.verdict is None
    assert tokenizer.encode("hello"), "it goes on"


def test_the_comparison_does_not_delay_the_end_of_a_program(checkpoints):
    code = (
        "import sys, openinfer_text.tokens._accelerated_engine as a\n"
        "a.probe_batches = lambda *_: iter(lambda: ['x'], None)\n"
        "a.AcceleratedEngine and __import__('openinfer_text').Tokenizer.from_folder("
        "sys.argv[1], is_accelerated=True)"
    )
    command = [sys.executable, "-c", code, str(checkpoints["qwen"])]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_without_acceleration_there_is_no_thread(checkpoints):
    num_threads = threading.active_count()
    assert Tokenizer.from_folder(checkpoints["qwen"]).acceleration is None
    assert threading.active_count() == num_threads
