"""Write tiny Hugging Face checkpoints together with what transformers computes from them.

    python tests/reference/make_reference.py OUT [--only NAME...]

The numeric tests compare tieshard with these files. A second run finds the stamp OUT/.stamp (a hash of this script and
of the versions of the packages it uses) and returns at once; several runs at a time wait for each other. CASES lists
the names. OUT/NAME/ holds

  config.json, model.safetensors (or shards and model.safetensors.index.json)
      the checkpoint, as save_pretrained writes it; the v4 case has a config.json in the style of transformers 4
  reference.safetensors, float32 or int64
      input_ids    [B, T]      two sequences; the pad id, where there is one, stands among the tokens
      labels       [B, T]      -100 where there is no target; the two rows have different numbers of targets
      logits       [B, T, V]   before the first step
      loss         []          nats per target, one mean over all targets of the batch; position t predicts label t + 1
      grad.FQN     as FQN      d loss / d parameter; a tied weight once, under its canonical name
      step3.FQN    as FQN      the parameter after three AdamW steps on this batch
      losses       [3]         the loss before each of these steps
  reference.json
      versions, ties, optimizer, files, and how far float32 lies from the same computation in float64: the floor below
      which no tolerance can go. The script fails where that floor exceeds ROUNDING.

Everything is computed in float32 on one thread with eager attention, in eval mode, from the weights as they are stored.
The weights are random and large enough that a forgotten norm, a wrong rotary pair or a missed target shows.
"""

import argparse
import copy
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import sys
import zlib
from importlib.metadata import version

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
IGNORED = -100  # a label without a target
TOKENS = 21  # length of a sequence: odd, so that no number of ranks divides it
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEPS = 3
GRADIENT_FLOOR = 1e-5  # AdamW divides a gradient by its own size: below this, a step is made of rounding
ROUNDING = {"logits": 1.4e-5, "loss": 1e-6, "grad": 6e-6, "step3": 1.6e-6}  # float32 against float64, absolute

BASE = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64}

# config: changes to BASE; weights: the case whose random weights and batch are taken; shard: max_shard_size
CASES = {
    "llama_tied": {},
    "llama_tied_bf16": {"weights": "llama_tied", "dtype": "bfloat16"},
    "llama_tied_v4config": {"weights": "llama_tied", "v4_config": True},
    "llama_untied": {
        "config": {"tie_word_embeddings": False, "vocab_size": 103, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "head_dim": 14, "pad_token_id": 3},
        "shard": "60KB"},
    "llama3_rope": {
        "config": {"hidden_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
                   "head_dim": 16, "max_position_embeddings": 512, "rope_parameters": LLAMA3_ROPE}},
}


def stamp():
    """Changes whenever the files could: a hash of this script and of the packages that compute the numbers."""
    script = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    packages = {package: version(package) for package in PACKAGES}
    return json.dumps({"script": script, "python": sys.version.split()[0], **packages}, indent=2) + "\n"


def seed_of(name):
    return zlib.crc32(CASES[name].get("weights", name).encode())


def make_config(name):
    from transformers import LlamaConfig

    changes = dict(CASES[name].get("config", {}))
    base = {key: value for key, value in BASE.items() if key != "rope_theta" or "rope_parameters" not in changes}
    return LlamaConfig(**{**base, **changes})


def make_model(name):
    """A float32 model with random weights: norms around 1, matrices that keep activations near 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(make_config(name), dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed_of(name))
    for fqn, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            noise = 1 + 0.3 * noise
        elif "embed_tokens" in fqn:
            noise = 0.3 * noise
        else:
            noise = noise * parameter.shape[1] ** -0.5
        parameter.data.copy_(noise)
    return model


def make_batch(name, config):
    import torch

    generator = torch.Generator().manual_seed(seed_of(name) + 1)
    input_ids = torch.randint(0, config.vocab_size, (2, TOKENS), generator=generator)
    if config.pad_token_id is not None:
        input_ids[0, 8] = config.pad_token_id
    labels = input_ids.clone()
    labels[0, :7] = IGNORED
    labels[1, 12] = IGNORED
    labels[1, -1] = IGNORED
    return {"input_ids": input_ids, "labels": labels}


def in_v4_style(config, dtype):
    """config.json as transformers 4 wrote it: rotary settings and torch_dtype on the top level, no default head_dim."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = dtype
    config["transformers_version"] = "4.46.3"
    config.pop("dtype", None)
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]
    return config


def save_checkpoint(name, folder):
    import torch

    case = CASES[name]
    dtype = case.get("dtype", "float32")
    model = make_model(name).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=case.get("shard", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.get("v4_config"):
        path = folder / "config.json"
        path.write_text(json.dumps(in_v4_style(json.loads(path.read_text()), dtype), indent=2, sort_keys=True) + "\n")


def load_checkpoint(folder):
    """The checkpoint as transformers loads it, widened to float32; every weight has to come from a file."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (folder, problem, info[problem])
    return model.eval()


def train(model, batch):
    """Logits, loss and gradients of the first step; losses and parameters of STEPS steps of AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    results, losses = {}, []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(**batch, use_cache=False)
        output.loss.backward()
        losses.append(output.loss.detach())
        if step == 0:
            results = {"logits": output.logits.detach().clone(), "loss": output.loss.detach().clone()}
            results |= {"grad." + fqn: p.grad.clone() for fqn, p in model.named_parameters()}
        optimizer.step()
    results |= {"step3." + fqn: p.detach().clone() for fqn, p in model.named_parameters()}
    return results | {"losses": torch.stack(losses)}


def rounding(results, exact):
    """Largest absolute difference from float64 for each kind of result; parameters where |grad| > GRADIENT_FLOOR."""
    largest = dict.fromkeys(ROUNDING, 0.0)
    for key, value in results.items():
        kind, _, fqn = key.partition(".")
        if kind not in largest:
            continue
        difference = (exact[key] - value.double()).abs()
        if kind == "step3":
            difference = difference[exact["grad." + fqn].abs() > GRADIENT_FLOOR]
        largest[kind] = max(largest[kind], difference.max().item())
    return largest


def tie_groups(model):
    names = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(fqn)
    return [{"canonical": group[0], "aliases": group[1:]} for group in names.values() if len(group) > 1]


def check_case(name, model, results, floor):
    """The case tests what it is for: finite numbers, gradients everywhere, a falling loss, room below tolerances."""
    for key, value in results.items():
        assert value.isfinite().all(), (name, key)
        assert not key.startswith("grad.") or value.abs().max() > 1e-4, (name, key, "gradient is almost zero")
    assert results["losses"][-1] < results["losses"][0], name
    assert bool(tie_groups(model)) == model.config.tie_word_embeddings, name
    for kind, bound in ROUNDING.items():
        assert floor[kind] <= bound, (name, kind, floor[kind], bound)


def make_case(name, folder):
    import torch
    from safetensors.torch import save_file

    save_checkpoint(name, folder)
    model = load_checkpoint(folder)
    batch = make_batch(name, model.config)
    results = train(copy.deepcopy(model), batch)
    floor = rounding(results, train(copy.deepcopy(model).double(), batch))
    check_case(name, model, results, floor)
    save_file({key: value.contiguous() for key, value in (batch | results).items()}, folder / "reference.safetensors")
    targets = (batch["labels"][:, 1:] != IGNORED).sum(dim=1).tolist()
    facts = {
        "name": name, **{package: version(package) for package in PACKAGES},
        "stored_dtype": CASES[name].get("dtype", "float32"),
        "parameters": sum(p.numel() for p in model.parameters()), "ties": tie_groups(model),
        "files": sorted(file.name for file in folder.glob("model*.safetensors")),
        "targets_per_row": targets, "loss": results["loss"].item(), "losses": results["losses"].tolist(),
        "optimizer": {"name": "AdamW", **ADAMW, "steps": STEPS, "decay": "every parameter, norms too"},
        "gradient_floor": GRADIENT_FLOOR, "float64_difference": floor}
    (folder / "reference.json").write_text(json.dumps(facts, indent=2) + "\n")
    return f"{name:20} {facts['parameters']:7,} parameters in {len(facts['files'])} file(s)  loss {facts['loss']:.6f}"


def make_all(out, names):
    """Make the named cases in a folder beside each one, then move them into place."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in names:
        staging = out / f".{name}.new"
        shutil.rmtree(staging, ignore_errors=True)
        print(make_case(name, staging), flush=True)
        shutil.rmtree(out / name, ignore_errors=True)
        staging.rename(out / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=CASES, help="make these again, whatever the stamp")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp_file, now = out / ".stamp", stamp()
        if arguments.only:
            make_all(out, arguments.only)
        elif not stamp_file.exists() or stamp_file.read_text() != now:
            stamp_file.unlink(missing_ok=True)
            make_all(out, CASES)
            stamp_file.write_text(now)


if __name__ == "__main__":
    main()
