"""Names that are not quite the model's, and architectures that nobody knows."""

from draft import case
from models import EMBED, HEAD, NORM, T5_NAMES, gpt2, llama, t5
from stored import Stored

LAYER_0 = "model.layers.0."


def prefixed(name, code, about, change, *named):
    """The Llama under changed names: it loads, and the change is said."""

    def build(d):
        d.use(llama())
        values = d.tensors[NORM].floats()
        d.rename(change)
        d.names(*named)
        d.loads(NORM, values=values)

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("warn", code)(build)
    return build


def in_layers(part):
    """The wrapper inside each layer's names, as where each layer was wrapped by itself."""
    return lambda name: ".".join([*name.split(".")[:3], part, *name.split(".")[3:]]) if ".layers." in name else name


for fault in [
    ("prefix_of_data_parallel", "wrapper-prefix", "DistributedDataParallel's module.", "module.{}".format, "module."),
    ("prefix_of_compile", "wrapper-prefix", "torch.compile's _orig_mod.", "_orig_mod.{}".format, "_orig_mod."),
    ("prefix_of_fsdp", "wrapper-prefix", "FSDP1's wrapper.", "_fsdp_wrapped_module.{}".format, "_fsdp_wrapped_module."),
    ("prefix_of_peft", "wrapper-prefix", "A merged PEFT model.", "base_model.model.{}".format, "base_model.model."),
    ("prefixes_of_two_wrappers", "wrapper-prefix", "Compiled, then wrapped.", "module._orig_mod.{}".format, "_orig_mod."),
    ("prefix_of_a_trainer", "wrapper-prefix", "A name that no list has, uniform over all tensors.",
     "student.network.{}".format, "student.network."),
    ("wrapper_inside_every_layer", "wrapper-prefix", "Each layer was wrapped by itself.",
     in_layers("_fsdp_wrapped_module"), "_fsdp_wrapped_module."),
    ("wrapper_inside_the_first_layer", "wrapper-prefix", "One layer was compiled.",
     lambda name: name.replace(LAYER_0, LAYER_0 + "_orig_mod."), "_orig_mod."),
    ("checkpoint_wrapper_inside_every_layer", "wrapper-prefix", "Activation checkpointing wraps layers too.",
     in_layers("_checkpoint_wrapped_module"), "_checkpoint_wrapped_module."),
    ("base_model_saved_alone", "base-model-prefix", "The leading model. is absent.",
     lambda name: name.removeprefix("model."), EMBED),
    ("base_model_prefix_twice", "base-model-prefix", "model.model. in place of model.",
     lambda name: "model." + name if name.startswith("model.") else name, EMBED),
]:
    prefixed(*fault)


@case("warn", "base-model-prefix")
def gpt2_saved_as_a_base_model(d):
    """The hub's gpt2 lacks transformer. in its names."""
    d.use(gpt2())
    d.rename(lambda name: name.removeprefix("transformer."))
    d.names("transformer.")
    d.loads(HEAD, "wte.weight")


@case("warn", "wrapper-prefix")
def prefix_with_both_tied_names(d):
    """The head is renamed with the rest."""
    d.use(llama())
    d.tensors[HEAD] = d.tensors[EMBED]
    d.rename("module.{}".format)
    d.names("module.")
    d.loads(HEAD, "module." + HEAD)


@case("warn", "wrapper-prefix")
def t5_under_a_wrapper(d):
    """Renamed and tied."""
    d.use(t5(T5_NAMES[:1]))
    d.rename("module.{}".format)
    d.loads(HEAD, "module.shared.weight")


@case("refuse", "mixed-prefixes")
def half_of_the_names_under_a_wrapper(d):
    """Parts of two saves."""
    d.use(llama())
    d.rename(lambda name: "module." + name if ".layers." in name else "_orig_mod." + name)
    d.names("_orig_mod.")


@case("refuse", "mixed-prefixes")
def one_name_both_with_and_without_a_wrapper(d):
    """Stripping the wrapper would collide."""
    d.use(llama())
    d.rename("module.{}".format)
    d.add(NORM, (8,))
    d.names("module." + NORM, NORM)


@case("refuse", "wrapper-prefix", flags=["--no-rename"])
def wrapper_that_is_not_to_be_stripped(d):
    """The caller wants the model's names or none."""
    d.use(llama())
    d.rename("module.{}".format)
    d.names("module.")


@case("refuse", "missing-parameter")
def names_of_another_family(d):
    """No prefix makes these the Llama's."""
    d.use(gpt2())
    d.config = llama()[0]
    d.names(EMBED)


# ---- architectures
@case("warn", "unknown-architecture")
def architecture_that_nobody_knows(d):
    """It is loaded by its names."""
    d.use(llama())
    d.set(model_type="platypus", architectures=["PlatypusForCausalLM"])
    d.names("config.json", "platypus")
    d.loads(NORM)


@case("warn", "unknown-architecture")
def architecture_that_is_not_said(d):
    """Neither model_type nor architectures."""
    d.use(llama())
    d.unset("model_type", "architectures")
    d.names("config.json")


@case("warn", "unknown-architecture")
def unknown_architecture_with_an_integer_buffer(d):
    """A stored position table is a buffer; the weights load."""
    d.use(llama())
    d.set(model_type="platypus", architectures=["PlatypusForCausalLM"])
    d.tensors["model.position_ids"] = integers(16)
    d.names("platypus")
    d.loads(NORM)


def nobody_knows(d, model=None):
    d.use(model or llama())
    d.set(model_type="platypus", architectures=["PlatypusForCausalLM"])


for wrapper in ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model."):
    def build(d, wrapper=wrapper):
        nobody_knows(d)
        d.rename((wrapper + "{}").format)
        d.names("platypus", wrapper)
        d.loads(NORM, wrapper + NORM)

    build.__name__ = f"unknown_architecture_under_{wrapper.strip('._').replace('.', '_')}"
    build.__doc__ = "The wrapper shows by standing in front of all names."
    case("warn", "wrapper-prefix")(build)


@case("warn", "wrapper-prefix")
def unknown_architecture_with_a_wrapper_inside_its_layers(d):
    """In all names of each layer."""
    nobody_knows(d)
    d.rename(in_layers("_checkpoint_wrapped_module"))
    d.names("_checkpoint_wrapped_module.")
    d.loads(LAYER_0 + "mlp.up_proj.weight", LAYER_0 + "_checkpoint_wrapped_module.mlp.up_proj.weight")


@case("refuse", "wrapper-prefix", flags=["--no-rename"])
def unknown_architecture_whose_wrapper_is_not_to_be_stripped(d):
    """The caller wants the stored names or none."""
    nobody_knows(d)
    d.rename("module.{}".format)
    d.names("module.")


@case("refuse", "mixed-prefixes")
def unknown_architecture_half_under_a_wrapper(d):
    """Parts of two saves."""
    nobody_knows(d)
    d.rename(lambda name: "module." + name if ".layers." in name else name)
    d.names("module." + LAYER_0, EMBED)


def lora(d):
    d.tensors = {}
    for layer in range(2):
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj."
        d.add(at + "lora_A.weight", (2, 8))
        d.add(at + "lora_B.weight", (8, 2))


@case("refuse", "peft-adapter")
def adapter_under_a_models_file_name(d):
    """model.safetensors holds lora_A and lora_B alone."""
    d.use(llama())
    lora(d)
    d.names("lora_A", "merge_and_unload")


@case("refuse", "peft-adapter")
def adapter_of_an_unknown_architecture(d):
    """The same beside an adapter_config.json."""
    nobody_knows(d)
    lora(d)
    d.then(lambda directory: (directory / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "some/base", "peft_type": "LORA"}'))
    d.names("lora_A", "some/base")


@case("refuse", "dtype-not-loadable")
def unknown_architecture_in_gptq(d):
    """Integers in the place of weights; their scales are floats and look like parameters."""
    nobody_knows(d)
    at = LAYER_0 + "self_attn.q_proj."
    d.drop(at + "weight")
    d.tensors |= {at + "qweight": Stored("I32", (1, 8), bytes(32)), at + "qzeros": Stored("I32", (1, 1), bytes(4)),
                  at + "g_idx": Stored("I32", (8,), bytes(32))}
    d.add(at + "scales", (1, 8), "F16")
    d.set(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 8})
    d.names("qweight", "gptq")


@case("warn", "tie-flag-nested")
def tie_flag_of_the_text_model_in_a_wrapper(d):
    """A wrapper that nobody knows; its text model says that it is tied, and no head is stored."""
    d.use(llama())
    text = d.config
    d.config = {"model_type": "platypus_vl", "architectures": ["PlatypusVLForConditionalGeneration"],
                "text_config": text, "vision_config": {"model_type": "platypus_eye", "hidden_size": 8}}
    d.rename("language_model.{}".format)
    d.add("vision.patches.weight", (8, 12))
    d.names("platypus_vl", "text_config", "tie_word_embeddings", "language_model." + EMBED)
    d.loads("language_model." + NORM)


def integers(count):
    return Stored("I64", (1, count), b"".join(i.to_bytes(8, "little") for i in range(count)))
