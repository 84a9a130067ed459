#!/usr/bin/env python3
"""The least time that a training step can take on a GPU, counted on paper: for every launch the bytes that must move
and the FLOPs that must be done, over two ceilings; whichever takes longer. Launches run one after the other, so their
sum bounds the step. Prints a Markdown table.

    python3 bench/floors.py [--kind lssar] [--layers 12] [--context 1024] ... (--help has all; GPT-2 124M without any)

The ceilings are what an H200 was seen to do (bytes copied, read and written; FLOPs of large bf16 matrix products);
peak is the data sheet's rate, for MFU. make bench measures both and compares every kernel with its own floor.
"""
import argparse

PRODUCTS = {"lssar": (4, 7)}  # of T x T x D per head, forward and backward; other kinds (2, 7). Causal: half of each.


def launches(m):
  """(name, how many in a step, bytes, FLOPs) of bf16 training."""
  layers, C, T, N, steps, s = m.layers, m.channels, m.context, m.micro * m.context, m.steps, 2
  A, F, V = C, 4 * C, -(-m.vocab // 128) * 128
  parameters = V * C + layers * (4 * C * A + 2 * C * F + 9 * C + F) + 2 * C
  forward, backward = PRODUCTS.get(m.kind, (2, 7))
  square = N * T * A  # FLOPs of one causal product of scores or sums, all heads

  def product(name, inner, outer):  # [N, inner] x [inner, outer]: forward, and the gradients of both operands
    flops, rows, weights = 2 * N * inner * outer, N * (inner + outer) * s, inner * outer
    yield f"{name}, forward and dinput", 2 * layers * steps, rows + weights * s, flops
    yield f"{name}, dweight", layers * steps, rows + 8 * weights, flops

  per_layer = layers * steps
  yield "embedding, both ways", steps, 4 * N * C * s + 8 * min(N, V) * C, 0
  yield "layernorm with residual, forward", 2 * per_layer + steps, 4 * N * C * s, 0
  yield "layernorm with residual, backward", 2 * per_layer + steps, 4 * N * C * s, 0
  yield from product("q, k, v", C, 3 * A)
  yield "rope, norms of q and k, both ways", 2 * per_layer, 4 * N * A * s, 0
  yield "attention, forward", per_layer, 4 * N * A * s, forward * square
  yield "attention, backward", per_layer, 8 * N * A * s, backward * square
  yield from product("attention's projection", A, C)
  yield from product("MLP with GELU", C, F)
  yield from product("MLP's projection", F, C)
  yield "bias gradients", per_layer, N * (3 * A + F + 2 * C) * s, 0
  logits = N * V * s
  yield "logits, forward and dinput", 2 * steps, logits + (V * C + N * C) * s, 2 * N * V * C
  yield "logits, dweight", steps, logits + N * C * s + 8 * V * C, 2 * N * V * C
  yield "cross entropy, both ways", steps, 2 * logits, 0
  yield "gradients: zeroed, their norm", 1, 8 * parameters, 0
  yield "AdamW", 1, 30 * parameters, 0


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--kind", default="softmax", help="of attention")
  for name, value in dict(layers=12, channels=768, context=1024, vocab=50257, micro=32, steps=16).items():
    parser.add_argument("--" + name, type=int, default=value, help={"steps": "micro steps to a step"}.get(name))
  parser.add_argument("--copy", type=float, default=4.3e12, help="bytes a second")
  parser.add_argument("--product", type=float, default=780e12, help="FLOPs a second, in bf16")
  parser.add_argument("--peak", type=float, default=989e12, help="FLOPs a second, for MFU")
  m = parser.parse_args()
  total = 0
  print("| launch | calls | MB | GFLOP | us each | ms a step |\n|---|---|---|---|---|---|")
  for name, calls, moved, flops in launches(m):
    seconds = max(moved / m.copy, flops / m.product)
    total += calls * seconds
    print(f"| {name} | {calls} | {moved / 1e6:.0f} | {flops / 1e9:.1f} | {seconds * 1e6:.0f} | "
          f"{calls * seconds * 1e3:.2f} |")
  tokens, C = m.steps * m.micro * m.context, m.channels
  per_token = 6 * (m.vocab * C + m.layers * (12 * C * C + 13 * C) + 2 * C) + 6 * m.layers * m.context * C
  print(f"\nIn all {total * 1e3:.1f} ms for {tokens:,} tokens: at most {tokens / total / 1e3:,.0f} K tokens/s, "
        f"{tokens * per_token / total / m.peak:.0%} MFU at {per_token / 1e6:.1f} MFLOP a token.")


if __name__ == "__main__":
  main()
