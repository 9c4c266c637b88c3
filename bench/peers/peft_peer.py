"""The same job under PyTorch with PEFT: a LoRA adapter on a whole base in each rank, gradients averaged over the ranks.

    torchrun --nproc_per_node 2 bench/peers/peft_peer.py MODEL ADAPTER --steps 3 --dtype bfloat16

ADAPTER is a PEFT directory that the training begins with. Rank 0 prints one JSON line: step_s and losses of each step (the
mean of the ranks' losses), rss_mib of each rank (its peak). The tokens are those of arithmetic_tokens.py.

    peft_peer.py MODEL ADAPTER --make --r 16 --alpha 32 --targets q_proj v_proj

writes such a directory, with PEFT's initial values, and ends.
"""

import argparse
import json
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import torch.distributed as dist
from arithmetic_tokens import batch_tokens
from fsdp2_peer import peak_rss_mib
from transformers import AutoModelForCausalLM


def make(arguments):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    config = peft.LoraConfig(
        r=arguments.r, lora_alpha=arguments.alpha, target_modules=arguments.targets, task_type="CAUSAL_LM")
    peft.get_peft_model(base, config).save_pretrained(arguments.adapter)


def average_gradients(parameters):
    """Over the ranks, in one collective."""
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for parameter in parameters:
        parameter.grad.copy_(flat[offset:offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()


def train(model, arguments):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=arguments.lr, weight_decay=arguments.weight_decay)
    vocabulary = model.get_base_model().config.vocab_size
    seconds, losses = [], []
    model.train()
    for step in range(arguments.steps):
        tokens = batch_tokens(step, dist.get_rank(), arguments.batch * arguments.seq, vocabulary)
        ids = torch.from_numpy(tokens).view(arguments.batch, arguments.seq)
        dist.barrier()
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        average_gradients(parameters)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return seconds, losses


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--r", type=int, default=16)
    parser.add_argument("--alpha", type=int, default=32)
    parser.add_argument("--targets", nargs="+", default=["q_proj", "v_proj"])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--dtype", default="bfloat16", help="of the base; the adapter is float32")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    if arguments.make:
        make(arguments)
        return
    dist.init_process_group("gloo")
    base = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=getattr(torch, arguments.dtype), attn_implementation="sdpa")
    model = peft.PeftModel.from_pretrained(base, arguments.adapter, is_trainable=True)
    seconds, losses = train(model, arguments)
    rss = [None] * dist.get_world_size()
    dist.all_gather_object(rss, {"peak": peak_rss_mib()})
    if dist.get_rank() == 0:
        print(json.dumps({"rss_mib": rss, "step_s": seconds, "losses": losses}), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end aborts in some runs, a thread of torch still being alive


if __name__ == "__main__":
    main()
