"""A small causal model with Hugging Face's three names, without transformers."""

from types import SimpleNamespace

import torch
from fake import VOCABULARY
from torch import nn


class Decoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, hidden)
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, input_ids, attention_mask, position_ids, use_cache):
        x = self.embed_tokens(input_ids) * attention_mask[..., None]
        mean = x.cumsum(1) / (position_ids[..., None] + 1)
        return SimpleNamespace(last_hidden_state=torch.tanh(self.mix(mean)) + x)


class Causal(nn.Module):
    base_model_prefix = "model"

    def __init__(self, hidden=16, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.model = Decoder(hidden)
        self.lm_head = nn.Linear(hidden, VOCABULARY, bias=False)

    def get_output_embeddings(self):
        return self.lm_head


def make():
    model = Causal()
    return model, torch.optim.SGD(model.parameters(), lr=0.5)
