"""Every kind of model with small random weights, of the real classes of transformers, and what a plain call returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = SHAPE | {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 8}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
IMAGES = SHAPE | {"image_size": 16, "patch_size": 4}
TOWERS = {"text_config": TEXT, "vision_config": IMAGES}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 64,
      "decoder_start_token_id": 0, "dropout_rate": 0.0}  # fmt: skip
WHISPER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 64,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
           "dropout": 0.0, "max_source_positions": 10, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 64,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
        "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": None}  # fmt: skip
IMAGE_TOKEN = 60


def randomly(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(length: int = 12, padding: int = 3) -> dict[str, Tensor]:
    """Two passages, the second of them padded."""
    ids = torch.randint(3, 59, (2, length), generator=randomly())
    mask = torch.ones_like(ids)
    mask[1, length - padding :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}


def whole() -> dict[str, Tensor]:
    """Without padding, for a model whose head keeps the mask from its stack."""
    return words(padding=0)


def translated() -> dict[str, Tensor]:
    """Targets that end elsewhere than the passages."""
    return words() | {"labels": words(padding=7)["labels"]}


def pictures(*shape: int) -> Tensor:
    return torch.randn(2, *(shape or (3, 16, 16)), generator=randomly())


def labelled() -> dict[str, Tensor]:
    return {"pixel_values": pictures(), "labels": torch.tensor([0, 1])}


def of_several_sizes() -> dict[str, Tensor]:
    """Images as patches, the second of them padded."""
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    sizes = torch.tensor([[4, 4], [3, 4]])
    return {"pixel_values": pictures(16, 48), "pixel_attention_mask": mask, "spatial_shapes": sizes,
            "labels": torch.tensor([0, 1])}  # fmt: skip


def paired() -> dict[str, Any]:
    return {"input_ids": words()["input_ids"], "pixel_values": pictures(), "return_loss": True}


def sound() -> dict[str, Tensor]:
    return {"input_features": pictures(8, 20), "labels": words()["labels"]}


def both() -> dict[str, Tensor]:
    """A picture of four tokens in a text."""
    batch = words()
    for name in ("input_ids", "labels"):
        batch[name][:, 2:6] = IMAGE_TOKEN
    return batch | {"pixel_values": pictures(1, 3, 16, 16)}


@dataclass
class Kind:
    """`mask` names the argument that says which of the tokens read are no padding; None: all count."""

    model: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, Any]] = words
    mask: str | None = "attention_mask"
    modules: str | None = None
    norm: bool | None = True  # whether the last state is there before and after a final norm; None: it is not known
    before: bool = False  # the states that the model returns end before the norm


KINDS = {
    "Llama": Kind("LlamaForCausalLM", GROUPED),
    "Qwen2": Kind("Qwen2ForCausalLM", GROUPED),
    "Qwen3": Kind("Qwen3ForCausalLM", HEADS),
    "Gemma 3": Kind("Gemma3ForCausalLM", HEADS),
    "OLMo 3": Kind("Olmo3ForCausalLM", GROUPED),
    "GPT-2": Kind("GPT2LMHeadModel", {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}),
    "BLOOM": Kind("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}),
    "GPT-NeoX": Kind("GPTNeoXForCausalLM", TEXT),
    "OPT": Kind("OPTForCausalLM", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "BERT": Kind("BertForMaskedLM", TEXT | STILL, norm=False),
    "ModernBERT": Kind("ModernBertForMaskedLM", TEXT),
    "DistilBERT": Kind("DistilBertForMaskedLM", {
        "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "dropout": 0.0,
        "attention_dropout": 0.0}, norm=False),
    "T5, decoder": Kind("T5ForConditionalGeneration", T5, translated, mask="labels"),
    "T5, decoder by name": Kind("T5ForConditionalGeneration", T5, translated, "labels", "decoder.block.*"),
    "T5, encoder": Kind("T5ForConditionalGeneration", T5, translated, modules="encoder.block.*"),
    "BART": Kind("BartForConditionalGeneration", BART, translated, mask="labels", norm=False),
    # Its decoder reads the last label first.
    "mBART": Kind("MBartForConditionalGeneration", BART, translated, mask="labels"),
    "BART without its encoder": Kind("BartForCausalLM", BART | {"encoder_layers": 4}, norm=False),
    "Mixtral": Kind("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}),
    "Qwen3-MoE": Kind("Qwen3MoeForCausalLM", HEADS | MOE | {"num_experts": 4}),
    "gpt-oss": Kind("GptOssForCausalLM", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "experts of Mixtral": Kind("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}, modules="model.layers.*.mlp"),
    "Mamba": Kind("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8}),
    "Mamba 2": Kind("Mamba2ForCausalLM", {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8, "num_heads": 8, "head_dim": 8,
        "n_groups": 1, "chunk_size": 8}),
    "RWKV": Kind("RwkvForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}, whole),
    "CPM-Ant": Kind("CpmAntForCausalLM", TEXT | {
        "dim_head": 8, "dim_ff": 48, "prompt_length": 4, "prompt_types": 3, "segment_types": 3}, whole, norm=None),
    "Qwen3-Next": Kind("Qwen3NextForCausalLM", HEADS | MOE | {
        "num_experts": 4, "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"]}),
    "LFM2": Kind("Lfm2ForCausalLM", GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "Granite hybrid": Kind("GraniteMoeHybridForCausalLM", GROUPED | {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
        "mamba_d_state": 8, "mamba_chunk_size": 8, "shared_intermediate_size": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2}),
    "ViT": Kind("ViTForImageClassification", IMAGES | STILL, labelled, None, before=True),
    "DINOv2": Kind("Dinov2ForImageClassification", IMAGES | STILL | {"mlp_ratio": 2}, labelled, None, before=True),
    "CLIP, images": Kind("CLIPForImageClassification", TOWERS, labelled, None, norm=None),
    "SigLIP, images": Kind("SiglipForImageClassification", TOWERS, labelled, None, norm=None),
    "SigLIP 2, images": Kind("Siglip2ForImageClassification", {
        "text_config": TEXT, "vision_config": SHAPE | {"num_patches": 16, "patch_size": 4}}, of_several_sizes,
        "pixel_attention_mask", norm=None),
    "SigLIP 2, images by name": Kind("Siglip2ForImageClassification", {
        "text_config": TEXT, "vision_config": SHAPE | {"num_patches": 16, "patch_size": 4}}, of_several_sizes,
        "pixel_attention_mask", "vision_model.encoder.layers.*"),
    "Whisper, decoder": Kind("WhisperForConditionalGeneration", WHISPER, sound, "labels"),
    "Whisper, encoder": Kind("WhisperForConditionalGeneration", WHISPER, sound, None, modules="model.encoder.layers.*"),
    "SmolVLM": Kind("SmolVLMForConditionalGeneration", {
        "vision_config": IMAGES, "text_config": {"model_type": "llama", **GROUPED}, "image_token_id": IMAGE_TOKEN,
        "scale_factor": 2, "pad_token_id": 0}, both),
}  # fmt: skip


def build(kind: Kind) -> Any:
    made = getattr(transformers, kind.model)
    torch.manual_seed(1)
    return made(made.config_class(**kind.options))


def plain_states(model: Any, kind: Kind, inputs: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """(states, loss) of a plain call."""
    if kind.modules is None:
        out = model(**inputs, output_hidden_states=True)
        states = list(out.get("decoder_hidden_states") or out.hidden_states)
        if kind.model.startswith(("Mamba", "Rwkv")):  # what each block puts out, the last once more after the norm
            states = [model.get_input_embeddings()(inputs["input_ids"]), *states[:-2], states[-1]]
        return states, out.loss
    states: list[Tensor] = []
    start, end = kind.modules.split("*")
    chosen = [m for name, m in model.named_modules() if name.startswith(start) and name.endswith(end)]
    chosen = [m for m in chosen if name_depth(model, m) == kind.modules.count(".")]
    hooks = [m.register_forward_hook(lambda _m, _a, out: states.append(out[0] if isinstance(out, tuple) else out))
             for m in chosen]  # fmt: skip
    loss = model(**inputs).loss
    for hook in hooks:
        hook.remove()
    return states, loss


def name_depth(model: nn.Module, wanted: nn.Module) -> int:
    return next(name.count(".") for name, module in model.named_modules() if module is wanted)


def kept(kind: Kind, inputs: dict[str, Any], states: list[Tensor]) -> Tensor:
    if kind.mask is None:
        return torch.ones(states[0].shape[:2], dtype=torch.bool)
    return inputs[kind.mask] > 0 if kind.mask.endswith("attention_mask") else inputs[kind.mask] != -100


PAIR = Kind("CLIPModel", TOWERS | {"projection_dim": 16}, paired)


class Diffusion(nn.Module):
    """A diffusion transformer in the small: patches of a latent, blocks modulated by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.time = nn.Conv2d(4, 16, 2, 2), nn.Linear(1, 32)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 16)

    def forward(self, latent: Tensor, t: Tensor) -> Tensor:
        x = self.patches(latent).flatten(2).mT
        scale, shift = self.time(t[:, None]).chunk(2, dim=-1)
        for block in self.blocks:
            x = block(x * (1 + scale[:, None]) + shift[:, None])
        return self.head(x)
