"""The header of a safetensors file: its length, its text, its entries."""

import json
import os
import struct

from draft import SINGLE, case
from models import EMBED, HEAD, NORM, llama
from stored import Stored, patterned

LAYER_NORM = "model.layers.1.input_layernorm.weight"


def length_of(raw):
    return struct.unpack("<Q", raw[:8])[0]


def with_length(raw, length, order="<"):
    return struct.pack(order + "Q", length) + raw[8:]


# ---- what is odd and legal
@case("ok")
def header_of_odd_length(d):
    """The data begins at an odd byte, so that no element is aligned."""
    d.use(llama())
    d.header_multiple = 1
    d.edit_header(lambda text: text + b" " * (1 - len(text) % 2))
    d.loads(EMBED)
    d.loads(NORM)


@case("ok")
def header_padded_with_a_page_of_spaces(d):
    """Spaces at the end of a header belong to it."""
    d.use(llama())
    d.edit_header(lambda text: text + b" " * 5000)
    d.loads(HEAD, EMBED)


@case("ok")
def header_without_metadata(d):
    """__metadata__ may be left out."""
    d.use(llama())
    d.metadata = "absent"
    d.loads(NORM)


@case("ok")
def metadata_is_null(d):
    """__metadata__: null is what some writers leave; it says nothing."""
    d.use(llama())
    d.metadata = None


@case("ok")
def metadata_of_many_strings(d):
    """Metadata of other programs: any strings."""
    d.use(llama())
    d.metadata = {"format": "pt", "step": "1200", "": "empty key", "ключ": "значение"}


@case("ok")
def name_written_with_json_escapes(d):
    """Escapes in a JSON string do not make another name."""
    d.use(llama())
    d.edit_header(lambda text: text.replace(b'"model.norm.weight"', b'"\\u006dodel\\u002enorm.weigh\\u0074"'))
    d.loads(NORM)


@case("ok")
def entry_fields_in_another_order(d):
    """The order of fields in an entry is free, and so is white space."""
    d.use(llama())
    d.edit_header(lambda text: json.dumps(
        {name: dict(reversed(entry.items())) for name, entry in json.loads(text).items()}, indent=3).encode())
    d.loads(NORM)


@case("ok")
def tensors_stored_in_reverse_order(d):
    """Data may be in any order, whatever the order of the header's text."""
    d.use(llama())
    d.tensors = dict(reversed(d.tensors.items()))
    d.edit_header(lambda text: json.dumps(dict(reversed(json.loads(text).items()))).encode())
    d.loads(EMBED)
    d.loads(NORM)


@case("ok")
def every_wide_float_in_one_layer(d):
    """Each tensor has a dtype of its own; F64, F16 and BF16 beside F32."""
    d.use(llama())
    for part, dtype in (("q", "F64"), ("k", "F16"), ("v", "BF16")):
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        d.add(name, d.tensors[name].shape, dtype)
        d.loads(name)


@case("ok")
def mlp_without_rows(d):
    """intermediate_size 0: weights of [0, 8] and [8, 0] have no bytes."""
    d.use(llama(intermediate=0))
    d.loads(NORM)


@case("refuse", "config-value")
def model_without_layers(d):
    """num_hidden_layers 0 is no model."""
    d.use(llama(layers=0))
    d.names("num_hidden_layers")


# ---- legal, and worth a warning
@case("warn", "unused-tensor")
def empty_marker_tensor(d):
    """A tensor without elements that no parameter uses."""
    d.use(llama())
    d.tensors["quantised.marker"] = Stored("U8", (0,), b"")
    d.names("quantised.marker")


@case("warn", "unused-tensor")
def unused_tensor_without_elements_in_three_dims(d):
    """[4, 0, 7] of I64, used by nothing."""
    d.use(llama())
    d.tensors["index.cache"] = Stored("I64", (4, 0, 7), b"")
    d.names("index.cache")


@case("warn", "unused-tensor")
def tensor_names_in_many_scripts(d):
    """A name is any JSON string; those that are not used are said as they are."""
    d.use(llama())
    for name in ("gewicht.größe", "重量", "τάση.βάρος", "🙂"):
        d.add(name, (2,))
        d.names(name)


@case("warn", "unused-tensor")
def tensor_name_of_five_thousand_characters(d):
    """A long name is cut in a message, not in the model."""
    d.use(llama())
    d.add("deep." * 1000 + "w", (2,))
    d.names("deep.deep.deep.")


@case("warn", "unused-tensor")
def tensor_name_with_control_characters(d):
    """A name must not command the terminal."""
    d.use(llama())
    d.add("red\x1b[31m\nname", (2,))
    d.names("\\u001b[31m\\u000aname")


@case("warn", "unused-tensor")
def empty_tensor_name(d):
    """The empty string is a name too."""
    d.use(llama())
    d.add("", (3,))


@case("warn", "unused-tensor")
def one_tensor_of_every_narrow_dtype(d):
    """All dtypes of the format, the packed ones too, are understood; here none is used."""
    d.use(llama())
    for dtype in ("BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                  "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4"):
        d.tensors["sample." + dtype.lower()] = patterned(dtype, (4, 2), dtype)
    d.names("sample.")


# ---- length
@case("refuse", "file-empty")
def weights_file_of_no_bytes(d):
    """Not even a header length."""
    d.use(llama())
    d.edit_file(lambda raw: b"")
    d.names(SINGLE)


@case("refuse", "truncated")
def file_of_seven_bytes(d):
    """A header length needs eight."""
    d.use(llama())
    d.edit_file(lambda raw: raw[:7])
    d.names(SINGLE)


@case("refuse", "header-longer-than-file")
def header_length_beyond_the_file(d):
    """The length says 77777, the file is shorter: both are said."""
    d.use(llama())
    d.edit_file(lambda raw: with_length(raw, 77777))
    d.names(SINGLE, 77777)


@case("refuse", "header-longer-than-file")
def file_cut_inside_its_header(d):
    """A download that broke off early."""
    d.use(llama())
    d.edit_file(lambda raw: raw[:200])
    d.names(SINGLE, 200)


@case("refuse", "header-longer-than-file")
def header_length_of_all_ones(d):
    """2^64 - 1 bytes of header."""
    d.use(llama())
    d.edit_file(lambda raw: with_length(raw, 2**64 - 1))
    d.names(SINGLE)


@case("refuse", "header-too-large")
def header_of_a_hundred_million_and_eight(d):
    """Above the format's limit of 100 MB, in a sparse file of that size."""
    d.use(llama())
    d.edit_file(lambda raw: with_length(raw[:8] + b'{"__metadata__":{"x":"', 100_000_008))
    d.then(lambda directory: os.truncate(directory / SINGLE, 100_000_016))
    d.names(SINGLE, 100000008)


@case("refuse", "header-too-large", flags=["--max-header-bytes", "1KiB"])
def header_above_the_limit_of_the_caller(d):
    """The limit can be set."""
    d.use(llama())
    d.names(SINGLE)


@case("refuse", "big-endian")
def header_length_in_big_endian(d):
    """The eight bytes are reversed."""
    d.use(llama())
    d.edit_file(lambda raw: with_length(raw, length_of(raw), ">"))
    d.names(SINGLE, "big-endian")


@case("refuse", "header-not-json")
def header_length_one_too_small(d):
    """The closing brace is cut off."""
    d.use(llama())
    d.header_multiple = 1
    d.edit_file(lambda raw: with_length(raw, length_of(raw) - 1))
    d.names(SINGLE, "JSON")


@case("refuse", "header-not-json")
def header_length_of_zero(d):
    """An empty text is no JSON object."""
    d.use(llama())
    d.edit_file(lambda raw: with_length(raw, 0))
    d.names(SINGLE)


# ---- text
@case("refuse", "header-not-json")
def header_is_a_list(d):
    """The header has to be an object."""
    d.use(llama())
    d.edit_header(lambda text: b"[" + text + b"]")
    d.names(SINGLE)


@case("refuse", "header-not-json")
def header_begins_with_white_space(d):
    """The format asks for '{' as the first byte."""
    d.use(llama())
    d.edit_header(lambda text: b" " + text)
    d.names(SINGLE)


@case("refuse", "header-not-json")
def header_with_a_byte_order_mark(d):
    """EF BB BF before the brace."""
    d.use(llama())
    d.edit_header(lambda text: b"\xef\xbb\xbf" + text)
    d.names(SINGLE)


@case("refuse", "header-not-json")
def header_with_a_trailing_comma(d):
    """JSON has none."""
    d.use(llama())
    d.edit_header(lambda text: text[:-1] + b",}")
    d.names(SINGLE)


@case("refuse", "header-not-utf8")
def header_with_a_latin_1_name(d):
    """A byte E9 that begins no UTF-8 sequence of the text."""
    d.use(llama())
    d.edit_header(lambda text: text.replace(b"model.norm", b"mod\xe9l.norm"))
    d.names(SINGLE, "UTF-8")


@case("refuse", "duplicate-key")
def same_name_twice_with_two_shapes(d):
    """One of the two would be dropped without a word."""
    d.use(llama())
    d.edit_header(lambda text: text[:-1] + b"," + json.dumps({NORM: json.loads(text)[NORM] | {"shape": [2, 4]}})[1:].encode())
    d.names(SINGLE, NORM)


@case("refuse", "duplicate-key")
def same_name_twice_once_escaped(d):
    """Escapes do not make a second name."""
    d.use(llama())
    entry = b'{"dtype":"F32","shape":[8],"data_offsets":[0,32]}'
    d.edit_header(lambda text: text[:-1] + b',"model\\u002enorm.weight":' + entry + b"}")
    d.names(NORM)


@case("refuse", "metadata-not-string")
def metadata_with_a_number(d):
    """Metadata maps strings to strings."""
    d.use(llama())
    d.metadata = {"format": "pt", "epoch": 3}
    d.names(SINGLE, "__metadata__", "epoch")


@case("refuse", "metadata-not-string")
def metadata_is_a_list(d):
    """Metadata is an object."""
    d.use(llama())
    d.metadata = ["pt"]
    d.names(SINGLE, "__metadata__")


# ---- entries
def entry_fault(name, code, about, change, *named):
    """One case for a fault in the entry of the norm; `named` has to be said beside file and name."""

    def build(d):
        d.use(llama())
        d.edit_entries(lambda entries, data: change(entries[NORM]) and None)
        d.names(SINGLE, NORM, *named)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("refuse", code)(build)


for fault in [
    ("shape_with_a_negative_size", "bad-shape", "A shape of [-8].", lambda e: e.update(shape=[-8]), -8),
    ("shape_with_a_fraction", "bad-shape", "A shape of [8.0].", lambda e: e.update(shape=[8.0])),
    ("shape_as_text", "bad-entry", "A shape of \"8\".", lambda e: e.update(shape="8")),
    ("shape_with_a_huge_integer", "bad-shape", "A size of 2^70.", lambda e: e.update(shape=[2**70])),
    ("shape_with_true", "bad-shape", "A size of true.", lambda e: e.update(shape=[True])),
    ("dtype_of_no_format", "unknown-dtype", "The dtype is F48.", lambda e: e.update(dtype="F48"), "F48"),
    ("dtype_as_torch_spells_it", "unknown-dtype", "The dtype is float32.", lambda e: e.update(dtype="float32"), "float32"),
    ("dtype_in_lower_case", "unknown-dtype", "The dtype is f32.", lambda e: e.update(dtype="f32"), "f32"),
    ("dtype_wider_than_the_range", "size-mismatch", "F64 of [8] in 32 bytes.", lambda e: e.update(dtype="F64"), "F64", 64, 32),
    ("dtype_narrower_than_the_range", "size-mismatch", "F16 of [8] in 32 bytes.", lambda e: e.update(dtype="F16"), 16, 32),
    ("shape_of_one_element_less", "size-mismatch", "[7] in 32 bytes.", lambda e: e.update(shape=[7]), "[7]", 28, 32),
    ("offsets_in_reverse", "offsets-reversed", "END before BEGIN.", lambda e: e["data_offsets"].reverse()),
    ("entry_without_a_dtype", "bad-entry", "No dtype.", lambda e: e.pop("dtype"), "dtype"),
    ("entry_without_offsets", "bad-entry", "No data_offsets.", lambda e: e.pop("data_offsets"), "data_offsets"),
    ("entry_with_three_offsets", "bad-entry", "Three data_offsets.", lambda e: e["data_offsets"].append(9)),
    ("entry_with_a_negative_offset", "bad-entry", "BEGIN of -32.", lambda e: e.update(data_offsets=[-32, 0])),
    ("entry_with_an_offset_as_text", "bad-entry", "END as a string.", lambda e: e.update(data_offsets=[0, "32"])),
    ("element_count_of_2_to_the_64", "size-overflow", "[2^33, 2^31] in no bytes.",
     lambda e: e.update(shape=[2**33, 2**31], data_offsets=[0, 0]), "[8589934592, 2147483648]"),
    ("empty_shape_whose_strides_overflow", "size-overflow", "[2^40, 0, 2^40] in no bytes.",
     lambda e: e.update(shape=[2**40, 0, 2**40], data_offsets=[0, 0])),
]:
    entry_fault(*fault)


# ---- ranges
@case("refuse", "overlap")
def two_names_over_one_range(d):
    """A tie written as two entries of one range: each byte belongs to one tensor."""
    d.use(llama(head=True))
    d.drop(HEAD)
    d.edit_entries(lambda entries, data: entries.update({HEAD: dict(entries[EMBED])}))
    d.names(HEAD, EMBED)


@case("refuse", "overlap")
def ranges_that_share_four_bytes(d):
    """The last element of one is the first of the next."""
    d.use(llama())
    d.edit_entries(lambda entries, data: entries[NORM].update(
        data_offsets=[entries[NORM]["data_offsets"][0] - 4, entries[NORM]["data_offsets"][1] - 4]) or data[:-4])
    d.names(NORM)


def moved(entries, at, by):
    for entry in entries.values():
        if entry["data_offsets"][0] >= at:
            entry["data_offsets"] = [offset + by for offset in entry["data_offsets"]]


@case("refuse", "hole")
def bytes_between_two_tensors(d):
    """32 bytes that no tensor owns."""
    d.use(llama())

    def insert(entries, data):
        at = entries[LAYER_NORM]["data_offsets"][0]
        moved(entries, at, 32)
        return data[:at] + bytes(32) + data[at:]

    d.edit_entries(insert)
    d.names(SINGLE, LAYER_NORM)


@case("refuse", "hole")
def data_that_begins_with_a_hole(d):
    """The first tensor begins at byte 8 of the data."""
    d.use(llama())
    d.edit_entries(lambda entries, data: moved(entries, 0, 8) or bytes(8) + data)
    d.names(SINGLE)


@case("refuse", "trailing-bytes")
def bytes_after_the_last_tensor(d):
    """100 bytes too many."""
    d.use(llama())
    d.edit_file(lambda raw: raw + bytes(100))
    d.names(SINGLE)


@case("refuse", "truncated")
def last_byte_missing(d):
    """A mapped read would end in a signal."""
    d.use(llama())
    d.edit_file(lambda raw: raw[:-1])
    d.names(SINGLE)


@case("refuse", "truncated")
def half_of_the_data_missing(d):
    """A download that broke off late."""
    d.use(llama())
    d.edit_file(lambda raw: raw[:len(raw) // 2 + 1500])
    d.names(SINGLE)
