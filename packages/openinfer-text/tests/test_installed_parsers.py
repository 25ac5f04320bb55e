import pytest
from tokenizers import AddedToken

from openinfer_contract import PluginError, unpack_ids
from openinfer_text import (
    Content,
    OutputText,
    ParseContext,
    ParserError,
    TextModel,
    Tokenizer,
    check_parser,
    installed_parsers,
)
from openinfer_text.parsers._installed_parsers import choose_parser

TOOLS = [{"type": "function", "function": {"name": "f"}}]
QWEN3 = r"{\"name\": <function-name>, \"arguments\": <args-json-object>} </tool_call><tool_call>"
XML = "<tool_call>\n<function=name>\n<parameter=x>"
SECTION, THINK = "<｜tool▁calls▁begin｜>", "<think> </think>"
TEMPLATES = {
    "qwen3": (QWEN3, "hermes"),
    "coder": (XML, "qwen3_coder"),
    "coder that quotes": (f'{XML} {{{{ call["arguments"] }}}}', "qwen3_coder"),
    "coder without parameters": ("<tool_call>\n<function=name>", None),
    "kimi": ("<|tool_calls_section_begin|> <|tool_call_begin|>", "kimi_k2"),
    "deepseek v3": (f"{SECTION} ```json", "deepseek_v3"),
    "deepseek v3.1": (SECTION, "deepseek_v31"),
    "glm": ('<tool_call>{name}\n<arg_key>{k}</arg_key> "arguments"', None),
    "mistral": ('[TOOL_CALLS][{"name": 1, "arguments": 2}]', None),
    "plain": ("{{ messages }}", None),
}
THOUGHTS = {
    "qwen3": (THINK, "qwen3"),
    "kimi": (f"<|im_middle|> {THINK}", "kimi_k2"),
    "kimi by its calls": (f"<|tool_calls_section_begin|> {THINK}", "kimi_k2"),
    "kimi without": ("<|im_middle|>", None),
    "deepseek": (f"<｜Assistant｜> {THINK}", "deepseek_r1"),
    "deepseek that cuts": ("<｜Assistant｜> split('</think>')", "deepseek_r1"),
    "deepseek without": ("<｜Assistant｜>", None),
    "cuts": ("split('</think>')", None),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_auto_chooses_the_parser_of_the_template(name):
    template, wanted = TEMPLATES[name]
    found = choose_parser("tool", "auto", template)
    assert (found and found.name) == wanted


@pytest.mark.parametrize("name", THOUGHTS)
def test_auto_chooses_the_reasoning_parser_of_the_template(name):
    template, wanted = THOUGHTS[name]
    found = choose_parser("reasoning", "auto", template)
    assert (found and found.name) == wanted
    assert choose_parser("reasoning", "auto", None) is None


def test_parsers_are_chosen_by_name_or_none():
    assert choose_parser("tool", "none", QWEN3) is None
    assert choose_parser("tool", "hermes", None).name == "hermes"
    for kind, known in (("tool", "hermes, kimi_k2"), ("reasoning", "kimi_k2, qwen3")):
        check_parser(kind, "auto")
        with pytest.raises(ParserError, match=rf"parser nope: not installed.*none, .*{known}"):
            check_parser(kind, "nope")


class Shouting:
    """A parser of an installed package: all text is content, in capitals."""

    name = "shouting"
    markers = ("<loud>",)

    def claims(self, template, /):
        return "LOUD" in template or "<tool_call>" in template

    def start(self, context, /):
        return self

    def push(self, text, /):
        return [Content(text.upper())]

    def finish(self):
        return []


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    info = tmp_path / "some_parsers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-parsers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[openinfer.tool_parsers]\nshouting = some_parsers:Shouting\n"
        "[openinfer.reasoning_parsers]\nbroken = no_such_module:Parser\n"
        "qwen3 = some_parsers:OTHER\n"
    )
    (tmp_path / "some_parsers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import some_parsers

    some_parsers.Shouting, some_parsers.OTHER = Shouting, Shouting()


@pytest.mark.usefixtures("plug_in")
def test_parsers_are_found_by_entry_point():
    assert {"hermes", "shouting"} < set(installed_parsers("tool"))
    assert choose_parser("tool", "auto", "LOUD").name == "shouting"
    stream = choose_parser("tool", "shouting", None).start(ParseContext())
    assert stream.push("a") == [Content("A")]
    with pytest.raises(ParserError, match=r"hermes, shouting; .*--tool-call"):
        choose_parser("tool", "auto", QWEN3)
    assert choose_parser("reasoning", "qwen3", None).name == "shouting", "it replaces our own"
    for use in (check_parser, lambda *named: choose_parser(*named, None)):
        with pytest.raises(PluginError, match=r"parser broken of some-parsers 1\.0 .*No module"):
            use("reasoning", "broken")


@pytest.mark.usefixtures("plug_in")
def test_a_parser_that_does_not_load_is_left_out_of_the_choice(caplog):
    assert choose_parser("reasoning", "auto", "<think> of nothing") is None
    assert "reasoning parser broken of some-parsers 1.0 cannot be loaded" in caplog.text


def test_markers_are_shown_also_where_they_are_special(checkpoints, tmp_path):
    from tokenizers import Tokenizer as Raw

    raw = Raw.from_file(str(checkpoints["qwen"] / "tokenizer.json"))
    raw.add_special_tokens([AddedToken("<tool_call>"), AddedToken("</think>")])
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = unpack_ids(tokenizer.encode("a<tool_call>b</think><|im_end|>", add_special_tokens=False))
    assert all(tokenizer.is_special(tokenizer.token_id(t)) for t in ("<tool_call>", "</think>"))
    assert OutputText(tokenizer).push(ids).text == "ab"
    shown = OutputText(tokenizer, shown_tokens=("<tool_call>", "<unknown>"))
    assert shown.push(ids).text == "a<tool_call>b"


@pytest.mark.parametrize(
    ("template", "options", "turn"),
    [
        ("chatml", {}, "assistant\n"),
        (
            "chatml",
            {"chat_template_kwargs": {"enable_thinking": False}},
            "assistant\n<think>\n\n</think>\n\n",
        ),
        ("headers", {}, None),
    ],
)
def test_a_prompt_has_the_open_turn(checkpoints, templates, template, options, turn):
    model = TextModel.from_folder(checkpoints["qwen"], chat_template=templates[template])
    chat = [{"role": "user", "content": "Why <think>?" + 40 * "x"}]
    prompt = model.encode_chat(chat, **options)
    assert prompt.turn == (prompt.text[-32:] if turn is None else turn)


def test_a_text_model_parses_what_its_template_writes(checkpoints, templates):
    def model(**options):
        options = {"chat_template": templates["chatml"]} | options
        return TextModel.from_folder(checkpoints["qwen"], **options)

    full = model()
    assert (full.tool_parser.name, full.reasoning_parser.name) == ("hermes", "qwen3")
    assert set(full.parser("", tools=None).markers) == {"<think>", "</think>"}
    assert "<tool_call>" in full.parser("", tools=TOOLS).markers
    none = model(tool_parser="none", reasoning_parser="none")
    assert none.parser("", tools=TOOLS) is None
    assert model(chat_template="{{ messages }}").tool_parser is None
    assert model(chat_template="x", tool_parser="hermes").tool_parser.name == "hermes"
    with pytest.raises(ParserError):
        model(tool_parser="nope")
