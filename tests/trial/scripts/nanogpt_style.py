"""A small GPT with its own batches, its own schedule, decay groups and an autocast context."""

import contextlib
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

BLOCK, VOCABULARY, WIDTH, HEADS = 64, 65, 96, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def get_batch():
    ix = torch.randint(len(text) - BLOCK, (8,))
    x = torch.stack([text[i : i + BLOCK] for i in ix])
    return x, torch.stack([text[i + 1 : i + 1 + BLOCK] for i in ix])


@torch.no_grad()
def estimate_loss():
    model.eval()
    loss = sum(model(*get_batch())[1].item() for _ in range(4)) / 4
    model.train()
    return loss


torch.manual_seed(1337)
text = torch.randint(VOCABULARY, (20_000,))
model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
ctx = contextlib.nullcontext()
X, Y = get_batch()
for step in range(100_000):
    lr = 6e-4 * min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * step / 100_000))
    for group in optimizer.param_groups:
        group["lr"] = lr
    if step % 100 == 0:
        print(f"step {step}: {estimate_loss():.4f}, {time.time():.0f}")
    for micro_step in range(2):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 2
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
