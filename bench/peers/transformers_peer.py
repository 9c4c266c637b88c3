"""A training step of plain transformers in one process: forward with labels, backward, fused AdamW.

    python transformers_peer.py MODEL_DIR --steps 8 --batch 1 --seq 256 --threads 2 [--experts eager|grouped_mm|batched_mm]

Prints one line of JSON: step_s and losses of each step. The attention is what transformers chooses by itself; of the
experts' implementations the caller names one. The same tokens as tieshard is given: arithmetic_tokens.py.
"""

import argparse
import json
import time

import torch
import transformers
from arithmetic_tokens import batch_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--experts")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).train()
    if arguments.experts:
        model.set_experts_implementation(arguments.experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    step_s, losses = [], []
    for step in range(arguments.steps):
        tokens = batch_tokens(step, 0, arguments.batch * arguments.seq, model.config.vocab_size)
        ids = torch.from_numpy(tokens).view(arguments.batch, arguments.seq)
        start = time.perf_counter()
        output = model(input_ids=ids, labels=ids, use_cache=False)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step_s.append(time.perf_counter() - start)
        losses.append(output.loss.item())
    print(json.dumps({"step_s": step_s, "losses": losses}))


if __name__ == "__main__":
    main()
