"""Names that are not quite the model's, and architectures that nobody knows."""

from draft import case
from models import EMBED, HEAD, NORM, T5_NAMES, gpt2, llama, t5

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
    from stored import Stored

    return Stored("I64", (1, count), b"".join(i.to_bytes(8, "little") for i in range(count)))
