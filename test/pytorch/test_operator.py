"""The operator as a part of PyTorch: compilation, autograd, threads, processes, settings of the process, wrong input.
Skipped as test_values is."""
import os
import signal
import subprocess
import sys
import threading
import unittest

from pytorch.test_values import ROOT, missing, torch

if torch:
  import numpy
  import torch.nn.functional as F
  from plusgpt_attention import attention, attention_qkvpacked
  from torch.utils.checkpoint import checkpoint

LSSAR = {"kind": "lssar", "qk_norm": "l2", "scale": "logd_logn", "power": 3}


def heads(B=2, T=150, H=3, D=24, dtype=None, seed=0):
  torch.manual_seed(seed)
  return [torch.randn(B, T, H, D, dtype=dtype or torch.float32, requires_grad=True) for _ in range(3)]


def with_gradients(f, x, **keys):
  out = f(*x, **keys)
  return [out, *torch.autograd.grad(out.square().sum(), x)]


@unittest.skipUnless(torch, missing)
class Operator(unittest.TestCase):
  def equal(self, a, b):
    self.assertEqual([torch.equal(x, y) for x, y in zip(a, b, strict=True)], [True] * len(a))

  def test_the_same_bits(self):
    x = heads()
    once = with_gradients(attention, x, **LSSAR)
    self.equal(once, with_gradients(attention, x, **LSSAR))
    packed = torch.stack(x, 2).detach().requires_grad_()
    out, gradient = with_gradients(lambda qkv, **keys: attention_qkvpacked(qkv, **keys), [packed], **LSSAR)
    self.equal(once, [out, *gradient.unbind(2)])
    with torch.no_grad():
      self.equal(once[:1], [attention(*x, **LSSAR)])
    strided = [y.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for y in x]
    self.equal(once, with_gradients(attention, strided, **LSSAR))
    last = [y.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for y in x]
    self.equal(once, with_gradients(attention, last, **LSSAR))
    bounds = torch.tensor([0, 40, 41, 150, 300], dtype=torch.int32)
    documents = torch.bucketize(torch.arange(300), bounds[1:], right=True).view(2, 150)
    self.equal(with_gradients(attention, x, documents=documents), with_gradients(attention, x, cu_seqlens=bounds))

  def test_finite_differences(self):
    q, k, v = heads(1, 9, 2, 4)
    decay, sink = F.logsigmoid(torch.randn(1, 9, 2)).requires_grad_(), torch.zeros(2, requires_grad=True)
    tensors, weights = [q, k, v, decay, sink], torch.randn(1, 9, 2, 4)
    loss = lambda: (attention(q, k, v, decay=decay, sink=sink) * weights).double().sum()
    for x, gradient in zip(tensors, torch.autograd.grad(loss(), tensors)):
      direction, h = torch.randn_like(x), 1e-2
      with torch.no_grad():
        x += h * direction
        above = loss()
        x -= 2 * h * direction
        slope = (above - loss()).item() / (2 * h)
        x += h * direction
      self.assertAlmostEqual(slope, (gradient * direction).sum().item(), delta=2e-3 * gradient.norm().item() + 1e-3)

  def test_autograd(self):
    q, k, v = x = heads()
    once = with_gradients(attention, x, **LSSAR)
    out = attention(q, k, v, **LSSAR).square().sum()
    self.equal(once[1:], torch.autograd.grad(out, x, retain_graph=True))
    self.equal(once[1:], torch.autograd.grad(out, x))
    only = attention(q, k.detach(), v.detach(), **LSSAR).square().sum()
    self.equal(once[1:2], torch.autograd.grad(only, [q]))
    again = checkpoint(lambda *x: attention(*x, **LSSAR), q, k, v, use_reentrant=False)
    self.equal(once[1:], torch.autograd.grad(again.square().sum(), x))
    gradient, = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    with self.assertRaises(RuntimeError):
      torch.autograd.grad(gradient.sum(), q)

  def test_autocast(self):
    layer, x = torch.nn.Linear(72, 216), torch.randn(2, 50, 72)
    with torch.autocast("cpu", dtype=torch.bfloat16):
      q, k, v = layer(x).view(2, 50, 3, 3, 24).unbind(2)
      out = attention(q.float(), k, v)
    self.assertEqual(out.dtype, torch.bfloat16)
    out.float().sum().backward()
    self.assertGreater(layer.weight.grad.abs().sum().item(), 0)

  def test_opcheck(self):
    text = "1024 1 1 0 0\nsink=learned\nwindow=16"
    decay, sink = F.logsigmoid(torch.randn(2, 50, 3)).requires_grad_(), torch.zeros(3, requires_grad=True)
    torch.library.opcheck(torch.ops.plusgpt.attention.default,
                          (*heads(T=50), decay, None, sink, None, None, text, True))

  def test_compiled(self):
    class Layer(torch.nn.Module):
      def __init__(self):
        super().__init__()
        self.qkv, self.decay = torch.nn.Linear(48, 144), torch.nn.Linear(48, 3)
        self.sink = torch.nn.Parameter(torch.zeros(3))

      def forward(self, x, documents):
        qkv = self.qkv(x).view(*x.shape[:2], 3, 3, 16)
        y = attention(*qkv.unbind(2), **LSSAR) + attention_qkvpacked(
            qkv, sink=self.sink, window=64, sink_tokens=4, documents=documents, decay=F.logsigmoid(self.decay(x)))
        return y.flatten(2)

    torch.manual_seed(0)
    layer = Layer()
    for dynamic, lengths in ((False, (100,)), (True, (100, 131, 257))):
      torch._dynamo.reset()
      compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
      for T in lengths:
        x, documents = torch.randn(2, T, 48, requires_grad=True), (torch.rand(2, T) < 0.03).cumsum(1)
        found, right = (with_gradients(lambda x, f=f: f(x, documents), [x]) for f in (compiled, layer))
        for a, b in zip(found, right):
          self.assertLess(((a - b).abs().max() / b.abs().max()).item(), 1e-5, (dynamic, T))

  def test_export(self):
    class Layer(torch.nn.Module):
      def forward(self, q, k, v):
        return attention(q, k, v, window=16)
    x = [y.detach() for y in heads()]
    exported = torch.export.export(Layer(), tuple(x)).module()
    self.equal([exported(*x)], [attention(*x, window=16)])
    with self.assertRaisesRegex(ValueError, "recorded without gradients"):
      exported(*heads()).sum().backward()

  @unittest.skipUnless(torch and torch.cuda.is_available(), "there is no GPU")
  def test_a_graph(self):
    """Captured calls allocate nothing of their own and wait for nothing."""
    x = [y.detach().cuda().bfloat16().requires_grad_() for y in heads(D=64)]
    right, graph = with_gradients(attention, x, **LSSAR), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
      found = with_gradients(attention, x, **LSSAR)
    for _ in range(2):
      graph.replay()
      self.equal(found, right)

  def test_threads_and_signals(self):
    wrong, hits = [], []

    def repeat(seed):
      x = heads(T=100 + 7 * seed, seed=seed)
      first = with_gradients(attention, x, **LSSAR)
      wrong.extend(seed for _ in range(10) if not all(map(torch.equal, first, with_gradients(attention, x, **LSSAR))))

    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(4)]
    for thread in threads:
      thread.start()
    repeat(5)
    for thread in threads:
      thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    self.assertEqual(wrong, [])
    self.assertTrue(hits)

  def test_forked_children(self):
    x = [y.detach() for y in heads()]
    right = attention(*x, **LSSAR)
    stop = threading.Event()

    def keep_busy():
      while not stop.is_set():
        attention(*x)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    status = []
    for _ in range(5):
      child = os.fork()
      if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(attention(*x, **LSSAR), right) and torch.equal(attention(*x, **LSSAR), right) else 1)
      status.append(os.waitpid(child, 0)[1])
    stop.set()
    busy.join()
    self.assertEqual(status, [0] * 5)

  def test_settings_of_the_process_stay(self):
    """In a process of its own, where nothing has changed them before."""
    code = """if True:
      import ctypes, ctypes.util, signal, sys
      sys.path.insert(0, sys.argv[1])
      import torch
      openmp = ctypes.util.find_library("gomp")  # which oneDNN uses; PyTorch may have another
      def state():
        handlers = []
        for number in range(1, 65):
          action = ctypes.create_string_buffer(152)
          ctypes.CDLL(None).sigaction(number, None, action)
          handlers.append(action.raw[:8] + action.raw[136:140])  # the handler, the flags
        tiny = torch.tensor([1e-40]) * 0.5
        return (torch.get_num_threads(), openmp and ctypes.CDLL(openmp).omp_get_max_threads(), tiny.item() != 0,
                handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []))
      torch.set_num_threads(2)
      torch.randn(300, 300) @ torch.randn(300, 300)
      before = state()
      from plusgpt_attention import attention
      for dtype in (torch.float32, torch.bfloat16):
        x = [torch.randn(2, 100, 2, 64, dtype=dtype, requires_grad=True) for _ in range(3)]
        attention(*x).float().sum().backward()
        assert state() == before, dtype"""
    done = subprocess.run([sys.executable, "-c", code, os.path.join(ROOT, "pytorch")], text=True, capture_output=True)
    self.assertEqual((done.returncode, done.stderr), (0, ""))

  def test_wrong_input(self):
    q, k, v = (x.detach() for x in heads(T=8))
    for arguments, keys, said in (
        ((q.double(), k.double(), v.double()), {}, "q, k and v are torch.float64; use float32 or bfloat16"),
        ((q, k.bfloat16(), v), {}, r"must have one dtype and device.*use k.to\(q\)"),
        ((q.to("meta"), k.to("meta"), v.to("meta")), {}, "move q, k and v to cpu or cuda"),
        ((q[0], k[0], v[0]), {}, r"must be tensors \[B, T, H, D\]"),
        ((q, k[:, :, :2], v[:, :, :2]), {}, "heads divides q's"),
        ((q, k, v), {"kind": "sofmax"}, 'attention.kind.*did you mean "softmax"|attention.kind.*choose one of'),
        ((q, k, v), {"windw": 3}, 'windw.*did you mean "attention.window"'),
        ((q, k, v), {"window": -1}, "attention.window = -1"),
        ((q, k, v), {"bias": "fox"}, r"pass decay=F.logsigmoid\(g\)"),
        ((q, k, v), {"bias": "alibi", "decay": torch.zeros(2, 8, 3)}, "leave one out"),
        ((q, k, v), {"sink": "learned"}, "a learned sink is a tensor"),
        ((q, k, v), {"scale": "ssmax"}, "pass ssmax_scale"),
        ((q, k, v), {"scale": torch.zeros((), requires_grad=True).exp()}, "scale is a number without a gradient"),
        ((q, k, v), {"learned": [torch.ones(3)]}, "learned has 1 tensors, but the kind softmax learns no numbers"),
        ((q, k, v), {"sink": torch.ones(2)}, r"sink must be a tensor of shape \[3\] on cpu, not \[2\] on cpu"),
        ((q, k, v), {"decay": torch.full((2, 8, 3), -1e30)}, "documents= where nothing before may be seen"),
        ((q, k, v), {"context": 1024.0, "window": 3}, "context is 1024.0"),
        ((q, k, v), {"learned": torch.ones(3)}, "learned must be a list"),
        ((q, k, v), {"cu_seqlens": [0, 16]}, "cu_seqlens must be a tensor"),
        *(((q, k, v), {"cu_seqlens": torch.tensor(ends)}, r"must rise from 0 to B T = 16, not be \[")
          for ends in ([0, 9], [0, 9, 3, 16], [3, 16], [0])),
        ((q, k, v), {"causal": True}, "attention.causal is unknown; pytorch/README.md"),
        ((q, k, v), {"kind": "own"}, r'call build\("PATH.cuh"\)'),
        ((q, k, v), {"decay": 3}, r"decay must be a tensor of shape \[2, 8, 3\]"),
        ((q, k, v), {"gate": {"activation": "sigmoid"}}, "attention.gate"),
        ((q, k, v), {"layers": "[{}]"}, "attention.layers belong to a model"),
        ((torch.ones(1, 2, 1, 600),) * 3, {}, "head_dim")):
      with self.subTest(keys or said):
        with self.assertRaisesRegex(ValueError, said) as error:
          attention(*arguments, **keys)
        self.assertNotRegex(str(error.exception), "\n|--set")

  def test_whatever_counts_as_a_length_or_a_list(self):
    x = [y.detach() for y in heads(T=8)]
    found = attention(*x, context=numpy.int64(128), scale="logn", learned=torch.nn.ParameterList())
    self.equal([found], [attention(*x, context=128, scale="logn")])
    self.equal([found], [attention(*x, context=torch.tensor(128.0), scale="logn")])

  def test_numbers_that_change_in_each_call(self):
    """Their settings are not kept for ever."""
    def bytes_after(scales):
      for n in scales:
        attention(*x, scale=1 / n)
      with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    x = [y.detach() for y in heads(1, 1, 1, 8)]
    before = bytes_after(range(1, 3001))  # which fill memory that other tests have left, and lru_cache
    self.assertLess((bytes_after(range(3001, 6001)) - before) / 3000, 2000)

  def test_forward_mode(self):
    x = tuple(y.detach() for y in heads(T=8))
    with self.assertRaisesRegex(ValueError, "forward mode"):
      torch.func.jvp(attention, x, x)

  def test_a_build_that_fails(self):
    """It says what the compiler said first, and the kinds of earlier calls stay."""
    code = """if True:
      import sys
      sys.path.insert(0, sys.argv[1])
      import plusgpt_attention as ours
      ours.KINDS.append("/earlier.cuh")
      try:
        ours.build("/nowhere.cuh")
      except RuntimeError as error:
        print(ours.KINDS, error)"""
    done = subprocess.run([sys.executable, "-c", code, os.path.join(ROOT, "pytorch")], text=True, capture_output=True)
    self.assertRegex(done.stdout, r"^\['/earlier.cuh'\] make pytorch failed:(.|\n)*cuh")


if __name__ == "__main__":
  unittest.main()
