"""TRL's GRPOTrainer on the CPU: a small random Qwen3, a stale sampler at top-p 0.9, DLC on; then plain TRL beside it.

    python examples/trl_dlc.py [--steps 30] [--engine target/release/lockstep]

The sampler is transformers' own generate, or with `--engine` Lockstep's engine in a process of its own. The reward is the share of
even words in an answer of 12. No downloads: model and tokenizer are made here.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import tempfile
import warnings

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from lockstep.frameworks.trl import DlcGRPOTrainer, EngineSampler, TransformersSampler

WORDS = 64
TEMPERATURE, TOP_P, LENGTH = 1.0, 0.9, 12


def tokenizer():
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, WORDS)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="left"
    )


def model(seed=0):
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


def even(completions, **_):
    words = [text.split() for text in completions]
    return [
        sum(int(word[1:]) % 2 == 0 for word in answer if word[1:].isdigit()) / max(len(answer), 1) for answer in words
    ]


def prompts(count=256, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return Dataset.from_list(
        [
            {"prompt": " ".join(f"w{i}" for i in torch.randint(3, WORDS, (4,), generator=draw).tolist())}
            for _ in range(count)
        ]
    )


def config(out, steps, **more):
    return GRPOConfig(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=LENGTH,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        beta=0.0,
        seed=1,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        loss_type="dapo",
        max_grad_norm=1.0,
        **more,
    )


@contextlib.contextmanager
def serving(*command):
    """A process whose first line says where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def sampler_of(policy, engine):
    """transformers' generate on a copy, or Lockstep's engine on the same weights."""
    given = {"temperature": TEMPERATURE, "top_p": TOP_P, "max_new_tokens": LENGTH, "eos": [1]}
    if engine is None:
        yield TransformersSampler(policy, pad=0, **given)
        return
    with tempfile.TemporaryDirectory() as weights:
        policy.save_pretrained(f"{weights}/model")
        with serving(engine, "sampler", "--model", f"{weights}/model", "--listen", "127.0.0.1:0") as address:
            yield EngineSampler(address, weights, **given)


def with_lockstep(steps, rule=None, engine=None):
    """The trainer after training, and its log."""
    set_seed(1)
    policy = model()
    with tempfile.TemporaryDirectory() as out, sampler_of(policy, engine) as sampler:
        trainer = DlcGRPOTrainer(
            policy,
            reward_funcs=even,
            args=config(out, steps),
            train_dataset=prompts(),
            processing_class=tokenizer(),
            sampler=sampler,
            rule=rule,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer, [row for row in trainer.state.log_history if "reward" in row]


def plain(steps):
    """TRL alone, with its own generation."""
    set_seed(1)
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model(), reward_funcs=even, args=config(out, steps), train_dataset=prompts(), processing_class=tokenizer()
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer, [row for row in trainer.state.log_history if "reward" in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--engine", metavar="LOCKSTEP", help="the lockstep binary, whose engine samples")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    trainer, log = with_lockstep(args.steps, engine=args.engine)
    print("step  reward  lag(max)  numeric(max)  ess(horizon)  ratio p_s/q (min..max)")
    for step, row in enumerate(log, 1):
        mark = "  re-synchronised" if step in trainer.resynchronised else ""
        ratio = [row[f"sampling/importance_sampling_ratio/{name}"] for name in ("min", "max")]
        print(
            f"{step:4d}  {row['reward']:.3f}   {row['lockstep/lag/max_abs']:.4f}    {row['lockstep/numeric/max_abs']:.2e}      {row['lockstep/ess/horizon']:.3f}         {ratio[0]:.6f}..{ratio[1]:.6f}{mark}"
        )
    first, last = (sum(row["reward"] for row in part) / len(part) for part in (log[:5], log[-5:]))
    print(
        f"with lockstep: reward {first:.3f} -> {last:.3f} (means of 5 steps), {len(trainer.resynchronised)} re-synchronisations in {args.steps} steps, "
        f"{len(trainer.sampler.trained_on)} answers consumed of {32 * args.steps} sampled"
    )
    _, log = plain(args.steps)
    first, last = (sum(row["reward"] for row in part) / len(part) for part in (log[:5], log[-5:]))
    print(
        f"plain TRL, new weights every step, same seeds: reward {first:.3f} -> {last:.3f}; it knows no q under top-p: see tests/with_trl for its ratio"
    )


if __name__ == "__main__":
    main()
