"""Tied checkpoints and accelerate's FSDP2 on CPU ranks, for the tests of the three issues."""

import json

import torch
from make_logs import fsdp2_accelerator, tied_config
from safetensors.torch import load_file, save_file

IDS = torch.arange(1, 13).reshape(1, 12)


def save_tied(directory, copies=""):
    """A tied Llama. copies: "equal" or "other" stores lm_head.weight too, as it is or with other values."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(11)
    LlamaForCausalLM(tied_config()).save_pretrained(directory)
    store_head(directory, "model.embed_tokens.weight", copies)
    return directory


def save_gpt_oss(directory, copies="equal"):
    """A tiny tied GPT-OSS with both names stored."""
    from module_models import class_of, config_of

    torch.manual_seed(11)
    class_of("gpt_oss_tied").from_config(config_of("gpt_oss_tied")).save_pretrained(directory)
    store_head(directory, "model.embed_tokens.weight", copies)
    return directory


def store_head(directory, table, copies):
    if copies:
        tensors = load_file(directory / "model.safetensors")
        tensors["lm_head.weight"] = tensors[table].clone() if copies == "equal" else torch.randn_like(tensors[table])
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is True


def accelerator(ram_efficient=False, block="LlamaDecoderLayer"):
    """A fresh Accelerator with FSDP2 on the CPU; accelerate keeps what the one before was told."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return fsdp2_accelerator(ram_efficient, block)


def on_meta(directory):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).eval()


def whole(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory).eval()


def two_steps(model, optimizer):
    """Losses of two steps and of the third forward."""
    losses = []
    for step in range(3):
        loss = model(input_ids=IDS, labels=IDS).loss
        losses.append(loss.item())
        if step < 2:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


def expected_losses(directory, **options):
    model = whole(directory)
    return two_steps(model, torch.optim.AdamW(model.parameters(), **options))
