"""Tokens per second of a training step of three shapes of about 100 M parameters: tieshard beside plain transformers, one
process and two threads each, float32, the same tokens (`make bench-families`).

    python bench/bench_families.py [--steps 8] [--batch 1] [--seq 512] [--threads 2] [--repeats 1] [--only NAME...]

A step is forward, backward and AdamW (transformers': fused). Of a mixture's experts transformers' loop and grouped products
run, and the faster counts (its batched products copy each expert for each token: more than 16 GiB here). Weights are random, made on the spot; the losses below each table show that the same work was
done. Goals: 1.0 times transformers' tokens per second for the dense shape, 1.5 times for the mixtures.
"""

import argparse
import json
import sys
import tempfile

from two_sides import PEER, machine, median, print_table, run, run_tieshard

WARM_UP = 2  # steps, of every side
PEER_STEP = PEER.parent / "transformers_peer.py"
SHARED = {"vocab_size": 32000, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2}
SHAPES = {
    "llama": ("LlamaConfig", 1.0, [None], {
        "hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": 16, "num_attention_heads": 10,
        "num_key_value_heads": 5, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", 1.5, ["eager", "grouped_mm"], {
        "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 384, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 16,
        "num_experts_per_tok": 4, "norm_topk_prob": True, "tie_word_embeddings": True}),
    "gpt_oss": ("GptOssConfig", 1.5, ["eager", "grouped_mm"], {
        "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 10, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": 128, "tie_word_embeddings": True}),
}


def make_model(name, folder):
    """A checkpoint of random float32 weights, made by a process of its own: this one keeps no memory of it."""
    architecture, _, _, sizes = SHAPES[name]
    script = (
        "import json, sys, torch, transformers\n"
        "architecture, sizes, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]\n"
        "torch.manual_seed(0)\n"
        "config = getattr(transformers, architecture)(**sizes)\n"
        "model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)\n"
        "model.save_pretrained(folder)\n"
        "print(sum(p.numel() for p in model.parameters()))\n")
    return int(run([sys.executable, "-c", script, architecture, json.dumps(SHARED | sizes), folder]))


def run_transformers(model, arguments, experts):
    extra = ["--experts", experts] if experts else []
    output = run([sys.executable, PEER_STEP, model, "--steps", WARM_UP + arguments.steps, "--batch", arguments.batch,
                  "--seq", arguments.seq, "--threads", arguments.threads, *extra])
    return json.loads(output.splitlines()[-1])


def measure(name, model, arguments):
    """{side: [results]}, the sides taking turns."""
    sides = {"tieshard": lambda: run_tieshard(
        model, 1, WARM_UP + arguments.steps, arguments.batch, arguments.seq, switches=["--no-export"], lr=1e-4,
        weight_decay=0.01, threads=arguments.threads)}
    for experts in SHAPES[name][2]:
        sides[f"transformers {experts or ''}".strip()] = lambda experts=experts: run_transformers(model, arguments, experts)
    results = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side, once in sides.items():
            results[side].append(once())
    return results


def report(results, goal, tokens):
    speed = {side: tokens / median([seconds for result in runs for seconds in result["step_s"][WARM_UP:]])
             for side, runs in results.items()}
    fastest = max(value for side, value in speed.items() if side != "tieshard")
    rows = [[side, f"{value:,.0f}", "" if side == "tieshard" else f"{speed['tieshard'] / value:.2f}"]
            for side, value in speed.items()]
    print_table(["", "tokens/s", "ours/peer"], rows)
    print(f"against the fastest: {speed['tieshard'] / fastest:.2f} (goal {goal})")
    for side, runs in results.items():
        print(f"losses {side:24} " + " ".join(f"{loss:.5f}" for loss in runs[-1]["losses"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    print(machine().replace("one thread a rank", f"one process, {arguments.threads} threads"))
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="tieshard-bench-") as folder:
            count = make_model(name, folder)
            print(f"\n{name}, {count / 1e6:.0f} M parameters, {arguments.batch} x {arguments.seq} tokens, float32")
            report(measure(name, folder, arguments), SHAPES[name][1], arguments.batch * arguments.seq)


if __name__ == "__main__":
    main()
