"""What lies in the directory: foreign files, shards, the index, config.json."""

import json
import os
import shutil
import zipfile

from draft import CONFIG, INDEX, SINGLE, ShardedDraft, case
from models import EMBED, HEAD, NORM, llama
from stored import numbered


def sharded(expect, code=None, **options):
    """A case whose Draft is a ShardedDraft of the tied Llama."""

    def register(build):
        case(expect, code, **options)(build)
        build.draft = ShardedDraft
        return build

    return register


# ---- foreign files
def foreign(name, code, about, write, *named):
    def build(d):
        d.use(llama())
        d.then(write)
        d.names(*named)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("refuse", code)(build)


def zip_instead(directory):
    with zipfile.ZipFile(directory / SINGLE, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}.")


def with_bytes(content, name=SINGLE):
    return lambda directory: (directory / name).write_bytes(content)


def only(*contents):
    """The weights are gone; these files are there in their stead."""

    def write(directory):
        (directory / SINGLE).unlink()
        for name, content in contents:
            (directory / name).write_bytes(content)

    return write


for fault in [
    ("zip_under_the_name_of_the_weights", "not-safetensors", "A PyTorch archive, renamed.", zip_instead, SINGLE, "zip"),
    ("pickle_under_the_name_of_the_weights", "not-safetensors", "A bare pickle, renamed.",
     with_bytes(b"\x80\x04\x95" + bytes(40)), SINGLE, "pickle"),
    ("lfs_pointer_in_place_of_the_weights", "not-safetensors", "Git LFS was not installed when the model was cloned.",
     with_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 123456\n"), SINGLE, "LFS"),
    ("login_page_in_place_of_the_weights", "not-safetensors", "The server answered with a page.",
     with_bytes(b"<!doctype html><title>Sign in</title>" + bytes(64)), SINGLE, "HTML"),
    ("error_text_in_place_of_the_weights", "not-safetensors", "The server answered with XML.",
     with_bytes(b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"), SINGLE),
    ("gguf_under_the_name_of_the_weights", "not-safetensors", "A llama.cpp file, renamed.",
     with_bytes(b"GGUF\x03\0\0\0" + bytes(64)), SINGLE, "GGUF"),
    ("weights_as_pytorch_bin_only", "no-weights", "Weights in a format that runs code when it is read.",
     only(("pytorch_model.bin", b"PK\3\4")), "pytorch_model.bin"),
    ("no_weights_at_all", "no-weights", "A config and nothing else.", only(), SINGLE),
    ("weights_under_another_name", "no-weights", "diffusers' name for its weights.",
     lambda directory: (directory / SINGLE).rename(directory / "diffusion_pytorch_model.safetensors"),
     "diffusion_pytorch_model.safetensors"),
    ("adapter_in_place_of_a_model", "peft-adapter", "A PEFT adapter has the weights of a model's change only.",
     only(("adapter_config.json", b'{"base_model_name_or_path": "a/model"}'), ("adapter_model.safetensors", b"")), "adapter"),
    ("weights_are_a_directory", "file-unreadable", "A directory of the file's name.",
     lambda directory: ((directory / SINGLE).unlink(), (directory / SINGLE).mkdir()), SINGLE),
    ("weights_are_a_link_to_nothing", "file-not-found", "A link into a cache that was cleaned.",
     lambda directory: ((directory / SINGLE).unlink(), (directory / SINGLE).symlink_to("../blobs/gone")), SINGLE),
]:
    foreign(*fault)


@case("ok")
def weights_behind_a_link(d):
    """The Hugging Face cache keeps links to blobs outside of the directory; the file system's own links are followed."""
    d.use(llama())

    def link(directory):
        (directory / SINGLE).rename(directory.parent / "blob")
        (directory / SINGLE).symlink_to("../blob")

    d.then(link)
    d.loads(NORM)


@case("ok")
def other_files_beside_the_weights(d):
    """Tokenizer, optimizer, an old pytorch_model.bin: not weights that anyone asked for."""
    d.use(llama())
    for name in ("tokenizer.json", "pytorch_model.bin", "optimizer.safetensors", ".gitattributes", "README.md"):
        d.then(with_bytes(b"{}", name))


# ---- shards and index
@sharded("ok")
def two_shards_and_an_index(d):
    """The normal case of a large model."""
    d.use(llama())
    d.loads(HEAD, EMBED)
    d.loads(NORM)


@sharded("ok")
def shards_behind_links(d):
    """Each shard is a link into a cache."""
    d.use(llama())

    def link(directory):
        for number in range(2):
            blob = f"../blob-{number}"
            shutil.move(directory / d.shard(number), directory.parent / f"blob-{number}")
            (directory / d.shard(number)).symlink_to(blob)

    d.then(link)
    d.loads(NORM)


@sharded("ok")
def five_shards_one_of_them_with_one_tensor(d):
    """Shards may be of any number and size."""
    d.use(llama())
    d.count = 5
    d.place = lambda name: {NORM: 4, EMBED: 0}.get(name, 1 + len(name) % 3)
    d.loads(NORM)


@sharded("ok")
def index_with_unknown_fields(d):
    """Other writers add fields to metadata and beside it."""
    d.use(llama())
    d.edit_index(lambda index: index.update(generator="x") or index["metadata"].update(total_parameters=1))


@sharded("ok")
def index_without_metadata(d):
    """total_size is for people."""
    d.use(llama())
    d.edit_index(lambda index: index.pop("metadata") and None)


@sharded("refuse", "shard-missing")
def last_shard_missing(d):
    """The index names it."""
    d.use(llama())
    d.then(lambda directory: (directory / d.shard(1)).unlink())
    d.names(INDEX, "model-00002-of-00002.safetensors")


@sharded("refuse", "shard-missing")
def both_shards_missing(d):
    """Both are named."""
    d.use(llama())
    d.then(lambda directory: [(directory / d.shard(number)).unlink() for number in range(2)])
    d.names(INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@sharded("refuse", "tensor-not-in-index")
def index_forgets_a_shard(d):
    """A shard by its name, with parameters that the index does not list."""
    d.use(llama())
    d.place = lambda name: 1 if name == NORM else 0
    d.indexed[NORM] = None
    d.names(INDEX, "model-00002-of-00002.safetensors", NORM)


@sharded("refuse", "tensor-not-in-index")
def index_forgets_one_tensor(d):
    """It is in a shard that the index knows."""
    d.use(llama())
    d.indexed["model.layers.0.mlp.up_proj.weight"] = None
    d.names(INDEX, "model.layers.0.mlp.up_proj.weight", "model-00001-of-00002.safetensors")


@sharded("refuse", "tensor-not-in-shard")
def index_names_the_wrong_shard(d):
    """The tensor is in the other one."""
    d.use(llama())
    d.indexed[NORM] = "model-00001-of-00002.safetensors"
    d.names(INDEX, NORM, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@sharded("refuse", "tensor-not-in-shard")
def index_names_a_tensor_of_no_shard(d):
    """Nothing holds it."""
    d.use(llama())
    d.indexed["model.rotary.inv_freq"] = "model-00001-of-00002.safetensors"
    d.names(INDEX, "model.rotary.inv_freq", "model-00001-of-00002.safetensors")


def outside(name, about, path):
    def build(d):
        d.use(llama())
        d.indexed[NORM] = path
        d.names(INDEX, path)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    sharded("refuse", "path-escape")(build)


outside("index_names_a_file_above", "../ leads out of the directory.", "../model-00002-of-00002.safetensors")
outside("index_names_an_absolute_path", "An absolute path is nobody's shard.", "/tmp/model-00002-of-00002.safetensors")
outside("index_names_a_file_in_a_folder", "Shards lie beside the index.", "shards/model-00002-of-00002.safetensors")
outside("index_names_a_file_around_a_corner", "a/../ is a path too.", "a/../model-00002-of-00002.safetensors")
outside("index_names_the_directory_above", "Two dots alone.", "..")


@sharded("warn", "tensor-in-two-shards")
def tensor_in_two_shards_with_one_value(d):
    """The save was not clean, and nothing is lost."""
    d.use(llama())
    d.extra[0] = {NORM: d.tensors[NORM]}
    d.names(NORM, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    d.loads(NORM)


@sharded("warn", "tensor-in-two-shards")
def tensor_in_two_shards_with_two_values(d):
    """The one that the index names is loaded, the other one is said."""
    d.use(llama())
    d.extra[0] = {NORM: numbered("another norm", (8,))}
    d.names(NORM, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    d.loads(NORM)


@sharded("warn", "tensor-in-two-shards")
def tensor_in_two_shards_with_two_shapes(d):
    """Which of them counts is the index's word alone."""
    d.use(llama())
    d.extra[1] = {EMBED: numbered("another embedding", (3, 5))}
    d.names(EMBED)
    d.loads(EMBED)


@sharded("warn", "total-size")
def total_size_too_small(d):
    """Every tensor is there; the sum is wrong."""
    d.use(llama())
    d.edit_index(lambda index: index["metadata"].update(total_size=17))
    d.names(INDEX, 17, sum(len(tensor.data) for tensor in d.tensors.values()))


@sharded("warn", "total-size")
def total_size_beyond_64_bits(d):
    """A number that no size is."""
    d.use(llama())
    d.edit_index(lambda index: index["metadata"].update(total_size=10**30))
    d.names(INDEX, sum(len(tensor.data) for tensor in d.tensors.values()))


@case("warn", "stale-index")
def index_left_beside_a_single_file(d):
    """Its shards are gone; the single file is whole."""
    d.use(llama())
    index = {"metadata": {}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in d.tensors}}
    d.then(lambda directory: (directory / INDEX).write_text(json.dumps(index)))
    d.names(INDEX, SINGLE)
    d.loads(NORM)


@case("warn", "stale-index")
def broken_index_beside_a_single_file(d):
    """It is not used, so that it need not be whole."""
    d.use(llama())
    d.then(lambda directory: (directory / INDEX).write_text("{"))
    d.names(INDEX, SINGLE)


@sharded("warn", "stale-index")
def single_file_beside_shards_that_are_there(d):
    """Two sets of weights: the single file wins, as in transformers."""
    d.use(llama())
    d.then(lambda directory: d.write_file(SINGLE, {name: numbered("single." + name, tensor.shape)
                                                   for name, tensor in d.tensors.items()}))
    d.names(INDEX, SINGLE)
    d.loads(NORM, values=numbered("single." + NORM, (8,)).floats())


def index_fault(name, about, edit, *named):
    def build(d):
        d.use(llama())
        d.edit_index(edit)
        d.names(INDEX, *named)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    sharded("refuse", "index-malformed")(build)


index_fault("index_with_an_empty_weight_map", "No parameter has a value.", lambda index: index["weight_map"].clear(), "weight_map")
index_fault("index_without_a_weight_map", "It is what an index is for.", lambda index: index.pop("weight_map") and None, "weight_map")
index_fault("index_whose_weight_map_is_a_list", "It maps names to files.", lambda index: index.update(weight_map=[]), "weight_map")
index_fault("index_with_a_number_for_a_file", "A file has a name.", lambda index: index["weight_map"].update({NORM: 2}), NORM)
index_fault("index_cut_short", "It is no JSON.", lambda index: json.dumps(index)[:-9])
index_fault("index_with_a_name_twice", "Two files for one tensor.",
            lambda index: json.dumps(index)[:-2] + f', "{NORM}": "model-00001-of-00002.safetensors"}}}}', NORM)


@sharded("refuse", "truncated")
def last_shard_cut(d):
    """The index is right, the shard is not."""
    d.use(llama())
    d.then(lambda directory: os.truncate(directory / d.shard(1), (directory / d.shard(1)).stat().st_size - 3))
    d.names("model-00002-of-00002.safetensors")


# ---- config.json
def config_fault(name, code, about, write, *named):
    def build(d):
        d.use(llama())
        d.then(lambda directory: write(directory / CONFIG))
        d.names(CONFIG, *named)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("refuse", code)(build)


for fault in [
    ("config_missing", "config-missing", "Neither shapes nor ties are known.", lambda path: path.unlink()),
    ("config_cut_short", "config-malformed", "It ends in the middle.", lambda path: os.truncate(path, 90)),
    ("config_empty", "config-malformed", "No bytes.", lambda path: os.truncate(path, 0)),
    ("config_is_a_list", "config-malformed", "It has to be an object.", lambda path: path.write_text("[]")),
    ("config_with_a_comment", "config-malformed", "JSON has none.",
     lambda path: path.write_text("// edited\n" + path.read_text())),
    ("config_with_a_byte_order_mark", "config-malformed", "An editor left EF BB BF.",
     lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())),
    ("config_with_a_key_twice", "config-malformed", "Which of the two holds cannot be told.",
     lambda path: path.write_text('{"vocab_size": 9, ' + path.read_text().lstrip()[1:]), "vocab_size"),
]:
    config_fault(*fault)


def field_fault(name, code, about, fields, *named):
    def build(d):
        d.use(llama())
        for field, value in fields.items():
            d.unset(field) if value is None else d.set(**{field: value})
        d.names(CONFIG, *(named or fields))

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("refuse", code)(build)


for fault in [
    ("config_without_hidden_size", "config-missing-key", "A size that the family needs.", {"hidden_size": None}),
    ("config_with_a_size_as_text", "config-value", "\"24\" is no number.", {"vocab_size": "24"}),
    ("config_with_a_negative_size", "config-value", "-2 layers.", {"num_hidden_layers": -2}),
    ("config_with_a_fraction_of_a_layer", "config-value", "2.5 layers.", {"num_hidden_layers": 2.5}),
    ("config_with_a_size_beyond_memory", "config-value", "10^30 tokens.", {"vocab_size": 10**30}),
    ("config_with_heads_that_do_not_divide", "config-value", "4 heads over 3 key/value heads.", {"num_key_value_heads": 3}),
    ("config_with_a_flag_as_text", "config-value", "\"true\" is no boolean.", {"tie_word_embeddings": "true"}),
]:
    field_fault(*fault)


@case("ok")
def config_in_the_style_of_version_4(d):
    """torch_dtype, rope_theta and rope_scaling mean what today's keys mean."""
    d.use(llama())
    d.unset("dtype")
    d.set(torch_dtype="float32", rope_theta=500000.0, rope_scaling=None, use_cache=True, transformers_version="4.40.0")
    d.names(EMBED, HEAD)


@case("ok")
def config_with_nulls_for_defaults(d):
    """null counts as absent."""
    d.use(llama())
    d.set(head_dim=None, pad_token_id=None, rope_parameters=None)


@case("refuse", "shape-mismatch")
def vocabulary_larger_in_the_config(d):
    """Six rows have no value."""
    d.use(llama())
    d.set(vocab_size=30)
    d.names("vocab_size", EMBED, "[24, 8]", "[30, 8]")


@case("refuse", "shape-mismatch")
def vocabulary_smaller_in_the_config(d):
    """Which rows to drop is nobody's guess."""
    d.use(llama())
    d.set(vocab_size=20)
    d.names(EMBED, "[24, 8]", "[20, 8]")


@case("refuse", "shape-mismatch")
def head_dim_of_another_model(d):
    """Queries and keys are of another size."""
    d.use(llama())
    d.set(head_dim=4)
    d.names("self_attn.q_proj.weight", "[8, 8]", "[16, 8]")


@case("refuse", "missing-parameter")
def one_layer_more_in_the_config(d):
    """Nine parameters have no value."""
    d.use(llama())
    d.set(num_hidden_layers=3)
    d.names("num_hidden_layers", "model.layers.2.")


@case("warn", "unused-tensor")
def one_layer_less_in_the_config(d):
    """The file has a layer that is not asked for."""
    d.use(llama())
    d.set(num_hidden_layers=1)
    d.names("model.layers.1.")


@case("refuse", "missing-parameter")
def one_weight_missing_in_the_middle(d):
    """Every name that is missing is said."""
    d.use(llama())
    d.drop("model.layers.1.mlp.up_proj.weight", NORM)
    d.names("model.layers.1.mlp.up_proj.weight", NORM)


@case("ok", flags=["--init", "model.norm.weight=ones"])
def one_weight_missing_and_initialised(d):
    """The only way to a value that no file holds."""
    d.use(llama())
    d.drop(NORM)
    d.loads(NORM, values=[1.0] * 8)


@case("refuse", "unknown-parameter", flags=["--init", "model.norm.bias=zeros"])
def initialising_what_the_model_has_not(d):
    """A spelling mistake in --init is not passed over."""
    d.use(llama())
    d.names("model.norm.bias")
