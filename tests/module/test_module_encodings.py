"""Encoded parameters, whole and in boxes cut in any dimensions: the numbers that transformers and torch make of them."""

import itertools
import json

import pytest
import tieshard
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def save(folder, tensors, method, **more):
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "quokka", "quantization_config": {"quant_method": method, **more}}))
    return folder


class Model(torch.nn.Module):
    def __init__(self, dtype, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")))


def parts_of(size):
    return {(0, size), (0, size // 2), (size // 3, size - size // 3), (size - 1, 1), (size // 2, 0)}


def assert_boxes_are_parts_of(source, name, whole):
    """Every combination of parts of the dimensions, into memory of torch's and into memory made for it."""
    for box in itertools.product(*(sorted(parts_of(size)) for size in whole.shape)):
        offset, size = [part[0] for part in box], [part[1] for part in box]
        expected = whole[tuple(slice(begin, begin + count) for begin, count in box)]
        given = torch.full(size, 7, dtype=whole.dtype)
        (none, made), _ = source.read([(name, given.data_ptr() if given.numel() else 0, str(whole.dtype), offset, size),
                                       (name, 0, str(whole.dtype), offset, size)])
        assert none is None and torch.equal(given, expected), box
        assert made is None if expected.numel() == 0 else torch.equal(torch.from_dlpack(made), expected), box


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mxfp4(tmp_path, dtype):
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (3, 10, 3), dtype=torch.uint8)
    save(tmp_path, {"experts_blocks": blocks, "experts_scales": scales}, "mxfp4")
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    model = Model(dtype, experts=list(expected.shape))
    entry, = tieshard.load(model, tmp_path).entries
    assert torch.equal(model.experts, expected) and entry.encoding == "mxfp4" and entry.scales == "experts_scales"
    source = tieshard._core.ModelSource(str(tmp_path), [("experts", list(expected.shape), str(dtype), 1)])
    assert_boxes_are_parts_of(source, "experts", expected)


def test_fp8(tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(40, 24).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 2) + 0.5
    save(tmp_path, {"linear.weight": weight, "linear.weight_scale_inv": scale}, "fp8", weight_block_size=[16, 16])
    blown = scale.repeat_interleave(16, 0)[:40].repeat_interleave(16, 1)[:, :24]
    model = torch.nn.Module()
    model.linear = torch.nn.Linear(24, 40, bias=False, device="meta")
    ledger = tieshard.load(model, tmp_path)
    assert torch.equal(model.linear.weight, weight.float() * blown) and not ledger.unused
    assert_boxes_are_parts_of(tieshard._core.ModelSource(str(tmp_path), [("linear.weight", [40, 24], "torch.float32", 1)]),
                              "linear.weight", weight.float() * blown)


@pytest.mark.parametrize("shape", [(), (11,), (6, 7), (4, 5, 6), (3, 4, 2, 5)])
def test_plain_and_initialised(tmp_path, shape):
    torch.manual_seed(0)
    stored = torch.randn(shape)
    save_file({"weight": stored}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    table = [(name, list(shape), "torch.float32", number) for number, name in enumerate(("weight", "fresh"))]
    source = tieshard._core.ModelSource(str(tmp_path), table, init={"fresh": "normal(0.02)"})
    assert_boxes_are_parts_of(source, "weight", stored)
    whole = torch.from_dlpack(source.read([("fresh", 0, "torch.float32", [0] * len(shape), list(shape))])[0][0])
    assert_boxes_are_parts_of(source, "fresh", whole)
    with pytest.raises(tieshard.UsageError, match="bad-slice"):
        source.read([("weight", 0, "torch.float32", [1] * (len(shape) or 1), [size for size in shape] or [1])])
