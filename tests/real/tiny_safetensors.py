"""Writes a small random Qwen3 with the real Qwen3 vocabulary in Hugging Face layout, all in 32 bits.

usage: python tiny_safetensors.py TOKENIZER_JSON OUT_DIRECTORY      (needs numpy and safetensors)
"""

import json
import pathlib
import shutil
import sys

import numpy as np
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 2, 4, 2, 32, 128, 151936

CONFIG = dict(
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=FFN,
    vocab_size=VOCAB,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    tie_word_embeddings=False,
    attention_bias=False,
    attention_dropout=0.0,
    hidden_act="silu",
    bos_token_id=151643,
    eos_token_id=151645,
    torch_dtype="float32",
    use_sliding_window=False,
)


def weights():
    random = np.random.default_rng(7)
    normal = lambda *shape, spread: random.normal(0, spread, shape).astype(np.float32)
    tensors = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN, spread=1.0),
        "lm_head.weight": normal(VOCAB, HIDDEN, spread=0.8),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        attention, mlp = block + "self_attn.", block + "mlp."
        tensors |= {
            attention + "q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN, spread=0.15),
            attention + "k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN, spread=0.15),
            attention + "v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN, spread=0.15),
            attention + "o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM, spread=0.15),
            attention + "q_norm.weight": np.ones(HEAD_DIM, np.float32),
            attention + "k_norm.weight": np.ones(HEAD_DIM, np.float32),
            mlp + "gate_proj.weight": normal(FFN, HIDDEN, spread=0.15),
            mlp + "up_proj.weight": normal(FFN, HIDDEN, spread=0.15),
            mlp + "down_proj.weight": normal(HIDDEN, FFN, spread=0.1),
            block + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
            block + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        }
    return tensors


def main():
    tokenizer, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (out / "generation_config.json").write_text(json.dumps(dict(bos_token_id=151643, eos_token_id=[151645, 151643])))
    shutil.copy(tokenizer, out / "tokenizer.json")
    described = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    (out / "tokenizer_config.json").write_text(json.dumps(described))
    save_file(weights(), out / "model.safetensors", metadata={"format": "pt"})


main()
