"""Golden outputs of every family with a built-in parser, written in the published formats."""

import json

import pytest

from openinfer_contract import unpack_ids
from openinfer_testing.parsers import (
    GoldenStream,
    ParserConformance,
    Parsers,
    parse_output,
    pieces_of,
)
from openinfer_text import (
    OutputText,
    TextModel,
    Tokenizer,
    ToolCallArguments,
    ToolCallStart,
    choose_parser,
)


def tool(name, required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = [
    tool("weather", ["city"], city=STRING, days={"type": "integer"}),
    tool("run", ["code"], code=STRING),
    tool(
        "mix",
        number={"type": "number"},
        flag={"type": "boolean"},
        names={"type": "array"},
        place={"type": "object"},
        note={"type": ["string", "null"]},
        size={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        choice={"enum": ["a", 1]},
    ),
    tool("odd", shape=3),
    tool("refers", place={"$ref": "#/$defs/place"}, size={"allOf": [{"$ref": "#/$defs/size"}]}),
]
TOOLS[-1]["function"]["parameters"]["$defs"] = {
    "place": {"type": "object"},
    "size": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/size"}]},
}
CITY = '{"city": "Köln 😀"}'
LONG = 'for line in ["a", "b"]:\n    print(f"{line}\\n")\n' * 4
CODE = json.dumps({"code": LONG}, ensure_ascii=False)
BRACES = '{"code": "}\\"]{"}'
CALL = ("weather", CITY)


def stream(text, *calls, content="", reasoning="", whole=None, **more):
    """A golden stream of a model that was offered `TOOLS`."""
    return GoldenStream(
        text=text, calls=calls, content=content, reasoning=reasoning, num_whole=whole,
        **{"tools": TOOLS} | more,
    )  # fmt: skip


# Kimi-K2
def kimi(*calls, end=True):
    written = "".join(
        f"<|tool_call_begin|>{label}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for label, arguments in calls
    )
    return "<|tool_calls_section_begin|>" + written + "<|tool_calls_section_end|>" * end


K1 = kimi(("functions.weather:0", CITY))
K_CUT = K1[: K1.index(" 😀")]
KIMI = {
    "a call": stream(f"Let me see.{K1}", CALL, content="Let me see."),
    "white space": stream(
        "I look.\n<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.weather:0\n"
        f"<|tool_call_argument_begin|> {CITY} \n<|tool_call_end|>\n<|tool_calls_section_end|>\n",
        CALL, content="I look.",
    ),
    "two, the count goes on": stream(
        kimi(("functions.weather:2", CITY), ("functions.run:3", CODE)), CALL, ("run", CODE),
        earlier_call_ids=["functions.run:0", "functions.run:1"],
        call_ids=["functions.weather:2", "functions.run:3"], is_streamed=True,
    ),
    "the count begins anew": stream(
        kimi(("functions.weather:0", CITY), ("functions.run:1", BRACES)), CALL, ("run", BRACES),
        earlier_call_ids=["functions.run:0", "functions.run:1"],
        call_ids=["functions.weather:2", "functions.run:3"],
    ),
    "the same count twice": stream(
        kimi(("functions.weather:0", CITY), ("functions.weather:0", CITY)), CALL, CALL,
        call_ids=["functions.weather:0", "functions.weather:1"],
    ),
    "a count without a name": stream(
        kimi(("call00003", CITY), ("4", BRACES)), CALL, ("run", BRACES),
        call_ids=["functions.weather:3", "functions.run:4"],
    ),
    "no point, no colon": stream(
        kimi(("functionsrun5", BRACES)), ("run", BRACES), call_ids=["functions.run:5"],
    ),
    "a name alone": stream(kimi(("run", BRACES)), ("run", BRACES), call_ids=["functions.run:0"]),
    "a name with a colon": stream(kimi(("functions.a:b:0", "{}")), ("a:b", "{}")),
    "no tool fits": stream(t := kimi(("call00003", '{"x": 1}')), content=t),
    "no JSON and no name": stream(t := kimi(("call1", '{"a": 1!}')), content=t),
    "no arguments": stream(kimi(("functions.run:0", "")), ("run", "{}")),
    "arguments that are none": stream(kimi(("functions.run:0", "x = 1")), ("run", "x = 1")),
    "arguments that break": stream(
        kimi(("functions.run:0", '{"code": "a\nb"}')), ("run", '{"code": "a\nb"}'),
    ),
    "no section": stream(K1[len("<|tool_calls_section_begin|>") :], CALL),
    "no end of the call": stream(K1.replace("<|tool_call_end|>", ""), CALL),
    "no end of the section": stream(kimi(("functions.weather:0", CITY), end=False), CALL),
    "text behind": stream(f"{K1}Done.", CALL, content="Done."),
    "two sections": stream(f"{K1}\n{kimi(('functions.run:1', BRACES))}", CALL, ("run", BRACES)),
    "cut": stream(K_CUT, ("weather", '{"city": "Köln'), whole=0),
    "cut in the second": stream(
        K1.replace("<|tool_calls_section_end|>", "")
        + "<|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>" + '{"code',
        CALL, ("run", '{"code'), whole=1,
    ),
    "cut in the head": stream(t := K1[:60], content=t),
    "an empty section": stream(t := kimi(), content=t),
    "a mention": stream(
        t := "The token <|tool_calls_section_begin|> begins calls, <|tool_call_begin|> one.",
        content=t,
    ),
    "thought, then a call": stream(f"<think>hm</think>{K1}", CALL, reasoning="hm"),
    "a call ends the thought": stream(f"<think>hm\n{K1}", CALL, reasoning="hm"),
    "a call in a thought, no tools": stream(
        f"<think>hm\n{K1}</think>So.", content="So.", reasoning=f"hm\n{K1}", tools=(),
    ),
    "thinking since the prompt": stream(
        "hm</think>So.", content="So.", reasoning="hm", turn="<|im_middle|><think>",
    ),
}  # fmt: skip


# DeepSeek-V3 and R1
def fenced(name, arguments):
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
    )


def deepseek(*calls, end=True):
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>" * end


D1 = deepseek(fenced("weather", CITY))
V3 = {
    "a call": stream(f"I look.\n{D1}", CALL, content="I look."),
    "two": stream(
        deepseek(fenced("weather", CITY), fenced("run", CODE)), CALL, ("run", CODE),
        is_streamed=True,
    ),
    "no arguments": stream(deepseek(fenced("run", "")), ("run", "{}")),
    "no fence at the end": stream(D1.replace("\n```<", "<"), CALL),
    "arguments that break": stream(
        deepseek(fenced("run", '{"code": "a\nb"}')), ("run", '{"code": "a\nb"}\n```'),
    ),
    "no section": stream(fenced("weather", CITY), CALL),
    "no end of the section": stream(deepseek(fenced("weather", CITY), end=False), CALL),
    "cut": stream(D1[: D1.index(" 😀")], ("weather", '{"city": "Köln'), whole=0),
    "cut in the head": stream(t := D1[:50], content=t),
    "of another kind": stream(t := D1.replace(">function<", ">retrieval<"), content=t),
    "a mention": stream(t := "They write <｜tool▁calls▁begin｜> first.", content=t),
    "thought, then a call": stream(
        f"hm\n</think>\n\n{D1}", CALL, reasoning="hm", turn="<｜Assistant｜><think>\n",
    ),
    "a call ends the thought": stream(f"<think>\nhm\n{D1}", CALL, reasoning="hm"),
    "no thought": stream("So.", content="So.", turn="<｜Assistant｜></think>"),
}  # fmt: skip


def plain(name, arguments):
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


V31 = {
    "a call": stream(deepseek(plain("weather", CITY)), CALL),
    "two": stream(
        deepseek(plain("weather", CITY), plain("run", CODE)), CALL, ("run", CODE), is_streamed=True,
    ),
    "text around": stream(
        f"I look.{deepseek(plain('run', BRACES))} Done.", ("run", BRACES), content="I look. Done.",
    ),
    "a mention": stream(t := "<｜tool▁call▁begin｜> begins a call", content=t),
}  # fmt: skip


# Qwen3-Coder and Qwen3.5
def xml(name, mark="\n", **parameters):
    written = "".join(
        f"<parameter={key}>{mark}{value}{mark}</parameter>{mark}"
        for key, value in parameters.items()
    )
    return f"<tool_call>{mark}<function={name}>{mark}{written}</function>{mark}</tool_call>"


X1 = xml("weather", city="Köln 😀")
MIX = xml(
    "mix", number="1.50", flag="True", names='["a", 1]', place='{"x": {}}', note="None", size="7",
    choice="1", other="2",
)  # fmt: skip
MIXED = (
    '{"number": 1.50, "flag": true, "names": ["a", 1], "place": {"x": {}}, "note": null, '
    '"size": 7, "choice": 1, "other": "2"}'
)
WRONG = xml("mix", number="one", flag="yes", names="a, b", place="[1]", note="nu", size="1.5")
WRONGED = (
    '{"number": "one", "flag": "yes", "names": "a, b", "place": "[1]", "note": "nu", "size": "1.5"}'
)
TAGS = 'if "</parameter>" in text:\n    text += "</function>"\n<parameter=x>'
XML = {
    "a call": stream(f"Let me see.\n{X1}", CALL, content="Let me see."),
    "on one line": stream(xml("weather", "", city="Köln 😀"), CALL),
    "streamed": stream(xml("run", code=LONG), ("run", CODE), is_streamed=True),
    "by the schema": stream(MIX, ("mix", MIXED)),
    "against the schema": stream(WRONG, ("mix", WRONGED)),
    "nullable, and it is text": stream(
        xml("mix", note="nullable text"), ("mix", '{"note": "nullable text"}'),
    ),
    "integers as floats, too large, no numbers": stream(
        f"{xml('weather', days='5.0')}\n{xml('mix', number='1e999')}\n{xml('mix', number='NaN')}",
        ("weather", '{"days": 5.0}'), ("mix", '{"number": "1e999"}'), ("mix", '{"number": "NaN"}'),
    ),
    "tags in a value": stream(
        xml("run", code=TAGS), ("run", json.dumps({"code": TAGS})),
    ),
    "tags in a value that is held": stream(
        xml("mix", names='["</parameter>", "</function>"]'),
        ("mix", '{"names": ["</parameter>", "</function>"]}'),
    ),
    "tags in a value that is JSON, as if they ended it": stream(
        xml("mix", place='{"a": "</parameter></function></tool_call>"}', names="[1"),
        ("mix", '{"place": {"a": "</parameter></function></tool_call>"}, "names": "[1"}'),
    ),
    "JSON that breaks": stream(
        xml("mix", place='{"a": "x\ny"}'), ("mix", '{"place": "{\\"a\\": \\"x\\ny\\"}"}'),
    ),
    "JSON that is cut": stream(
        xml("mix", place='{"a": "</parameter>').partition("\n</parameter>")[0],
        ("mix", '{"place": {"a": "</parameter>'), whole=0,
    ),
    "references in the schema": stream(
        xml("refers", place='{"x": 1}', size="7"), ("refers", '{"place": {"x": 1}, "size": 7}'),
    ),
    "line breaks of its own": stream(
        xml("run", code="\n\na\n\n"), ("run", '{"code": "\\n\\na\\n\\n"}'),
    ),
    "empty": stream(
        f"{xml('run', code='')}\n{xml('run')}", ("run", '{"code": ""}'), ("run", "{}"),
    ),
    "two": stream(
        f"{X1}\n{xml('run', code='1')}\nDone.", CALL, ("run", '{"code": "1"}'), content="Done.",
    ),
    "two in one": stream(
        X1.replace("</tool_call>", "<function=run>\n</function>\n</tool_call>"),
        CALL, ("run", "{}"),
    ),
    "no tool of the request": stream(xml("other", a="1"), ("other", '{"a": "1"}')),
    "an odd schema": stream(xml("odd", shape="1"), ("odd", '{"shape": "1"}')),
    "bare": stream(
        X1.removeprefix("<tool_call>\n"), CALL,
    ),
    "bare, and no tool": stream(t := "<function=nope>\n</function>", content=t),
    "no end of the parameter": stream(X1.replace("</parameter>\n", ""), CALL),
    "no end of the function": stream(X1.replace("</function>\n", ""), CALL),
    "no end of the call": stream(X1.removesuffix("\n</tool_call>"), CALL),
    "no end at all": stream(X1.replace("</function>\n</tool_call>", X1), CALL, CALL),
    "prose between the parameters": stream(
        "<tool_call>\n<function=run>\nhm", ("run", ""), content="hm", whole=0,
    ),
    "an unnamed parameter": stream(
        "<tool_call>\n<function=run>\n<parameter=\n>", ("run", ""),
        content="<parameter=\n>", whole=0,
    ),
    "cut in a text": stream(X1[: X1.index(" 😀")], ("weather", '{"city": "Köln'), whole=0),
    "cut behind a text": stream(
        X1[: X1.index("</fun")], ("weather", '{"city": "Köln 😀"'), whole=0,
    ),
    "cut in a number": stream(
        "<tool_call>\n<function=weather>\n<parameter=days>\n1", ("weather", '{"days": 1'), whole=0,
    ),
    "cut behind a number": stream(
        "<tool_call>\n<function=weather>\n<parameter=days>\n1\n</parameter>",
        ("weather", '{"days": 1'), whole=0,
    ),
    "cut in the head": stream(t := X1[:25], content=t),
    "a mention": stream(
        t := "Write <tool_call>, then <function=NAME>, then <parameter=NAME>.", content=t,
    ),
    "a mention, then a call": stream(
        f"Not <tool_call> so:\n{X1}", CALL, content="Not <tool_call> so:",
    ),
    "thought, then a call": stream(f"<think>\nhm\n</think>\n\n{X1}", CALL, reasoning="hm"),
    "a call in the thought": stream(f"<think>\n{X1}\n</think>\n\nNo.", content="No.", reasoning=X1),
}  # fmt: skip

ONE = f'<tool_call>\n{{"name": "weather", "arguments": {CITY}}}\n</tool_call>'
HERMES = {
    "a call": stream(f"Let me see.\n{ONE}", CALL, content="Let me see."),
    "streamed": stream(
        f'<tool_call>\n{{"name": "run", "arguments": {CODE}}}\n</tool_call>', ("run", CODE),
        is_streamed=True,
    ),
    "cut": stream(ONE[: ONE.index(" 😀")], ("weather", '{"city": "Köln'), whole=0),
}  # fmt: skip
FAMILIES = {
    "hermes": ("hermes", "qwen3", HERMES),
    "qwen3_coder": ("qwen3_coder", "qwen3", XML),
    "kimi_k2": ("kimi_k2", "kimi_k2", KIMI),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1", V3),
    "deepseek_v31": ("deepseek_v31", "deepseek_r1", V31),
}
EVERY = [(family, name) for family, (_, _, streams) in FAMILIES.items() for name in streams]


def parsers_of(family):
    tools, reasoning, _ = FAMILIES[family]
    return Parsers(
        tools=choose_parser("tool", tools, None),
        reasoning=choose_parser("reasoning", reasoning, None),
    )


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


class TestDialects(ParserConformance):
    @pytest.fixture
    def parsers(self, family):
        return parsers_of(family)

    @pytest.fixture
    def golden_streams(self, family):
        return FAMILIES[family][2]


@pytest.fixture(scope="module")
def tokenizer(checkpoints, tmp_path_factory):
    """A checkpoint with trained words, every marker as a special token, and a token for every
    byte."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Raw

    raw = Raw.from_file(str(checkpoints["qwen"] / "tokenizer.json"))
    markers = {marker for family in FAMILIES for marker in parsers_of(family).tools.markers}
    raw.add_special_tokens([AddedToken(marker) for marker in sorted({*markers, "</think>"})])
    folder = tmp_path_factory.mktemp("markers")
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize(("family", "name"), EVERY, ids=[" ".join(case) for case in EVERY])
def test_the_result_does_not_depend_on_token_sizes(family, name, tokenizer):
    parsers, golden = parsers_of(family), FAMILIES[family][2][name]
    whole = parse_output(parsers, golden, [golden.text])
    words = unpack_ids(tokenizer.encode(golden.text, add_special_tokens=False))
    table = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    letters = [table[bytes([byte])] for byte in golden.text.encode()]
    markers = [*parsers.tools.markers, *parsers.reasoning.markers]
    for ids, size in ((words, 1), (words, 2), (words, 7), (letters, 1), (letters, 3)):
        output = OutputText(tokenizer, shown_tokens=markers)
        groups = [ids[at : at + size] for at in range(0, len(ids), size)]
        deltas = [*(output.push(group).text for group in groups), output.finish().text]
        assert "".join(deltas) == golden.text
        assert parse_output(parsers, golden, deltas) == whole, (size, ids is words)


# The five ways in which tool calls have broken clients of other servers.


def first_of(family):
    return FAMILIES[family][2]["a call"]


def test_trap_a_call_that_is_cut_by_max_tokens_has_no_tool_calls_reason(family):
    golden = first_of(family)
    begun = golden.text[: golden.text.index("Köln") + 4]
    cut = parse_output(parsers_of(family), golden, [begun])
    assert [(call[1], call[3]) for call in cut.calls] == [("weather", False)]
    assert cut.reasons == ("stop", "length")
    assert parse_output(parsers_of(family), golden, [golden.text]).reasons == (
        "tool_calls",
        "length",
    )


def test_trap_prose_that_mentions_a_marker_is_not_swallowed(family):
    parsers, golden = parsers_of(family), first_of(family)
    for marker in parsers.tools.markers:
        text = f"Models write {marker}\nand then go on {marker}"
        assert parse_output(parsers, stream(text), list(text)).content == text
    # Without tools, calls are not parsed.
    alone = Parsers(reasoning=parsers.reasoning)
    assert parse_output(alone, golden, [golden.text]).content == golden.text


def test_trap_kimi_counts_calls_over_the_whole_conversation(checkpoints):
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}"
        "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
        "{# <|tool_calls_section_begin|> #}"
    )
    model = TextModel.from_folder(checkpoints["qwen"], chat_template=template)
    call = {"type": "function", "function": {"name": "run", "arguments": "{}"}}
    foreign, own = {**call, "id": "call_a"}, {**call, "id": "functions.run:1"}
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [foreign, own]},
        {"role": "tool", "content": "x", "tool_call_id": "call_a"},
        {"role": "tool", "content": "x", "tool_call_id": "functions.run:1"},
    ]
    prompt = model.encode_chat(chat)
    assert prompt.text == "[functions.run:0][functions.run:1](functions.run:0)(functions.run:1)"
    assert prompt.call_ids == ("functions.run:0", "functions.run:1")
    assert chat[1]["tool_calls"][0] is foreign
    assert foreign["id"] == "call_a", "the request is left as it was"
    parser = model.parser(prompt.turn, tools=TOOLS, call_ids=prompt.call_ids)
    starts = [p for p in parser.push(kimi(("functions.run:0", "{}"))) if hasattr(p, "call_id")]
    assert starts == [ToolCallStart(0, "functions.run:2", "run")]


def test_trap_arguments_are_streamed(family):
    golden = first_of(family)
    pieces = pieces_of(parsers_of(family), golden, golden.text)
    assert sum(isinstance(piece, ToolCallArguments) for piece in pieces) >= len("Köln 😀")


def test_trap_id_and_name_come_once_and_the_index_stays(family):
    golden = first_of(family)
    text = golden.text + "\n" + golden.text.replace(":0", ":1")
    pieces = pieces_of(parsers_of(family), stream(text), text)
    starts = [piece for piece in pieces if isinstance(piece, ToolCallStart)]
    assert [(start.index, start.name) for start in starts] == [(0, "weather"), (1, "weather")]
    assert len({start.call_id for start in starts}) == 2
    indices = [piece.index for piece in pieces if hasattr(piece, "index")]
    assert indices == sorted(indices)
