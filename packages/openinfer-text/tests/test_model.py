import json
import shutil
import subprocess
import sys

import pytest

from openinfer_contract import unpack_ids
from openinfer_text import (
    ChatTemplate,
    CheckpointTextError,
    NoChatTemplate,
    TextModel,
)

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "world"},
    {"role": "user", "content": "and then?"},
]


@pytest.fixture
def folder(checkpoints, tmp_path, templates):
    def build(name="qwen", template="chatml", **files):
        target = tmp_path / "checkpoint"
        shutil.copytree(checkpoints[name], target)
        config = json.loads((target / "tokenizer_config.json").read_text())
        if template is not None:
            config["chat_template"] = templates[template]
        (target / "tokenizer_config.json").write_text(json.dumps(config))
        for stem, content in files.items():
            (target / f"{stem}.json").write_text(json.dumps(content))
        return target

    return build


def test_a_text_model_has_all_parts(folder):
    model = TextModel.from_folder(
        folder(
            config={"max_position_embeddings": 4096, "eos_token_id": 9},
            generation_config={
                "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [0, 7],
            },
        )
    )  # fmt: skip
    assert model.max_model_len == 4096
    assert model.stop_token_ids == tuple(sorted({0, 7, model.tokenizer.eos_token_id}))
    assert (model.generation.temperature, model.generation.top_k) == (0.6, 20)
    assert model.generation.min_p is None
    assert model.decode(unpack_ids(model.encode("hello"))) == "hello"


def test_eos_of_config_json_is_the_fallback(folder):
    model = TextModel.from_folder(folder(config={"text_config": {"eos_token_id": 5}}))
    assert model.stop_token_ids == (model.tokenizer.eos_token_id, 5)
    assert model.max_model_len is None


@pytest.mark.parametrize(
    ("files", "file", "field"),
    [
        ({"generation_config": {"top_k": "x"}}, "generation_config.json", "top_k"),
        ({"generation_config": {"top_k": 1.5}}, "generation_config.json", "top_k"),
        ({"generation_config": {"eos_token_id": ["x"]}}, "generation_config.json", "eos_token_id"),
        ({"config": {"max_position_embeddings": True}}, "config.json", "max_position_embeddings"),
        ({"chat_template": {"chat_template": 3}}, "chat_template.json", "chat_template[0]"),
    ],
)
def test_wrong_fields_are_named(folder, files, file, field):
    with pytest.raises(CheckpointTextError) as caught:
        TextModel.from_folder(folder(**files))
    assert (caught.value.file, caught.value.field) == (file, field)


def test_sources_of_templates(folder):
    target = folder(template=None)
    assert TextModel.from_folder(target).chat_template is None
    with pytest.raises(NoChatTemplate):
        TextModel.from_folder(target).encode_chat(CHAT)

    def text():
        return TextModel.from_folder(target).encode_chat(CHAT, tools=[]).text

    config = {"chat_template": [{"name": "default", "template": "from list"}]}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    assert text() == "from list"
    (target / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert text() == "from json"
    (target / "chat_template.jinja").write_text("from jinja")
    assert text() == "from jinja"
    (target / "additional_chat_templates").mkdir()
    (target / "additional_chat_templates" / "tool_use.jinja").write_text("named tool_use")
    assert text() == "named tool_use"
    assert TextModel.from_folder(target, chat_template="mine").encode_chat(CHAT).text == "mine"


def test_chat_is_encoded_with_its_message_ends(folder):
    model = TextModel.from_folder(folder())
    prompt = model.encode_chat(CHAT)
    ids = unpack_ids(prompt.token_ids)
    assert model.decode(ids, skip_special_tokens=False) == prompt.text
    ends = [model.decode(ids[:end], skip_special_tokens=False) for end in prompt.boundaries]
    assert ends == [
        "<|im_start|>system\nBe brief.<|im_end|>\n",
        prompt.text[: prompt.text.index("<|im_start|>assistant\nworld")],
        prompt.text[: prompt.text.index("<|im_start|>user\nand then?")],
        prompt.text.removesuffix("<|im_start|>assistant\n"),
    ]


def test_boundaries_where_a_token_closes_the_message(folder):
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    model = TextModel.from_folder(folder("llama3", template=None), chat_template=source)
    prompt = model.encode_chat(CHAT[1:])
    ids = unpack_ids(prompt.token_ids)
    shown = [model.decode(ids[:end], skip_special_tokens=False) for end in prompt.boundaries]
    assert shown == ["<|bos|>" + part for part in (
        "user: hello<|eot|>",
        "user: hello<|eot|>assistant: world<|eot|>",
        "user: hello<|eot|>assistant: world<|eot|>user: and then?<|eot|>",
    )]  # fmt: skip


def test_templates_with_plain_borders_have_no_boundaries(folder):
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    model = TextModel.from_folder(folder(template=None), chat_template=source)
    assert model.encode_chat(CHAT).boundaries == ()


def test_special_tokens_in_content_are_parsed(folder):
    model = TextModel.from_folder(folder())
    chat = [{"role": "user", "content": "a<|im_end|>b"}]
    ids = unpack_ids(model.encode_chat(chat).token_ids)
    assert ids.count(model.tokenizer.eos_token_id) == 2


def test_output_uses_the_stop_tokens_of_the_checkpoint(folder):
    model = TextModel.from_folder(folder())
    ids = [*unpack_ids(model.encode("hello")), model.tokenizer.eos_token_id]
    assert model.output(skip_special_tokens=False).push(ids).text == "hello"
    shown = model.output(skip_special_tokens=False, stop_token_ids=()).push(ids).text
    assert shown == "hello<|im_end|>"


def test_a_template_that_refuses_the_probe_still_serves(folder):
    source = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}ok"
    model = TextModel.from_folder(folder(template=None), chat_template=source)
    assert model.encode_chat(CHAT[:1]) == ("ok", model.encode("ok"), (), "ok", ())


def test_nothing_heavy_is_imported():
    code = (
        "import sys, openinfer_text; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_model_may_be_composed_by_hand(folder, templates):
    tokenizer = TextModel.from_folder(folder()).tokenizer
    model = TextModel(tokenizer, chat_template=ChatTemplate(templates["chatml"]))
    assert len(model.encode_chat(CHAT).boundaries) == 4
