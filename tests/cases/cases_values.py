"""Encodings, values, and how they are cut into parts."""

import struct

import numpy as np
from draft import INDEX, SINGLE, case
from models import (EMBED, EXPERTS, HEAD, NORM, fp8_llama, fp8_values, gpt_oss, llama, mxfp4_values)
from stored import file_bytes, floats_as, header_bytes, numbered, patterned, table_of

DOWN = "model.layers.0.mlp.down_proj.weight"
GATE_UP = EXPERTS + "gate_up_proj"


def in_blocks(rows, columns):
    return lambda height, width: (-(-height // rows), -(-width // columns))


# ---- MXFP4
@case("ok")
def mxfp4_experts(d):
    """Blocks and scales together are the values."""
    d.use(gpt_oss())
    for name in (GATE_UP, EXPERTS + "down_proj"):
        d.loads(name, values=mxfp4_values(d.tensors[name + "_blocks"], d.tensors[name + "_scales"]))


@case("ok")
def experts_that_are_not_quantised(d):
    """The same model with its experts in BF16."""
    d.use(gpt_oss(quantised=False))
    d.loads(GATE_UP)


@case("refuse", "scale-missing")
def mxfp4_blocks_without_scales(d):
    """Blocks alone have no values."""
    d.use(gpt_oss())
    d.drop(GATE_UP + "_scales")
    d.names(GATE_UP + "_blocks", GATE_UP + "_scales")


@case("refuse", "missing-parameter")
def mxfp4_scales_without_blocks(d):
    """Scales alone have none either."""
    d.use(gpt_oss())
    d.drop(GATE_UP + "_blocks")
    d.names(GATE_UP)


@case("refuse", "shape-mismatch")
def mxfp4_scales_of_another_shape(d):
    """One scale a row in place of one for 32 values."""
    d.use(gpt_oss())
    d.tensors[GATE_UP + "_scales"] = patterned("scales", (2, 64, 1), "U8")
    d.names(GATE_UP + "_scales", "[2, 64, 1]")


@case("refuse", "shape-mismatch")
def mxfp4_blocks_of_another_model(d):
    """Twice the width."""
    d.use(gpt_oss())
    d.tensors[GATE_UP + "_blocks"] = patterned("blocks", (2, 64, 4, 16), "U8")
    d.tensors[GATE_UP + "_scales"] = patterned("scales", (2, 64, 4), "U8")
    d.names(GATE_UP)


# ---- FP8
def fp8(name, about, scale_shape, block, scale_name="weight_scale_inv", expect="ok", code=None, **options):
    def build(d):
        d.use(fp8_llama(scale_shape, scale_name=scale_name, **options))
        scales = d.tensors[DOWN.removesuffix("weight") + scale_name]
        d.loads(DOWN, values=fp8_values(d.tensors[DOWN], scales, block))

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case(expect, code)(build)


fp8("fp8_with_scales_of_uneven_blocks", "Blocks of 3 by 5 that the shapes are no multiples of.", in_blocks(3, 5), (3, 5),
    quantization={"quant_method": "fp8", "weight_block_size": [3, 5]})
fp8("fp8_with_one_block_for_all", "Blocks larger than any matrix.", in_blocks(128, 128), (128, 128),
    quantization={"quant_method": "fp8", "weight_block_size": [128, 128]})
fp8("fp8_with_scalar_scales", "One scale of shape [] a matrix.", lambda rows, columns: (), (10**6, 10**6))
fp8("fp8_with_scales_of_one_element", "One scale of shape [1] a matrix.", lambda rows, columns: (1,), (10**6, 10**6))
fp8("fp8_with_a_scale_for_each_row", "compressed-tensors' channel scales, [out, 1].", lambda rows, columns: (rows, 1),
    (1, 10**6), scale_name="weight_scale", quantization={"quant_method": "compressed-tensors", "format": "float-quantized"})


fp8("fp8_with_the_only_block_that_fits", "Blocks of 2 by 2, which the config does not say.", in_blocks(2, 2), (2, 2))


@case("refuse", "scale-block")
def fp8_with_blocks_of_several_sizes_that_fit(d):
    """The config does not say them, and of 20 rows in 5 blocks each may have 4."""
    d.use(fp8_llama(in_blocks(6, 6)))
    d.names("weight_block_size", "_scale_inv")


@case("refuse", "shape-mismatch")
def fp8_scales_for_other_blocks(d):
    """The config says blocks of 4 by 4, the scales are for one block."""
    d.use(fp8_llama(in_blocks(128, 128), quantization={"quant_method": "fp8", "weight_block_size": [4, 4]}))
    d.names("_scale_inv", "[1, 1]")


@case("refuse", "scale-missing")
def fp8_with_one_scale_missing(d):
    """One matrix of fourteen has lost its scale."""
    d.use(fp8_llama(in_blocks(4, 4), quantization={"quant_method": "fp8", "weight_block_size": [4, 4]}))
    d.drop(DOWN + "_scale_inv")
    d.names(DOWN, DOWN + "_scale_inv")


@case("refuse", "stray-scale")
def fp8_scale_that_the_config_does_not_know(d):
    """Without quantization_config the scale would be dropped, and the weight wrong by a factor."""
    d.use(llama())
    d.tensors[DOWN] = patterned(DOWN, (8, 20), "F8_E4M3")
    d.tensors[DOWN + "_scale_inv"] = floats_as([0.5], (1, 1))
    d.names(DOWN + "_scale_inv", "quantization_config")


@case("refuse", "stray-scale")
def scale_beside_a_wide_weight(d):
    """Was it applied before the save? Nobody knows."""
    d.use(llama())
    d.tensors[DOWN.removesuffix("weight") + "weight_scale"] = floats_as([0.5], (1,))
    d.names(DOWN.removesuffix("weight") + "weight_scale", "quantization_config")


@case("refuse", "dtype-not-loadable")
def weights_as_8_bit_integers(d):
    """An integer quantisation that is not known here."""
    d.use(llama())
    d.tensors[DOWN] = patterned(DOWN, (8, 20), "I8")
    d.names(DOWN, "I8")


@case("refuse", "dtype-not-loadable")
def norm_as_64_bit_integers(d):
    """No weight is an integer."""
    d.use(llama())
    d.tensors[NORM] = patterned(NORM, (8,), "I64")
    d.names(NORM, "I64")


@case("ok")
def model_in_bfloat16(d):
    """As most are stored."""
    d.use(llama(dtype="BF16"))
    d.loads(EMBED)
    d.loads(NORM)


@case("ok", flags=["--param-dtype", "float32"])
def model_in_bfloat16_loaded_as_float32(d):
    """As training wants it."""
    d.use(llama(dtype="BF16"))
    d.loads(HEAD, EMBED)


@case("ok", flags=["--param-dtype", "bfloat16"])
def model_in_float64_loaded_as_bfloat16(d):
    """Every value is exact in both."""
    d.use(llama(dtype="F64"))
    d.loads(NORM)


# ---- values
def not_finite(name, about, tensor, index, value, *named, dtype="F32"):
    def build(d):
        d.use(llama(dtype=dtype))
        d.tensors[tensor] = d.tensors[tensor].with_element(index, value)
        d.names(tensor, *named)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("warn", "not-finite")(build)


not_finite("nan_in_a_norm", "No output will be a number.", NORM, 3, float("nan"), "NaN")
not_finite("nan_in_the_last_row_of_the_embedding", "Every element is looked at.", EMBED, -1, float("nan"), "NaN", "[23, 7]")
not_finite("infinity_in_a_projection", "An overflow in a conversion.", DOWN, 77, float("inf"), "inf")
not_finite("minus_infinity_in_bfloat16", "In a narrow dtype too.", NORM, 0, float("-inf"), "inf", dtype="BF16")


@case("warn", "not-finite")
def nan_in_an_fp8_weight(d):
    """E4M3 has a NaN and no infinity."""
    d.use(fp8_llama(in_blocks(4, 4), quantization={"quant_method": "fp8", "weight_block_size": [4, 4]}))
    weight = d.tensors[DOWN]
    d.tensors[DOWN] = type(weight)(weight.dtype, weight.shape, b"\x7f" + weight.data[1:])
    d.names(DOWN, "NaN")


@case("warn", "unused-tensor")
def nan_in_a_tensor_that_is_not_used(d):
    """What is not loaded cannot hurt; that it is not used is said."""
    d.use(llama())
    d.add("old.loss", (4,))
    d.tensors["old.loss"] = d.tensors["old.loss"].with_element(0, float("nan"))
    d.names("old.loss")


# ---- parts
@case("ok")
def one_row_for_several_ranks(d):
    """Some ranks get nothing of the MLP."""
    d.use(llama(intermediate=1))
    d.loads(NORM)


@case("ok")
def vocabulary_of_a_prime_size(d):
    """23 rows; the tied table is cut on its hidden dimension."""
    d.use(llama(vocab=23))
    d.loads(HEAD, EMBED)


@case("ok", flags=["--shard-dim", "first"])
def vocabulary_of_a_prime_size_on_the_first_dim(d):
    """Untied, so that the tables are cut into 12 and 11 rows."""
    d.use(llama(tied=False, vocab=23))
    d.loads(HEAD)


@case("ok", ranks=(1, 2, 3, 11))
def more_ranks_than_any_dimension(d):
    """Hidden size 4 on eleven ranks."""
    d.use(llama(hidden=4, intermediate=3, heads=2, kv=1))
    d.loads(EMBED)
    d.loads(DOWN)


@case("ok", flags=["--dim", f"{DOWN}=0", "--dim", f"{NORM}=-1"])
def dimensions_of_the_callers_choice(d):
    """Two parameters are cut elsewhere."""
    d.use(llama())
    d.loads(DOWN)


@case("refuse", "tied-weight-on-vocab", flags=["--dim", f"{HEAD}=0"])
def tied_weight_on_its_vocabulary(d):
    """Embedding and head would disagree on who has which rows."""
    d.use(llama())
    d.names(EMBED)


@case("refuse", "bad-shard-dim", flags=["--dim", f"{NORM}=1"])
def dimension_that_a_vector_has_not(d):
    """A vector has dimension 0 only."""
    d.use(llama())
    d.names(NORM)


@case("refuse", "host-memory", flags=["--host-ram-per-rank", "1MiB"])
def less_memory_than_the_read_buffer(d):
    """Refused before a byte is read."""
    d.use(llama())
    d.names("1.0 MiB")


# ---- size
@case("ok", flags=["--rank", "0"], ranks=(512,))
def embedding_beyond_four_gibibytes(d):
    """[300000, 8192] in BF16: a hole of a sparse file between its first and last values; what follows lies beyond 4 GiB."""
    vocab, hidden = 300_000, 8192
    d.use(llama(vocab=2, hidden=hidden, intermediate=3, layers=1, heads=1, kv=1, head_dim=4, dtype="BF16"))
    d.set(vocab_size=vocab)
    edge = numbered(EMBED, (16,), "BF16")
    small = {name: tensor for name, tensor in d.tensors.items() if name != EMBED}

    def write(directory):
        entries, data = table_of(small)
        size = 2 * vocab * hidden
        for entry in entries.values():
            entry["data_offsets"] = [offset + size for offset in entry["data_offsets"]]
        entries = {EMBED: {"dtype": "BF16", "shape": [vocab, hidden], "data_offsets": [0, size]}} | entries
        with open(directory / SINGLE, "wb") as file:
            begin = file.write(file_bytes(header_bytes(entries, d.metadata), edge.data))
            file.seek(begin - len(edge.data) + size - len(edge.data))
            file.write(edge.data + data)

    d.then(write)
    d.loads(EMBED, values=edge.floats())
