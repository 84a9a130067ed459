#!/usr/bin/env python3
"""What a training step takes on a GPU, on paper: a floor and a prediction. For every launch the bytes that move and the
FLOPs that are done, each over a rate; whichever takes longer. Launches run one after the other, so a step is their sum.
NOTHING HERE IS MEASURED (make bench measures ceilings, kernels and steps). Prints a Markdown table.

    python3 dev/bench/floors.py [--kind lssar] [--layers 12] [--context 1024] ...    default: GPT-2 124M; --help has all

The floor takes the ceilings that an H200 was seen to reach (bytes copied, read and written; FLOPs of large bf16 matrix
products), and is given again with attention as fast as FlashAttention-3. The prediction takes the rates in RATES and
ATTENTION, which are meant for sizes near the default ones. Peak, for MFU, is the data sheet's.
"""
import argparse
from collections import namedtuple

# What the prediction assumes for an H200: TB/s, TFLOP/s, and us that a launch takes besides. "public" = measurements of
# other programs, off by 2%; the others are judgement, for the reason given, off by up to 20%.
Rate = namedtuple("Rate", "copy product start", defaults=(0.88 * 4.3, float("inf"), 0))
RATES = {
    "pass": Rate(),                       # 4.3 for a plain copy (public), less 12% for arithmetic and ends
    "second stage": Rate(start=4),        # at most 512 rows of partial sums: latency rather than bytes
    "K 768": Rate(product=640),           # 8192^3 reaches 769 to 798 (public); an epilogue after K 768 is not hidden
    "K 768, wide": Rate(product=680),     # more columns: the last wave is a smaller part
    "K 768, aux": Rate(product=600),      # GELU's input is written or read in the epilogue as well
    "K 2304": Rate(product=730),          # between 768 and 3072
    "K 3072": Rate(product=740),          # the epilogue is a quarter of that after K 768
    "dweight": Rate(product=670),         # as "logits, dweight", but 18 to 72 tiles of 128 x 256 for 132
                                          # multiprocessors: k in 7 parts would fill 95% of whole waves; less half
                                          # the time of the parts' sums. An estimate: 620 if all shows, 725 if none does
    "logits": Rate(product=690),          # as "K 768, wide"; the bytes of 50304 columns
    "logits, dinput": Rate(product=780),  # K 50304: a large product, but for its waves (Launch.fill)
    "logits, dweight": Rate(product=760),  # K 16384, whole waves; the sums of wte are counted apart (Launch.shown)
}
# Attention at D 64, T 1024: TFLOP/s forward and backward by FlashAttention's count (2 and 5 products): 0.31 and 0.38
# (softmax), 0.49 and 0.39 (lssar) of the bounds that kernel_table.py --count prints. FlashAttention-3's forward keeps
# 0.29 of the same bound. Each began as a share of its bound, for kernels with more instructions or waits, and grew by:
# softmax forward  280 x 1.03: two chains of maxima instead of one, 3 to 5%
# softmax backward 245 x 1.04 x 1.05: half the waits of dK dV, by 128 queries a step (7% of four products in seven), and
#                  exponentials while dP is summed (5 to 8%)
# lssar forward    115 x 1.22: 25 instructions a score for 33; fewer do not shorten the start and end of a row tile
# lssar backward   135 x 1.22: 45 instructions a score for 65. That alone would be 1.44, but dQ's exponentials now take
#                  2048 of its 2612 cycles, and nothing makes them overlap fully with the rest
# backward         x 0.97 and 0.98: rope's backward in the epilogues takes 13 us (lssar 16) of each kernel where nothing
#                  hides it. Half of that is assumed
ATTENTION = {"softmax": (288, 260), "lssar": (140, 162)}
# FlashAttention-3's at this size (public): forward 265. Backward 363 without a mask; 225 to 290 of it should remain
# with one, less if it is to be deterministic: 300 is generous.
FLASH_ATTENTION_3 = 265, 300
PRODUCTS = {"lssar": (4, 7)}  # of T x T x D per head that are done, forward and backward; other kinds (2, 7)

GAP = 1e-6            # s between two launches of a full queue (public: 1 to 2 us)
CHUNK = 1 << 30       # logits of a chunk, at most (train_gpt2.cu)
PARTIAL_ROWS = 512    # partial sums of a column, at most (kernels/linear_bias.cu)

# Of one call: bytes beside FLOPs; shown = bytes after them (half of what an epilogue reads and writes); fill = share of
# the multiprocessors that have a tile, over all waves.
Launch = namedtuple("Launch", "name calls bytes flops rate shown fill", defaults=(0, "pass", 0, 1))


def launches(m):
  """Every launch of a step of bf16 training, in its order. What a change removes or shortens is a line here."""
  layers, C, N, steps, s = m.layers, m.channels, m.micro * m.context, m.steps, 2
  A, F, V, each = C, 4 * C, -(-m.vocab // 128) * 128, layers * steps
  parameters = V * C + layers * (4 * C * A + 2 * C * F + 9 * C + F) + 2 * C
  forward, _ = PRODUCTS.get(m.kind, (2, 7))
  square = N * m.context * A  # FLOPs of one causal product of scores or sums, all heads
  o2 = 4 * N * A if m.kind == "lssar" else 0
  chunks = -(-N * V // CHUNK)
  rows, tiles = N / chunks, -(-N // (128 * chunks)) * -(-C // 256)  # of a chunk; tiles of 128 x 256
  # Layernorm's backward sums both projections' biases. These two are passes, as they were in the step that a GPU ran;
  # attention sums the latter since.
  biases = {"MLP": F, "q, k, v": 3 * A}

  def product(name, rate, inner, outer, aux=0, residual=0):
    size = (N * (inner + outer) + inner * outer) * s + aux + residual / 2
    return Launch(name, each, size, 2 * N * inner * outer, rate, residual / 2)

  def dweight(name, inner, outer):
    size = N * (inner + outer) * s + 8 * inner * outer
    return Launch(name + ", dweight", each, size, 2 * N * inner * outer, "dweight")

  return [
      Launch("embedding, both ways", steps, 4 * N * C * s + 8 * min(N, V) * C),
      Launch("layernorm", 2 * each + steps, 2 * N * C * s),
      product("q, k, v", "K 768, wide", C, 3 * A),
      Launch("rope, norms of q and k", each, 4 * N * A * s),
      Launch("attention", each, 4 * N * A * s + o2, forward * square, "forward"),
      product("attention's projection, + residual", "K 768", A, C, residual=N * C * s),
      product("MLP, GELU, its input kept", "K 768, aux", C, F, N * F * s),
      product("MLP's projection, + residual", "K 3072", F, C, residual=N * C * s),
      Launch("logits", steps * chunks, (rows * (V + C) + V * C) * s, 2 * rows * V * C, "logits"),
      Launch("cross entropy, both ways", steps * chunks, 2 * rows * V * s),
      Launch("logits, dinput", steps * chunks, (rows * (V + C) + V * C) * s, 2 * rows * V * C, "logits, dinput",
             fill=tiles / (132 * -(-tiles // 132))),
      Launch("logits, dweight", steps * chunks, rows * (V + C) * s + 4 * V * C, 2 * rows * V * C, "logits, dweight",
             shown=4 * V * C),
      dweight("MLP's projection", F, C),
      product("MLP's projection, dinput through GELU", "K 768, aux", C, F, N * F * s),
      dweight("MLP", C, F),
      product("MLP, dinput", "K 3072", F, C),
      dweight("attention's projection", A, C),
      product("attention's projection, dinput", "K 768", C, A),
      Launch("rows: dO . O", each, 2 * N * A * s),
      *([Launch("rows: dO . O2, in the same launch", each, o2)] if o2 else []),
      # Rope, norms and scale are undone in registers, before dK and dQ are rounded (heads of 64 and 128 channels).
      # Their table, 4 N A bytes for each kernel, comes from the L2.
      Launch("attention, dK dV", each, 6 * N * A * s, 4 * square, "backward"),
      Launch("attention, dQ", each, 5 * N * A * s, 3 * square, "backward"),
      dweight("q, k, v", C, 3 * A),
      product("q, k, v, dinput", "K 2304", 3 * A, C),
      *[Launch(f"bias of {name}", each, N * width * s) for name, width in biases.items()],
      Launch("second stages of biases", len(biases) * each, 8 * PARTIAL_ROWS * sum(biases.values()) // len(biases),
             rate="second stage"),
      Launch("layernorm, dx +=, biases of projections", 2 * each + steps, 4 * N * C * s),
      Launch("second stages of layernorm", 2 * each + steps, 24 * PARTIAL_ROWS * C, rate="second stage"),
      Launch("gradients: zeroed, their norm", 2, 4 * parameters),
      Launch("AdamW", 12 * layers + 4, 30 * parameters / (12 * layers + 4)),
  ]


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--kind", default="softmax", help="of attention")
  for name, value in dict(layers=12, channels=768, context=1024, vocab=50257, micro=32, steps=16).items():
    parser.add_argument("--" + name, type=int, default=value, help={"steps": "micro steps to a step"}.get(name))
  parser.add_argument("--copy", type=float, default=4.3e12, help="the floor's bytes a second")
  parser.add_argument("--product", type=float, default=780e12, help="the floor's FLOPs a second, in bf16")
  parser.add_argument("--peak", type=float, default=989e12, help="FLOPs a second, for MFU")
  m = parser.parse_args()
  done = dict(zip(("forward", "backward"), PRODUCTS.get(m.kind, (2, 7))))
  counted = {"forward": 2, "backward": 5}
  ours = dict(zip(done, ATTENTION.get(m.kind, ATTENTION["softmax"])))  # kinds of one sweep: as softmax
  theirs = {"forward": FLASH_ATTENTION_3[0], "backward": FLASH_ATTENTION_3[1] * done["backward"] / counted["backward"]}
  totals = [0, 0, 0]
  print("| launch | calls | MB | GFLOP | floor, us | predicted, us | predicted, ms a step |\n" + "|---" * 7 + "|")
  for l in launches(m):
    floor = reached = max((l.bytes + l.shown) / m.copy, l.flops / m.product)
    rate = RATES.get(l.rate) or Rate(product=ours[l.rate] * done[l.rate] / counted[l.rate])
    if l.rate in theirs:
      reached = max(floor, l.flops / theirs[l.rate] / 1e12)
    predicted = (max(l.bytes / rate.copy, l.flops / rate.product / l.fill) + l.shown / rate.copy) / 1e12
    predicted += rate.start * 1e-6 + GAP
    totals = [total + l.calls * seconds for total, seconds in zip(totals, (floor, reached, predicted))]
    print(f"| {l.name} | {l.calls} | {(l.bytes + l.shown) / 1e6:.0f} | {l.flops / 1e9:.1f} | {floor * 1e6:.0f} | "
          f"{predicted * 1e6:.0f} | {l.calls * predicted * 1e3:.1f} |")
  tokens, C = m.steps * m.micro * m.context, m.channels
  per_token = 6 * (m.vocab * C + m.layers * (12 * C * C + 13 * C) + 2 * C) + 6 * m.layers * m.context * C
  print(f"\nFor {tokens:,} tokens of {per_token / 1e6:.1f} MFLOP, on paper:")
  for name, total in zip(("floor", "floor, attention as FlashAttention-3", "predicted"), totals):
    mfu = tokens * per_token / total / m.peak
    print(f"- {name}: {total * 1e3:.0f} ms, {tokens / total / 1e3:,.0f} K tokens/s, {mfu:.0%} MFU")


if __name__ == "__main__":
  main()
