#!/usr/bin/env python3
"""A GPT in plain PyTorch, trained on the bytes of a text: with softmax by PyTorch's own attention, and with LSSAR by
plusgpt's kernels.

    make pytorch && python3 pytorch/example.py TEXT [STEPS]
"""
import sys
import time

import torch
import torch.nn.functional as F
from plusgpt_attention import attention_qkvpacked
from torch import nn

T, C, H, LAYERS, BATCH = 256, 128, 2, 2, 8


def softmax(qkv):  # [B, T, 3, H, D] -> [B, T, H, D]
  q, k, v = qkv.transpose(1, 3).unbind(2)
  return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def lssar(qkv):
  return attention_qkvpacked(qkv, variant="lssar", power=3)


class Block(nn.Module):
  def __init__(self, attend):
    super().__init__()
    self.attend, self.ln1, self.ln2 = attend, nn.LayerNorm(C), nn.LayerNorm(C)
    self.qkv, self.project = nn.Linear(C, 3 * C), nn.Linear(C, C)
    self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

  def forward(self, x):
    qkv = self.qkv(self.ln1(x)).unflatten(2, (3, H, C // H))
    x = x + self.project(self.attend(qkv).flatten(2))
    return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
  def __init__(self, attend):
    super().__init__()
    self.wte, self.wpe, self.ln = nn.Embedding(256, C), nn.Embedding(T, C), nn.LayerNorm(C)
    self.blocks = nn.Sequential(*(Block(attend) for _ in range(LAYERS)))

  def forward(self, tokens):
    x = self.blocks(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]])
    return F.linear(self.ln(x), self.wte.weight * C ** -0.5)


text = torch.frombuffer(bytearray(open(sys.argv[1], "rb").read()), dtype=torch.uint8).long()
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
for attend in (softmax, lssar):
  torch.manual_seed(1)
  model, begin = GPT(attend), time.perf_counter()
  optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
  for step in range(steps + 1):
    windows = torch.stack([text[n:n + T + 1] for n in torch.randint(len(text) - T, (BATCH,))])
    loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    if step % 50 == 0:
      print(f"{attend.__name__:8} step {step:4}  loss {loss.item():.4f}  {time.perf_counter() - begin:5.1f} s")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
