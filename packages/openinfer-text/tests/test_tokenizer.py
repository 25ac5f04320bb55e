import json
import shutil
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openinfer_contract import unpack_ids
from openinfer_text import CheckpointTextError, Tokenizer

NAMES = ["qwen", "llama3", "sentencepiece", "metaspace", "flagged"]
FRAGMENTS = st.sampled_from(
    [
        "<|im_start|>", "<|im_end|>", "<|im_", "<tool_call>", "</tool_call>", "<think>", "<|bos|>",
        "<|eot|>", "<|e", "<|eot|><|eot|>", "<late>", "<late", "</s>", "<s>", "<mask>", " <mask> ",
        "user\n", "hello world", " ", "  ", "\n\n", "\t", "xe", "\u0301", "é", "你好", "😀",
        "👩‍👩‍👧", "12", "▁", "<0x41>", "'s", "ﬁ", "\u212b", "\x00",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=4)), max_size=14).map("".join)


@pytest.fixture(scope="module")
def pairs(checkpoints: dict[str, Path]) -> dict[str, tuple[Tokenizer, tokenizers.Tokenizer]]:
    return {
        name: (
            Tokenizer.from_folder(folder),
            tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")),
        )
        for name, folder in checkpoints.items()
    }


@pytest.mark.parametrize("name", NAMES)
@given(text=TEXTS, add_special_tokens=st.booleans())
@example(text="axe\u0301 xe", add_special_tokens=False)  # a match that normalization removes
@settings(max_examples=150, deadline=None)
def test_ids_equal_those_of_the_whole_text(name, pairs, text, add_special_tokens):
    tokenizer, theirs = pairs[name]
    expected = theirs.encode(text, add_special_tokens=add_special_tokens).ids
    for _ in range(2):  # without the cache, then from it
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        assert unpack_ids(ids) == expected


def test_which_tokenizers_are_cut(pairs):
    reasons = {name: tokenizer.whole_text_reason for name, (tokenizer, _) in pairs.items()}
    assert [name for name, reason in reasons.items() if reason is None] == [
        "qwen",
        "llama3",
        "sentencepiece",
        "byte_window",
    ]
    assert "start of a text" in reasons["metaspace"]
    assert "<mask>" in reasons["flagged"]


def test_self_check_catches_a_tokenizer_whose_pieces_do_not_join(checkpoints):
    from openinfer_text import HuggingFaceEngine

    class Shifting(HuggingFaceEngine):
        def encode_pieces(self, texts, /):
            return [ids[4:] if text[:1] == "a" else ids for text, ids in
                    zip(texts, super().encode_pieces(texts), strict=True)]  # fmt: skip

    engine = Shifting.from_folder(checkpoints["qwen"], {})
    tokenizer = Tokenizer(engine, engine.pipeline(), special_tokens={})
    assert "by segments" in tokenizer.whole_text_reason
    assert tokenizer.encode("abc<|im_end|>abc") == engine.encode(
        "abc<|im_end|>abc", add_special_tokens=True
    )


def test_bos_is_added_only_on_request(pairs):
    tokenizer, _ = pairs["llama3"]
    bos = tokenizer.bos_token_id
    assert unpack_ids(tokenizer.encode("hello"))[0] == bos
    assert bos not in unpack_ids(tokenizer.encode("hello", add_special_tokens=False))
    assert unpack_ids(tokenizer.encode("")) == [bos]


def test_add_bos_token_of_the_config_decides(checkpoints, tmp_path):
    folder = _copy(checkpoints["llama3"], tmp_path, add_bos_token=False)
    plain = Tokenizer.from_folder(folder)
    assert plain.encode("hello") == plain.encode("hello", add_special_tokens=False)
    folder = _copy(checkpoints["sentencepiece"], tmp_path / "sp", add_bos_token=True)
    with_bos = Tokenizer.from_folder(folder)
    assert unpack_ids(with_bos.encode("hello"))[0] == with_bos.bos_token_id


def test_special_ids_and_names(pairs):
    tokenizer, theirs = pairs["qwen"]
    assert tokenizer.eos_token_id == theirs.token_to_id("<|im_end|>")
    assert tokenizer.bos_token_id is None
    assert tokenizer.is_special(tokenizer.eos_token_id)
    tool = tokenizer.token_id("<tool_call>")
    assert not tokenizer.is_special(tool)
    assert tokenizer.added_token(tool) == "<tool_call>"
    assert tokenizer.vocab_size == theirs.get_vocab_size()


def test_added_tokens_of_the_config_are_added(checkpoints, tmp_path):
    source = tokenizers.Tokenizer.from_file(str(checkpoints["qwen"] / "tokenizer.json"))
    size, tool = source.get_vocab_size(), source.token_to_id("<tool_call>")
    declared = {
        str(size): {"content": "<extra>", "special": False, "normalized": False},
        str(tool): {"content": "<tool_call>", "special": True, "normalized": False},
    }
    tokenizer = Tokenizer.from_folder(
        _copy(checkpoints["qwen"], tmp_path, added_tokens_decoder=declared)
    )
    assert unpack_ids(tokenizer.encode("a<extra>"))[-1] == size
    assert tokenizer.vocab_size == size + 1
    assert tokenizer.is_special(tool)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"eos_token": 7}, "eos_token"),
        ({"eos_token": "<nowhere>"}, "eos_token"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"7": {"content": "<|im_end|>"}}}, "added_tokens_decoder.7"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, "added_tokens_decoder.x"),
    ],
)
def test_errors_name_file_and_field(checkpoints, tmp_path, change, field):
    with pytest.raises(CheckpointTextError) as caught:
        Tokenizer.from_folder(_copy(checkpoints["qwen"], tmp_path, **change))
    assert (caught.value.file, caught.value.field) == ("tokenizer_config.json", field)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(CheckpointTextError, match=r"tokenizer\.json: there is no such file"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointTextError, match=r"tokenizer\.json: the tokenizers library"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointTextError, match=r"tokenizer_config\.json: must hold"):
        Tokenizer.from_folder(tmp_path)


def test_truncation_of_a_training_run_is_ignored(checkpoints, tmp_path):
    folder = _copy(checkpoints["qwen"], tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.enable_truncation(4)
    theirs.enable_padding(length=64)
    theirs.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.from_folder(folder).encode("hello world " * 9)) > 9 * 4


def test_lone_surrogates_are_refused(pairs):
    with pytest.raises(ValueError, match="Unicode"):
        pairs["qwen"][0].encode("a\ud800b")


def test_bytes_table_spells_every_token(pairs):
    tokenizer, theirs = pairs["qwen"]
    table = tokenizer.bytes_table()
    ids = theirs.encode("Größe 😀\n").ids
    assert b"".join(table[i] for i in ids).decode() == "Größe 😀\n"
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_text(ids[-1]) == "\n"


def test_threads_share_one_tokenizer(checkpoints):
    tokenizer = Tokenizer.from_folder(checkpoints["qwen"], segment_cache_bytes=4000)
    texts = [f"<|im_start|>user\n{n} hello{'!' * n}<|im_end|>" for n in range(40)]
    expected = [tokenizer.encode(text) for text in texts]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            wrong.extend(n for n, text in enumerate(texts) if tokenizer.encode(text) != expected[n])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _copy(source: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    config = json.loads((target / "tokenizer_config.json").read_text()) | changes
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target
