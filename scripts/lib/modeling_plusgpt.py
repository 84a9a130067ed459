"""GPT-2 with every attention and block that plusgpt trains, for Hugging Face transformers.

    model = AutoModelForCausalLM.from_pretrained("runs/NAME/step_00001000", trust_remote_code=True)

./train writes this file into each checkpoint that transformers' own GPT-2 and Llama cannot open.
It puts plainness before speed: it holds all T x T weights of attention, and keeps nothing from one
generated token to the next. Where plusgpt_attention can be imported (docs/pytorch.md), its kernels
compute attention without these weights. config.json has the sizes under GPT-2's names, and what
GPT-2 lacks in its object "plusgpt". Rotations are those of training: eval.rope_scaling belongs to
evaluations and is not in a checkpoint.

Legend: B batch, T time, C channels, H heads, D head dimension, A = H D; row i = 1..T of a T x T
matrix sees keys 1..i. With attention.documents = "separate" all this counts from where a row's
document begins: `starts` [B, T], from 0.
"""
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

try:
  from plusgpt_attention import attention as kernels
except ImportError:
  kernels = None

TINY = torch.finfo(torch.float32).tiny
ACTIVATIONS = {"sigmoid": torch.sigmoid, "softplus": F.softplus, "silu": F.silu, "relu": F.relu,
               "tanh": torch.tanh, "exp": torch.exp, "identity": lambda g: g,
               "two_sigmoid": lambda g: 2 * torch.sigmoid(g),
               "half_sigmoid": lambda g: (1 + torch.sigmoid(g)) / 2}
NUMBERS = dict.fromkeys(("lssar", "softmaxr"), ("power", "offset", "offset_free_rows"))  # sharpened()'s
KERNELS_TAKE = ("cpu", torch.float32), ("cpu", torch.bfloat16), ("cuda", torch.bfloat16)
# The kinds that are one expression f, from their files (attention/kind.h): what becomes of f in a
# row, fixed numbers, learned ones with their initial values, f. A checkpoint's copy has its model's.
# An f of whole rows has seen [..., T, T]; softmax(x), normalised(x) over the keys of a row.
FORMULAS = {
}


class PlusGPTConfig(PretrainedConfig):
  model_type = "plusgpt"
  attribute_map = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                   "hidden_size": "n_embd", "max_position_embeddings": "n_positions"}

  def __init__(self, plusgpt=None, initializer_range=0.02, **others):
    self.plusgpt, self.initializer_range = plusgpt, initializer_range
    super().__init__(**others)


class Projection(nn.Module):
  """x W + b, with W [inputs, outputs] as GPT-2's files hold it; without inputs b alone."""

  def __init__(self, inputs, outputs, std, bias=0.0):
    super().__init__()
    self.weight = nn.Parameter(std * torch.randn(inputs, outputs)) if inputs else None
    self.bias = None if bias is None else nn.Parameter(torch.full((outputs,), float(bias)))

  def forward(self, x):
    if self.weight is None:
      return self.bias.expand(*x.shape[:-1], -1)
    y = x @ self.weight
    return y if self.bias is None else y + self.bias


class Norm(nn.Module):
  """LayerNorm, or RMSNorm, which takes no mean away and has no shift."""

  def __init__(self, config):
    super().__init__()
    model, C = config.plusgpt["model"], config.n_embd
    self.rms, self.eps = model.get("norm") == "rmsnorm", config.layer_norm_epsilon
    self.weight = nn.Parameter(torch.ones(C))
    self.bias = nn.Parameter(torch.zeros(C)) if model.get("bias", True) and not self.rms else None

  def forward(self, x):
    if self.rms:
      return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
    return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def residual_projection(config, inputs):
  """A product that adds to the residual stream."""
  zero = config.plusgpt["model"].get("residual_init") == "zero"
  std = 0.0 if zero else config.initializer_range / math.sqrt(2 * config.n_layer)
  return Projection(inputs, config.n_embd, std, bias_of(config))


def bias_of(config):
  return 0.0 if config.plusgpt["model"].get("bias", True) else None


def rotated(x, base, fraction=1):
  """x [B, H, T, D]: channel d and channel d + D/2 turn as a pair, by an angle of
  position / base^(2d/D). fraction: of the pairs that turn, the first ones."""
  T, D = x.shape[-2:]
  frequency = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
  frequency[math.floor(fraction * (D // 2) + 0.5):] = 0
  angle = torch.arange(T, dtype=torch.float64)[:, None] * frequency
  cos, sin = angle.cos().to(x), angle.sin().to(x)
  a, b = x.chunk(2, -1)
  return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def normalised(x, norm):
  if norm == "l2":
    return F.normalize(x, dim=-1, eps=1e-12)
  if norm == "rms":
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)
  return x


def shares(x, total, least=TINY):
  """x / total; 0 where the total is below `least`, so that nothing but rounding is left of it."""
  return x / total.masked_fill(total < least, torch.inf)


def rows_of(q, settings, starts=None):
  """[T, 1] or [B, 1, T, 1]: how many keys each row of q [..., T, D] or scores [..., T, T] sees."""
  rows = torch.arange(1, q.shape[-2] + 1, dtype=q.dtype, device=q.device)[:, None] - first_keys(starts)
  window = getattr(settings, "window", 0)
  return rows.clamp(max=window + settings.sink_tokens) if window else rows


def first_keys(starts):
  """[B, 1, T, 1], from 0: the first key that a row may see."""
  return 0 if starts is None else starts[:, None, :, None]


def seen_by_rows(z, settings, starts=None):
  """[T, T] or [B, 1, T, T]: whether row i sees key j <= i: any, or the last `window` and `sink_tokens`."""
  i, first = torch.arange(z.shape[-1], device=z.device), first_keys(starts)
  seen = (i[:, None] >= i) & (i >= first)
  window = getattr(settings, "window", 0)
  if not window:
    return seen
  return seen & ((i[:, None] - i < window) | (i < first + settings.sink_tokens))


def decays(logits, kind, H, T):
  """[B or 1, T, H], the steps of c (bias()). logits: [B, T, H], of the kinds that learn them."""
  if kind == "alibi":
    return -(2.0 ** (-8 * torch.arange(1, H + 1, dtype=torch.float64) / H)).expand(1, T, H)
  return -F.softplus(-logits if kind == "fox" else logits)


def bias(logits, kind, H, T):
  """c [B or 1, H, T], of which c_i - c_j is added to score ij."""
  return decays(logits, kind, H, T).double().cumsum(1).transpose(1, 2)


def scores(q, k, settings, context, rope_base=None, ssmax_scale=None, rope_fraction=1, starts=None):
  """z_ij = alpha_i q_i . k_j, [B, H, T, T], of rotated and normalised q and k [B, H, T, D].
  rope_base None: no rotation; context: the trained length; ssmax_scale: [H], for scale "ssmax"."""
  if rope_base is not None:
    q, k = rotated(q, rope_base, rope_fraction), rotated(k, rope_base, rope_fraction)
  q, k = normalised(q, settings.qk_norm), normalised(k, settings.qk_norm)
  D, log_rows, scale = q.shape[-1], rows_of(q, settings, starts).log(), settings.scale
  if scale == "rsqrt_d":
    alpha = 1 / math.sqrt(D)
  elif scale == "logd_logn":
    alpha = math.log(D) * log_rows
  elif scale == "logn":
    alpha = log_rows / (math.log(context) * math.sqrt(D))
  elif scale == "ssmax":
    alpha = ssmax_scale.to(q.dtype)[:, None, None] * log_rows / math.sqrt(D)
  else:
    alpha = scale
  return (q * alpha) @ k.transpose(-2, -1)


def weights(z, settings, context, sink=None, learned=None, starts=None):
  """Scores z [B, H, T, T] -> P, zero where a row does not see a key. context: the trained length;
  sink: [H] or None; learned: {name: [H]}, the learned numbers of a kind."""
  seen, rows = seen_by_rows(z, settings, starts), rows_of(z, settings, starts)
  if settings.kind == "softmax":
    z = z.masked_fill(~seen, -torch.inf)
    if settings.sink == "none":
      return z.softmax(-1)
    # A further key that every row sees and that has no value: its score is the sink's.
    sink = sink.to(z.dtype)[:, None, None] if settings.sink == "learned" else z.new_zeros(1)
    return torch.cat([z, sink.expand(*z.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
  if settings.kind == "lssar":
    f = F.softplus(z) * seen
    # As in the kernels, for float32's sake: where all scores are under -62 the sum counts as this.
    total = torch.maximum(f.sum(-1, keepdim=True), rows * 2.0**-90)
    return sharpened(f / total, rows, seen, settings)
  if settings.kind == "softmaxr":
    return sharpened(z.masked_fill(~seen, -torch.inf).softmax(-1), rows, seen, settings)
  return weights_of_formula(z, seen, rows, settings, context, learned or {}, starts)


def weights_of_formula(z, seen, rows, settings, context, learned, starts):
  if settings.kind not in FORMULAS:
    raise ValueError(f"attention.kind {settings.kind!r} has no pytorch formula in its file, "
                     f"{settings.kind}.cuh: add a line to FORMULAS in modeling_plusgpt.py")
  row_weights, fixed, initial, f = FORMULAS[settings.kind]

  def visible(x):
    return x.masked_fill(~seen, 0)

  def softmax(x):
    return x.masked_fill(~seen, -torch.inf).softmax(-1)

  def with_sum_one(x):
    return shares(visible(x), visible(x).sum(-1, keepdim=True))

  H, T = z.shape[-3:-1]
  t, heads = torch.arange(1, T + 1).to(z), torch.arange(1, H + 1).to(z)[:, None, None]
  first = first_keys(starts)
  i = t[:, None] - first
  # f of a hidden score is not used, but no part of it may be NaN, which gradients would pass on: a
  # later key counts as the row's own, and one of another document as the first.
  j = torch.minimum(t - first, i).clamp(min=1)
  numbers = {name: getattr(settings, name) for name in fixed}
  numbers.update((name, learned[name].to(z)[:, None, None]) for name in initial)
  y = f(visible(z), i=i, j=j, n=rows, head=heads, heads=H, context=context, seen=seen,
        softmax=softmax, normalised=with_sum_one, **numbers)
  return {"none": visible, "softmax": softmax, "sum": with_sum_one}[row_weights](y)


def finished(o, v, output, norm):
  """Heads' outputs o of the values v after the operation and the norm."""
  if output not in ("none", "silu", "exclusive"):
    raise ValueError(f"attention.output {output!r} is of a newer program")
  y = F.silu(o) if output == "silu" else o
  if output == "exclusive":  # without the part along the value
    u = normalised(v, "l2")
    y = o - (o * u).sum(-1, keepdim=True) * u
    if norm != "none":  # only rounding is left, as in a first row
      little = y.norm(dim=-1, keepdim=True) <= 2**-16 * o.norm(dim=-1, keepdim=True)
      y = y.masked_fill(little, 0)
  return normalised(y, norm)


def sharpened(a, rows, seen, settings):
  """The second stage of lssar and softmaxr: what exceeds the mean weight, raised to a power. r
  reaches T and its power would overflow, so it is divided by the row's maximum; a row whose maximum
  is next to nothing scores all keys alike, and its P is 0."""
  offset = torch.full_like(rows, settings.offset).masked_fill(rows <= settings.offset_free_rows, 0)
  r = F.relu(rows * a - offset) * seen
  w = shares(r, r.amax(-1, keepdim=True), 1e-3) ** settings.power
  return shares(w, w.sum(-1, keepdim=True))


class Attention(nn.Module):
  def __init__(self, config, layer):
    super().__init__()
    C, H = config.n_embd, config.n_head
    model, attention = config.plusgpt["model"], config.plusgpt["attention"]
    pattern = attention.get("layers") or [{}]
    own = pattern[layer % len(pattern)]  # a kind, or an object of what differs
    own = {"kind": own} if isinstance(own, str) else own
    self.settings = SimpleNamespace(**{**attention, **own})
    self.gate = SimpleNamespace(**attention["gate"])
    rotates = model["position"] == "rope" and own.get("rotated", True)
    self.rope_base = model["rope_base"] if rotates else None
    self.rope_fraction = model.get("rope_fraction", 1)
    if not own.get("gated", True):
      self.gate.activation = "none"
    if self.settings.kind != "softmax":
      self.settings.sink = "none"
    self.output = attention.get("output", "none")
    self.output_norm = attention.get("output_norm", "none")
    D, K = model["head_dim"], model.get("kv_heads", H)
    A, self.group = H * D, H // K  # heads that share a head of keys and values
    self.context, self.heads, self.parts = config.n_positions, H, (A, K * D, K * D)
    std = config.initializer_range
    self.c_attn = Projection(C, sum(self.parts), std, bias_of(config))
    self.c_proj = residual_projection(config, A)
    if self.settings.bias in ("fox", "cable"):
      self.c_decay = Projection(C, H, std)
    if self.gate.activation != "none":
      heads = K if self.gate.position in ("key", "value") else H
      each = C if self.gate.position == "output" else heads * D
      logits = {"headwise": heads, "shared": D}.get(self.gate.granularity, each)
      inputs = C if getattr(self.gate, "input", "x") == "x" else 0
      self.c_gate = Projection(inputs, logits, 0.0 if self.gate.weight_init == "zero" else std,
                               bias=self.gate.bias_init if self.gate.bias else None)
    self.ssmax_scale = nn.Parameter(torch.full((H,), 0.43)) if self.settings.scale == "ssmax" else None
    self.sink = nn.Parameter(torch.zeros(H)) if self.settings.sink == "learned" else None
    self.score = nn.ParameterDict()
    _, _, initial, _ = FORMULAS.get(self.settings.kind, (None, (), {}, None))
    for name, value in initial.items():
      value = float(attention.get(f"{name}_init", value))
      self.score[name] = nn.Parameter(torch.full((H,), value))

  def forward(self, x, starts=None, asked=True):
    """asked: whether the weights are, which kernels do not make."""
    B, T, _ = x.shape
    if getattr(self.settings, "documents", "joined") == "joined":
      starts = None
    q, k, v = self.c_attn(x).split(self.parts, -1)
    q, k, v = (y.view(B, T, -1, self.parts[0] // self.heads) for y in (q, k, v))  # H or fewer heads
    q, k, v = self.gated(q, x, "query"), self.gated(k, x, "key"), self.gated(v, x, "value")
    logits = self.c_decay(x) if hasattr(self, "c_decay") else None
    # Sums over keys and powers need float32 at least, whatever the type of the weights.
    wide = torch.promote_types(x.dtype, torch.float32)
    if kernels and not asked and (x.device.type, x.dtype) in KERNELS_TAKE:
      y, P = self.by_kernels(q, k, v, logits, starts), None
    else:
      q, k, v = (y.transpose(1, 2).to(wide) for y in (q, k, v))
      k, v = (y.repeat_interleave(self.group, 1) for y in (k, v))  # [B, H, T, D]
      z = scores(q, k, self.settings, self.context, self.rope_base, self.ssmax_scale, self.rope_fraction, starts)
      if self.settings.bias != "none":
        logits = None if logits is None else logits.to(wide)
        c = bias(logits, self.settings.bias, self.heads, T).to(z)
        z = z + (c[..., :, None] - c[..., None, :])
      P = weights(z, self.settings, self.context, self.sink, self.score, starts)
      y = finished(P @ v, v, self.output, self.output_norm).transpose(1, 2)
      y, P = y.to(x.dtype), P.to(x.dtype)
    y = self.gated(y, x, "sdpa").flatten(2)
    return self.gated(self.c_proj(y), x, "output"), P

  def by_kernels(self, q, k, v, logits, starts):
    """y [B, T, H, D] of q, k and v [B, T, H or less, D]."""
    settings, (B, T) = self.settings, q.shape[:2]
    if self.rope_base is not None:
      turned = [rotated(y.transpose(1, 2).float(), self.rope_base, self.rope_fraction) for y in (q, k)]
      q, k = (each.transpose(1, 2).to(y) for each, y in zip(turned, (q, k)))
    fixed = NUMBERS.get(settings.kind, ())
    if settings.kind in FORMULAS:
      _, fixed, _, _ = FORMULAS[settings.kind]
    window = ("window", "sink_tokens") if settings.window else ()
    keys = {name: getattr(settings, name) for name in ("kind", "qk_norm", "scale", *fixed, *window)}
    decay = None
    if settings.bias != "none":
      keys["prune"] = settings.prune
      decay = decays(logits, settings.bias, self.heads, T).to(q.device).expand(B, T, self.heads)
    sink = {"learned": self.sink, "one": "one"}.get(settings.sink)
    return kernels(q, k, v, decay=decay, documents=starts, sink=sink, ssmax_scale=self.ssmax_scale,
                   learned=[*self.score.values()], context=self.context, output=self.output,
                   output_norm=self.output_norm, **keys)

  def gated(self, y, x, position):
    """y [B, T, H, D], or at the output [B, T, C]; gated if the gate is here. x: its logits' input."""
    gate = self.gate
    if gate.activation == "none" or gate.position != position:
      return y
    g = ACTIVATIONS[gate.activation](self.c_gate(x))
    if gate.granularity == "headwise":
      g = g[..., None]
    elif gate.granularity == "shared":
      g = g[..., None, :]
    else:
      g = g.view(y.shape)
    return y * g if gate.op == "multiply" else y + g


class MLP(nn.Module):
  def __init__(self, config):
    super().__init__()
    self.function = config.plusgpt["model"].get("mlp", "gelu")
    columns = config.n_inner * (2 if self.function == "swiglu" else 1)
    self.c_fc = Projection(config.n_embd, columns, config.initializer_range, bias_of(config))
    self.c_proj = residual_projection(config, config.n_inner)

  def forward(self, x):
    y = self.c_fc(x)
    if self.function == "swiglu":
      gate, up = y.chunk(2, -1)
      return self.c_proj(F.silu(gate) * up)
    y = F.relu(y).square() if self.function == "relu2" else F.gelu(y, approximate="tanh")
    return self.c_proj(y)


class Block(nn.Module):
  def __init__(self, config, layer):
    super().__init__()
    self.ln_1 = Norm(config)
    self.attn = Attention(config, layer)
    self.ln_2 = Norm(config)
    self.mlp = MLP(config)

  def forward(self, x, starts=None, asked=True):
    """x [B, T, C] -> what follows from it, and attention's weights [B, H, T, T] if asked for."""
    y, P = self.attn(self.ln_1(x), starts, asked)
    x = x + y
    return x + self.mlp(self.ln_2(x)), P


class PlusGPTLMHeadModel(PreTrainedModel, GenerationMixin):
  config_class = PlusGPTConfig
  _no_split_modules = ["Block"]
  accepts_loss_kwargs = True  # the Trainer may give num_items_in_batch

  def __init__(self, config):
    super().__init__(config)
    C = config.n_embd
    self.wte = nn.Embedding(config.vocab_size, C)
    nn.init.normal_(self.wte.weight, std=config.initializer_range)
    self.wpe = None
    if config.plusgpt["model"]["position"] == "learned":
      self.wpe = nn.Embedding(config.n_positions, C)
      nn.init.normal_(self.wpe.weight, std=config.initializer_range)
    self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
    self.ln_f = Norm(config)
    model = config.plusgpt["model"]
    outputs, self.logit_cap = model.get("head", {}).get("outputs", 0), model.get("logit_cap", 0)
    self.lm_head = None
    if not model.get("tied", True) and not outputs:
      self.lm_head = nn.Linear(C, config.vocab_size, bias=False)
      nn.init.normal_(self.lm_head.weight, std=config.initializer_range)
    self.head = Projection(C, outputs, config.initializer_range) if outputs else None
    self.loss_type = None if outputs else "ForCausalLM"  # the Trainer counts labels[:, 1:]
    self.post_init()

  def _init_weights(self, module):
    pass  # the constructors have done it

  def get_input_embeddings(self):
    return self.wte

  def set_input_embeddings(self, embeddings):
    self.wte = embeddings

  def forward(self, input_ids, attention_mask=None, labels=None, output_attentions=None,
              output_hidden_states=None, return_dict=True, num_items_in_batch=None, **others):
    """input_ids [B, T] -> logits [B, T, V], and with labels [B, T] (input_ids again; -100 is left
    out) the mean loss of the tokens that follow. With a regression head, logits are its outputs
    [B, T, K], labels [B, T, K] are their targets (NaN is left out), and the loss is their squared
    error, as of train.label_mean = "batch". Without a label the loss is 0.
    num_items_in_batch: this batch is a part of one with that many labels; the loss is its part of
    that one's mean. The Trainer counts K labels at each position of a regression head, NaN too: if
    some are NaN, its losses and gradients are smaller by one factor, the same for all parts.
    Padding may only be at the end, where no other token sees it. On request, as GPT-2 gives them:
    attentions, the weights P [B, H, T, T] of each layer (rows sum to 1 where the kind normalises
    them and has no sink); hidden_states, [B, T, C] before each layer, and after the last and ln_f."""
    # use_cache asks for speed alone, and None or False for nothing.
    unknown = [name for name, value in others.items()
               if name != "use_cache" and value is not None and value is not False]
    if unknown:
      raise TypeError(f"plusgpt's model does not take {', '.join(unknown)}; it takes input_ids, "
                      "attention_mask, labels, output_attentions, output_hidden_states, "
                      "return_dict and num_items_in_batch")
    if output_attentions is None:
      output_attentions = getattr(self.config, "output_attentions", False)
    if output_hidden_states is None:
      output_hidden_states = getattr(self.config, "output_hidden_states", False)
    self.check_inputs(input_ids, attention_mask, labels)
    T = input_ids.shape[1]
    starts = None
    if self.config.plusgpt["attention"].get("documents") == "separate":
      t = torch.arange(T, device=input_ids.device)
      separator = self.config.plusgpt["data"]["separator"]
      starts = torch.where(input_ids == separator, t, 0).cummax(-1).values
    x = self.wte(input_ids)
    if self.wpe is not None:
      if T > self.config.n_positions:
        raise ValueError(f"{T} tokens, but the model has learned {self.config.n_positions} positions")
      x = x + self.wpe.weight[torch.arange(T, device=x.device) - (0 if starts is None else starts)]
    hidden_states, attentions = (), ()
    for block in self.h:
      hidden_states += (x,) if output_hidden_states else ()
      x, P = block(x, starts, output_attentions)
      attentions += (P,) if output_attentions else ()
      del P  # unless it was asked for, the next layer needs its memory
    x = self.ln_f(x)
    logits = x @ (self.lm_head or self.wte).weight.T if self.head is None else self.head(x)
    if self.logit_cap and self.head is None:
      logits = self.logit_cap * torch.tanh(logits / self.logit_cap)
    loss = None if labels is None else self.mean_loss(logits, labels, num_items_in_batch)
    output = CausalLMOutput(loss=loss, logits=logits, attentions=attentions if output_attentions else None,
                            hidden_states=hidden_states + (x,) if output_hidden_states else None)
    return output if return_dict else output.to_tuple()

  def check_inputs(self, input_ids, attention_mask, labels):
    """A ValueError unless their shapes fit, and padding is at the end alone."""
    columns = () if self.head is None else self.head.bias.shape
    for name, value, shape in (("attention_mask", attention_mask, input_ids.shape),
                               ("labels", labels, input_ids.shape + columns)):
      if value is not None and value.shape != shape:
        raise ValueError(f"plusgpt takes {name} of the shape {tuple(shape)}, not {tuple(value.shape)}")
    if attention_mask is None:
      return
    if ((attention_mask != 0) & (attention_mask != 1)).any():
      raise ValueError("plusgpt takes an attention_mask of 1 for tokens and 0 for padding alone")
    if (attention_mask[:, 1:] > attention_mask[:, :-1]).any():
      raise ValueError("plusgpt counts the tokens that each one sees: padding must stand on the right "
                       "(padding_side=\"right\"), and prompts that are continued together need the same length")

  def mean_loss(self, logits, labels, num_items_in_batch):
    """As forward() says."""
    if self.head is not None:
      there = ~labels.isnan()
      errors = (logits.float() - labels.nan_to_num()).square() * there
      loss, count = (errors.sum(-1) / there.sum(-1).clamp(min=1)).sum(), there.any(-1).sum()
    else:
      targets = labels[:, 1:].flatten()
      loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets, reduction="sum")
      count = (targets != -100).sum()
    if num_items_in_batch is not None:
      columns = 1 if self.head is None else labels.shape[-1]
      count = torch.as_tensor(num_items_in_batch, device=loss.device) / columns
    return loss / torch.where(count > 0, count, 1)

  def prepare_inputs_for_generation(self, input_ids, attention_mask=None, output_attentions=None,
                                    output_hidden_states=None, position_ids=None, **unused):
    """As ./train generates: from the last tokens that fit into the trained length."""
    if position_ids is not None:
      raise ValueError("plusgpt's model does not take position_ids: a token's position is its place in input_ids")
    if self.head is not None:
      raise ValueError("plusgpt's model has a regression head in place of logits, so it generates no tokens")
    last = slice(-self.config.n_positions, None)
    return {"input_ids": input_ids[:, last], "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
            "attention_mask": None if attention_mask is None else attention_mask[:, last]}
