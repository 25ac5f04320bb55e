"""The commands chat, complete and doctor, in process and against a server."""

from importlib.metadata import entry_points

import pytest

from openinfer.commands._cli import main

_INSTALLED = entry_points(group="openinfer.commands").names


def test_commands_are_installed():
    assert "sim" in _INSTALLED


@pytest.mark.parametrize(
    "command", ["serve", "chat", "complete", "warmup", "doctor", *sorted(_INSTALLED)]
)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main((command, "--help"))
    assert caught.value.code == 0
    assert f"usage: openinfer {command}" in capsys.readouterr().out


def test_complete_continues_a_text_in_process(run_openinfer):
    status, stdout, stderr = run_openinfer(
        "complete", "Once upon a time", "--max-tokens", "12", "--temperature", "0"
    )
    assert status == 0, stderr
    assert len(stdout.split()) >= 3


def test_chat_and_complete_talk_to_a_server(tiny_server, run_openinfer):
    status, stdout, stderr = run_openinfer(
        "chat", "--url", tiny_server.url, "--temperature", "0", stdin="Hello!\nWho are you?\n"
    )
    assert status == 0, stderr
    assert len(stdout.strip().splitlines()) >= 2
    status, remote, stderr = run_openinfer(
        "complete", "Once", "--url", tiny_server.url, "--max-tokens", "8", "--temperature", "0"
    )
    assert status == 0, stderr
    assert remote.strip()


def test_chat_in_process_answers_like_the_server(tiny_server, run_openinfer):
    arguments = ("--temperature", "0", "--max-tokens", "48")
    _, remote, _ = run_openinfer("chat", "--url", tiny_server.url, *arguments, stdin="Hello!\n")
    status, local, stderr = run_openinfer("chat", *arguments, stdin="Hello!\n")
    assert status == 0, stderr
    assert local == remote


def test_nobody_at_the_url_is_one_sentence(run_openinfer):
    status, _, stderr = run_openinfer("chat", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "cannot connect" in stderr
    assert "Traceback" not in stderr


def test_doctor_names_machine_parts_and_kernels(run_openinfer):
    status, stdout, stderr = run_openinfer("doctor")
    assert status == 0, stderr
    for word in ("torch", "qwen3: serves it", "kernels on cpu", "paged_attention", "tiny", "fcfs"):
        assert word in stdout
