"""docs/python.md: its examples run, in their order, in one program."""

import re
import shutil
import socket

import torch.distributed
from module_location import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def test_the_examples_run(models, tmp_path, monkeypatch):
    shutil.copytree(models / "llama_tied", tmp_path / "smollm2")
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    examples = BLOCK.findall((ROOT / "docs" / "python.md").read_text())
    assert len(examples) > 4
    names = {}
    try:
        for example in examples:
            exec(compile(example, "docs/python.md", "exec"), names)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert names["ledger"].entries
