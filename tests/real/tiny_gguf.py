"""Writes a small random Qwen3 with the real Qwen3 vocabulary as GGUF, all in 32 bits.

usage: python tiny_gguf.py TOKENIZER_JSON OUT.gguf      (needs numpy and gguf)
"""

import json
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 2, 4, 2, 32, 128, 151936
CONTEXT, ROPE_BASE, NORM_EPS = 4096, 1e6, 1e-6
END_OF_TEXT, END_OF_TURN = 151643, 151645


def tokenizer(writer, path):
    with open(path, encoding="utf-8") as file:
        described = json.load(file)
    tokens = [f"[PAD{i}]" for i in range(VOCAB)]
    types = [gguf.TokenType.UNUSED] * VOCAB
    for text, i in described["model"]["vocab"].items():
        tokens[i], types[i] = text, gguf.TokenType.NORMAL
    for added in described["added_tokens"]:
        i = added["id"]
        tokens[i] = added["content"]
        types[i] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in described["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)


def shape(writer):
    writer.add_name("tiny-qwen3-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def weights(writer):
    random = np.random.default_rng(7)

    def normal(name, shape, spread):
        writer.add_tensor(f"{name}.weight", random.normal(0, spread, shape).astype(np.float32))

    def ones(name, length):
        writer.add_tensor(f"{name}.weight", np.ones(length, np.float32))

    normal("token_embd", (VOCAB, HIDDEN), 1.0)
    normal("output", (VOCAB, HIDDEN), 0.8)
    ones("output_norm", HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        normal(block + "attn_q", (HEADS * HEAD_DIM, HIDDEN), 0.15)
        normal(block + "attn_k", (KV_HEADS * HEAD_DIM, HIDDEN), 0.15)
        normal(block + "attn_v", (KV_HEADS * HEAD_DIM, HIDDEN), 0.15)
        normal(block + "attn_output", (HIDDEN, HEADS * HEAD_DIM), 0.15)
        ones(block + "attn_q_norm", HEAD_DIM)
        ones(block + "attn_k_norm", HEAD_DIM)
        normal(block + "ffn_gate", (FFN, HIDDEN), 0.15)
        normal(block + "ffn_up", (FFN, HIDDEN), 0.15)
        normal(block + "ffn_down", (HIDDEN, FFN), 0.1)
        ones(block + "attn_norm", HIDDEN)
        ones(block + "ffn_norm", HIDDEN)


def main():
    tokenizer_json, out = sys.argv[1:]
    writer = gguf.GGUFWriter(out, "qwen3")
    shape(writer)
    tokenizer(writer, tokenizer_json)
    weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
