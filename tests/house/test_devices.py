"""The runtime runs on any device: only a few files touch a tensor's memory, or ask for the host by name."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

MEMORY = re.compile(r"\b(?:\w*data_ptr\w*|mem(?:cpy|cmp|set|move)|from_blob)\b")
TOUCHES_MEMORY = {
    "runtime/adapters/adapter_weights.cpp": "files, of copies on the host",
    "runtime/fsdp/shard_checks.cpp": "compares addresses, touches none",
    "runtime/generate/generate.cpp": "one row of logits on the host, which the sampler reads",
    "runtime/load/shard_loader.cpp": "tensors over what was read",
    "runtime/mesh/all_to_all.cpp": "buffers, in host tensors made there",
    "runtime/mesh/collectives.cpp": "texts, in host tensors made there",
    "runtime/mesh/part_collectives.cpp": "shared memory, of host tensors",
    "runtime/mesh/shm_backend.cpp": "shared memory, of host tensors",
    "runtime/models/expert_routing.cpp": "counts, of a copy on the host",
    "runtime/optim/update_queue.cpp": "this project's own arithmetic, of host tensors",
    "runtime/state/checkpoint_blocks.cpp": "files, of copies on the host",
    "runtime/state/generator_state.cpp": "a generator's state, which is on the host",
    "runtime/state/kept_encoding.cpp": "files, into host tensors made there",
    "runtime/state/load_checkpoint.cpp": "files, into host tensors, or those made there",
    "runtime/state/shard_bytes.cpp": "files, of what is on the host or copied there",
    "runtime/tensors/heap_allocator.cpp": "the host's allocator",
    "runtime/tensors/storage_bytes.cpp": "gives a storage other bytes, touches none",
    "runtime/train/run_saves.cpp": "numbers, in host tensors made there",
    "runtime/train/token_data.cpp": "tokens, in host tensors made there",
    "runtime/train/trainer.cpp": "numbers, in host tensors made there",
    "runtime/train/unsharded.cpp": "tensors over what was read",
    "cli/runtime/forward_inputs.cpp": "tokens in, from a file",
    "cli/runtime/forward_verb.cpp": "logits out, into a file",
}

HOST = re.compile(r"\bat::kCPU\b|\bis_cpu\(\)")
NAMES_THE_HOST = {
    "runtime/adapters/adapter_weights.cpp": "files, of copies on the host",
    "runtime/fsdp/activation_checkpoint.cpp": "its random numbers, beside the device's",
    "runtime/fsdp/fsdp_param.cpp": "OffloadPolicy::to_host",
    "runtime/fsdp/fsdp_param_group.cpp": "flags are read at once",
    "runtime/generate/generate.cpp": "one row of logits, which the sampler reads",
    "runtime/load/shard_loader.cpp": "what is read is there first",
    "runtime/mesh/device_mesh.cpp": "which connection",
    "runtime/mesh/part_collectives.cpp": "which connection",
    "runtime/mesh/shm_backend.cpp": "which tensors it takes",
    "runtime/models/attention.cpp": "this project's own kernel for sinks is for it only",
    "runtime/models/expert_routing.cpp": "counts, which say how the tokens are cut",
    "runtime/models/linear_kernel.cpp": "oneDNN's operator is for it only",
    "runtime/optim/clip_grad_norm.cpp": "one number, added up over the host's connection",
    "runtime/optim/update_queue.cpp": "this project's own arithmetic is for it only",
    "runtime/state/checkpoint_blocks.cpp": "files, of copies on the host",
    "runtime/state/kept_encoding.cpp": "files, of copies on the host",
    "runtime/state/load_checkpoint.cpp": "what is in its memory is read in place",
    "runtime/train/evaluation.cpp": "two numbers, added up over the host's connection",
    "runtime/state/shard_bytes.cpp": "files, of what is on the host or copied there",
    "runtime/train/trainer.cpp": "one number, added up over the host's connection",
    "runtime/train/unsharded.cpp": "what is read is there first",
    "cli/runtime/forward_verb.cpp": "logits for a file",
}


def files_with(pattern):
    folders = (ROOT / "tieshard" / "runtime", ROOT / "tieshard" / "cli" / "runtime")
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in {".h", ".cpp"}):
        code = re.sub(r"//.*", "", path.read_text())
        if pattern.search(code):
            yield path.relative_to(ROOT / "tieshard").as_posix()


def test_only_these_files_touch_the_memory_of_tensors():
    assert list(files_with(MEMORY)) == sorted(TOUCHES_MEMORY)


def test_only_these_files_name_the_host():
    assert list(files_with(HOST)) == sorted(NAMES_THE_HOST)
