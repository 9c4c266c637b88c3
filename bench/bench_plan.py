"""Opening, planning and diagnosing checkpoints of many tensors: `tieshard plan` and `doctor` (`make bench-plan`).

    python bench/bench_plan.py [--tensors 1000 10000 100000] [--ranks 1024] [--repeats 5] [--keep DIR]

Each checkpoint is a tied Llama with as many layers as it takes, in 2 shards for each 1,000 tensors. Its files are
sparse: a header and a hole, so that a checkpoint of terabytes takes some MB of disk. The whole process is measured,
from exec to exit: open, validate, resolve ties, plan and print. time: median of the wall clock; processor: of all
threads, which a busy machine changes less; peak: resident memory; ratio: of processor time and of memory to the row
before. Where the cost grows linearly it is at most that of the tensors, 10. The last line is the doctor on a real model
of 272 tensors, whose values it looks at.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HIDDEN, INTERMEDIATE, VOCAB, HEADS, KEY_VALUE_HEADS = 2048, 5504, 32000, 16, 4
TENSORS_IN_LAYER, TENSORS_IN_SHARD, BF16_BYTES = 9, 500, 2
TARGET_SECONDS, TARGET_MIB, TARGET_DOCTOR_SECONDS, TARGET_START_SECONDS = 2.0, 1024, 1.0, 0.05


def layer_shapes(layer):
    """Name and shape of each tensor of a layer, sorted by name."""
    key_value = HIDDEN // HEADS * KEY_VALUE_HEADS
    return [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in (
        ("input_layernorm", [HIDDEN]), ("mlp.down_proj", [HIDDEN, INTERMEDIATE]),
        ("mlp.gate_proj", [INTERMEDIATE, HIDDEN]), ("mlp.up_proj", [INTERMEDIATE, HIDDEN]),
        ("post_attention_layernorm", [HIDDEN]), ("self_attn.k_proj", [key_value, HIDDEN]),
        ("self_attn.o_proj", [HIDDEN, HIDDEN]), ("self_attn.q_proj", [HIDDEN, HIDDEN]),
        ("self_attn.v_proj", [key_value, HIDDEN]))]


def write_shard(path, tensors):
    """A header and a hole in place of the data. Gives the bytes of the data."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        begin, end = end, end + BF16_BYTES * (shape[0] * shape[1] if len(shape) > 1 else shape[0])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def write_checkpoint(directory, tensors):
    """A tied Llama of about `tensors` tensors. Gives their number."""
    layers = (tensors - 2) // TENSORS_IN_LAYER
    stored = [("model.embed_tokens.weight", [VOCAB, HIDDEN])]
    for layer in range(layers):
        stored += layer_shapes(layer)
    stored.append(("model.norm.weight", [HIDDEN]))
    shards = [stored[at:at + TENSORS_IN_SHARD] for at in range(0, len(stored), TENSORS_IN_SHARD)]
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += write_shard(directory / file, shard)
        weight_map |= {name: file for name, _ in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
              "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers, "num_attention_heads": HEADS,
              "num_key_value_heads": KEY_VALUE_HEADS, "tie_word_embeddings": True, "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    return len(stored), len(shards)


def measure(program, verb, directory, ranks):
    """Wall seconds, processor seconds and peak MiB of one run of `tieshard VERB`, from exec to exit."""
    started = time.perf_counter()
    with subprocess.Popen([program, verb, directory, "--ranks", str(ranks)], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{program} {verb} {directory} ended with status {process.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path, help="make the checkpoints here, and leave them")
    arguments = parser.parse_args()
    program = pathlib.Path(os.environ.get("TIESHARD_BIN_DIR", ROOT / "build" / "bin")) / "tieshard"

    print(f"--ranks {arguments.ranks}; {os.cpu_count()} cores; medians of {arguments.repeats}")
    print(f"{'verb':>6}  {'tensors':>9}  {'shards':>6}  {'time':>9}  {'processor':>9}  {'ratio':>6}  {'peak':>10}  {'ratio':>6}")
    last = {}
    with tempfile.TemporaryDirectory(prefix="tieshard-bench-") as folder:
        for tensors in arguments.tensors:
            directory = (arguments.keep or pathlib.Path(folder)) / str(tensors)
            directory.mkdir(parents=True, exist_ok=True)
            stored, shards = write_checkpoint(directory, tensors)
            for verb in ("plan", "doctor"):
                runs = [measure(program, verb, directory, arguments.ranks) for _ in range(arguments.repeats)]
                seconds, busy, mib = (statistics.median(figures) for figures in zip(*runs))
                before = last.get(verb)
                ratios = ["", ""] if before is None else [f"{busy / before[1]:.1f} x", f"{mib / before[2]:.1f} x"]
                print(f"{verb:>6}  {stored:>9,}  {shards:>6}  {seconds * 1000:>6,.0f} ms  {busy * 1000:>6,.0f} ms  {ratios[0]:>6}  {mib:>6,.1f} MiB  "
                      f"{ratios[1]:>6}", flush=True)
                last[verb] = seconds, busy, mib
    real = ROOT / "build" / "smollm2"
    subprocess.run([sys.executable, ROOT / "tools" / "make_smollm2.py", real], check=True, stdout=subprocess.DEVNULL)
    start = statistics.median(measure(program, "doctor", real, 8)[0] for _ in range(arguments.repeats))
    size = program.stat().st_size
    print(f"doctor on SmolLM2-135M: {start * 1000:.0f} ms; the program: {size / 1e6:.1f} MB")
    bounds = [("plan under 2 s and 1 GiB", last["plan"][0] < TARGET_SECONDS and last["plan"][2] < TARGET_MIB),
              ("doctor under 1 s", last["doctor"][0] < TARGET_DOCTOR_SECONDS),
              ("doctor on SmolLM2 under 50 ms", start < TARGET_START_SECONDS),
              ("program under 10 MB", size < 10e6)]
    for what, met in bounds:
        print(f"{what}: {'met' if met else 'MISSED'}")
    kept = all(met for _, met in bounds)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
