"""LLM over the built-in model, and over a counting one where the output must be known."""

import asyncio
import itertools
import re
import threading

import pytest

from openinfer import LLM, GenerationFailed, RequestRejected, SamplingParams, UsageError
from openinfer.options._flags import FLAGS
from openinfer_contract import CommandDone, GetLoad, unpack_ids
from openinfer_testing import CountingShape, ModelledExecutor, ModelledOptions
from openinfer_text import OutputStream

HELLO = [{"role": "user", "content": "Hello!"}]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def _counting(**options):
    return SamplingParams(**({"temperature": 0, "max_tokens": 4} | options))


def _num_output_tokens(llm):
    done = llm.engine.control(GetLoad()).result(10)
    assert isinstance(done, CommandDone)
    return done.load.num_output_tokens


def test_a_text_a_list_and_ids_are_continued_alike(tiny_llm):
    (one,) = tiny_llm.generate("Once upon a time", GREEDY, has_progress_bar=False)
    ids = list(unpack_ids(tiny_llm.text.encode("Once upon a time")))
    assert one.text
    assert one.prompt == "Once upon a time"
    assert one.num_prompt_tokens == len(ids)
    two = tiny_llm.generate([ids, "Once upon a time"], GREEDY, has_progress_bar=False)
    (three,) = tiny_llm.generate(ids, GREEDY, has_progress_bar=False)
    assert [c.text for c in (*two, three)] == [one.text] * 3
    assert [c.token_ids for c in (*two, three)] == [one.token_ids] * 3
    assert (two[0].prompt, two[1].prompt, three.prompt) == (ids, "Once upon a time", ids)


def test_chat_answers_one_and_many(tiny_llm):
    (one,) = tiny_llm.chat(HELLO, SamplingParams(temperature=0), has_progress_bar=False)
    other = [{"role": "user", "content": "Who are you?"}]
    two = tiny_llm.chat([HELLO, other], SamplingParams(temperature=0), has_progress_bar=False)
    assert one.finish_reason in {"stop", "length"}
    assert one.text == two[0].text
    assert [c.index for c in two] == [0, 1]
    assert two[1].prompt == other


def test_chat_without_params_runs_to_the_end_of_the_answer(tiny_llm):
    (answer,) = tiny_llm.chat(HELLO, has_progress_bar=False)
    assert answer.finish_reason == "stop"
    assert answer.stop_reason is None


def test_nothing_in_nothing_out(tiny_llm):
    assert tiny_llm.generate([]) == []
    assert tiny_llm.chat([]) == []


def test_prompts_times_samples_come_in_order(counting_llm):
    llm = counting_llm()
    prompts = [[100 * i + 7] for i in range(9)]
    answers = llm.generate(prompts, _counting(n=3), has_progress_bar=False)
    assert [(c.index, c.sample) for c in answers] == list(itertools.product(range(9), range(3)))
    for answer in answers:
        first = 100 * answer.index + 8
        assert answer.token_ids == list(range(first, first + 4))
        assert answer.prompt == prompts[answer.index]
        assert answer.finish_reason == "length"


def test_seeds_repeat_and_samples_differ(tiny_llm):
    def draw(seed):
        params = SamplingParams(n=4, seed=seed, temperature=1.5, max_tokens=16)
        return [c.text for c in tiny_llm.generate("I", params, has_progress_bar=False)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(3)[1:] == draw(4)[:3], "samples draw from seeds that follow each other"


def test_a_stop_string_ends_the_text_and_the_request(counting_llm):
    llm = counting_llm(step_s=0.001)
    whole = llm.generate([[300]], _counting(max_tokens=40), has_progress_bar=False)[0].text
    stop = whole[len(whole) // 2 :][:4]
    before = _num_output_tokens(llm)
    params = _counting(max_tokens=800, stop=stop)
    (cut,) = llm.generate([[300]], params, has_progress_bar=False)
    assert cut.text == whole[: whole.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert len(cut.token_ids) < 40
    assert _num_output_tokens(llm) - before < 400, "the engine was told to stop"
    params = _counting(max_tokens=800, stop=[stop], include_stop_str_in_output=True)
    (kept,) = llm.generate([[300]], params, has_progress_bar=False)
    assert kept.text == cut.text + stop


def test_a_character_that_began_in_the_prompt_is_completed(counting_llm):
    llm = counting_llm()
    lead, middle = (llm.text.tokenizer.bytes_table().index(byte) for byte in (b"\xe2", b"\x90"))
    assert llm.text.tokenizer.token_bytes(middle + 1) == b"\x91"
    prompt = [lead, middle]
    (answer,) = llm.generate([prompt], _counting(max_tokens=1), has_progress_bar=False)
    assert answer.text == "\u2411"
    assert "".join(llm.stream(prompt, _counting(max_tokens=1))) == "\u2411"


def test_stop_token_ids_are_named(counting_llm):
    (stopped,) = counting_llm().generate(
        [10], _counting(stop_token_ids=[12]), has_progress_bar=False
    )
    assert stopped.token_ids == [11, 12]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", 12)


def test_the_tokenizers_own_eos_ends_too_and_has_no_name(counting_llm):
    llm = counting_llm()
    eos = llm.text.stop_token_ids[0]
    assert eos not in llm.engine.info.eos_token_ids
    (stopped,) = llm.generate([eos - 2], _counting(), has_progress_bar=False)
    assert stopped.token_ids == [eos - 1, eos]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", None)
    (ignored,) = llm.generate([eos - 2], _counting(ignore_eos=True), has_progress_bar=False)
    assert len(ignored.token_ids) == 4
    (asked,) = llm.generate([eos - 2], _counting(stop_token_ids=[eos]), has_progress_bar=False)
    assert asked.stop_reason == eos


def test_logprobs_of_every_token(tiny_llm):
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
    (answer,) = tiny_llm.generate("Hello", params, has_progress_bar=False)
    assert len(answer.logprobs) == len(answer.top_logprobs) == len(answer.token_ids) == 6
    for token_id, logprob, top in zip(
        answer.token_ids, answer.logprobs, answer.top_logprobs, strict=True
    ):
        assert len(top) == 3
        assert top[token_id] == max(top.values()) == pytest.approx(logprob)
        assert logprob <= 0


def test_logprobs_are_none_unless_asked_for_and_end_with_the_text(counting_llm):
    llm = counting_llm()
    (plain,) = llm.generate([[300]], _counting(max_tokens=30), has_progress_bar=False)
    assert plain.logprobs is None
    assert plain.top_logprobs is None
    params = _counting(max_tokens=30, logprobs=0, stop=plain.text[5:8])
    (cut,) = llm.generate([[300]], params, has_progress_bar=False)
    assert len(cut.logprobs) == len(cut.token_ids) < 30
    assert cut.top_logprobs == [{}] * len(cut.token_ids)


def test_max_tokens_is_clamped_to_the_context(counting_llm):
    llm = counting_llm(max_model_len=32)
    for max_tokens in (1000, None):
        params = _counting(max_tokens=max_tokens)
        (answer,) = llm.generate([[100] * 20], params, has_progress_bar=False)
        assert len(answer.token_ids) == 12
        assert answer.finish_reason == "length"


def test_a_prefix_hit_is_counted(tiny_llm):
    prompt = [5] * 64
    params = SamplingParams(temperature=0, max_tokens=1)
    tiny_llm.generate([prompt], params, has_progress_bar=False)
    (again,) = tiny_llm.generate([prompt], params, has_progress_bar=False)
    assert 0 < again.num_cached_tokens < again.num_prompt_tokens == 64


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", {}, "prompt_token_ids"),
        ([], {}, None),
        ([[]], {}, "prompt_token_ids"),
        ([2048], {}, "prompt_token_ids"),
        ([5, -1], {}, "prompt_token_ids"),
        ([5] * 3000, {}, "prompt_token_ids"),
        ("x", {"temperature": -1}, "temperature"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"presence_penalty": 3.0}, "presence_penalty"),
        ("x", {"logprobs": 1000}, "logprobs"),
    ],
)
def test_what_cannot_be_honoured_names_its_field_and_runs_nothing(tiny_llm, prompt, params, field):
    before = _num_output_tokens(tiny_llm)
    if field is None:
        assert tiny_llm.generate(prompt, SamplingParams(**params)) == []
    else:
        many = ["fine", prompt[0] if prompt == [[]] else prompt]
        with pytest.raises(RequestRejected) as caught:
            tiny_llm.generate(many, SamplingParams(**params), has_progress_bar=False)
        assert caught.value.field == field
        assert not re.search(r"(sampling|stop)\.|u32", str(caught.value))
        if field == "prompt_token_ids":
            assert str(caught.value).startswith("prompt 1: ")
            with pytest.raises(RequestRejected, match=r"^(the prompt|token id)"):
                tiny_llm.generate([prompt] if prompt == "" else many[1:], has_progress_bar=False)
    assert _num_output_tokens(tiny_llm) == before


def test_conversations_that_make_no_sense_are_rejected(tiny_llm):
    for messages in ([{"role": "user", "content": 5}], [{"content": "x"}]):
        with pytest.raises(RequestRejected) as caught:
            tiny_llm.chat([messages], has_progress_bar=False)
        assert caught.value.field.startswith("messages")


def test_a_stream_is_the_text_in_pieces(tiny_llm):
    pieces = list(tiny_llm.stream("Once upon a time", GREEDY))
    (whole,) = tiny_llm.generate("Once upon a time", GREEDY, has_progress_bar=False)
    assert "".join(pieces) == whole.text
    assert len(pieces) >= 2


def test_a_stream_left_early_ends_its_request_and_the_next_call_works(counting_llm):
    llm = counting_llm(step_s=0.002)
    before = _num_output_tokens(llm)
    pieces = llm.stream([300], _counting(max_tokens=900))
    assert next(pieces)
    pieces.close()
    assert _num_output_tokens(llm) - before < 300
    (after,) = llm.generate([10], _counting(), has_progress_bar=False)
    assert after.token_ids == [11, 12, 13, 14]


def test_a_stop_string_ends_a_stream(counting_llm):
    llm = counting_llm(step_s=0.001)
    whole = "".join(llm.stream([300], _counting(max_tokens=30)))
    assert "".join(llm.stream([300], _counting(max_tokens=900, stop=whole[6:9]))) == whole[:6]


def test_streams_can_be_interleaved(counting_llm):
    llm = counting_llm(step_s=0.001)
    one, two = (llm.stream([start], _counting(max_tokens=30)) for start in (300, 700))
    pieces = [(a, b) for a, b in itertools.zip_longest(one, two, fillvalue="")]
    assert "".join(a for a, _ in pieces) == llm.text.decode(range(301, 331))
    assert "".join(b for _, b in pieces) == llm.text.decode(range(701, 731))


def test_ctrl_c_in_a_batch_leaves_the_engine_idle(counting_llm, monkeypatch):
    llm = counting_llm(step_s=0.002)
    real, num_seen = OutputStream.push, 0

    def push(self, ids, end=None):
        nonlocal num_seen
        num_seen += 1
        if num_seen == 5:
            raise KeyboardInterrupt
        return real(self, ids, end)

    monkeypatch.setattr(OutputStream, "push", push)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[300]] * 12, _counting(max_tokens=600), has_progress_bar=False)
    monkeypatch.undo()
    (after,) = llm.generate([10], _counting(), has_progress_bar=False)
    assert after.token_ids == [11, 12, 13, 14]
    assert _num_output_tokens(llm) < 600


def test_a_step_that_fails_fails_the_call_and_not_the_next(counting_llm, monkeypatch):
    options = ModelledOptions(shape=CountingShape(vocab_size=2048), row_failed_token=99)
    llm = counting_llm()
    monkeypatch.setattr("openinfer.llm._llm.launch_line", lambda spec: ModelledExecutor(options))
    with LLM() as failing:
        with pytest.raises(GenerationFailed, match="modelled row"):
            failing.generate([[5], [99], [6]], _counting(), has_progress_bar=False)
        assert failing.generate([5], _counting(), has_progress_bar=False)[0].token_ids[0] == 6
    assert llm.generate([5], _counting(), has_progress_bar=False)


def test_a_batch_larger_than_the_intake_is_fed_bit_by_bit(counting_llm):
    llm = counting_llm(options={"max_queued_requests": 3, "max_queued_tokens": 40})
    prompts = [[100 + i] * (1 + i % 20) for i in range(60)]
    answers = llm.generate(prompts, _counting(), has_progress_bar=False)
    assert [c.token_ids[0] for c in answers] == [101 + i for i in range(60)]


def test_the_progress_bar_is_on_stderr_and_can_be_off(tiny_llm, capsys):
    tiny_llm.generate(["a", "b"], SamplingParams(max_tokens=1))
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
    tiny_llm.generate(["a", "b"], SamplingParams(max_tokens=1), has_progress_bar=False)
    assert capsys.readouterr() == ("", "")


def test_it_works_inside_a_running_event_loop(tiny_llm):
    async def cell():
        return tiny_llm.generate("Hello", GREEDY, has_progress_bar=False)

    (answer,) = asyncio.run(cell())
    assert answer.text


def test_closing_twice_and_using_it_closed():
    first = LLM()
    before = threading.active_count()
    first.close()
    first.close()
    assert threading.active_count() <= before
    with pytest.raises(GenerationFailed, match="closed"):
        first.generate([5], _counting(), has_progress_bar=False)
    with pytest.raises(GenerationFailed, match="closed"):
        list(first.stream([5], _counting()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_modle_len": 1}, "^max_modle_len .*did you mean max_model_len"),
        ({"port": 1}, "port is an option of the server"),
        ({"max_model_len": "1x"}, "max_model_len: .*1x"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be"),
        ({"quantization": "fp8"}, "quantization must be one of int8, int4"),
        ({"kv_cache_dtype": "fp8"}, "^kv_cache_dtype takes only auto here"),
        ({"no_such_option": None}, "^no_such_option is used by neither"),
        ({"model_path": "x"}, "model_path is called model"),
        ({"uvicorn_log_level": "info"}, "uvicorn_log_level is an option of the server"),
        ({"block_size": 16, "page_size": 16}, "block_size and page_size are the same option"),
        ({"device": "tpu"}, "device must be one of"),
    ],
)
def test_an_option_nobody_honours_is_named(options, words):
    with pytest.raises(UsageError, match=words):
        LLM(**options)


def test_options_convert_and_none_means_not_given(counting_llm):
    llm = counting_llm(options={"max_queued_requests": "1k", "device": None})
    assert llm.engine.info.limits.max_queued_requests == 1000


def test_options_are_called_as_their_flags():
    names = [
        name.lstrip("-").replace("-", "_")
        for flag in FLAGS
        if flag.scope == "engine"
        for name in flag.spellings
    ]
    assert {"kv_cache_memory_bytes", "max_num_queued_reqs", "tp"} < set(names)
    for name in names:
        with pytest.raises(UsageError, match=f"^{name}(:| must be) "):
            LLM(**{name: ["of no type"]})


def test_spellings_mean_what_the_flags_mean(counting_llm):
    options = {"max_num_queued_reqs": 7, "max_num_queued_tokens": "2k", "disable_radix_cache": True}
    llm = counting_llm(options={**options, "tp": 1, "kv_cache_memory_bytes": "1M"})
    limits = llm.engine.info.limits
    assert (limits.max_queued_requests, limits.max_queued_tokens) == (7, 2000)
    first, second = llm.generate([[5] * 40] * 2, _counting(), has_progress_bar=False)
    assert first.num_cached_tokens == second.num_cached_tokens == 0


def test_every_prompt_may_have_parameters_of_its_own(counting_llm):
    llm = counting_llm()
    asked = [_counting(max_tokens=1), _counting(max_tokens=3, n=2)]
    done = llm.generate([[5], [9]], asked, has_progress_bar=False)
    assert [(c.index, c.sample, len(c.token_ids)) for c in done] == [
        (0, 0, 1),
        (1, 0, 3),
        (1, 1, 3),
    ]
    done = llm.chat([HELLO, HELLO], asked, has_progress_bar=False)
    assert [len(c.token_ids) for c in done] == [1, 3, 3]
    (done,) = llm.generate([5], asked[:1], has_progress_bar=False)
    assert len(done.token_ids) == 1


@pytest.mark.parametrize(
    ("call", "arguments", "words", "field"),
    [
        ("generate", (None,), "prompts must be a text, .*, not None", "prompts"),
        ("generate", (5,), "prompts must be a text, .*, not int", "prompts"),
        ("generate", (["a", None],), "^prompt 1: a prompt must be a text .*not None", "prompt"),
        ("generate", ([[5, 1.5]],), "must be an integer; at position 1 is 1.5", "prompt_token_ids"),
        ("generate", (["a", "b"], [SamplingParams()]), "as many as prompts: 1 for 2", "params"),
        ("generate", ("a", "b"), "params must be SamplingParams, or a list", "params"),
        ("generate", ("a", {"n": 1}), "params must be SamplingParams, or a list", "params"),
        ("chat", (None,), "conversations must be a list of messages", "conversations"),
        ("chat", ("Hello!",), "conversations must be a list of messages", "conversations"),
        ("chat", (["Hello!"],), "conversations must be a list of messages", "conversations"),
    ],
)
def test_what_is_no_prompt_or_no_parameters_is_refused(tiny_llm, call, arguments, words, field):
    with pytest.raises(RequestRejected, match=words) as caught:
        getattr(tiny_llm, call)(*arguments, has_progress_bar=False)
    assert caught.value.field == field


def test_a_template_of_ones_own(tmp_path, counting_llm):
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    llm = counting_llm(options={"chat_template": str(file)})
    assert llm.text.encode_chat(HELLO).text == "Hello!"


def test_outputs_are_held_to_a_structure(tiny_llm):
    params = SamplingParams(
        structured_outputs={"choice": ["yes", "no"]}, temperature=2.0, seed=1, n=4
    )
    answers = tiny_llm.generate("Once", params, has_progress_bar=False)
    answers += tiny_llm.chat(HELLO, params, has_progress_bar=False)
    assert {answer.text for answer in answers} <= {"yes", "no"}
    assert {answer.finish_reason for answer in answers} == {"stop"}


@pytest.mark.parametrize(
    ("structure", "field", "word"),
    [
        ({"regex": 1}, "structured_outputs.regex", "string"),
        ({}, "structured_outputs", "exactly one"),
        ({"json": {"type": "array", "contains": {}}}, "grammar", "contains"),
    ],
)
def test_structures_that_cannot_be_honoured_are_refused(tiny_llm, structure, field, word):
    params = SamplingParams(structured_outputs=structure)
    with pytest.raises(RequestRejected, match=word) as caught:
        tiny_llm.generate("Once", params, has_progress_bar=False)
    assert caught.value.field == field
