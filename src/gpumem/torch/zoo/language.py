"""Language models of transformers: BERT, GPT-2, Llama and others, by their configurations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from gpumem.torch.internals import torch
from gpumem.torch.zoo.libraries import library
from gpumem.torch.zoo.recipe import Input, Net


@dataclass(frozen=True, slots=True)
class Language:
    """A model of transformers: its classes, what its configuration calls things, how it is trained here.

    `sizes` are what grows with the hidden size, as multiples of it: heads of 64, and feed-forward layers four times as
    wide.
    """

    model: str
    config: str
    words: int
    settings: tuple[tuple[str, Any], ...] = ()
    layers: str = "num_hidden_layers"
    sizes: tuple[tuple[str, float], ...] = (
        ("hidden_size", 1),
        ("num_attention_heads", 1 / 64),
        ("intermediate_size", 4),
    )
    sequence: int = 512
    batch: int = 8

    def with_(self, layers: int | None, hidden: int | None) -> dict[str, Any]:
        """What the configuration is told."""
        chosen = {"vocab_size": self.words, **dict(self.settings)}
        if layers:
            chosen[self.layers] = layers
        if hidden:
            chosen |= {name: max(int(hidden * part), 1) for name, part in self.sizes}
        return chosen


REPEATED = "sdpa_repeated"  # scaled-dot-product attention of heads whose keys and values are repeated before
BERT = Language("BertForMaskedLM", "BertConfig", 30_522, (("attn_implementation", "eager"),), sequence=128, batch=32)
GPT2 = Language(
    "GPT2LMHeadModel",
    "GPT2Config",
    50_257,
    (("attn_implementation", "eager"), ("use_cache", False)),
    layers="n_layer",
    sizes=(("n_embd", 1), ("n_head", 1 / 64)),
)
LLAMA = Language(
    "LlamaForCausalLM",
    "LlamaConfig",
    32_000,
    (("attn_implementation", REPEATED), ("use_cache", False), ("tie_word_embeddings", True)),
    sequence=1024,
    batch=4,
    sizes=(
        ("hidden_size", 1),
        ("num_attention_heads", 1 / 64),
        ("num_key_value_heads", 1 / 128),
        ("intermediate_size", 4),
    ),
)
OPT = Language(
    "OPTForCausalLM",
    "OPTConfig",
    50_272,
    (("attn_implementation", "sdpa"), ("use_cache", False)),
    sizes=(("hidden_size", 1), ("num_attention_heads", 1 / 64), ("ffn_dim", 4), ("word_embed_proj_dim", 1)),
)
T5 = Language(
    "T5ForConditionalGeneration",
    "T5Config",
    32_128,
    (("use_cache", False), ("decoder_start_token_id", 0)),
    layers="num_layers",
    sizes=(("d_model", 1), ("d_ff", 4), ("num_heads", 1 / 64)),
)


def language(
    which: Language,
    *,
    sequence: int | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    checkpoint: bool = False,
    dtype: str = "float32",
) -> Net:
    """A language model by its configuration; labels are the inputs."""
    chosen = which.with_(layers, hidden)
    length = sequence or which.sequence
    build = partial(_build, which, chosen, checkpoint, dtype, length)
    return Net(build, (Input((length,), which.words),), _loss, which.batch, "adam", ("transformers",))


def _build(which: Language, chosen: dict[str, Any], checkpoint: bool, dtype: str, length: int) -> Any:
    transformers = library("transformers")
    transformers.AttentionInterface.register(REPEATED, _repeated)
    transformers.AttentionMaskInterface.register(REPEATED, library("transformers.masking_utils").sdpa_mask)
    config = getattr(transformers, which.config)(**chosen)
    for positions in ("n_positions", "max_position_embeddings"):
        if getattr(config, positions, length) < length:
            setattr(config, positions, length)
    net = getattr(transformers, which.model)(config).to(getattr(torch, dtype))
    if getattr(net, "loss_type", "") is None:  # it would take this one, with a warning
        net.loss_type = "ForCausalLM"
    if checkpoint:
        enable = getattr(net, "activation_checkpointing_enable", None) or net.gradient_checkpointing_enable
        enable({"use_reentrant": False, "preserve_rng_state": False})
    return net


def _loss(net: Any, tokens: torch.Tensor) -> torch.Tensor:
    with _one_sequence_a_row():
        return cast(torch.Tensor, net(input_ids=tokens, labels=tokens).loss)


def _repeated(module: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
    """Attention of grouped heads, as the recorded traces have it; on a GPU they could share keys and values."""
    sdpa = library("transformers.integrations.sdpa_attention")
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = sdpa.repeat_kv(key, groups), sdpa.repeat_kv(value, groups)
    return sdpa.sdpa_attention_forward(SimpleNamespace(is_causal=module.is_causal), query, key, value, *args, **options)


@contextmanager
def _one_sequence_a_row() -> Iterator[None]:
    """Tell transformers, which would look and wait for the answer, that no row is packed of several sequences."""
    masks = library("transformers.masking_utils")
    with patch.object(masks, "find_packed_sequence_indices", lambda position_ids: None, create=True):
        yield
