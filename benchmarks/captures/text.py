"""Text nets of transformers by their configurations, tiny, with the masks that collators pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

Step = Callable[[], None]
LENGTH, WORDS = 16, 100
DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "n_layer")
SMALL: dict[str, Any] = {
    **{"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64, "use_cache": False},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0},
}
HEADS = {"head_dim": 8}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SEQ2SEQ = {
    **{"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2},
    **{
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    },
}


def _all(kinds: tuple[str, ...], options: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    return {kind: dict(options or {}) for kind in kinds}


CAUSAL: dict[str, dict[str, Any]] = {
    **_all(("llama", "qwen2", "mistral", "phi", "phi3", "stablelm", "starcoder2", "olmo", "olmo2")),
    **_all(("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "cohere", "granite", "persimmon")),
    **_all(("nemotron", "biogpt", "ernie4_5", "smollm3", "arcee", "mpt", "codegen", "xglm")),
    **_all(("qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "cohere2", "exaone4", "helium"), HEADS),
    **_all(("mixtral", "qwen2_moe", "olmoe", "granitemoe"), EXPERTS),
    **_all(("qwen3_moe",), HEADS | EXPERTS),
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "mamba": {"state_size": 8},
    "rwkv": {"attention_hidden_size": 32},
}
CAUSAL |= {name: CAUSAL[name] | {"pad_token_id": None} for name in ("bloom", "gptj", "mpt")}
CAUSAL["gptj"] |= {"rotary_dim": 4}
CAUSAL["codegen"] = {"rotary_dim": 4}
CAUSAL["xglm"] = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}
MASKED: dict[str, dict[str, Any]] = {
    **_all(("bert", "roberta", "electra", "distilbert", "deberta", "deberta-v2", "camembert", "mpnet")),
    **_all(("xlm-roberta", "convbert", "fnet", "rembert", "roformer", "megatron-bert", "ernie", "layoutlm")),
    "albert": {"embedding_size": 16},
    "modernbert": {"global_attn_every_n_layers": 2},
    "nystromformer": {"segment_means_seq_len": 16, "num_landmarks": 16},
    "esm": {"mask_token_id": 3, "emb_layer_norm_before": False},
}
PAIRS = _all(("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot"), SEQ2SEQ)
OWN = {"mamba": ("num_key_value_heads",), "gpt_neo": ("num_hidden_layers",), "xglm": ("hidden_size",)}
KINDS = ((AutoModelForCausalLM, CAUSAL), (AutoModelForMaskedLM, MASKED), (AutoModelForSeq2SeqLM, PAIRS))


def masks(batch: int) -> dict[str, torch.Tensor | None]:
    """What is handed over as `attention_mask`: ones, as collators do; ones with a padded row; nothing."""
    ones = torch.ones(batch, LENGTH, dtype=torch.long, device="cpu")
    padded = ones.clone()
    padded[0, LENGTH // 2 :] = 0
    return {"ones": ones, "padded": padded, "none": None}


def net(auto: Any, kind: str, options: dict[str, Any]) -> Any:
    """A net by its configuration."""
    told = {name: value for name, value in SMALL.items() if name not in OWN.get(kind, ())} | options
    config = transformers.AutoConfig.for_model(kind, **told)
    return auto.from_config(config)


def training(auto: Any, kind: str, options: dict[str, Any], mask: str, batch: int = 2, device: str = "cpu") -> Step:
    """A step as a trainer does it: the batch is made on the host, and sent."""
    model = net(auto, kind, options).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(3, WORDS, (batch, LENGTH), device="cpu")
    given = {"input_ids": tokens, "labels": tokens, "attention_mask": masks(batch)[mask]}

    def step() -> None:
        sent = {name: x.to(device) for name, x in given.items() if x is not None}
        model(**sent).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cases() -> Iterator[tuple[str, Callable[..., Step]]]:
    """All nets with each mask."""
    for auto, kinds in KINDS:
        for kind, options in kinds.items():
            for mask in ("ones", "padded", "none"):
                yield f"{kind} {mask}", partial(training, auto, kind, options, mask)


def constructors() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What builds each net of the library, as its configuration is without options, but for depth."""
    for config in sorted(transformers.MODEL_MAPPING, key=lambda config: str(config.model_type)):
        yield config.model_type, partial(_shallow, config)


def _shallow(config_of: Any) -> Any:
    """A net of two layers: of more, some take hours and more memory than the host has."""
    config = config_of()
    for each in (config, *(x for x in vars(config).values() if isinstance(x, transformers.PretrainedConfig))):
        for name in DEPTHS:
            if isinstance(getattr(each, name, None), int):
                setattr(each, name, min(2, getattr(each, name)))
    return transformers.AutoModel.from_config(config)
