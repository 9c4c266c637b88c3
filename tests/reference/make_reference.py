"""Write tiny Hugging Face checkpoints together with what transformers computes from them.

    python tests/reference/make_reference.py OUT [--only NAME... | --salts NAME]

The numeric tests compare tieshard with these files. A second run finds the stamp OUT/.stamp (a hash of these scripts
and of the versions of the packages they use) and returns at once; several runs at a time wait for each other. CASES of
families.py lists the names. OUT/NAME/ holds

  config.json, model.safetensors (or shards and model.safetensors.index.json)
      the checkpoint, as save_pretrained writes it; the v4 cases have a config.json in the style of transformers 4
  reference.safetensors, float32 or int64
      input_ids    [B, T]      two sequences; the pad id, where there is one, stands among the tokens
      decoder_input_ids [B, T] of an encoder-decoder, whose input_ids are [B, S]: the labels, shifted right
      labels       [B, T]      -100 where there is no target; the two rows have different numbers of targets
      logits       [B, T, V]   before the first step
      logits_bf16, logits_f16  the same in float32, of the model computed in these dtypes
      loss         []          nats per target, one mean over all targets of the batch; position t predicts label t + 1
      grad.FQN     as FQN      d loss / d parameter; a tied weight once, under its canonical name. Experts that
                               transformers keeps in one parameter and files in many have the files' names and shapes
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
import re
import shutil
import sys
import zlib
from importlib.metadata import version

import mxfp4
from families import CASES, EMBEDDING_SCALES, EMBEDDINGS, GAINS

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
IGNORED = -100  # a label without a target
TOKENS = 21  # length of a sequence: odd, so that no number of ranks divides it
SOURCE_TOKENS = 26  # of what an encoder is given
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEPS = 3
ROUTER_MARGIN = 0.03  # between logits of the last chosen expert and the first rejected: less is a toss-up in bfloat16
GRADIENT_FLOOR = 1e-5  # AdamW divides a gradient by its own size: below this, a step is made of rounding
EXPERT_NAMES = {  # in the files of families whose experts transformers stacks in memory
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), ("mlp", "gate_proj", "up_proj", "down_proj"))}
ROUNDING = {"logits": 1.4e-5, "loss": 1e-6, "grad": 6e-6, "step3": 1.6e-6}  # float32 against float64, absolute

def stamp():
    """Changes whenever the files could: a hash of the scripts and of the packages that compute the numbers."""
    scripts = b"".join(file.read_bytes() for file in sorted(pathlib.Path(__file__).parent.glob("*.py")))
    script = hashlib.sha256(scripts).hexdigest()
    packages = {package: version(package) for package in PACKAGES}
    return json.dumps({"script": script, "python": sys.version.split()[0], **packages}, indent=2) + "\n"


def seed_of(name):
    source = CASES[name].get("like", name)
    return zlib.crc32(source.encode()) + CASES[source].get("salt", 0)


def make_config(name):
    import transformers

    return getattr(transformers, CASES[name]["class"])(**CASES[name]["config"])


def auto_class(config):
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def random_values(fqn, shape, family, generator):
    """Norms vary around 1 (Gemma's around 0, which it adds 1 to), biases around 0; matrices keep activations near 1."""
    import torch

    noise = torch.randn(shape, generator=generator)
    if fqn.endswith("sinks"):
        return noise
    if len(shape) == 1 or fqn.endswith("_bias"):
        is_norm = re.search(r"(norm|ln_\w+)\.weight$", fqn) and not family.startswith("gemma")
        return float(bool(is_norm)) + 0.3 * noise
    if fqn.endswith(EMBEDDINGS):
        return EMBEDDING_SCALES.get(family, 0.3) * noise
    stacked = family == "gpt_oss" and ".experts." in fqn
    inputs = shape[-2] if stacked or re.search(r"\.c_(attn|proj|fc)\.", fqn) else shape[-1]
    return next(gain for pattern, gain in GAINS if re.search(pattern, fqn)) * inputs ** -0.5 * noise


def make_model(name):
    """A float32 model with random weights."""
    import torch

    config = make_config(name)
    model = auto_class(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed_of(name))
    for fqn, parameter in model.named_parameters():
        parameter.data.copy_(random_values(fqn, parameter.shape, config.model_type, generator))
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
    if not config.is_encoder_decoder:
        return {"input_ids": input_ids, "labels": labels}
    start = torch.full((2, 1), config.decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    source = torch.randint(0, config.vocab_size, (2, SOURCE_TOKENS), generator=generator)
    return {"input_ids": source, "labels": labels,
            "decoder_input_ids": shifted.masked_fill(shifted == IGNORED, config.pad_token_id)}


def in_v4_style(config, dtype):
    """config.json as transformers 4 wrote it: rotary settings and torch_dtype on the top level, no default head_dim."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = dtype
    config["transformers_version"] = "4.46.3"
    config.pop("dtype", None)
    if "head_dim" in config and config["head_dim"] == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]
    return config


def save_checkpoint(name, folder):
    import torch

    case = CASES[name]
    dtype = case.get("dtype", "float32")
    model = make_model(name)
    stored = copy.deepcopy(model).to(getattr(torch, dtype))
    stored.save_pretrained(folder, max_shard_size=case.get("shard", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if case.get("v4_config"):
        config = in_v4_style(config, dtype)
    if case.get("mxfp4"):
        save_mxfp4(model, folder)
        config["quantization_config"] = mxfp4.QUANTIZATION
        del config["torch_dtype"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save_mxfp4(model, folder, files=3):
    """In shards that are numbered from 0, as those of openai/gpt-oss-20b."""
    from safetensors.torch import save_file

    (folder / "model.safetensors").unlink()
    state = mxfp4.encoded_state(model)
    names, weight_map = sorted(state), {}
    count = -(-len(names) // files)
    for index in range(files):
        file = f"model-{index:05}-of-{files - 1:05}.safetensors"
        part = {fqn: state[fqn] for fqn in names[index * count:(index + 1) * count]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in state.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def load_checkpoint(name, folder, dtype="float32"):
    """The checkpoint as transformers loads it, in `dtype`; every weight has to come from a file."""
    import torch
    from transformers import Mxfp4Config

    extra = {"quantization_config": Mxfp4Config(dequantize=True)} if CASES[name].get("mxfp4") else {}
    model, info = auto_class(make_config(name)).from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", output_loading_info=True, **extra)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (folder, problem, info[problem])
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval().requires_grad_(True)


def narrow_logits(name, folder, batch):
    """Logits of the model computed in bfloat16 and float16, from the same weights."""
    import torch

    logits = {}
    for short, dtype in (("bf16", "bfloat16"), ("f16", "float16")):
        with torch.no_grad():
            logits[f"logits_{short}"] = load_checkpoint(name, folder, dtype)(**batch, use_cache=False).logits.float()
    return logits


def as_stored(results, family):
    """Experts that files hold one by one and transformers in one parameter, under the names and shapes of the files."""
    if family not in EXPERT_NAMES:
        return results
    moe, gate, up, down = EXPERT_NAMES[family]
    stored = {}
    for key, value in results.items():
        match = re.fullmatch(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)", key)
        if not match:
            stored[key.replace(".mlp.gate.weight", f".{moe}.gate.weight")] = value
            continue
        for expert, part in enumerate(value):
            prefix = f"{match[1]}.{moe}.experts.{expert}"
            halves = part.chunk(2) if match[2] == "gate_up_proj" else [part]
            names = (gate, up) if match[2] == "gate_up_proj" else (down,)
            stored |= {f"{prefix}.{each}.weight": half.clone() for each, half in zip(names, halves)}
    return stored


def router_margin(model, batch):
    """The smallest gap between the logits of the last chosen and the first rejected expert; None without a router."""
    import torch

    gaps = []

    def look(module, _, output):
        ordered = output[0].sort(dim=-1, descending=True).values
        gaps.append((ordered[:, module.top_k - 1] - ordered[:, module.top_k]).min().item())

    hooks = [module.register_forward_hook(look) for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    with torch.no_grad():
        model(**batch, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps, default=None)


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


def check_case(name, model, results, floor, margin):
    """The case tests what it is for: finite numbers, gradients everywhere, a falling loss, room below tolerances."""
    for key, value in results.items():
        assert value.isfinite().all(), (name, key)
        assert not key.startswith("grad.") or value.abs().max() > 1e-5, (name, key, "gradient is almost zero")
    assert results["losses"][-1] < results["losses"][0], name
    assert bool(tie_groups(model)) == model.config.tie_word_embeddings, name
    assert margin is None or margin >= ROUTER_MARGIN, (name, "a router is near a tie", margin)
    for kind, bound in ROUNDING.items():
        assert floor[kind] <= bound, (name, kind, floor[kind], bound)


def make_case(name, folder):
    import torch
    from safetensors.torch import save_file

    save_checkpoint(name, folder)
    model = load_checkpoint(name, folder)
    batch = make_batch(name, model.config)
    results = train(copy.deepcopy(model), batch)
    floor = rounding(results, train(copy.deepcopy(model).double(), batch))
    check_case(name, model, results, floor, router_margin(model, batch))
    results = as_stored(results, model.config.model_type) | narrow_logits(name, folder, batch)
    save_file({key: value.contiguous() for key, value in (batch | results).items()}, folder / "reference.safetensors")
    shift = 0 if model.config.is_encoder_decoder else 1
    targets = (batch["labels"][:, shift:] != IGNORED).sum(dim=1).tolist()
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


def usable_salts(name, count=200):
    """Draws of the weights with which no router is near a tie, and how far the nearest is; rounding is not looked at."""
    import torch

    torch.set_num_threads(1)
    for salt in range(count):
        CASES[name]["salt"] = salt
        model = make_model(name).eval()
        model.set_experts_implementation("eager")
        margin = router_margin(model, make_batch(name, model.config))
        if margin is None:
            sys.exit(f"{name} is no mixture: it has no router")
        if margin >= ROUTER_MARGIN:
            yield salt, margin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=CASES, help="make these again, whatever the stamp")
    parser.add_argument("--salts", metavar="NAME", choices=CASES, help="list salts for a mixture, and write nothing")
    arguments = parser.parse_args()
    if arguments.salts:
        for salt, margin in usable_salts(arguments.salts):
            print(f"salt {salt:3}  margin {margin:.3f}", flush=True)
        return
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
