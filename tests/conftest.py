"""Fixtures that start real servers by the command line, and check that they are idle afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import OpenAI

from openinfer.commands._cli import main

_READY = re.compile(r"ready in [\d.]+ s: .* (https?://\S+)$")
_START_S = 60
_IDLE_S = 10


class Server:
    """One `openinfer serve` process, its log and a client."""

    def __init__(
        self, *arguments: str, env: dict[str, str] | None = None, has_own_group: bool = False
    ) -> None:
        self.log: list[str] = []
        self.expected_status = 0
        self._ready = threading.Event()
        self.url = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "openinfer", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})},
            start_new_session=has_own_group,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_S) or not self.url:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not start:\n" + "\n".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if match := _READY.search(line.rstrip()):
                self.url = match[1]
                self._ready.set()
        self._ready.set()

    @cached_property
    def client(self) -> OpenAI:
        """The official OpenAI client. Its connections close with the server."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def fetch(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        status, content = self.fetch(method, path, body)
        return status, json.loads(content) if content else {}

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        return self.request("POST", path, body)

    def load(self) -> dict[str, Any]:
        status, load = self.get("/load")
        assert status == 200, load
        return load

    def assert_idle(self) -> None:
        deadline = time.monotonic() + _IDLE_S
        while not (load := self.load())["is_idle"]:
            assert time.monotonic() < deadline, f"not idle: {load}"
            time.sleep(0.02)

    def children(self, module: str) -> list[psutil.Process]:
        """Returns the child processes that run `python -m module`."""
        found = psutil.Process(self.process.pid).children()
        return [child for child in found if module in child.cmdline()]

    @property
    def engine(self) -> psutil.Process:
        (engine,) = self.children("openinfer_engine")
        return engine

    def stop(self) -> int:
        if "client" in self.__dict__:
            self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@pytest.fixture(scope="session")
def _tiny_server() -> Iterator[Server]:
    server = Server()
    yield server
    assert server.stop() == 0, "\n".join(server.log)


@pytest.fixture
def tiny_server(_tiny_server: Server) -> Iterator[Server]:
    """The server of the README's first command. The tests share it; it is idle after each."""
    yield _tiny_server
    _tiny_server.assert_idle()


@pytest.fixture
def start_server() -> Iterator[Any]:
    """Starts servers for one test. They must be idle after it and end with the expected status."""
    yield from _starting([])


@pytest.fixture(scope="module")
def _shared_servers() -> list[Server]:
    return []


@pytest.fixture(scope="module")
def start_shared_server(_shared_servers: list[Server]) -> Iterator[Any]:
    """Starts servers for all tests of a module. They must be idle after each test."""
    yield from _starting(_shared_servers)


@pytest.fixture(autouse=True)
def _shared_servers_are_idle(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "start_shared_server" in request.fixturenames:
        for server in request.getfixturevalue("_shared_servers"):
            server.assert_idle()


def _starting(servers: list[Server]) -> Iterator[Any]:

    def start(*arguments: str, **options: Any) -> Server:
        servers.append(Server(*arguments, **options))
        return servers[-1]

    yield start
    try:
        for server in servers:
            if server.process.poll() is None:
                server.assert_idle()
    finally:
        statuses = [server.stop() for server in servers]
    assert statuses == [server.expected_status for server in servers]


@pytest.fixture
def call_openinfer(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls a command in this process and returns (exit status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def run_openinfer() -> Any:
    """Runs a command in a process of its own and returns (exit status, stdout, stderr)."""

    def run(
        *arguments: str, stdin: str = "", timeout: float = 60, cwd: Path | None = None
    ) -> tuple[int, str, str]:
        command: Sequence[str] = [sys.executable, "-m", "openinfer", *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        return done.returncode, done.stdout, done.stderr

    return run


@dataclass(frozen=True)
class GuidePackage:
    """The package that a guide develops, with its files written and installed.

    Attributes:
        folder: folder of the files.
        site: folder of the installed package.
        files: text by file name. Each file is a code block whose first line is `# NAME`.
        commands: the guide's shell blocks.
    """

    folder: Path
    site: Path
    files: dict[str, str]
    commands: list[str]


@pytest.fixture(scope="session")
def follow_guide() -> Callable[[str, Path], GuidePackage]:
    """Writes the files of docs/guides/NAME.md into a folder, and installs their package."""

    def follow(name: str, folder: Path) -> GuidePackage:
        text = (Path(__file__).parents[1] / f"docs/guides/{name}.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        files = {m[1]: block for _, block in blocks if (m := re.match(r"# (\S+\.\w+)\n", block))}
        for file, content in files.items():
            path = folder / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
        uv, site = shutil.which("uv"), folder / "site"
        assert uv is not None, "the workspace is run by uv"
        install = [uv, "pip", "install", "--offline", "--no-deps", "--python", sys.executable]
        done = subprocess.run(
            [*install, "--target", str(site), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        commands = [block.strip() for kind, block in blocks if kind == "sh"]
        return GuidePackage(folder, site, files, commands)

    return follow
