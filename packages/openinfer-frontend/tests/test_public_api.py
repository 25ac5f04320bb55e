"""The public names exist, and importing them does not import torch."""

import subprocess
import sys

import openinfer_frontend


def test_public_names_exist_once():
    names = openinfer_frontend.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(openinfer_frontend, name) is not None


def test_no_torch():
    code = (
        "import sys, openinfer_frontend;"
        "assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
