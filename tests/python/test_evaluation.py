"""`tieshard eval` and `train --eval-data` against transformers: loss, masks, formats, any number of ranks."""

import json
import math
import shutil
import sys

import numpy
import pytest
import torch
from running import ROOT, clean_environment, read_metrics, run, run_well
from safetensors.torch import load_file, save_file
from token_files import write_llmc, write_megatron, write_raw
from transformers import AutoModelForCausalLM

VOCAB, SEQ, SAMPLES = 101, 16, 7
BOUND = 1e-5  # of a loss near 4.6, float32


@pytest.fixture(scope="module")
def tokens():
    return numpy.random.default_rng(5).integers(0, VOCAB, SAMPLES * SEQ + 3)


@pytest.fixture(scope="module")
def evaluate(tieshard, tiny):
    def run_eval(data, *flags, model=tiny, seq=SEQ):
        done = run_well([tieshard, "eval", "--model", model, "--data", data, "--seq", seq, "--json", *flags],
                        env=clean_environment(), timeout=300)
        return json.loads(done.stdout)

    return run_eval


def expected_loss(folder, tokens, seq, labels=None):
    """(mean, targets) by transformers in float32, each sequence on its own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = len(tokens) // seq * seq
    ids = torch.tensor(numpy.asarray(tokens[:count]).reshape(-1, seq).astype(numpy.int64))
    labels = ids if labels is None else torch.tensor(numpy.asarray(labels[:count]).reshape(-1, seq))
    total = targets = 0
    with torch.no_grad():
        for row, wanted in zip(ids, labels):
            logits = model(row[None]).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, wanted[1:], ignore_index=-100, reduction="sum").double().item()
            targets += int((wanted[1:] != -100).sum())
    return total / targets, targets


def test_the_loss_is_that_of_transformers(evaluate, tiny, tokens, tmp_path):
    got = evaluate(write_raw(tmp_path / "t.bin", tokens))
    loss, targets = expected_loss(tiny, tokens, SEQ)
    assert got["loss"] == pytest.approx(loss, abs=BOUND) and got["targets"] == targets == SAMPLES * (SEQ - 1)
    assert got["perplexity"] == pytest.approx(math.exp(got["loss"]), rel=1e-12) and got["samples"] == SAMPLES


@pytest.mark.parametrize("batch", [1, 2])
def test_any_number_of_ranks_gives_the_same_bits(evaluate, tokens, tmp_path, batch):
    data = write_raw(tmp_path / "t.bin", tokens)
    losses = {evaluate(data, "--ranks", ranks, "--batch", batch)["loss"] for ranks in (1, 2, 3)}
    assert len(losses) == 1, losses


def test_every_format_holds_the_same_tokens(evaluate, tokens, tmp_path):
    cut = [tokens[:40], tokens[40:41], tokens[41:]]
    files = [write_raw(tmp_path / "raw.bin", tokens), write_llmc(tmp_path / "llmc.bin", tokens),
             write_llmc(tmp_path / "wide.bin", tokens, wide=True), write_megatron(tmp_path / "a", cut),
             write_megatron(tmp_path / "b", cut, "int32"), write_megatron(tmp_path / "c", cut, "uint8")]
    losses = {evaluate(data)["loss"] for data in files}
    assert len(losses) == 1, losses


def test_a_mask_leaves_targets_out(evaluate, tiny, tokens, tmp_path):
    mask = numpy.random.default_rng(6).integers(0, 2, len(tokens)).astype(numpy.uint8)
    mask.tofile(tmp_path / "mask")
    got = evaluate(write_raw(tmp_path / "t.bin", tokens), "--label-mask", tmp_path / "mask")
    loss, targets = expected_loss(tiny, tokens, SEQ, numpy.where(mask == 0, -100, tokens))
    assert got["loss"] == pytest.approx(loss, abs=BOUND) and got["targets"] == targets


def loss_of_documents(folder, rows):
    """(mean, targets) where each document of each row is computed by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = targets = 0
    with torch.no_grad():
        for document in (torch.tensor(part)[None] for row in rows for part in row if len(part) > 1):
            logits = model(document).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, document[0, 1:], reduction="sum").double().item()
            targets += document.shape[1] - 1
    return total / targets, targets


def test_documents_in_one_sample_do_not_see_one_another(evaluate, tiny, tmp_path):
    random = numpy.random.default_rng(8)
    tokens = random.integers(1, VOCAB, SAMPLES * SEQ)
    tokens[random.choice(len(tokens), 20, replace=False)] = 0  # ends a document
    rows = [[part.tolist() for part in numpy.split(row, numpy.flatnonzero(row == 0) + 1)] for row in tokens.reshape(-1, SEQ)]
    loss, targets = loss_of_documents(tiny, rows)
    got = evaluate(write_raw(tmp_path / "t.bin", tokens), "--document-separator", 0, "--ranks", 2)
    assert got["targets"] == targets and got["loss"] == pytest.approx(loss, abs=BOUND)
    indexed = write_megatron(tmp_path / "m", numpy.split(tokens, numpy.flatnonzero(tokens == 0) + 1))
    assert evaluate(indexed, "--documents")["loss"] == got["loss"] != evaluate(indexed)["loss"]


def test_only_the_first_samples_where_that_is_asked(evaluate, tiny, tokens, tmp_path):
    got = evaluate(write_raw(tmp_path / "t.bin", tokens), "--samples", 3, "--batch", 2, "--ranks", 3)
    assert got["samples"] == 3 and got["loss"] == pytest.approx(expected_loss(tiny, tokens[:3 * SEQ], SEQ)[0], abs=BOUND)


def test_a_mask_without_a_target_is_refused(tieshard, tiny, tokens, tmp_path):
    write_raw(tmp_path / "t.bin", tokens)
    (tmp_path / "mask").write_bytes(bytes(len(tokens)))
    done = run([tieshard, "eval", "--model", tiny, "--data", tmp_path / "t.bin", "--seq", SEQ, "--ranks", 2,
                "--label-mask", tmp_path / "mask"], env=clean_environment())
    assert done.returncode == 2 and "nothing in a token file is a target" in done.stderr, done.stderr


def test_a_loss_that_is_no_number_is_an_error(tieshard, tiny, tokens, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    done = run([tieshard, "eval", "--model", broken, "--data", write_raw(tmp_path / "t.bin", tokens), "--seq", SEQ],
               env=clean_environment())
    assert done.returncode == 2 and "a loss is no finite number [not-finite]" in done.stderr, done.stderr
    assert "perplexity" not in done.stdout


def test_the_perplexity_of_a_real_text_is_that_of_transformers(evaluate, smollm2, tmp_path):
    run_well([sys.executable, ROOT / "tools" / "tokenize_text.py", "--tokenizer", smollm2 / "tokenizer.json", "--out",
              tmp_path / "docs.bin", "--python-docs"])
    tokens = numpy.fromfile(tmp_path / "docs.bin", dtype="<u2")[:6 * 128]
    got = evaluate(write_raw(tmp_path / "text.bin", tokens), "--ranks", 2, model=smollm2, seq=128)
    assert got["perplexity"] == pytest.approx(math.exp(expected_loss(smollm2, tokens, 128)[0]), rel=1e-3)


@pytest.fixture(scope="module")
def runs(tieshard, tiny, tokens, tmp_path_factory):
    """The same run with and without evaluation."""
    folder = tmp_path_factory.mktemp("runs")
    write_raw(folder / "train.bin", tokens)
    write_raw(folder / "eval.bin", tokens[::-1])
    command = [tieshard, "train", "--model", tiny, "--data", folder / "train.bin", "--steps", 5, "--seq", SEQ, "--ranks", 2,
               "--lr", 1e-3, "--threads", 1]
    evaluating = ["--eval-data", folder / "eval.bin", "--eval-every", 2, "--eval-samples", 5, "--tensorboard",
                  "--reshard-after-forward", "false"]
    said = run_well([*command, "--out", folder / "with", *evaluating], env=clean_environment()).stdout
    run_well([*command, "--out", folder / "without", "--no-export"], env=clean_environment())
    return folder, said


def test_evaluations_stand_in_the_metrics_and_change_no_step(runs):
    folder, said = runs
    lines, plain = read_metrics(folder / "with"), read_metrics(folder / "without")
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 4, 5]
    assert [line["loss"] for line in lines] == [line["loss"] for line in plain]
    assert all(line["eval_targets"] == 5 * (SEQ - 1) for line in lines if "eval_loss" in line)
    summary = json.loads((folder / "with" / "summary.json").read_text())
    assert [entry["step"] for entry in summary["evaluations"]] == [2, 4, 5]
    assert said.count("eval    ") == 4 and "data    raw uint16, 115 tokens, 7 samples" in said, said


def test_the_last_evaluation_is_that_of_the_export(runs, evaluate):
    folder, _ = runs
    last = read_metrics(folder / "with")[-1]
    got = evaluate(folder / "eval.bin", "--samples", 5, model=folder / "with" / "export")
    assert got["loss"] == last["eval_loss"]


def test_tensorboard_reads_the_same_numbers(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = runs
    assert not (folder / "without" / "tensorboard").exists()
    events = EventAccumulator(str(folder / "with" / "tensorboard"))
    events.Reload()
    lines = read_metrics(folder / "with")
    single = lambda number: pytest.approx(number, rel=1e-6)  # stored as float32
    for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/lr", "lr"), ("eval/loss", "eval_loss")):
        expected = [(line["step"], single(line[key])) for line in lines if key in line]
        assert [(event.step, event.value) for event in events.Scalars(tag)] == expected
    assert len(events.Scalars("train/tokens_per_second")) == 5


def test_help_and_the_document_name_the_same_flags(tieshard):
    shown = run_well([tieshard, "train", "--help"]).stdout
    document = (ROOT / "docs" / "training.md").read_text()
    for flag in ("--data-format", "--data-dtype", "--label-mask", "--documents", "--document-separator", "--eval-data",
                 "--eval-label-mask", "--eval-every", "--eval-samples", "--tensorboard", "--config", "--dry-run"):
        assert f"\n  {flag} " in shown and f"`{flag}" in document, flag
    assert "Examples:" in run_well([tieshard, "eval", "--help"]).stdout and "tieshard eval" in document
