"""What is stored encoded loads as the numbers that transformers and torch make of it, bit by bit."""

import json
import shutil

import pytest
import torch
from running import run_well
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BITS = {2: torch.int16, 4: torch.int32}


def save(directory, tensors, **config):
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "quokka"} | config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def loaded(tieshard, directory, out, ranks, *options):
    """The parts of each parameter by rank; a part that is empty is left out."""
    run_well([tieshard, "load", directory, "--ranks", ranks, "--out", out, *options])
    parts = {}
    for rank in range(ranks):
        for name, part in load_file(out / f"rank-{rank:05d}-of-{ranks:05d}.safetensors").items():
            parts.setdefault(name, []).append(part)
    return parts


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    as_bits = BITS[got.element_size()]
    different = (got.contiguous().view(as_bits) != expected.contiguous().view(as_bits)) & ~expected.isnan()
    assert not different.any(), f"{int(different.sum())} of {got.numel()} elements differ"
    assert torch.equal(got.isnan(), expected.isnan())


def whole(parts, dim):
    return torch.cat([part for part in parts if part.numel()], dim)


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """Every nibble under every scale in `every`, and random experts of uneven sizes in `experts`."""
    torch.manual_seed(0)
    every = torch.arange(256, dtype=torch.uint8)
    tensors = {
        "every_blocks": every.reshape(1, 1, 16, 16).expand(1, 256, 16, 16).contiguous(),
        "every_scales": every.reshape(1, 256, 1).expand(1, 256, 16).contiguous(),
        "experts_blocks": torch.randint(0, 256, (3, 70, 3, 16), dtype=torch.uint8),
        "experts_scales": torch.randint(110, 140, (3, 70, 3), dtype=torch.uint8),
    }
    tensors["experts_blocks"][0, 0] = 0
    tensors["experts_scales"][0, 0] = 0
    return save(tmp_path_factory.mktemp("mxfp4") / "model", tensors, quantization_config={"quant_method": "mxfp4"})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ranks", "dim"), [(1, 2), (2, 0), (2, 1), (5, 1), (3, 2)])
def test_mxfp4_is_what_transformers_dequantises(tieshard, mxfp4, tmp_path, dtype, ranks, dim):
    dims = [word for name in ("every", "experts") for word in ("--dim", f"{name}={dim}")]
    parts = loaded(tieshard, mxfp4, tmp_path / "out", ranks, "--param-dtype", dtype, *dims)
    stored = load_file(mxfp4 / "model.safetensors")
    for name in ("every", "experts"):
        expected = convert_moe_packed_tensors(stored[name + "_blocks"], stored[name + "_scales"], dtype=DTYPES[dtype])
        assert_same_bits(whole(parts[name], dim), expected)


@pytest.fixture(scope="module")
def fp8(tmp_path_factory):
    """Every finite pattern of both formats, with blocks of scales, a scale a row, and one for all."""
    torch.manual_seed(0)
    patterns = torch.arange(256, dtype=torch.uint8).repeat(48).reshape(96, 128)
    tensors = {}
    for name, dtype, scale in [("blocks", torch.float8_e4m3fn, torch.rand(3, 4) * 3e-3),
                               ("rows", torch.float8_e5m2, torch.randn(96, 1)),
                               ("one", torch.float8_e4m3fn, torch.tensor(0.0371)),
                               ("half", torch.float8_e4m3fn, torch.rand(3, 4).bfloat16())]:
        tensors[name + ".weight"] = patterns.clone().view(dtype)
        tensors[name + ".weight_scale_inv"] = scale
    return save(tmp_path_factory.mktemp("fp8") / "model", tensors,
                quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ranks", "dim"), [(1, "last"), (2, "first"), (3, "last"), (5, "first")])
def test_fp8_is_what_transformers_dequantises(tieshard, fp8, tmp_path, dtype, ranks, dim):
    parts = loaded(tieshard, fp8, tmp_path / "out", ranks, "--param-dtype", dtype, "--shard-dim", dim)
    stored = load_file(fp8 / "model.safetensors")
    assert len(parts) == 4
    for name, pieces in parts.items():
        scale = stored[name + "_scale_inv"]
        expected = Fp8Dequantize(None)._dequantize_one(stored[name], scale, DTYPES[dtype])
        assert_same_bits(whole(pieces, 1 if dim == "last" else 0), expected)


def test_unscaled_fp8_converts_as_torch_does(tieshard, tmp_path):
    patterns = torch.arange(256, dtype=torch.uint8)
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    tensors = {str(kind)[6:]: patterns.clone().view(kind) for kind in kinds}
    directory = save(tmp_path / "model", tensors)
    parts = loaded(tieshard, directory, tmp_path / "out", 2, "--param-dtype", "float32", "--no-check-values")
    for kind in kinds:
        assert_same_bits(whole(parts[str(kind)[6:]], 0), patterns.view(kind).float())


GPT_OSS = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 64, "hidden_size": 2880,
           "intermediate_size": 2880, "num_hidden_layers": 1, "num_local_experts": 32, "num_experts_per_tok": 4,
           "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "tie_word_embeddings": False,
           "layer_types": ["full_attention"], "quantization_config": {"quant_method": "mxfp4"}}
PEAK_BEYOND_SHARDS = 128 << 20


def gpt_oss_layer(directory):
    """One layer with the experts of openai/gpt-oss-20b: 32 of 2880 x 5760 and 2880 x 2880, as MXFP4."""
    torch.manual_seed(0)
    layer, experts = "model.layers.0.", "model.layers.0.mlp.experts."
    shapes = {"model.embed_tokens.weight": [64, 2880], "lm_head.weight": [64, 2880], "model.norm.weight": [2880],
              layer + "input_layernorm.weight": [2880], layer + "post_attention_layernorm.weight": [2880],
              layer + "self_attn.sinks": [2], layer + "mlp.router.weight": [32, 2880], layer + "mlp.router.bias": [32],
              experts + "gate_up_proj_bias": [32, 5760], experts + "down_proj_bias": [32, 2880]}
    for name, rows, columns in [("q", 128, 2880), ("k", 64, 2880), ("v", 64, 2880), ("o", 2880, 128)]:
        shapes[f"{layer}self_attn.{name}_proj.weight"] = [rows, columns]
        shapes[f"{layer}self_attn.{name}_proj.bias"] = [rows]
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    for name, rows in [("gate_up_proj", 5760), ("down_proj", 2880)]:
        tensors[f"{experts}{name}_blocks"] = torch.randint(0, 256, (32, rows, 90, 16), dtype=torch.uint8)
        tensors[f"{experts}{name}_scales"] = torch.randint(115, 130, (32, rows, 90), dtype=torch.uint8)
    return save(directory, tensors, **GPT_OSS)


@pytest.fixture(scope="module")
def real_size(tmp_path_factory):
    return gpt_oss_layer(tmp_path_factory.mktemp("gpt_oss") / "model")


@pytest.mark.parametrize("dim", [1, 2])
def test_a_gpt_oss_layer_of_real_size_peaks_at_its_shards_and_has_transformers_bits(tieshard, real_size, tmp_path, dim):
    experts = "model.layers.0.mlp.experts."
    dims = [word for name in ("gate_up_proj", "down_proj") for word in ("--dim", f"{experts}{name}={dim}")]
    done = run_well([tieshard, "load", real_size, "--ranks", 2, "--param-dtype", "bfloat16", "--json", *dims,
                     "--out", tmp_path / "out"])
    for rank in json.loads(done.stdout)["per_rank"]:
        assert rank["peak_bytes"] <= rank["shard_bytes"] + PEAK_BEYOND_SHARDS, f"rank {rank['rank']}"
    with safe_open(real_size / "model.safetensors", "pt") as stored:
        for name in ("gate_up_proj", "down_proj"):
            assert_same_experts(stored, experts + name, tmp_path / "out", dim)
    shutil.rmtree(tmp_path / "out")


def assert_same_experts(stored, name, out, dim, ranks=2, every=5):
    """Compares some of the experts, one at a time: transformers' dequantisation takes seconds for each, and several
    times its size."""
    blocks, scales = stored.get_slice(f"{name}_blocks"), stored.get_slice(f"{name}_scales")
    for rank in range(ranks):
        with safe_open(out / f"rank-{rank:05d}-of-{ranks:05d}.safetensors", "pt") as shards:
            shard = shards.get_slice(name)
            for expert in range(0, blocks.get_shape()[0], every):
                part = slice(expert, expert + 1)
                expected = convert_moe_packed_tensors(blocks[part], scales[part])
                assert_same_bits(shard[part], expected.chunk(ranks, dim)[rank])
