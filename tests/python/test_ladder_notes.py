"""doctor --try where the ladder cannot be climbed: that says nothing of the checkpoint, and the diagnosis is the one without it."""

import json
import shutil

from running import run
from transformers import AlbertConfig, AlbertForMaskedLM

SMALL = dict(vocab_size=32, hidden_size=16, embedding_size=8, intermediate_size=32, num_attention_heads=2, num_hidden_layers=2)


def assert_a_note(program, folder, *more):
    plain, tried = (run([program, "doctor", folder, *words, *more]) for words in ([], ["--try"]))
    assert plain.returncode == tried.returncode == 0, (plain.stdout, tried.stdout)
    assert "note  the ladder could not be climbed" in tried.stdout and "refuse" not in tried.stdout, tried.stdout


def test_no_module_of_the_family(tieshard, tiny, tmp_path):
    AlbertForMaskedLM(AlbertConfig(**SMALL)).save_pretrained(tmp_path / "albert")
    assert_a_note(tieshard, tmp_path / "albert")
    shutil.copytree(tiny, tmp_path / "quokka")
    (tmp_path / "quokka" / "config.json").write_text(json.dumps({"model_type": "quokka"}))
    assert_a_note(tieshard, tmp_path / "quokka")


def test_no_program_that_computes_and_too_many_ranks(tieshard, tiny, tmp_path):
    alone = tmp_path / "tieshard"
    shutil.copy(tieshard, alone)
    assert_a_note(alone, tiny)
    assert_a_note(tieshard, tiny, "--ranks", 5000)
