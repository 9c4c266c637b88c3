"""MXFP4 as openai/gpt-oss stores it: numpy arrays to blocks and scales, and a state dict of a GPT-OSS model in it."""

import re

import numpy as np

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)  # of nibbles 0 to 7; 8 is the sign
GROUP = 32  # consecutive inputs under one scale


def encode(weight):
    """[E, in, out] float32 -> blocks U8 [E, out, in / 32, 16], scales U8 [E, out, in / 32]."""
    turned = weight.transpose(0, 2, 1)
    groups = turned.reshape(*turned.shape[:2], -1, GROUP)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    exponent = np.where(largest > 0, np.floor(np.log2(np.maximum(largest, 2.0 ** -100))) - 2, 0)
    distance = np.abs(np.abs(groups / np.exp2(exponent))[..., None] - MAGNITUDES)
    nibbles = distance.argmin(axis=-1).astype(np.uint8) | np.where(np.signbit(groups), 8, 0).astype(np.uint8)
    scales = np.where(largest > 0, exponent + 127, 0)[..., 0].astype(np.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scales


def encoded_state(model):
    """Experts' matrices as blocks and scales, one group of them zeros; everything else in bfloat16."""
    import torch

    state = {}
    for fqn, tensor in model.state_dict().items():
        if not re.search(r"experts\.(gate_up|down)_proj$", fqn):
            state[fqn] = tensor.to(torch.bfloat16).contiguous()
            continue
        weight = tensor.numpy().copy()
        weight[0, :GROUP, 0] = 0
        for part, values in zip(("blocks", "scales"), encode(weight)):
            state[f"{fqn}_{part}"] = torch.from_numpy(values).contiguous()
    return state


QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
