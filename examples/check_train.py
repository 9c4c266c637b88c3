#!/usr/bin/env python3
"""check_train.py PROGRAM MODEL_DIR: the example trains on repetitive tokens, so its loss falls, and exports a tied model."""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

program, model = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    tokens, out = pathlib.Path(folder, "tokens.bin"), pathlib.Path(folder, "export")
    tokens.write_bytes(struct.pack("<4096H", *(i % 16 for i in range(4096))))
    result = subprocess.run([program, model, tokens, out], capture_output=True, text=True)
    print(result.stdout, result.stderr)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
    stored = (out / "model.safetensors").read_bytes()
    header = stored[8 : 8 + struct.unpack("<Q", stored[:8])[0]]

assert result.returncode == 0
assert len(losses) == 10 and losses[-1] < losses[0], losses
assert b'"model.embed_tokens.weight"' in header and b"lm_head" not in header
