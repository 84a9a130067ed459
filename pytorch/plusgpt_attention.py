"""plusgpt's attention kernels as an operator of PyTorch (README.md).

    from plusgpt_attention import attention
    y = attention(q, k, v, kind="lssar", power=3, window=256, sink_tokens=4)     # q, k, v, y: [B, T, H, D]

Causal; float32 or bfloat16; memory is linear in T; the same bits in every run. Works under autograd and
torch.compile(fullgraph=True). Read attention(), then the two operators that it stands on.
"""
import ctypes
import fcntl
import functools
import os
import subprocess
import sys

import torch
from torch.autograd import forward_ad

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MOST_PARAMETERS = 4  # of attention/settings.h
POINTER = ctypes.c_void_p


class Heads(ctypes.Structure):  # PlusgptHeads of operator.cu
  _fields_ = [("x", POINTER), *((name, ctypes.c_int64) for name in "bth")]


class Call(ctypes.Structure):  # PlusgptCall
  _fields_ = [("settings", ctypes.c_char_p),
              *((name, ctypes.c_int) for name in "B T H D kv_heads bf16 training threads prunes".split()),
              ("stream", POINTER), *((name, Heads) for name in "qkv"),
              *((name, POINTER) for name in "qkv out y saved sink ssmax_scale".split()),
              ("learned", POINTER * MOST_PARAMETERS),
              *((name, POINTER) for name in "decay documents workspace dout dqkv dsink dssmax_scale".split()),
              ("dlearned", POINTER * MOST_PARAMETERS), ("ddecay", POINTER)]


class Sizes(ctypes.Structure):  # PlusgptSizes
  _fields_ = [(name, ctypes.c_int64) for name in ("row_floats", "forward", "backward", "changes_output")]


# ---- the library of kernels

KINDS = []  # files that build() was given


def build(*kinds, backend=None):
  """Runs make pytorch for "cpu" or "cuda" (by default as PyTorch is), with the kinds of these files and of earlier
  calls, such as "my_score.cuh" (attention/KINDS.md), and loads the library: minutes the first time, of which stderr
  tells. The library has no kinds of other files: each process that needs one calls build()."""
  wanted = list(dict.fromkeys([*KINDS, *map(os.path.abspath, kinds)]))
  backend = backend or ("cuda" if torch.cuda.is_available() else "cpu")
  os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
  with open(os.path.join(ROOT, "build", "pytorch.lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # ranks of a run call it at once
    said = ""
    with subprocess.Popen(["make", "-C", ROOT, "pytorch", f"BACKEND={backend}", f"KINDS={' '.join(wanted)}"],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as make:
      for line in make.stdout:
        said += line
        print(line, end="", file=sys.stderr, flush=True)
    if make.returncode:
      raise RuntimeError("make pytorch failed:\n" + said[max(0, said.find("error") - 500):][:3000])
    KINDS[:] = wanted
    library.cache_clear()
    sizes_of.cache_clear()
    library(backend)


def library_file(device, name):
  path = os.path.join(ROOT, "build", f"{device}-pytorch", f"plusgpt_{name}.so")
  if not os.path.exists(path):
    raise RuntimeError(f"attention has no kernels for tensors on {device}: run make -C {ROOT} pytorch "
                       f"BACKEND={device}, or plusgpt_attention.build()")
  return path


@functools.cache
def library(device):
  if device == "cpu":
    processor = ctypes.CDLL(library_file(device, "processor"))
    processor.plusgpt_processor_lacks.restype = ctypes.c_char_p
    if lacks := processor.plusgpt_processor_lacks():
      raise RuntimeError(lacks.decode().strip())
  # By number: under its own name the loader would return what it has loaded before, though make has replaced the file.
  file = os.open(library_file(device, "attention"), os.O_RDONLY)
  kernels = ctypes.CDLL(f"/proc/self/fd/{file}")
  for function in (kernels.plusgpt_sizes, kernels.plusgpt_forward, kernels.plusgpt_backward):
    function.restype = ctypes.c_char_p
  return kernels


AS_TRAIN_SAYS = {"config: ": "", "  [--set]": "", "; see --help": "; pytorch/README.md has the arguments",
                 "build with its file, which checkpoints hold: make KINDS=PATH.cuh": 'call build("PATH.cuh")'}


def check(error):
  if error is not None:
    text = error.decode()
    for theirs, ours in AS_TRAIN_SAYS.items():
      text = text.replace(theirs, ours)
    lines = text.splitlines()
    raise ValueError("attention: " + "; ".join(line.strip() for line in lines))


# ---- calls

@functools.lru_cache(4096)
def sizes_of(device, settings, B, T, H, D, dtype, training):
  sizes, call = Sizes(), Call(settings.encode(), B, T, H, D, H, dtype == torch.bfloat16, training)
  check(library(device).plusgpt_sizes(ctypes.byref(call), ctypes.byref(sizes)))
  return sizes


def sizes_for(qkv, settings, training):
  B, T, _, H, D = qkv.shape
  return sizes_of(qkv.device.type, settings, B, T, H, D, qkv.dtype, training)


def run(function, workspace, qkv, tensors, settings, training, heads=()):
  """Calls the library's `function`; tensors by the names of Call. qkv: [B, T, 3, H, D], as the kernels read it."""
  B, T, _, H, D = qkv.shape
  device = qkv.device
  kv_heads = heads[1].shape[2] if heads else H
  # Tiles are left out by a bound that a decay which grows would break. A GPU's numbers cannot be looked at in time.
  decay, prunes = tensors["decay"], True
  if decay is not None and device.type == "cpu":
    least, largest = (x.item() for x in decay.aminmax())
    require(least >= -1e9 and largest < float("inf"),
            f"decay has numbers from {least:g} to {largest:g}, whose running sum would lose all others; use at least "
            "-1e9, and documents= where nothing before may be seen")
    prunes = largest <= 0
  call = Call(settings.encode(), B, T, H, D, kv_heads, qkv.dtype == torch.bfloat16, training, torch.get_num_threads(),
              prunes)
  workspace = qkv.new_empty(workspace, dtype=torch.uint8)
  kept = [x if x.stride(-1) == 1 else x.contiguous() for x in heads]
  for name, x in zip("qkv", kept):
    setattr(call, name, Heads(x.data_ptr(), *x.stride()[:3]))
  for name, value in dict(tensors, qkv=qkv, workspace=workspace).items():
    if value is None or not value.numel():
      continue
    if name.endswith("learned"):
      getattr(call, name)[:len(value)] = [x.data_ptr() for x in value]
    else:
      setattr(call, name, value.data_ptr())
  if device.type == "cpu":
    return check(getattr(library("cpu"), function)(ctypes.byref(call)))
  with torch.cuda.device(device):
    call.stream = torch.cuda.current_stream().cuda_stream
    return check(getattr(library("cuda"), function)(ctypes.byref(call)))


def numbers_of(dtype, decay, documents, sink, ssmax_scale, learned):
  """The tensors of a call as the kernels read them: the learned numbers in the type of q, k and v."""
  of = lambda x: None if x is None else x.to(dtype).contiguous()
  return {"decay": None if decay is None else decay.contiguous(), "documents": documents, "sink": of(sink),
          "ssmax_scale": of(ssmax_scale), "learned": of(learned)}


# ---- the operators. q, k and v, or as q one tensor [B, T, 3, H, D] of all three; learned: [numbers, H]. No argument is
# a list: for those, PyTorch makes and takes apart trees in each call, which takes longer than all else.

OTHERS = ("Tensor? decay, Tensor? documents, Tensor? sink, Tensor? ssmax_scale, Tensor? learned, str settings, "
          "bool training")


def sizes_of_rows(x, settings, training):
  """What does not depend on B and T, which may be symbols of dynamic compilation. x: q or qkv."""
  return sizes_of(x.device.type, settings, 1, 1, int(x.shape[-2]), int(x.shape[-1]), x.dtype, training)


def outputs(x, settings, training):
  """y [B, T, H, D]; attention's output before the operation and the norm that make it y, or nothing without them; q, k
  and v as prepared; what else the backward pass reads."""
  B, T, H, D = x.shape[0], x.shape[1], x.shape[-2], x.shape[-1]
  sizes = sizes_of_rows(x, settings, training)
  return (x.new_empty(B, T, H, D), x.new_empty(B if sizes.changes_output else 0, T, H, D), x.new_empty(B, T, 3, H, D),
          x.new_empty(sizes.row_floats, B, H, T, dtype=torch.float32))


@torch.library.custom_op("plusgpt::attention", mutates_args=(),
                         schema=f"(Tensor q, Tensor? k, Tensor? v, {OTHERS}) -> (Tensor, Tensor, Tensor, Tensor)")
def attention_op(q, k, v, decay, documents, sink, ssmax_scale, learned, settings, training):
  y, out, qkv, saved = outputs(q, settings, training)
  if y.numel():
    tensors = numbers_of(y.dtype, decay, documents, sink, ssmax_scale, learned)
    run("plusgpt_forward", sizes_for(qkv, settings, training).forward, qkv,
        dict(tensors, out=out if out.numel() else y, y=y, saved=saved), settings, training,
        q.unbind(2) if k is None else (q, k, v))
  return y, out, qkv, saved


@attention_op.register_fake
def _(q, k, v, decay, documents, sink, ssmax_scale, learned, settings, training):
  return outputs(q, settings, training)


def gradients(qkv, decay, sink, ssmax_scale, learned):
  """Of q, k and v; of the numbers, float32, to which kernels add."""
  zeros = lambda x: qkv.new_zeros(0 if x is None else x.shape, dtype=torch.float32)
  return torch.empty_like(qkv), zeros(decay), zeros(sink), zeros(ssmax_scale), zeros(learned)


@torch.library.custom_op("plusgpt::attention_backward", mutates_args=(),
                         schema=f"(Tensor dout, Tensor out, Tensor qkv, Tensor saved, {OTHERS}) -> "
                                "(Tensor, Tensor, Tensor, Tensor, Tensor)")
def backward_op(dout, out, qkv, saved, decay, documents, sink, ssmax_scale, learned, settings, training):
  results = dqkv, ddecay, dsink, dssmax_scale, dlearned = gradients(qkv, decay, sink, ssmax_scale, learned)
  require(training, "there are no gradients of a call with training = False")
  if out.numel():
    tensors = numbers_of(out.dtype, decay, documents, sink, ssmax_scale, learned)
    sizes = sizes_for(qkv, settings, training)
    dout = dout.clone(memory_format=torch.contiguous_format) if sizes.changes_output else dout.contiguous()
    run("plusgpt_backward", sizes.backward, qkv,
        dict(tensors, out=out, saved=saved, dout=dout, dqkv=dqkv, ddecay=ddecay, dsink=dsink,
             dssmax_scale=dssmax_scale, dlearned=dlearned), settings, training)
  return results


@backward_op.register_fake
def _(dout, out, qkv, saved, decay, documents, sink, ssmax_scale, learned, settings, training):
  return gradients(qkv, decay, sink, ssmax_scale, learned)


def setup_context(ctx, inputs, output):
  q, k, _, decay, documents, sink, ssmax_scale, learned, ctx.settings, training = inputs
  y, out, *others = output
  ctx.set_materialize_grads(False)
  ctx.kv_heads, ctx.training = 0 if k is None else k.shape[2], training
  out = out if sizes_of_rows(q, ctx.settings, training).changes_output else y
  ctx.save_for_backward(out, *others, decay, documents, sink, ssmax_scale, learned)


def backward(ctx, dout, *_):
  if dout is None:
    return (None,) * 10
  require(ctx.training, "this graph was recorded without gradients, and has not kept what they need; export it with "
          "inputs or parameters that require them")
  out, qkv, saved, decay, documents, sink, ssmax_scale, learned = ctx.saved_tensors
  dqkv, ddecay, dsink, dssmax_scale, dlearned = torch.ops.plusgpt.attention_backward(
      dout, out, qkv, saved, decay, documents, sink, ssmax_scale, learned, ctx.settings, True)
  heads = dqkv, None, None
  if ctx.kv_heads:  # a head of k and v has the gradients of those of q that it served
    q, *kv = dqkv.unbind(2)
    heads = q, *(x if x.shape[2] == ctx.kv_heads else x.unflatten(2, (ctx.kv_heads, -1)).sum(3) for x in kv)
  of = lambda gradient, x: None if x is None else gradient
  return (*heads, of(ddecay, decay), None, of(dsink, sink), of(dssmax_scale, ssmax_scale), of(dlearned, learned), None,
          None)


attention_op.register_autograd(backward, setup_context=setup_context)


# ---- what users call

def spans(documents):
  """[B, T] numbers that change where a document begins -> int32 [B, T, 2]: where that of a position begins and ends."""
  T = documents.shape[1]
  t = torch.arange(T, device=documents.device).expand_as(documents)
  begins = torch.cat([torch.ones_like(documents[:, :1], dtype=torch.bool), documents[:, 1:] != documents[:, :-1]], 1)
  start = torch.where(begins, t, 0).cummax(1).values
  next_start = torch.cat([torch.where(begins, t, T)[:, 1:], torch.full_like(t[:, :1], T)], 1)
  return torch.stack([start, next_start.flip(1).cummin(1).values.flip(1)], -1).int()


def documents_of(cu_seqlens, B, T, device):
  require(isinstance(cu_seqlens, torch.Tensor) and cu_seqlens.dim() == 1 and cu_seqlens.device == device and
          not cu_seqlens.is_floating_point(), f"cu_seqlens must be a tensor [N + 1] of integers on {device}")
  ends = cu_seqlens.long().contiguous()
  if device.type == "cpu" and not torch.compiler.is_compiling():
    require(len(ends) > 1 and ends[0] == 0 and ends[-1] == B * T and bool((ends.diff() >= 0).all()),
            f"cu_seqlens must rise from 0 to B T = {B * T}, not be {ends.tolist()[:20]}")
  return torch.bucketize(torch.arange(B * T, device=device), ends[1:], right=True).view(B, T)


def require(condition, text):
  if not condition:
    raise ValueError("attention: " + text)


def as_autocast(*heads):
  device = heads[0].device.type
  require(device in ("cpu", "cuda"), f"q is on {device}; move q, k and v to cpu or cuda")
  return [x.to(torch.get_autocast_dtype(device)) for x in heads] if torch.is_autocast_enabled(device) else list(heads)


def attention(q, k, v, *, decay=None, documents=None, cu_seqlens=None, sink=None, ssmax_scale=None, learned=(),
              context=1024, **keys):
  """out [B, T, H, D] from q [B, T, H, D] and k, v [B, T, heads, D], whose heads each serve H / heads of q's.

  decay: [B, T, H], at most 0: scores get c_i - c_j, where c is its running sum (fla's g). logsigmoid(x): FoX.
  documents: [B, T], numbers that change where a document begins; a row sees keys of its own document alone.
  cu_seqlens: [N + 1], where the documents of B T tokens begin, and the end: documents in another form.
  sink: [H], learned, or "one". ssmax_scale: [H], with scale="ssmax". learned: a tensor [H] for each learned number of
  the kind, in its order; without them their initial values hold. All of these but documents get gradients.
  keys: kind, power, window, sink_tokens, qk_norm, scale, output, output_norm, variant and the others behind
  "attention." of attention/README.md. context: the trained length, for what needs it. Positions are not rotated."""
  require(all(isinstance(x, torch.Tensor) and x.dim() == 4 for x in (q, k, v)),
          "q, k and v must be tensors [B, T, H, D]")
  q, k, v = as_autocast(q, k, v)
  B, T, H, D = q.shape
  heads = k.shape[2]
  require(k.shape == v.shape and tuple(k.shape[:2]) == (B, T) and k.shape[3] == D and heads and H % heads == 0,
          f"q is {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}; k and v must be [B, T, heads, D] as q, "
          "where heads divides q's")
  require(q.dtype == k.dtype == v.dtype and q.device == k.device == v.device,
          f"q, k and v must have one dtype and device, not {q.dtype}, {k.dtype} and {v.dtype} on {q.device}, "
          f"{k.device} and {v.device}; use k.to(q)")
  return of_heads([q, k, v], decay, documents, cu_seqlens, sink, ssmax_scale, learned, context, keys)


def attention_qkvpacked(qkv, *, decay=None, documents=None, cu_seqlens=None, sink=None, ssmax_scale=None, learned=(),
                        context=1024, **keys):
  """attention() of qkv [B, T, 3, H, D], as one projection makes them; its gradient needs no copy."""
  require(isinstance(qkv, torch.Tensor) and qkv.dim() == 5 and qkv.shape[2] == 3,
          "qkv must be a tensor [B, T, 3, H, D]")
  return of_heads(as_autocast(qkv), decay, documents, cu_seqlens, sink, ssmax_scale, learned, context, keys)


def of_heads(heads, decay, documents, cu_seqlens, sink, ssmax_scale, learned, context, keys):
  x = heads[0]
  B, T, H = x.shape[0], x.shape[1], x.shape[-2]
  require(x.dtype in (torch.float32, torch.bfloat16),
          f"q, k and v are {x.dtype}; use float32 or bfloat16: q.bfloat16(), or autocast's dtype=torch.bfloat16")
  require(hasattr(context, "__index__") and context > 0, f"context is {context!r}; it must be a length, such as 1024")
  require(hasattr(learned, "__iter__") and not isinstance(learned, torch.Tensor),
          "learned must be a list of tensors [H], one for each learned number")
  require(cu_seqlens is None or documents is None, "documents and cu_seqlens say the same: leave one out")
  if not torch.compiler.is_compiling():
    require(all(forward_ad.unpack_dual(y).tangent is None for y in heads), "there are no derivatives in forward mode")
  if cu_seqlens is not None:
    documents = documents_of(cu_seqlens, B, T, x.device)
  learned, sink_tensor = list(learned), sink if isinstance(sink, torch.Tensor) else None
  tensors = [("decay", decay, (B, T, H)), ("documents", documents, (B, T)), ("sink", sink_tensor, (H,)),
             ("ssmax_scale", ssmax_scale, (H,)), *((f"learned[{n}]", y, (H,)) for n, y in enumerate(learned))]
  for name, y, shape in tensors:
    if y is not None:
      found = f"{list(y.shape)} on {y.device}" if isinstance(y, torch.Tensor) else type(y).__name__
      require(isinstance(y, torch.Tensor) and tuple(y.shape) == shape and y.device == x.device,
              f"{name} must be a tensor of shape {list(shape)} on {x.device}, not {found}")
  if sink is not None:
    keys["sink"] = sink if sink_tensor is None else "learned"
  if documents is not None:
    keys["documents"] = "separate"
  for key, value in keys.items():
    require(not (isinstance(value, torch.Tensor) and value.requires_grad),
            f"{key} is a number without a gradient, but a tensor that requires one was passed; use its .item()")
  # the head of the text as PlusgptCall says
  lines = [f"{int(context)} {int(decay is not None)} {int(sink_tensor is not None)} {int(ssmax_scale is not None)} "
           f"{len(learned)}"]
  lines += [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in sorted(keys.items())]
  wide = lambda y: None if y is None else y.float()
  inputs = [*heads, *(y for _, y, _ in tensors if y is not None and y.is_floating_point())]
  training = torch.is_grad_enabled() and any(y.requires_grad for y in inputs)
  q, k, v = heads if len(heads) == 3 else (*heads, None, None)
  numbers = torch.stack([wide(y) for y in learned]) if learned else None
  return torch.ops.plusgpt.attention(q, k, v, wide(decay), None if documents is None else spans(documents),
                                     wide(sink_tensor), wide(ssmax_scale), numbers, "\n".join(lines), training)[0]
