"""Makes the logs of this folder, as the real peers print them: torch, accelerate, transformers and safetensors on Gloo ranks.

python make_logs.py OUT runs each failure under torchrun and writes OUT/NAME.log, paths shortened.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def tied_config(**changes):
    from transformers import LlamaConfig

    shape = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
    return LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True, **changes)


def untied_files(directory):
    """A checkpoint whose config says tied while the files hold two different weights."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import LlamaForCausalLM

    LlamaForCausalLM(tied_config()).save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = torch.randn(32, 16)
    save_file(tensors, file, metadata={"format": "pt"})


def fsdp2_accelerator(ram_efficient, block="LlamaDecoderLayer"):
    """Accelerate's FSDP2 on CPU ranks, which it has to be told."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = str(ram_efficient)
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    os.environ["FSDP_VERSION"] = "2"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[block],
        cpu_ram_efficient_loading=ram_efficient,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    return accelerator


def accelerate_untied_copies(directory):
    import torch
    from transformers import LlamaForCausalLM

    accelerator = fsdp2_accelerator(True)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            untied_files(directory)
    model = LlamaForCausalLM.from_pretrained(directory)
    accelerator.prepare(model, torch.optim.AdamW(model.parameters()))


def accelerate_stray_parameter(directory):
    import torch
    from transformers import LlamaForCausalLM

    accelerator = fsdp2_accelerator(False)
    model = LlamaForCausalLM(tied_config())
    stray = torch.nn.Parameter(torch.zeros(3))
    accelerator.prepare(model, torch.optim.AdamW([*model.parameters(), stray]))


def torch_tie_in_two_groups(directory):
    import torch
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaForCausalLM

    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = LlamaForCausalLM(tied_config())
    fully_shard(model.model.embed_tokens, mesh=mesh)
    fully_shard(model.lm_head, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.zeros(1, 4, dtype=torch.long))


def torch_copy_out_of_meta(directory):
    import torch
    from transformers import LlamaForCausalLM

    torch.distributed.init_process_group("gloo")
    with torch.device("meta"):
        model = LlamaForCausalLM(tied_config())
    model.to("cpu")


def torch_scalar_parameter(directory):
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = torch.nn.Linear(4, 4)
    model.scale = torch.nn.Parameter(torch.tensor(1.0))
    fully_shard(model, mesh=mesh)


def torch_transposed_head(directory):
    import torch
    from transformers import LlamaForCausalLM

    torch.distributed.init_process_group("gloo")
    model = LlamaForCausalLM(tied_config())
    tensors = model.state_dict()
    tensors["lm_head.weight"] = torch.zeros(16, 32)
    model.load_state_dict(tensors)


def safetensors_shared(directory):
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    torch.distributed.init_process_group("gloo")
    save_file(LlamaForCausalLM(tied_config()).state_dict(), directory / "out.safetensors")


def transformers_random_weights(directory):
    import torch
    from transformers import LlamaForCausalLM
    from safetensors.torch import load_file, save_file

    torch.distributed.init_process_group("gloo")
    if torch.distributed.get_rank() == 0:
        LlamaForCausalLM(tied_config()).save_pretrained(directory)
        file = directory / "model.safetensors"
        save_file({"module." + name: value for name, value in load_file(file).items()}, file, {"format": "pt"})
    torch.distributed.barrier()
    LlamaForCausalLM.from_pretrained(directory)


def python_unknown(directory):
    import torch

    torch.distributed.init_process_group("gloo")
    try:
        {}["labels"]
    except KeyError as error:
        raise RuntimeError("batch 3 could not be collated") from error


FAILURES = [
    accelerate_untied_copies, accelerate_stray_parameter, torch_tie_in_two_groups,
    torch_copy_out_of_meta, torch_scalar_parameter, torch_transposed_head, safetensors_shared,
    transformers_random_weights, python_unknown,
]


def shortened(text, directory):
    site = str(Path(os.__file__).parent / "site-packages")
    packages = next((path for path in sys.path if path.endswith("site-packages")), site)
    text = text.replace(packages, "/opt/venv/site-packages").replace(str(Path(sys.prefix)), "/opt/venv")
    text = text.replace(str(Path(__file__).resolve().parent), "/home/user/job").replace(str(directory), "/tmp/model")
    text = re.sub(r"/usr/(local/)?lib/python3\.\d+", "/opt/python", text)
    text = re.sub(r"host +: \S+", "host      : node0", text)
    return re.sub(r"\[W\d+ [^\n]*\n", "", text)


def main():
    if "--one" in sys.argv:
        name, directory = sys.argv[-2:]
        return globals()[name](Path(directory))
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for failure in FAILURES:
        name = failure.__name__
        with tempfile.TemporaryDirectory() as directory:
            run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", __file__]
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run([*run, "--one", name, directory], capture_output=True, text=True, env=environment)
            (out / f"{name}.log").write_text(shortened(done.stdout + done.stderr, directory))
            print(name, done.returncode)


if __name__ == "__main__":
    main()
