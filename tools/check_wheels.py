"""Builds every wheel, installs them outside the workspace, imports each, starts the server.

The environment is fresh and takes the newest torch that the packages' own ranges admit, which is
newer than the one the workspace lock holds.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from check_repo import ROOT, members

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]


def sh(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd or ROOT, env={**os.environ, "VIRTUAL_ENV": ""})


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def wait_ready(server: subprocess.Popen, timeout_s: float = 90) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < timeout_s:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server was not ready in {timeout_s} s")


def check_server(python: Path, folder: Path) -> None:
    command = [str(python.parent / "openinfer"), "serve", "--port", str(PORT)]
    server = subprocess.Popen(command, cwd=folder)
    try:
        wait_ready(server)
        messages = [{"role": "user", "content": "Hello!"}]
        answer = post("/v1/chat/completions", {"model": "tiny", "messages": messages})
        text = answer["choices"][0]["message"]["content"]
        assert text.strip(), answer
        print(f"server from wheels answers: {text!r}", flush=True)
    finally:
        server.terminate()
        assert server.wait(timeout=30) == 0, server.returncode


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels = folder / "wheels"
        sh("uv", "build", "-q", "--all-packages", "--wheel", "--no-sources", "-o", str(wheels))
        built = sorted(wheels.glob("*.whl"))
        assert len(built) == len(members()), [path.name for path in built]
        sh("uv", "venv", "-q", str(folder / "venv"))
        python = folder / "venv" / "bin" / "python"
        install = ["uv", "pip", "install", "-q", "--python", str(python)]
        sh(*install, *map(str, built), cwd=folder)
        sh("uv", "pip", "check", "-q", "--python", str(python))
        for distribution in members():
            module = distribution.replace("-", "_")
            sh(str(python), "-I", "-W", "error", "-c", f"import {module}", cwd=folder)
        sh(str(python), "-c", "import torch; print('wheels run with torch', torch.__version__)")
        check_server(python, folder)
        shutil.rmtree(folder / "venv")


if __name__ == "__main__":
    sys.exit(main())
