import gc

import pytest

from openinfer import UsageError
from openinfer.commands._cli import _parse, _parser
from openinfer.options._flags import FLAGS
from openinfer.options._server_options import ServerOptions
from openinfer.serve import _server
from openinfer.serve._front import freeze_heap
from openinfer.serve._serve import _settings
from openinfer.serve._server import _cache_room, _poll_s
from openinfer_contract import CacheGroupInfo
from openinfer_engine import EngineOptions, build_engine_info
from openinfer_testing import CountingShape


def _settle(*arguments):
    namespace, _ = _parse(_parser(), ["serve", *arguments])
    return _settings(namespace)


@pytest.mark.parametrize(
    ("has_device", "num_cores", "num_fronts", "polls"),
    [
        (True, 4, 1, True),
        (True, 3, 1, False),
        (False, 64, 1, False),
        (True, 8, 4, False),
        (True, 10, 4, True),
    ],
)
def test_fronts_poll_where_a_device_computes_and_cores_are_left(
    has_device, num_cores, num_fronts, polls, monkeypatch
):
    monkeypatch.setattr(_server, "physical_cores", lambda: num_cores)
    info = build_engine_info(CountingShape(has_device=has_device).info("none"), EngineOptions())
    assert (_poll_s(info, num_fronts) > 0) == polls


def test_defaults():
    assert _settle() == (ServerOptions(), {}, {})
    defaults = {flag.dest: flag.default for flag in FLAGS if flag.scope != "engine"}
    assert {name: value for name, value in defaults.items() if value not in (None, ())} == {
        "host": "127.0.0.1",
        "port": 8000,
        "log_level": "info",
        "api_server_count": 1,
        "trust_request_chat_template": False,
        "tool_call_parser": "auto",
        "reasoning_parser": "auto",
        "reasoning_field": "both",
        "generation_config": "auto",
        "max_body_bytes": 16 << 20,
        "max_in_flight": 8192,
        "body_timeout_s": 60.0,
        "stall_timeout_s": 30.0,
        "resume_timeout_s": 60.0,
        "drain_timeout_s": 30.0,
        "metrics_prefix": "vllm:",
        "tokenizer_backend": "auto",
    }


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nhost: ::1\nmodel: a\nmax-num-seqs:\nown-option: 3\n")
    server, values, own = _settle("b", "--config", str(file), "--port", "2")
    assert (server.port, server.host, values["model"]) == (2, "::1", "b")
    assert "max_num_seqs" not in values
    assert own == {"own-option": 3}


@pytest.mark.parametrize("arguments", [("a",), ("--model", "a"), ("a", "--model-path", "a")])
def test_the_model_has_several_spellings(arguments):
    assert _settle(*arguments)[1]["model"] == "a"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "--model", "b"), "two models are given: a and --model b"),
        (("--api-server-count", "0"), "--api-server-count"),
        (("--port", "65536"), "--port must be between"),
        (("--port", "-1"), "--port must be between"),
        (
            ("--served-model-name", "a", "--served-model-name", ""),
            "--served-model-name must not be empty",
        ),
        (("--host", ""), "--host must not be empty"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(UsageError, match=words):
        _settle(*arguments)


def test_only_flags_reach_the_values():
    _, values, _ = _settle("a", "--config", "/dev/null")
    assert not {"run", "command", "takes_extra", "config", "positional"} & values.keys()


def test_a_ready_front_process_leaves_the_collector_little_to_walk():
    before = gc.get_freeze_count()
    freeze_heap()
    try:
        assert gc.get_freeze_count() > before + 10_000
        assert len(gc.get_objects()) < 1_000
    finally:
        gc.unfreeze()


def test_groups_of_a_cache_share_its_memory():
    def group(kind, num_blocks, bytes_per_block):
        return CacheGroupInfo(
            name=kind,
            kind=kind,
            tokens_per_block=528,
            num_blocks=num_blocks,
            bytes_per_block=bytes_per_block,
        )

    attention, state = group("full", 30, 17_301_504), group("state", 10, 51_511_296)
    assert _cache_room((attention,)) == _cache_room((attention, state)) == (15_840, 519_045_120)
