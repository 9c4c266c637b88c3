"""`tieshard generate` against transformers: greedy tokens, the cache, where a text ends, texts and their helper."""

import json
import os
import shutil
import sys

import pytest
import torch
from running import clean_environment, run, run_well
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

PROMPT = [3, 14, 15, 92, 65, 35]
TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def generate(tieshard, tiny):
    def run_generate(*flags, model=tiny, env=None):
        done = run_well([tieshard, "generate", "--model", model, "--json", *flags],
                        env=env or clean_environment(TIESHARD_PYTHON=sys.executable), timeout=300)
        return json.loads(done.stdout)

    return run_generate


def tokens_of(tokens):
    return ",".join(map(str, tokens))


def greedy(folder, prompt, count):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, len(prompt):].tolist()


def test_greedy_tokens_are_those_of_transformers(generate, tiny):
    got = generate("--prompt-tokens", tokens_of(PROMPT), "--max-new-tokens", 24)
    assert got["tokens"] == greedy(tiny, PROMPT, 24) and got["prompt_tokens"] == PROMPT


def test_64_greedy_tokens_of_the_real_model_are_those_of_transformers(generate, smollm2):
    prompt = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(TEXT).ids
    got = generate("--prompt", TEXT, "--max-new-tokens", 64, "--threads", 2, model=smollm2)
    assert got["prompt_tokens"] == prompt
    assert got["tokens"] == greedy(smollm2, prompt, 64)
    assert got["text"] == Tokenizer.from_file(str(smollm2 / "tokenizer.json")).decode(got["tokens"])


def test_the_cache_changes_no_token(generate):
    flags = ["--prompt-tokens", tokens_of(PROMPT), "--max-new-tokens", 24]
    assert generate(*flags)["tokens"] == generate(*flags, "--no-cache")["tokens"]


def test_sampling_hangs_on_the_seed_and_top_k_1_is_greedy(generate):
    flags = ["--prompt-tokens", tokens_of(PROMPT), "--max-new-tokens", 16, "--ignore-eos"]
    one, again, other = (generate(*flags, "--temperature", 1.5, "--seed", seed)["tokens"] for seed in (1, 1, 2))
    assert one == again != other
    assert generate(*flags, "--top-k", 1)["tokens"] == generate(*flags)["tokens"]
    assert generate(*flags, "--top-p", 0.001)["tokens"] == generate(*flags)["tokens"]


def test_a_text_ends_at_its_end_token(generate, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    all_tokens = generate("--prompt-tokens", tokens_of(PROMPT), "--max-new-tokens", 12, "--ignore-eos")["tokens"]
    end = all_tokens[4]
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    got = generate("--prompt-tokens", tokens_of(PROMPT), "--max-new-tokens", 12, model=tmp_path / "model")
    assert got["tokens"] == all_tokens[:all_tokens.index(end) + 1] and got["ended"] is True
    assert got["tokens"] == greedy(tmp_path / "model", PROMPT, 12)


def test_tokens_need_no_tokenizer_and_a_text_says_what_is_missing(tieshard, smollm2, tiny):
    without = clean_environment(TIESHARD_PYTHON="/no/such/python")
    done = run([tieshard, "generate", "--model", smollm2, "--prompt-tokens", "1,2", "--max-new-tokens", 2], env=without)
    assert done.returncode == 0 and "tokens  " in done.stdout and "tokens only" in done.stderr, done.stderr
    done = run([tieshard, "generate", "--model", smollm2, "--prompt", TEXT], env=without)
    assert done.returncode == 2 and "pip install tokenizers" in done.stderr and "[file-not-found]" in done.stderr, done.stderr
    done = run([tieshard, "generate", "--model", tiny, "--prompt", TEXT], env=clean_environment())
    assert done.returncode == 2 and "tokenizer.json" in done.stderr, done.stderr


def test_a_python_without_the_package_is_told_from_none(tieshard, smollm2, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -S -I \"$@\"\n")  # without site-packages
    os.chmod(bare, 0o755)
    done = run([tieshard, "generate", "--model", smollm2, "--prompt", TEXT], env=clean_environment(TIESHARD_PYTHON=bare))
    assert done.returncode == 2 and "got a Python without it" in done.stderr, done.stderr


def test_a_tokenizer_that_cannot_be_read_is_refused(tieshard, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    done = run([tieshard, "generate", "--model", tmp_path / "model", "--prompt", TEXT],
               env=clean_environment(TIESHARD_PYTHON=sys.executable))
    assert done.returncode == 2 and "[data-malformed]" in done.stderr and "tokenizer.json" in done.stderr, done.stderr


@pytest.mark.parametrize(("flags", "parts"), [
    ([], ["--prompt", "got neither"]),
    (["--prompt", "a", "--prompt-tokens", "1"], ["got both"]),
    (["--prompt-tokens", "1,,2"], ["--prompt-tokens", "got 1,,2"]),
    (["--prompt-tokens", "1,"], ["got 1,"]),
    (["--prompt-tokens", "-1"], ["got -1"]),
    (["--prompt-tokens", "1", "--seed", "3"], ["--seed", "got none"]),
    (["--prompt-tokens", "1", "--temperature", "0"], ["--temperature", "a number above 0"]),
    (["--prompt-tokens", "1", "--top-k", "0"], ["--top-k", "got 0"]),
    (["--prompt-tokens", "1", "--max-new-tokens", "0"], ["--max-new-tokens", "got 0"])], ids=lambda value: " ".join(map(str, value)))
def test_flags_that_cannot_be_used_are_refused(tieshard, tiny, flags, parts):
    done = run([tieshard, "generate", "--model", tiny, *flags], env=clean_environment())
    assert done.returncode == 2 and "[bad-flag]" in done.stderr, done.stderr
    assert [part for part in parts if part not in done.stderr] == [], done.stderr


def test_a_prompt_outside_of_the_vocabulary_is_refused(tieshard, tiny):
    done = run([tieshard, "generate", "--model", tiny, "--prompt-tokens", "1,101"], env=clean_environment())
    assert done.returncode == 2 and "[token-out-of-range]" in done.stderr and "token 1" in done.stderr, done.stderr


def test_more_tokens_than_the_context_are_warned_of(tieshard, tiny):
    context = json.loads((tiny / "config.json").read_text())["max_position_embeddings"]
    done = run([tieshard, "generate", "--model", tiny, "--prompt-tokens", "1", "--max-new-tokens", context, "--json"],
               env=clean_environment())
    assert done.returncode == 0 and "[sequence-too-long]" in done.stderr, done.stderr


def test_help_shows_an_example(tieshard):
    assert "Examples:" in run_well([tieshard, "generate", "--help"]).stdout
    assert "generate " in run_well([tieshard, "--help"]).stdout
