import argparse
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import openinfer.commands._cli as cli
from openinfer.commands._cli import main
from openinfer_contract import OpenInferError


@pytest.fixture
def parse():
    def parse(*arguments):
        namespace, extra = cli._parse(cli._parser(), list(arguments))
        return namespace, extra

    return parse


@pytest.mark.parametrize(
    ("arguments", "positional", "extra"),
    [
        (("serve",), None, []),
        (("serve", "folder"), "folder", []),
        (("serve", "folder", "--port", "1"), "folder", []),
        (("serve", "--port", "1", "folder"), "folder", []),
        (("serve", "--line-opt", "value"), None, ["--line-opt", "value"]),
        (("serve", "folder", "--line-opt", "value"), "folder", ["--line-opt", "value"]),
        (("serve", "--line-switch", "folder"), None, ["--line-switch", "folder"]),
        (("chat", "--max-tokens", "3", "folder"), "folder", []),
        (("complete", "Once upon"), "Once upon", []),
        (("doctor", "folder"), "folder", []),
        (("doctor", "a", "b"), "a", ["b"]),
    ],
)
def test_the_positional_argument_is_never_an_options_value(parse, arguments, positional, extra):
    namespace, left = parse(*arguments)
    assert (namespace.positional, left) == (positional, extra)


@pytest.mark.parametrize("arguments", [("doctor", "a", "b"), ("doctor", "--port", "1")])
def test_usage_errors_exit_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: openinfer" in capsys.readouterr().err


def test_without_a_command_it_shows_help(capsys):
    assert main(()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in ("usage: openinfer", "serve", "chat", "complete", "warmup", "doctor"):
        assert word in shown.err


@pytest.mark.parametrize("command", ["serve", "chat", "complete", "warmup", "doctor"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main((command, "--help"))
    assert caught.value.code == 0
    assert f"usage: openinfer {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "chat", "complete"])
def test_help_says_how_to_name_a_model(command, capsys):
    with pytest.raises(SystemExit):
        main((command, "--help"))
    assert "folder, installed name or hub id" in capsys.readouterr().out


def test_a_reader_that_has_enough_ends_a_command_quietly():
    code = """
import sys
import openinfer.commands._cli as cli
cli._complete = lambda namespace, extra: [print("x" * 4096, flush=True) for _ in range(1000)]
sys.exit(cli.main(["complete", "x"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_an_interrupt_while_commands_are_loaded_is_no_traceback(monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert main(("complete", "x")) == 130


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(("--version",))
    assert capsys.readouterr().out.startswith("openinfer 0.")


@pytest.mark.parametrize(
    ("error", "status", "stderr"),
    [
        (OpenInferError("it is so"), 1, "openinfer: it is so\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_sentence(monkeypatch, capsys, error, status, stderr):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "_doctor", fail)
    assert main(("doctor",)) == status
    assert capsys.readouterr().err == stderr


def test_our_own_bugs_keep_their_traceback(monkeypatch):
    def fail(*_):
        raise AssertionError("a bug")

    monkeypatch.setattr(cli, "_doctor", fail)
    with pytest.raises(AssertionError, match="a bug"):
        main(("doctor",))


def _add_count(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("count", allow_abbrev=False)
    parser.add_argument("what")
    parser.set_defaults(run=lambda namespace, extra: len(namespace.what))


def test_an_installed_package_brings_its_command(monkeypatch):
    class Point(EntryPoint):
        def load(self):
            return _add_count

    point = Point("count", "x:y", "openinfer.commands")
    monkeypatch.setattr("openinfer_contract._plugins.entry_points", lambda group: [point])
    assert main(("count", "four")) == 4
    with pytest.raises(SystemExit):
        main(("count", "four", "--more"))
