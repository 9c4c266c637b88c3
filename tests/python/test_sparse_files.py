"""Holes and files that are one: equal without being read. Sizes that no reader would get through in the time."""

import json
import os
import struct

from running import run, run_well

ROWS, COLUMNS = 1 << 20, 1 << 14  # 64 GiB in F32


def write_hole(folder, names, last=b""):
    """A checkpoint whose tensors are holes of the file, but for `last` at its end."""
    folder.mkdir()
    size = ROWS * COLUMNS * 4
    header = {name: {"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": [i * size, (i + 1) * size]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + len(names) * size - len(last))
        file.seek(0, os.SEEK_END)
        file.write(last)
    (folder / "config.json").write_text("{}")
    return folder


def test_holes_are_equal_and_not_read(tieshard, tmp_path):
    one, same = write_hole(tmp_path / "one", ["a", "b"]), write_hole(tmp_path / "same", ["a", "b"])
    other = write_hole(tmp_path / "other", ["a", "b"], last=struct.pack("<f", 2.5))
    for second in (one, same):
        done = run([tieshard, "diff", one, second], timeout=60)
        assert done.returncode == 0 and "same" in done.stdout, done.stdout + done.stderr
    done = run([tieshard, "diff", one, other, "--json"], timeout=60)
    difference, = json.loads(done.stdout)["differences"]
    assert done.returncode == 1 and difference["name"] == "b" and difference["first_index"] == ROWS * COLUMNS - 1 and difference["largest"] == 2.5


def test_one_file_of_two_directories_is_not_read(tieshard, tiny, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes((tiny / "config.json").read_bytes())
        (tmp_path / name / "model.safetensors").hardlink_to(tiny / "model.safetensors")
    assert "same" in run_well([tieshard, "diff", tmp_path / "a", tmp_path / "b"]).stdout
