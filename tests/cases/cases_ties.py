"""Which names are one weight, and what is stored of them."""

from draft import case
from models import EMBED, HEAD, NORM, T5_NAMES, albert, gemma, gpt2, llama, t5
from stored import numbered

TIE = f"{HEAD}={EMBED}"
ENCODER, DECODER = T5_NAMES[1:3]


@case("ok")
def tied_and_stored_once(d):
    """The normal case."""
    d.use(llama())
    d.names(EMBED, HEAD)
    d.loads(EMBED)
    d.loads(HEAD, EMBED)


@case("ok")
def tied_and_stored_as_the_head_alone(d):
    """Either name can carry the weight."""
    d.use(llama(head=True))
    d.drop(EMBED)
    d.names(EMBED, HEAD)
    d.loads(EMBED, HEAD)


@case("ok")
def tied_and_stored_twice_with_equal_bytes(d):
    """Costs disk, nothing else."""
    d.use(llama())
    d.tensors[HEAD] = d.tensors[EMBED]
    d.names(EMBED, HEAD)
    d.loads(HEAD)


@case("warn", "tie-conflict")
def tied_and_stored_twice_with_other_values(d):
    """The bytes win: two weights."""
    d.use(llama(head=True))
    d.names(EMBED, HEAD, "tie_word_embeddings")
    d.loads(EMBED)
    d.loads(HEAD)


@case("warn", "tie-conflict")
def tied_copies_that_differ_in_the_last_element(d):
    """All of them are compared."""
    d.use(llama())
    d.tensors[HEAD] = d.tensors[EMBED].with_element(-1, 9.5)
    d.names(EMBED, HEAD, "[23, 7]", "9.5")
    d.loads(HEAD)


@case("refuse", "tie-conflict", flags=["--on-tie-conflict", "error"])
def conflict_that_is_to_be_refused(d):
    """The caller wants no guess."""
    d.use(llama(head=True))
    d.names(EMBED, HEAD)


@case("warn", "tie-conflict", flags=["--on-tie-conflict", "alias"])
def conflict_that_the_alias_wins(d):
    """The caller chose the head's bytes for both."""
    d.use(llama(head=True))
    d.loads(EMBED, HEAD)
    d.loads(HEAD)


@case("warn", "tie-conflict", flags=["--on-tie-conflict", "canonical"])
def conflict_that_the_canonical_name_wins(d):
    """The caller chose the embedding's bytes for both."""
    d.use(llama(head=True))
    d.loads(EMBED)
    d.loads(HEAD, EMBED)


@case("ok")
def untied_and_stored_twice(d):
    """Two weights, as the config says."""
    d.use(llama(tied=False))
    d.loads(EMBED)
    d.loads(HEAD)


@case("refuse", "missing-parameter")
def untied_without_a_head(d):
    """A tie would overrule the config, a random head would be damage."""
    d.use(llama(tied=False, head=False))
    d.names(HEAD, "tie_word_embeddings", "--tie")


@case("ok", flags=["--tie", TIE])
def untied_without_a_head_and_tied_by_the_caller(d):
    """The remedy that the refusal names."""
    d.use(llama(tied=False, head=False))
    d.loads(HEAD, EMBED)


@case("refuse", "missing-parameter", flags=["--untie", HEAD])
def tied_without_a_head_and_untied_by_the_caller(d):
    """What the caller unties needs bytes of its own."""
    d.use(llama())
    d.names(HEAD)


@case("ok", flags=["--untie", HEAD])
def tied_with_a_head_and_untied_by_the_caller(d):
    """Two weights, said as a note."""
    d.use(llama(head=True))
    d.loads(HEAD)


@case("refuse", "tie-unknown-name", flags=["--tie", "lm_head.weight=model.embedding.weight"])
def tie_to_a_name_that_is_not_there(d):
    """A spelling mistake in --tie."""
    d.use(llama(tied=False))
    d.names("model.embedding.weight")


@case("refuse", "tie-cycle", flags=["--tie", TIE, "--tie", f"{EMBED}={HEAD}"])
def ties_in_a_circle(d):
    """Each is to be the other's alias."""
    d.use(llama(tied=False))
    d.names(EMBED, HEAD)


@case("refuse", "tie-shape-mismatch", flags=["--tie", f"{NORM}={EMBED}"])
def tie_of_unequal_shapes(d):
    """A vector is no matrix."""
    d.use(llama())
    d.names(NORM, EMBED, "[8]", "[24, 8]")


@case("ok", flags=["--tie", "model.layers.1.mlp.up_proj.weight=model.layers.0.mlp.up_proj.weight"])
def layers_that_share_a_weight_by_the_callers_word(d):
    """Not only embeddings can be tied."""
    d.use(llama())
    d.drop("model.layers.1.mlp.up_proj.weight")
    d.loads("model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight")


@case("refuse", "tie-shape-mismatch")
def tied_head_stored_transposed(d):
    """[8, 24] is wrong, tied or not."""
    d.use(llama())
    d.add(HEAD, (8, 24))
    d.names(EMBED, HEAD, "[24, 8]", "[8, 24]")


@case("refuse", "tie-shape-mismatch")
def tied_head_with_rows_for_padding(d):
    """[32, 8] beside [24, 8]: one of them was resized."""
    d.use(llama())
    d.add(HEAD, (32, 8))
    d.names(EMBED, HEAD, "[24, 8]", "[32, 8]")


@case("warn", "tie-dtype-differs")
def tied_copies_in_two_dtypes(d):
    """Equal values in F32 and BF16: which copy is dropped is said."""
    d.use(llama())
    d.add(HEAD, (24, 8), "BF16", values_of=EMBED)
    d.names(EMBED, HEAD, "F32", "BF16")
    d.loads(HEAD)


@case("warn", "tie-from-metadata")
def tie_told_by_file_metadata_alone(d):
    """safetensors' save_model left the head out and wrote so."""
    d.use(llama(tied=None, head=False))
    d.metadata = {"format": "pt", HEAD: EMBED}
    d.names(EMBED, HEAD, "__metadata__")
    d.loads(HEAD, EMBED)


@case("refuse", "missing-parameter")
def tie_told_by_metadata_to_a_name_that_is_not_there(d):
    """Metadata that names nothing helps nobody."""
    d.use(llama(tied=None, head=False))
    d.metadata = {"format": "pt", HEAD: "model.wte.weight"}
    d.names(HEAD)


@case("refuse", "missing-parameter")
def llama_without_a_flag_and_without_a_head(d):
    """This family is untied by default."""
    d.use(llama(tied=None, head=False))
    d.names(HEAD, "tie_word_embeddings")


@case("ok")
def llama_without_a_flag_and_with_a_head(d):
    """Untied by default."""
    d.use(llama(tied=None, head=True))
    d.loads(HEAD)


@case("ok")
def gemma_without_a_flag_and_without_a_head(d):
    """This family is tied by default."""
    d.use(gemma(tied=None, head=False))
    d.names(EMBED, HEAD)
    d.loads(HEAD, EMBED)


@case("ok")
def gpt2_without_a_flag_and_without_a_head(d):
    """Tied by default; its matrices are stored as [in, out]."""
    d.use(gpt2())
    d.names("transformer.wte.weight", HEAD)
    d.loads(HEAD, "transformer.wte.weight")


@case("ok")
def gpt2_with_a_mask_of_old(d):
    """Old files hold the attention's mask, which the model makes itself."""
    d.use(gpt2())
    d.add("transformer.h.0.attn.bias", (1, 1, 16, 16))
    d.add("transformer.h.0.attn.masked_bias", ())


@case("ok")
def t5_stored_as_shared_alone(d):
    """Four names, one weight."""
    d.use(t5(T5_NAMES[:1]))
    d.names(*T5_NAMES)
    for name in T5_NAMES:
        d.loads(name, "shared.weight")


@case("ok")
def t5_stored_as_its_encoder_embedding_alone(d):
    """Any of the names can carry the weight."""
    d.use(t5([ENCODER]))
    d.names(*T5_NAMES)
    d.loads("shared.weight", ENCODER)
    d.loads(DECODER, ENCODER)


@case("ok")
def t5_stored_under_all_names_equally(d):
    """Four copies of one weight."""
    d.use(t5(T5_NAMES))
    d.loads(HEAD, "shared.weight")


@case("ok")
def t5_untied_with_a_head_of_its_own(d):
    """The two embeddings are shared always, the head where the flag says so."""
    d.use(t5(["shared.weight", HEAD], equal=False, tied=False))
    d.loads(HEAD)
    d.loads(DECODER, "shared.weight")


@case("refuse", "tie-source-ambiguous")
def t5_with_a_decoder_and_a_head_that_differ(d):
    """shared and encoder could be either."""
    d.use(t5([DECODER, HEAD], equal=False))
    d.names(*T5_NAMES)


@case("refuse", "tie-source-ambiguous")
def t5_with_two_embeddings_that_differ(d):
    """The head could be either."""
    d.use(t5([ENCODER, DECODER], equal=False))
    d.names(ENCODER, DECODER)


@case("ok")
def albert_with_one_layer_for_three(d):
    """The layer of a group is repeated; the head's weight and bias are aliases."""
    d.use(albert())
    d.names("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight", "predictions.decoder.bias")
    d.loads("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight")
    d.loads("predictions.decoder.bias", "predictions.bias")


@case("warn", "tie-conflict")
def albert_with_two_biases_that_differ(d):
    """A bias can be tied too."""
    d.use(albert())
    d.tensors["predictions.decoder.bias"] = numbered("another bias", (24,))
    d.names("predictions.bias", "predictions.decoder.bias")


# ---- classes without a head, and encoders with decoders that nobody knows
def class_without_a_head(name, about, model, architecture, *dropped):
    """Of a family that is known: no head is missed, and none made up."""

    def build(d):
        d.use(model)
        d.set(architectures=[architecture])
        for known in [known for known in d.tensors if known.startswith(dropped)] if dropped else []:
            d.drop(known)
        d.names(architecture)
        d.loads(next(iter(d.tensors)))

    build.__name__, build.__doc__, build.__module__ = name, about, __name__
    case("warn", "unknown-architecture")(build)


class_without_a_head("albert_without_a_head", "AlbertModel.", albert(), "AlbertModel", "predictions.")
class_without_a_head("gpt2_that_classifies", "Its head is another.", gpt2(), "GPT2ForSequenceClassification")
class_without_a_head("t5_encoder_alone", "T5EncoderModel.", t5(["shared.weight"]), "T5EncoderModel", "decoder.")


def bart(d, stored, equal, **config):
    """The names of BART, with one layer's norm on each side."""
    d.config = {"model_type": "platypus", "architectures": ["PlatypusForConditionalGeneration"],
                "is_encoder_decoder": True, "dtype": "float32"} | config
    for name in stored:
        d.add("model." + name, (24, 8), values_of=None if not equal else "one")
    for side in ("encoder", "decoder"):
        d.add(f"model.{side}.layernorm_embedding.weight", (8,))


@case("warn", "unknown-architecture")
def unknown_encoder_decoder_stored_under_three_names(d):
    """Equal copies are one weight; the head is another name of it."""
    bart(d, T5_NAMES[:3], True, tie_word_embeddings=True)
    d.names("tie-copies-equal", "model.shared.weight", "model.encoder.embed_tokens.weight")
    d.loads(HEAD, "model.shared.weight")
    d.loads("model.decoder.embed_tokens.weight", "model.shared.weight")


@case("refuse", "tie-source-ambiguous")
def unknown_encoder_decoder_with_embeddings_that_differ(d):
    """Which of them is the shared one is a guess."""
    bart(d, T5_NAMES[:3], False, tie_word_embeddings=True)
    d.names("model.encoder.embed_tokens.weight", "--untie")


@case("warn", "unknown-architecture")
def unknown_encoder_decoder_untied(d):
    """The flag says that each has its own."""
    bart(d, T5_NAMES[:3], False, tie_word_embeddings=False)
    d.loads("model.shared.weight")
    d.loads("model.decoder.embed_tokens.weight")


@case("warn", "unknown-architecture")
def unknown_encoder_decoder_with_a_shared_embedding_alone(d):
    """No other names of it are made up."""
    bart(d, T5_NAMES[:1], False, architectures=["PlatypusModel"], tie_word_embeddings=True)
    d.names("only model.shared.weight is stored")
    d.loads("model.shared.weight")
