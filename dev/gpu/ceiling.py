#!/usr/bin/env python3
"""How fast PyTorch multiplies matrices in bf16, as many as GPT-2 124M does: what a product can reach on this GPU. Each
shape plain and with the right factor transposed, one product after the other and with a write of 1 GB between them,
which lets the GPU cool and empties its L2 cache."""
import torch

SHAPES = ((8192, 8192, 8192), (65536, 3072, 768), (65536, 768, 3072), (16384, 50304, 768), (16384, 768, 50304))


def rates(n, m, k, transposed, pause, times=60):
  """(median, largest) TFLOP/s of [n, k] x [k, m]."""
  a = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
  b = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).t() if transposed else \
      torch.randn(k, m, device="cuda", dtype=torch.bfloat16)
  other = torch.empty(2**30, device="cuda", dtype=torch.uint8)
  for _ in range(3):
    a @ b
  taken = []
  for number in range(times):
    if pause:
      other.fill_(number)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    a @ b
    end.record()
    end.synchronize()
    taken.append(begin.elapsed_time(end))
  taken.sort()
  return tuple(2e-9 * n * m * k / each for each in (taken[times // 2], taken[0]))


best = 0
for shape in SHAPES:
  for transposed in (False, True):
    for pause in (False, True):
      median, most = rates(*shape, transposed, pause)
      best = max(best, median)
      print(f"{' x '.join(map(str, shape))}{' transposed' if transposed else ''}{' with pauses' if pause else ''}: "
            f"{median:.0f} TFLOP/s, at most {most:.0f}", flush=True)
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}: largest median {best:.0f} TFLOP/s")
