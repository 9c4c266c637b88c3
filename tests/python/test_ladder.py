"""`tieshard doctor --try`: the ladder of real forwards, on families with one tie, with four names, with experts, and with none."""

import json

import pytest
from running import clean_environment, run, run_well


def climb(tieshard, model, *flags):
    done = run([tieshard, "doctor", model, "--ranks", 2, "--try", "--json", *flags], env=clean_environment())
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied", "gpt_oss_mxfp4", "t5_tied"])
def test_a_sound_model_passes_every_rung_with_the_same_bits(tieshard, reference, name):
    status, document, said = climb(tieshard, reference / name, "--shard-dim", "first")
    assert status == 0, (document["findings"], said)
    assert [(rung["name"], rung["ranks"]) for rung in document["ladder"]] == [
        ("eager", 1), ("meta and load", 1), ("sharded", 1), ("sharded", 2)]
    assert all(rung["passed"] and rung["difference"] == 0 and rung["largest_logit"] > 0 for rung in document["ladder"])


def test_a_model_without_a_module_has_a_note_with_the_reason(tieshard, reference, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in (reference / "llama_tied").iterdir():
        (model / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text()) | {"model_type": "nobody", "architectures": ["NobodyForCausalLM"]}
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    status, document, _ = climb(tieshard, model)
    assert status == 0 and len(document["ladder"]) == 1
    (finding,) = [finding for finding in document["findings"] if finding["code"] == "rung-failed"]
    assert finding["level"] == "note" and "no module for this family" in finding["why"], finding
    assert "known" in document["ladder"][0]["said"]


def test_a_checkpoint_that_does_not_load_is_not_tried(tieshard, reference, tmp_path):
    (tmp_path / "config.json").write_bytes((reference / "llama_tied" / "config.json").read_bytes())
    status, document, _ = climb(tieshard, tmp_path)
    assert status == 2 and "ladder" not in document


def test_the_ladder_is_shown_to_people(tieshard, reference):
    shown = run_well([tieshard, "doctor", reference / "llama_tied", "--try"], env=clean_environment()).stdout
    assert "eager" in shown and "works; largest logit" in shown and shown.count("works; the same bits") == 2, shown
