"""LoRA both ways with PEFT: adapters trained here run there, adapters made there train here, and both merge to one model."""

import json
import shutil

import numpy
import peft
import pytest
import torch
from running import ROOT, clean_environment, read_metrics, run, run_well
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

VOCAB, SEQ, STEPS = 101, 16, 4

# What `--lora` says, what else the run is told, and the same for PEFT.
ADAPTERS = {
    "attention": ("r=4,alpha=8,targets=q_proj,v_proj", [], {"target_modules": ["q_proj", "v_proj"]}),
    "all-linear": ("r=4,alpha=8,rslora=true,targets=all-linear", [],
                   {"target_modules": "all-linear", "use_rslora": True}),
    "one-layer": ("r=4,alpha=8,targets=up_proj,layers=1", [],
                  {"target_modules": ["up_proj"], "layers_to_transform": [1]}),
    "saved-modules": ("r=4,alpha=8,targets=q_proj,save=norm", [],
                      {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "tied-both": ("r=4,alpha=8,targets=q_proj,lm_head", ["--lora-tied", "both"],
                  {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True}),
    "tied-head": ("r=4,alpha=8,targets=q_proj,lm_head", ["--lora-tied", "named"],
                  {"target_modules": ["q_proj", "lm_head"]}),
    "tied-embedding": ("r=4,alpha=8,targets=embed_tokens", ["--lora-tied", "named"],
                       {"target_modules": ["embed_tokens"]}),
}
MERGEABLE = [name for name in ADAPTERS if not name.startswith("tied-")]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    numpy.random.default_rng(3).integers(0, VOCAB, STEPS * 6 * SEQ).astype("<u2").tofile(path)
    return path


@pytest.fixture(scope="module")
def train(tieshard, tiny, tokens):
    """Trains on the tied tiny Llama; gives the lines of metrics.jsonl."""

    def train_once(out, *flags, ranks=2, lr=1e-2):
        run_well([tieshard, "train", "--model", tiny, "--data", tokens, "--out", out, "--steps", STEPS, "--lr", lr,
                  "--seq", SEQ, "--ranks", ranks, "--no-shuffle", *flags], env=clean_environment(), timeout=120)
        return read_metrics(out)

    return train_once


def base_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def made_by_peft(base, folder, options):
    """An adapter of PEFT's own with random values in A and B, and the model that it is on."""
    torch.manual_seed(11)
    model = peft.get_peft_model(base_model(base), peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
    tied = options.get("ensure_weight_tying", False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name and not (tied and "lm_head.lora_" in name):  # those share the embedding's memory
                parameter.copy_(0.3 * torch.randn(parameter.shape))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model.eval()


def logits_of(tieshard, model, ids, folder, *flags):
    save_file({"input_ids": ids}, folder / "ids.safetensors")
    (folder / "logits.safetensors").unlink(missing_ok=True)
    run_well([tieshard, "forward", model, "--tokens", folder / "ids.safetensors", "--out", folder / "logits.safetensors",
              *flags], env=clean_environment())
    return load_file(folder / "logits.safetensors")["logits"]


def some_ids():
    return torch.randint(0, VOCAB, (2, 20), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_trained_here_gives_the_same_logits_in_peft(tieshard, tiny, train, tmp_path, name):
    lora, flags, _ = ADAPTERS[name]
    train(tmp_path / "run", "--lora", lora, *flags)
    assert not (tmp_path / "run" / "export").exists()
    adapter = tmp_path / "run" / "adapter"
    base, ids = base_model(tiny), some_ids()
    with torch.no_grad():
        plain = base(input_ids=ids).logits
        expected = peft.PeftModel.from_pretrained(base, adapter)(input_ids=ids).logits
    ours = logits_of(tieshard, tiny, ids, tmp_path, "--adapter", adapter, *flags, "--ranks", 2)
    assert (expected - plain).abs().max() > 1e-3, "the adapter changes nothing: the comparison would see no fault"
    assert (ours - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_made_by_peft_trains_here_on_three_ranks(tiny, tokens, train, tmp_path, name):
    _, flags, options = ADAPTERS[name]
    model = made_by_peft(tiny, tmp_path / "adapter", options)
    lines = train(tmp_path / "run", "--adapter", tmp_path / "adapter", *flags, ranks=3)
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype="<u2")[:3 * SEQ].astype(numpy.int64)).view(3, SEQ)
    with torch.no_grad():
        expected = model(input_ids=ids, labels=ids).loss.item()
        plain = base_model(tiny)(input_ids=ids, labels=ids).loss.item()
    assert abs(expected - plain) > 1e-3
    assert lines[0]["loss"] == pytest.approx(expected, abs=2e-5)
    assert all(0 < line["grad_norm"] < 1e3 for line in lines)


def test_the_names_and_shapes_are_those_that_peft_writes(tiny, train, tmp_path):
    for name in ("attention", "all-linear", "saved-modules", "tied-both"):
        lora, flags, options = ADAPTERS[name]
        train(tmp_path / name, "--lora", lora, *flags)
        made_by_peft(tiny, tmp_path / f"{name}-peft", options)
        ours, theirs = (load_file(folder / "adapter_model.safetensors")
                        for folder in (tmp_path / name / "adapter", tmp_path / f"{name}-peft"))
        theirs = {key: value for key, value in theirs.items() if "base_layer" not in key}
        assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
        configs = [json.loads((folder / "adapter_config.json").read_text())
                   for folder in (tmp_path / name / "adapter", tmp_path / f"{name}-peft")]
        for field in ("r", "lora_alpha", "peft_type", "task_type", "use_rslora", "bias", "modules_to_save"):
            assert configs[0][field] == configs[1][field], field


def test_saved_on_two_ranks_it_goes_on_on_three(train, tmp_path):
    lora, _, _ = ADAPTERS["attention"]
    first = train(tmp_path / "first", "--lora", lora, ranks=2)
    runs = {ranks: train(tmp_path / f"on-{ranks}", "--adapter", tmp_path / "first" / "adapter", "--batch", 6 // ranks,
                         ranks=ranks) for ranks in (1, 3)}
    assert [line["loss"] for line in runs[3]] == pytest.approx([line["loss"] for line in runs[1]], abs=1e-5)
    assert runs[3][0]["loss"] != pytest.approx(first[0]["loss"], abs=1e-4)


def test_the_same_seed_gives_the_same_adapter_on_any_number_of_ranks(train, tmp_path):
    lora, _, _ = ADAPTERS["attention"]
    adapters = []
    for ranks in (1, 2, 3):
        train(tmp_path / str(ranks), "--lora", lora, "--batch", 6 // ranks, "--seed", 5, "--weight-decay", 0, ranks=ranks,
              lr=0)
        adapters.append(load_file(tmp_path / str(ranks) / "adapter" / "adapter_model.safetensors"))
    for name, value in adapters[0].items():
        assert all(torch.equal(value, other[name]) for other in adapters[1:]), name
        assert value.any() == ("lora_A" in name), name


WAYS = {
    "replicas": ["--replicas", 2], "checkpointing": ["--activation-checkpointing"], "kept": ["--reshard-after-forward", "false"],
    "neighbours": ["--reshard-after-forward", 2], "prefetch": ["--forward-prefetch", 1, "--backward-prefetch", 1],
    "first": ["--shard-dim", "first"], "accumulated": ["--batch", 1, "--gradient-accumulation-steps", 2]}


@pytest.fixture(scope="module")
def plain_losses(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "run"
    return [line["loss"] for line in train(out, "--lora", ADAPTERS["all-linear"][0], "--batch", 2, ranks=4)]


@pytest.mark.parametrize("way", WAYS)
def test_another_way_of_sharding_is_the_same_training(train, plain_losses, tmp_path, way):
    flags = WAYS[way] if "--batch" in WAYS[way] else [*WAYS[way], "--batch", 2]
    lines = train(tmp_path / "run", "--lora", ADAPTERS["all-linear"][0], *flags, ranks=4)
    assert [line["loss"] for line in lines] == pytest.approx(plain_losses, abs=2e-5)


def test_a_bfloat16_base_trains_in_its_own_dtype_and_in_float32(train, plain_losses, tmp_path):
    """The base is rounded to 8 bits once; the adapter and its moments are float32 either way."""
    for compute in ("bfloat16", "float32"):
        lines = train(tmp_path / compute, "--lora", ADAPTERS["all-linear"][0], "--batch", 2, "--param-dtype", "bfloat16",
                      "--compute-dtype", compute, ranks=4)
        assert [line["loss"] for line in lines] == pytest.approx(plain_losses, abs=0.1)
        stored = load_file(tmp_path / compute / "adapter" / "adapter_model.safetensors")
        assert {value.dtype for value in stored.values()} == {torch.float32}


def test_dropout_is_reproducible(train, tmp_path):
    runs = [[line["loss"] for line in train(tmp_path / str(index), "--lora", "r=4,dropout=0.5,targets=all-linear",
                                            "--seed", seed)] for index, seed in enumerate((1, 1, 2))]
    assert runs[0] == runs[1] and runs[0] != runs[2]


@pytest.mark.parametrize("case", ["llama_tied", "llama_tied_bf16", "llama_untied"])
@pytest.mark.parametrize("name", MERGEABLE)
def test_merging_is_pefts_merge_and_unload(tieshard, reference, tmp_path, case, name):
    base = reference / case
    model = made_by_peft(base, tmp_path / "adapter", ADAPTERS[name][2])
    run_well([tieshard, "merge-adapter", base, tmp_path / "adapter", tmp_path / "merged"])
    expected = model.merge_and_unload().state_dict()
    merged, info = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert merged.config.tie_word_embeddings == (case != "llama_untied")
    narrow = case == "llama_tied_bf16"
    changed = 0
    for file in (tmp_path / "merged").glob("*.safetensors"):
        for key, value in load_file(file).items():
            assert value.dtype == (torch.bfloat16 if narrow else torch.float32)
            bound = expected[key].abs() * 2.0 ** -8 if narrow else 2e-6 * (1 + expected[key].abs())  # one rounding of a sum
            assert ((value.float() - expected[key]).abs() <= bound + 1e-6).all(), key
            changed += 1
    assert changed == len({value.data_ptr() for value in expected.values()})


def test_a_tied_weight_is_merged_once_for_both_uses(tieshard, tiny, tmp_path):
    """Against PEFT's logits with the adapter beside the base: its own merge adds to a tied weight once for each use."""
    model = made_by_peft(tiny, tmp_path / "adapter", ADAPTERS["tied-both"][2])
    run_well([tieshard, "merge-adapter", tiny, tmp_path / "adapter", tmp_path / "merged"])
    merged = base_model(tmp_path / "merged")
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    ids = some_ids()
    with torch.no_grad():
        assert (merged(input_ids=ids).logits - model(input_ids=ids).logits).abs().max() <= 1e-3


@pytest.mark.parametrize("name", ["tied-head", "tied-embedding"])
def test_an_adapter_for_one_use_of_a_tied_weight_does_not_merge(tieshard, tiny, tmp_path, name):
    made_by_peft(tiny, tmp_path / "adapter", ADAPTERS[name][2])
    done = run([tieshard, "merge-adapter", tiny, tmp_path / "adapter", tmp_path / "merged"])
    assert done.returncode == 2 and "[tied-target]" in done.stderr and not (tmp_path / "merged").exists(), done.stderr


def test_a_merged_run_is_the_run_with_its_adapter(tieshard, tiny, train, tmp_path):
    lora, _, _ = ADAPTERS["all-linear"]
    train(tmp_path / "run", "--lora", lora)
    run_well([tieshard, "merge-adapter", tiny, tmp_path / "run" / "adapter", tmp_path / "merged"])
    ids = some_ids()
    beside = logits_of(tieshard, tiny, ids, tmp_path, "--adapter", tmp_path / "run" / "adapter")
    assert (logits_of(tieshard, tmp_path / "merged", ids, tmp_path) - beside).abs().max() <= 1e-4


@pytest.mark.parametrize("choice", ["canonical", "alias", "untie"])
def test_a_base_with_two_unlike_copies_merges_to_what_was_chosen_for_whoever_reads_it(tieshard, tiny, tmp_path, choice):
    base, adapter, merged = tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"
    shutil.copytree(tiny, base)
    tensors = load_file(base / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding + 0.1 * torch.randn(embedding.shape, generator=torch.Generator().manual_seed(5))
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    made_by_peft(tiny, adapter, ADAPTERS["attention" if choice == "untie" else "tied-both"][2])
    own = {key: value for key, value in load_file(adapter / "adapter_model.safetensors").items() if "base_layer" not in key}
    save_file(own, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    ids = some_ids()
    beside = logits_of(tieshard, base, ids, tmp_path, "--adapter", adapter, "--on-tie-conflict", choice)
    run_well([tieshard, "merge-adapter", base, adapter, merged, "--on-tie-conflict", choice])
    assert (logits_of(tieshard, merged, ids, tmp_path) - beside).abs().max() <= 1e-4
    model, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.tie_word_embeddings == (choice != "untie")
    with torch.no_grad():
        assert (model(input_ids=ids).logits - beside).abs().max() <= 1e-3


REFUSED = [
    (["--lora", "r=4,targets=lm_head"], "tied-target", "--lora-tied both"),
    (["--lora", "r=4,targets=c_attn"], "unknown-target", "q_proj"),
    (["--lora", "r=4"], "bad-flag", "targets"),
    (["--lora", "r=0,targets=q_proj"], "bad-flag", "r"),
    (["--lora", "r=1000001,targets=q_proj"], "bad-flag", "from 1 to 1000000"),
    (["--lora", ""], "bad-flag", "got nothing"),
    (["--adapter", ""], "bad-flag", "got nothing"),
    (["--lora", "targets=q_proj,exclude=self_attn"], "unknown-target", "exclude_modules, self_attn"),
    (["--lora", "targets=q_proj,layers=0,77"], "unknown-target", "layers_to_transform, 77"),
    (["--lora-tied", "both"], "bad-flag", "--lora or --adapter"),
    (["--lora", "r=4,targets=q_proj", "--lora-tied", "all"], "bad-flag", "both, named or refuse"),
    (["--adapter", "nowhere"], "directory-not-found", "nowhere"),
    (["--adapter", "nowhere", "--lora", "r=4,targets=q_proj"], "bad-flag", "got both"),
]


@pytest.mark.parametrize(("flags", "code", "part"), REFUSED, ids=[" ".join(flags) for flags, _, _ in REFUSED])
def test_what_cannot_be_is_refused_before_a_step(tieshard, tiny, tokens, tmp_path, flags, code, part):
    done = run([tieshard, "train", "--model", tiny, "--data", tokens, "--out", tmp_path / "run", "--seq", SEQ, *flags],
               env=clean_environment())
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(f"[{code}]") == 1 and part in done.stderr and "fix: " in done.stderr, done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


PEFT_ONLY = [{"use_dora": True}, {"bias": "lora_only"}, {"init_lora_weights": "pissa"}, {"lora_bias": True},
             {"trainable_token_indices": [1, 2]}, {"layer_replication": [[0, 2], [1, 3]]}]


@pytest.mark.parametrize("feature", PEFT_ONLY, ids=[next(iter(feature)) for feature in PEFT_ONLY])
def test_a_feature_of_peft_that_is_not_here_is_refused_by_name(tieshard, tiny, tokens, tmp_path, feature):
    options = {"target_modules": ["q_proj"], **feature}
    model = peft.get_peft_model(base_model(tiny), peft.LoraConfig(r=4, task_type="CAUSAL_LM", **options))
    model.save_pretrained(tmp_path / "adapter")
    field = next(iter(feature))
    for command in (["train", "--model", tiny, "--data", tokens, "--out", tmp_path / "run", "--seq", SEQ,
                     "--adapter", tmp_path / "adapter"], ["merge-adapter", tiny, tmp_path / "adapter", tmp_path / "out"]):
        done = run([tieshard, *command], env=clean_environment())
        assert done.returncode == 2 and "[adapter-config]" in done.stderr and field in done.stderr, done.stderr


def test_help_and_the_document_name_the_same_flags(tieshard):
    document = (ROOT / "docs" / "lora.md").read_text()
    shown = run_well([tieshard, "train", "--help"]).stdout
    for flag in ("--lora", "--adapter", "--lora-tied"):
        assert f"\n  {flag} " in shown and f"`{flag}" in document, flag
    for key in ("r", "alpha", "dropout", "targets", "targets-regex", "exclude", "save", "layers", "init", "rslora"):
        assert f"\n| `{key}` |" in document, key
    assert "merge-adapter" in run_well([tieshard, "--help"]).stdout and "tieshard merge-adapter" in document
    assert "\n  --lora-tied " in run_well([tieshard, "merge-adapter", "--help"]).stdout
