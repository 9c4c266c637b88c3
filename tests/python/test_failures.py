"""`tieshard doctor --log` on logs that the real peers printed (tests/logs), and the walk of docs/failures.md."""

import gzip
import json
import re
import subprocess

import pytest
from running import ROOT, run

LOGS = ROOT / "tests" / "logs"
EXPECTED = {
    "accelerate_untied_copies": ("tied-name-missing", "materialize", "lm_head.weight", [0, 1]),
    "accelerate_stray_parameter": ("optimizer-not-switched", "optimizer", None, [0, 1]),
    "torch_tie_in_two_groups": ("tie-in-two-groups", "shard", "lm_head.weight", [0, 1]),
    "torch_copy_out_of_meta": ("left-on-meta", "materialize", None, [0, 1]),
    "torch_scalar_parameter": ("scalar-parameter", "shard", "scale", [0, 1]),
    "torch_transposed_head": ("tie-shape", "materialize", "lm_head.weight", [0, 1]),
    "safetensors_shared": ("shared-tensors-saved", "save", "lm_head.weight", [0, 1]),
    "transformers_random_weights": ("weights-random", "materialize", "lm_head.weight", []),
}


def diagnose(tieshard, log, *more):
    done = run([tieshard, "doctor", *more, "--log", log, "--json"])
    return done.returncode, json.loads(done.stdout)


def test_every_log_is_tested():
    assert {path.stem for path in LOGS.glob("*.log")} == {*EXPECTED, "python_unknown"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_names_failure_phase_parameter_and_ranks(tieshard, name):
    status, document = diagnose(tieshard, LOGS / f"{name}.log")
    first = document["failures"][0]
    assert status == 2
    assert (first["failure"], first["phase"], first["parameter"], first["ranks"]) == EXPECTED[name]
    assert [failure["failure"] for failure in document["failures"][1:]] in ([], ["peer-lost"])
    assert first["fix"] and first["fix_with_tieshard"] and {step["state"] for step in first["checklist"]} <= {"found", "checked", "needs you"}


def test_an_unknown_failure_is_said_to_be_unknown_with_what_was_recognised(tieshard):
    status, document = diagnose(tieshard, LOGS / "python_unknown.log")
    (note,) = [finding for finding in document["findings"] if finding["code"] == "unknown-failure"]
    assert "RuntimeError: batch 3 could not be collated" in note["why"] and "2 ranks" in note["why"]
    assert [failure["failure"] for failure in document["failures"]] == ["peer-lost"]


def test_a_log_may_come_through_a_pipe_and_a_checkpoint_answers_the_checklist(tieshard, tiny):
    log = (LOGS / "accelerate_untied_copies.log").read_bytes().replace(b"\n", b"\r\n")
    done = subprocess.run([tieshard, "doctor", tiny, "--log", "-", "--json"], input=log, capture_output=True)
    steps = json.loads(done.stdout)["failures"][0]["checklist"]
    assert done.returncode == 2 and {step["state"] for step in steps} == {"found", "checked", "needs you"}
    assert any("lm_head.weight = model.embed_tokens.weight" in step["detail"] for step in steps)


def test_a_log_that_cannot_be_read_ends_with_its_status(tieshard, tmp_path):
    done = run([tieshard, "doctor", "--log", tmp_path / "none"])
    assert done.returncode == 2 and "[file-not-found]" in done.stderr
    done = run([tieshard, "doctor", "--log", tmp_path])
    assert done.returncode == 4 and "[file-unreadable]" in done.stderr


def test_a_log_that_is_no_text_or_empty_is_said_to_be(tieshard, tmp_path):
    log = gzip.compress((LOGS / "accelerate_untied_copies.log").read_bytes())
    for data, said in ((log, "gzip"), (b"", "empty"), ((8).to_bytes(8, "little") + b"{}      ", "not text")):
        for name, given in ((tmp_path / "log", None), ("-", data)):
            (tmp_path / "log").write_bytes(data)
            done = subprocess.run([tieshard, "doctor", "--log", name], input=given or b"", capture_output=True)
            assert done.returncode == 4 and said in done.stderr.decode() and b"[file-unreadable]" in done.stderr


def test_a_checkpoint_without_the_tie_makes_a_name_of_it(tieshard, reference):
    command = [tieshard, "doctor", reference / "llama_untied", "--log", "-", "--json"]
    done = subprocess.run(command, input=b"KeyError: 'lm_head.weight'\n", capture_output=True)
    assert [failure["failure"] for failure in json.loads(done.stdout)["failures"]] == ["name-not-found"]


def test_the_document_walks_from_each_traceback_to_its_fix_with_what_the_program_prints(tieshard, tmp_path):
    document = (ROOT / "docs" / "failures.md").read_text()
    walks = re.findall(r"```text\n(.*?)```\n\n```\n\$ tieshard doctor --log (\S+)\n(.*?)```", document, re.S)
    assert [name for _, name, _ in walks] == ["3870.log", "3838.log", "3821.log"]
    for log, name, shown in walks:
        (tmp_path / name).write_text(log)
        printed = run([tieshard, "doctor", "--log", tmp_path / name]).stdout
        assert printed.strip() == shown.strip(), printed


def test_the_document_lists_every_failure(tieshard):
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "failures.md").read_text(), re.M))
    sources = "".join(path.read_text() for path in (ROOT / "tieshard" / "core" / "failures").glob("failures_of_*.cpp"))
    assert listed == set(re.findall(r'\.id = "([a-z-]+)"', sources))
