"""Write two tiny random Qwen3 models and what torch computes from them: logits, token log-probs, gradients.

    python make_reference.py OUT [--seed N]

OUT/tied    one file, the head is the embedding, config.json spells `rope_theta`
OUT/untied  two files and an index, its own head, config.json spells `rope_parameters`
"""
import argparse
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

BATCH, LENGTH, VOCAB = 3, 24, 128


def random_model(tied: bool) -> Qwen3ForCausalLM:
    """Weights large enough that |logit| reaches about 10, so that errors show; norm weights away from 1."""
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=tied,
        rms_norm_eps=1e-6, initializer_range=0.4, eos_token_id=[5, 7] if tied else 5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6 if tied else 1e4},
    )
    config._attn_implementation = "eager"
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


def reference(model: Qwen3ForCausalLM) -> dict[str, torch.Tensor]:
    """loss = sum_t coef_t log p(ids_t | ids_<t), the shape of a policy-gradient loss."""
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
    logits = model(ids).logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    coef = torch.randn_like(logp)
    (logp * coef).sum().backward()
    out = {"ids": ids.to(torch.int64), "logits": logits, "logp": logp, "coef": coef}
    out |= {f"grad.{name}": weight.grad for name, weight in model.named_parameters()}
    print(f"  max |logit| {logits.abs().max().item():.2f}, {len(list(model.named_parameters()))} parameters")
    return {name: tensor.detach().contiguous() for name, tensor in out.items()}


def spell_rope_theta(path: pathlib.Path) -> None:
    """Rewrite a config of transformers 5 as transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    for name, tied in [("tied", True), ("untied", False)]:
        folder = args.out / name
        print(folder)
        model = random_model(tied)
        model.save_pretrained(folder, max_shard_size="5GB" if tied else "80KB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        if tied:
            spell_rope_theta(folder / "config.json")
        save_file(reference(model), folder / "reference.safetensors")


if __name__ == "__main__":
    main()
