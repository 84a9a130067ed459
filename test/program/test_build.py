"""The Makefile's targets for GPUs, in the commands of `make -n`, and a build without NCCL. Standard library only."""
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest

from support.workspace import ROOT


class Targets(unittest.TestCase):
  def make(self, *settings, gpu=None, nvcc=None, goals=("-nB", "BACKEND=cuda", "NCCL=0", "build/cuda/train")):
    """What make says of one object of the CUDA build, and of the program's parts. gpu: nvidia-smi's answer, nvcc: a
    script in place of the compiler."""
    with tempfile.TemporaryDirectory() as folder:
      os.mkdir(f"{folder}/bin")
      programs = {"nvidia-smi": "exit 9" if gpu is None else f"printf '{gpu}\\n'",
                  **({"bin/nvcc": nvcc} if nvcc else {})}
      for name, script in programs.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as program:
          program.write(f"#!/bin/sh\n{script}\n")
        os.chmod(program.name, 0o755)
      others = {key: value for key, value in os.environ.items()
                if key not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARCH", "BACKEND", "NCCL", "NVCC", "SAN", "CUDA_HOME")}
      return subprocess.run(["make", *goals, *settings, *([f"CUDA_HOME={folder}"] if nvcc else [])], cwd=ROOT,
                            text=True, capture_output=True, timeout=100,
                            env={**others, "PATH": folder + ":" + os.environ["PATH"]})

  NVCC = """case $1 in
  --version) echo "Cuda compilation tools, release %s, V1";;
  --list-gpu-arch) printf 'compute_%%s\\n' 75 80 89 90 100 120;;
  -x) %s;;
  --dryrun) echo '#$ LIBRARIES=  -L/cuda/lib' >&2;;
esac"""

  def summary(self, *settings, release="13.0", works="true", **arguments):
    """The lines that end a build, or the error that ends make, with a compiler of this release."""
    done = self.make(*settings, goals=("-s", "summary"), nvcc=self.NVCC % (release, works), **arguments)
    return done.stdout if done.returncode == 0 else done.stderr

  def targets(self, *settings, source="kernels/gelu.cu", **arguments):
    done = self.make("V=1", *settings, nvcc=self.NVCC % ("13.0", "true"), **arguments)
    self.assertEqual(done.returncode, 0, done.stderr)
    line, = [line for line in done.stdout.split("\n") if f"-c {source} " in line]
    return re.findall(r"-gencode arch=compute_\w+,code=(\w+)", line)

  def test_without_a_gpu(self):
    for gpu in (None, "No devices were found"):
      self.assertEqual(self.targets(gpu=gpu), ["sm_80", "sm_90a", "compute_80"])
      self.assertEqual(self.targets(gpu=gpu, source="build/cuda/attention/hopper/softmax.cu"), ["sm_90a"])

  def test_of_the_gpu_present(self):
    """With PTX of the lowest target, so that the program also runs on GPUs that are newer than the one here."""
    self.assertEqual(self.targets(gpu="9.0"), ["sm_90a", "compute_90"])
    self.assertEqual(self.targets(gpu="12.0"), ["sm_120", "compute_120"])
    self.assertEqual(self.targets("ARCH=80 100", gpu="9.0"), ["sm_80", "sm_100", "compute_80"])

  def test_of_a_gpu_that_nvcc_does_not_know(self):
    self.assertEqual(self.targets(gpu="10.3"), ["sm_100", "compute_100"])
    self.assertEqual(self.targets(gpu="12.1\\n8.9"), ["sm_120", "sm_89", "compute_89"])

  def test_by_hand(self):
    self.assertEqual(self.targets("ARCH=90"), ["sm_90a", "compute_90"])
    self.assertEqual(self.targets("ARCH=90", source="build/cuda/attention/hopper/softmax.cu"), ["sm_90a"])
    self.assertEqual(self.targets("ARCH=80 90a 120"), ["sm_80", "sm_90a", "sm_120", "compute_80"])
    for arch in ("13", "75"):
      self.assertIn(f"ARCH={arch}: the kernels need sm_80", self.summary("BACKEND=cuda", f"ARCH={arch}"))
    self.assertIn("ARCH=110: nvcc of CUDA 13.0 knows 75 80 89 90 100 120", self.summary("BACKEND=cuda", "ARCH=110"))

  def test_flags_of_the_linker(self):
    done = self.make("V=1", "LDFLAGS=-L/nccl/lib -Wl,-rpath,/nccl/lib", nvcc=self.NVCC % ("13.0", "true"))
    link, = [line for line in done.stdout.split("\n") if " -o build/cuda/train " in line]
    self.assertIn("g++ -L/nccl/lib -Wl,-rpath,/nccl/lib -o ", link)
    self.assertIn(" -L/cuda/lib -Wl,-rpath,", link)

  def test_summary(self):
    """A build says at its end for what it is, and what was left out for want of what."""
    whole = self.summary("BACKEND=cpu", "HAVE_PCRE2=1", "HAVE_ONEDNN=1", "ATTN=relu lssa", "BUILD=/none")
    self.assertEqual(whole, "./train is built for the CPU\n  with the kinds relu lssa\n")
    self.assertIn("without the faster matrix products of oneDNN", self.summary("BACKEND=cpu", "HAVE_ONEDNN=0"))
    self.assertNotIn("oneDNN", self.summary("BACKEND=cuda"))
    self.assertIn("without text in GPT-2 tokens: install libpcre2-dev", self.summary("BACKEND=cpu", "HAVE_PCRE2=0"))
    self.assertIn("without a GPU: nvidia-smi shows none here; make BACKEND=cuda", self.summary())
    without_nvcc = self.make("NVCC=/none", goals=("-s", "summary"), gpu="9.0").stdout
    self.assertIn("without a GPU, for lack of nvcc: install CUDA 12.4", without_nvcc)
    self.assertIn("CUDA: sm_80 sm_90a, PTX of compute_80\n", self.summary("BACKEND=cuda"))
    self.assertIn("without several GPUs: NCCL=0\n", self.summary("BACKEND=cuda", "NCCL=0"))
    self.assertIn("without several GPUs: no NCCL was found. Install",
                  self.summary("BACKEND=cuda", "LDFLAGS=-no-such-flag"))

  def test_old_cards(self):
    self.assertIn("CUDA: sm_80, PTX", self.summary(gpu="8.0\\n7.5"))
    self.assertIn("for the CPU\n  without the GPU, of compute capability 75", self.summary(gpu="7.5"))
    self.assertIn("for the CPU\n", self.summary("BACKEND=cpu", gpu="7.5"))

  def test_compilers_that_cannot_build_it(self):
    self.assertIn("is of CUDA 11.5: install 12.4 or later", self.summary("BACKEND=cuda", release="11.5"))
    self.assertIn("is of CUDA 11.5: install 12.4 or later", self.summary(release="11.5", gpu="8.0"))
    self.assertIn("for the CPU\n", self.summary("BACKEND=cpu", release="11.5"))
    self.assertIn("does not name a release", self.make("BACKEND=cuda", nvcc="exit 126", goals=("-s", "summary")).stderr)
    refuses = "echo 'error: -- unsupported GNU version! gcc versions later than 13 are not supported!' >&2; exit 1"
    self.assertIn('NVCC_PREPEND_FLAGS="-ccbin g++-13"', self.summary("BACKEND=cuda", works=refuses))
    self.assertIn("BACKEND=cuda needs nvcc", self.make("BACKEND=cuda", "NVCC=/none", goals=("-s", "summary")).stderr)


class Kinds(unittest.TestCase):
  """ATTN and KINDS, with a compiler that writes down its arguments where it should write an object or a program."""

  COMPILER = '#!/bin/sh\nall=$*\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo "$all" > "$2"; shift; done\n'

  def setUp(self):
    build = tempfile.TemporaryDirectory()
    self.addCleanup(build.cleanup)
    self.build = build.name
    self.compiler = f"{self.build}/compiler"
    with open(self.compiler, "w", encoding="utf-8") as compiler:
      compiler.write(self.COMPILER)
    os.chmod(self.compiler, 0o755)

  def make(self, *arguments):
    """The lines that make prints."""
    done = subprocess.run(["make", "BACKEND=cpu", f"BUILD={self.build}", f"CXX={self.compiler}", *arguments], cwd=ROOT,
                          check=True, capture_output=True, text=True, timeout=100)
    return done.stdout.split("\n")[:-1]

  def test_programs_have_the_kinds_of_the_last_make(self):
    def made(*settings):
      """What the test program is linked from, by family, and what make had to do."""
      lines = self.make(*settings, f"{self.build}/test_dispatch")
      with open(f"{self.build}/test_dispatch", encoding="utf-8") as program:
        objects = re.findall(r"/attention/(\w+)/(\w+)\.cu\.o", program.read())
      return {family: [kind for other, kind in objects if other == family] for family, _ in objects}, lines

    every, _ = made("FULL=")
    files = sorted(name.removesuffix(".cuh") for name in os.listdir(os.path.join(ROOT, "attention/kinds"))
                   if name.endswith(".cuh"))
    names = ["softmax", *(name for name in files if name != "softmax")]
    for_tests = {"hopper", "tensor"}  # on the CPU
    self.assertEqual(every, {family: ["softmax", "lssar"] if family in for_tests else names
                             for family in ("general", "hopper", "onednn", "tensor")})
    self.assertEqual(made("FULL=1")[0], dict.fromkeys(every, names))
    link = [f"link {self.build}/test_dispatch"]
    for settings, kinds, commands in ((("ATTN=softmax relu",), ["softmax", "relu"], link), ((), names, link),
                                      ((), names, [])):
      self.assertEqual(made("FULL=1", *settings), ({family: kinds for family in every}, commands))
    # objects of another machine's CPU, in a folder that both share, are compiled again
    self.assertIn("compile base/error.cpp", made("FEATURES=avx5124fmaps")[1])

  def test_check_kind_leaves_the_program_alone(self):
    file = os.path.join(ROOT, "test/attention/kinds/capped.cuh")
    done = subprocess.run(["make", "-nB", "check-kind", f"KINDS={file}"], cwd=ROOT, capture_output=True, text=True,
                          timeout=100)
    links = re.findall(r"echo 'link (\S+)'", done.stdout)
    self.assertIn("build/cpu/check_kind/train", links, done.stderr)
    self.assertNotIn("build/cpu/train", links)
    self.assertIn("test/attention/check_kind.sh", done.stdout)

  def test_lost_kinds_are_named(self):
    def lines(*settings):
      self.make("NCCL=1", *settings, f"{self.build}/train")
      said = self.make("NCCL=1", *settings, "summary")
      os.remove(f"{self.build}/train.lost")  # as make train does
      return [line for line in said[1:] if not line.startswith("  without")]

    file = os.path.join(ROOT, "test/attention/kinds/capped.cuh")
    self.assertEqual(*lines("ATTN=relu lssa", f"KINDS={file}"), "  with the kinds relu lssa capped")
    self.assertEqual(*lines("ATTN=relu"), f"  with the kinds relu; it has lost capped lssa: make KINDS=\"{file}\"")
    others = [os.path.join(self.build, folder, "capped.cuh") for folder in "ab"]  # of a name a build has one file
    for other in others:
      os.mkdir(os.path.dirname(other))
      shutil.copyfile(file, other)
      self.make("NCCL=1", "ATTN=relu", f"KINDS={other}", f"{self.build}/train")
    self.assertEqual(lines("ATTN=relu", f"KINDS={file}"),
                     [f"  capped is now {file}, no longer {others[1]}", "  with the kinds relu capped"])
    for other in others:
      self.make("NCCL=1", "ATTN=relu", f"KINDS={other}", f"{self.build}/train")
    self.assertEqual(*lines("ATTN=relu"), f"  with the kinds relu; it has lost capped: make KINDS=\"{others[1]}\"")
    os.mkdir(f"{self.build}/Ada's own")  # as the checkout's folder may be called
    shutil.copyfile(file, f"{self.build}/Ada's own/capped.cuh")
    os.symlink("Ada's own", f"{self.build}/own")
    own = f"KINDS={self.build}/own/capped.cuh"
    self.assertEqual(*lines("ATTN=relu", own), "  with the kinds relu capped")
    own = own.replace("=", '="') + '"'
    self.assertEqual(*lines("ATTN=relu"), f"  with the kinds relu; it has lost capped: make {own}")


class KindFiles(unittest.TestCase):
  """The files of kinds, attention/kind.h and attention/score.h, and make KINDS=..."""

  TREE = " ".join(os.path.join(ROOT, f"attention/kinds/{kind}.cuh") for kind in ("softmax", "relu"))

  GOOD = """#include "attention/score.h"
SCORE(NAME) {
  static constexpr RowWeights weights = RowWeights::none;
  FORMULA f(Z z, At) { return BODY; }
};
"""

  def run_on(self, files, *names):
    """kind_files.sh for files {name: text} in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
      for name, text in files.items():
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
          file.write(text)
      return subprocess.run(["bash", os.path.join(ROOT, "scripts/lib/kind_files.sh"), "list", self.TREE, *names],
                            cwd=folder, capture_output=True, text=True, timeout=60)

  def test_lists_them_with_their_text(self):
    good = self.GOOD.replace("NAME", "joined").replace("BODY", "relu(z)")  # also where a setting has such a value
    done = self.run_on({"a/joined.cuh": good}, "a/joined.cuh")
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn('{"softmax", "relu", "joined", }', done.stdout)
    self.assertIn(f'R"KIND_FILE({good})KIND_FILE"', done.stdout)

  def test_the_manual_shows_a_file_that_is_tested(self):
    with open(os.path.join(ROOT, "attention/score.h"), encoding="utf-8") as header, \
         open(os.path.join(ROOT, "test/attention/kinds/my_score.cuh"), encoding="utf-8") as example:
      shown = re.search(r"^//     #include[\s\S]*?^//     \};\n", header.read(), re.MULTILINE)[0]
      self.assertEqual(re.sub("^//     ", "", shown, flags=re.MULTILINE), example.read())

  def test_wrong_files_are_named_with_line_and_fix(self):
    good = self.GOOD.replace("BODY", "relu(z)")
    for files, names, parts in (
        ({}, ["gone.cuh"], ["gone.cuh:1:", "no such file"]),
        ({"x.cuh": "int a;\n"}, ["x.cuh"], ["x.cuh:1:", "SCORE(x)", "KIND(x)"]),
        ({"x.cuh": "\nKIND(x) {\n"}, ["x.cuh"], ["x.cuh:2:", "there is no policy", "PolicyOf<kind_x, Maths>"]),
        ({"x.cuh": "\n" + good.replace("NAME", "y")}, ["x.cuh"], ["x.cuh:3:", "must say SCORE(x)"]),
        ({"x.cuh": good.replace("NAME", "x").replace(" f(", " g(")}, ["x.cuh"],
         ["x.cuh:2:", "there is no formula: add FORMULA f(Z z, At at)"]),
        ({"Bad.cuh": good}, ["Bad.cuh"], ["Bad.cuh:1:", "small letter"]),
        ({"x.h": good}, ["x.h"], ["x.h:1:", ".cuh"]),
        ({"relu.cuh": good.replace("NAME", "relu")}, ["relu.cuh"], ["relu.cuh:1:", "attention/kinds/ already"]),
        ({"a b/x.cuh": good.replace("NAME", "x")}, ["a", "b/x.cuh"], ["a b/x.cuh: make divides names", "ln -s"]),
        ({"x.cuh": good.replace("NAME", "x"), "a/x.cuh": good.replace("NAME", "x")}, ["x.cuh", "a/x.cuh"],
         ["a/x.cuh:1:", 'two files are named "x"'])):
      done = self.run_on(files, *names)
      self.assertEqual(done.returncode, 1, names)
      for part in parts:
        self.assertIn(part, done.stderr)

  def test_make_says_it_first(self):
    path = os.path.join(ROOT, "attention/kinds/no_such_kind.cuh")
    done = subprocess.run(["make", "-n", "BACKEND=cpu", f"KINDS={path}"], cwd=ROOT, capture_output=True, text=True,
                          timeout=100)
    self.assertRegex(done.stdout + done.stderr, rf"^Makefile:\d+: \*\*\* KINDS: {path}:1: there is no such file")

  def compiled(self, text):
    """What g++ says of a file, without a build."""
    with tempfile.TemporaryDirectory() as folder:
      path = f"{folder}/x.cuh"
      with open(path, "w", encoding="utf-8") as file:
        file.write(text)
      with open(f"{folder}/kinds.inc", "w", encoding="utf-8") as file:
        subprocess.run(["bash", os.path.join(ROOT, "scripts/lib/kind_files.sh"), "list", self.TREE, path],
                       stdout=file, check=True, timeout=60)
      log = f"{folder}/log"
      with open(log, "w", encoding="utf-8") as file:
        code = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-DKINDS_OF_THE_TREE=softmax,relu", f"-I{folder}",
                               f"-I{ROOT}", os.path.join(ROOT, "attention/kinds.cpp")], stderr=file,
                              timeout=100).returncode
      done = subprocess.run(["bash", os.path.join(ROOT, "scripts/lib/kind_files.sh"), "explain", log], check=True,
                            capture_output=True, text=True, timeout=100)
      return code, done.stdout

  def test_policies_that_a_default_would_make_wrong_do_not_compile(self):
    policies = (
        ("lssa", "Lssa", "static constexpr int SWEEPS = 2;", "a policy with first_sweep(), and no other"),
        ("lssar", "Sharpened", "static constexpr int SWEEPS = 1;", "a policy with first_sweep(), and no other"),
        ("relu", "Relu", "static constexpr int CONSTANTS = 1;", "CONSTANTS come from a row_constants()"),
        ("relu", "Relu", "static constexpr int SUMS = 1;", "SUMS need a start_sweep()"),
        ("relu", "Relu", "static constexpr int SUMS = 1;", "SUMS need a merge()"),
        ("relu", "Relu", "static constexpr bool RESCALES = true;", "a policy with rescale(), and no other"),
        ("softmax", "Softmax", "static constexpr bool RESCALES = false;", "a policy with rescale(), and no other"),
        ("sigmoid", "Sigmoid", "static constexpr int ROW_VALUES = 1;", "ROW_VALUES need a row_for_backward()"),
        ("relu", "Relu", "static constexpr int LEARNED = 1;", "LEARNED must be the number of rows of `learned`"),
        ("softmax", "Relu", "", "has_sink of KIND needs a policy with HAS_SINK"),
        ("relu", "Relu", "static constexpr int OUTPUTS = 3;", "OUTPUTS must be 1 or 2"),
        ("relu2", "Relu2", "using Evaluation = Relu2<FullMaths>;", "evaluations would run the base's policy"),
        ("lssar", "Sharpened", "using Evaluation = Sharpened::Evaluation;", "evaluations would run the base's policy"))
    kinds = ("softmax", "lssa", "lssar", "relu", "relu2", "sigmoid")
    lines = ['#include "attention/formula.cuh"', *(f'#include "attention/kinds/{kind}.cuh"' for kind in kinds),
             *(f"template void check_policies<kind_{kind}>();" for kind in kinds)]
    with tempfile.TemporaryDirectory() as folder:
      for n, (kind, base, text, _) in enumerate(policies):
        base += "<SoftplusStage<FullMaths>, WholePower>" if base == "Sharpened" else "<FullMaths>"
        lines += [f"struct P{n} : {base} {{ using Evaluation = P{n}; {text} }};".replace(
            f"using Evaluation = P{n}; using", "using"), f"template void check_policy<kind_{kind}, P{n}>();"]
      with open(f"{folder}/policies.cpp", "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
      said = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-DKINDS_OF_THE_TREE=" + ",".join(kinds), "-I.",
                             "-Iemulation", f"{folder}/policies.cpp"], cwd=ROOT, capture_output=True, text=True,
                            timeout=100).stderr
    for n, (kind, base, text, sentence) in enumerate(policies):
      self.assertIn(f"[with File = kind_{kind}; P = P{n}]", said)
      part, = re.findall(rf"\bP = P{n}\](?:(?!\bP = P)[\s\S])*", said)
      self.assertIn("static assertion failed: " + sentence, part, (base, text))
    self.assertNotIn("void check_choices", said)  # the kinds of the tree are right

  def test_errors_come_without_notes_on_options(self):
    for compiler in filter(shutil.which, ("g++", "clang++")):
      made = subprocess.run(["make", "-nBs", "V=1", "BACKEND=cpu", f"CXX={compiler}", "BUILD=build/none",
                             "build/none/base/error.cpp.o"], cwd=ROOT, capture_output=True, text=True, timeout=100)
      options = re.findall(r" (-W\S+)", made.stdout.split("-c base/error.cpp")[0].split("\n")[-1])
      said = subprocess.run([compiler, *options, "-fsyntax-only", "-x", "c++", "-"], input="int f(int y) { return x; }",
                            capture_output=True, text=True, timeout=100).stderr
      self.assertIn("-Wextra", options)
      self.assertIn("error: ", said)
      self.assertNotRegex(said, "unrecognized|unknown")

  def test_wrong_formulas_end_in_an_error_at_their_line(self):
    good = self.GOOD.replace("NAME", "x")
    self.assertEqual(self.compiled(good.replace("BODY", "relu(z)")), (0, ""))
    learned = lambda numbers: f"  static constexpr LearnedNumber learned[] = {{{numbers}}};\n  FORMULA"
    parameter = '  static constexpr ScoreKey parameters[] = {{"Cap", 50, "(0, 1e6]", "bound"}};\n  FORMULA'
    for line, message, text in (
        (4, "f must not branch on a score: use max, min, relu or abs", good.replace("BODY", "z > 0 ? z : -z")),
        (4, "f must not branch on a score", good.replace("BODY", "z == 0 ? z : -z")),
        (4, "loses its slope: keep Z and C", good.replace("BODY", "int(z)")),
        (4, "loses its slope: keep Z and C", good.replace("BODY", "z ? 1 : 0")),
        (4, "pow(", good.replace("BODY", "std::pow(z, 3)")),
        (2, "f must return a formula of z, not a plain number", good.replace("BODY", "1")),
        (2, "of a k that the file does not declare", good.replace("BODY", "z * at.learned[0]")),
        (2, "of a k that the file does not declare", good.replace("BODY", "z * at.parameter[1]")),
        (2, "what the head of attention/score.h does not list", good.replace("BODY", "z * double(rand())")),
        (2, "say what becomes of f: static constexpr RowWeights weights", good.replace(" weights", " w")),
        (2, "a number's name is small letters", good.replace("  FORMULA", parameter)),
        (2, "a number's name is small letters", good.replace("  FORMULA", learned('{"z", 1}'))),
        (2, "a number's name is small letters", good.replace("  FORMULA", learned('{"a", 1}, {"a", 1}'))),
        (2, "an interval: write [0, 1]", good.replace("  FORMULA", parameter.replace("Cap", "cap").replace("(0", "0"))),
        (2, "at most four numbers", good.replace("  FORMULA", learned(", ".join('{"%s", 1}' % c for c in "abcde"))))):
      code, said = self.compiled(text)
      self.assertNotEqual(code, 0, text)
      if message == "pow(":  # the compiler's own words
        self.assertRegex(said, rf"x\.cuh:{line}:\d+: ")
      else:  # before the templates
        said = "\n".join(re.findall(rf"^KINDS: .*/x\.cuh:{line}: .*", said.split("In file included")[0], re.MULTILINE))
      self.assertIn(message, said)


class AnotherCpu(unittest.TestCase):
  """A program on a CPU that lacks instructions of its MARCH (emulation/processor_check.cpp)."""

  def made(self, *settings, goals):
    return subprocess.run(["make", "-nB", "V=1", "BACKEND=cpu", *settings, *goals], cwd=ROOT, capture_output=True,
                          check=True, text=True, timeout=100).stdout.split("\n")

  def test_is_checked_first_in_every_program(self):
    names = ["train", "test_base", "test_attention", "bench_step", "planted_bugs"]
    for settings, build in (((), "build/cpu"), (("SAN=asan",), "build/cpu-asan"), (("SAN=tsan",), "build/cpu-tsan")):
      check = f"{build}/emulation/processor_check.cpp.o"
      lines = self.made("MARCH=haswell", *settings, goals=[f"{build}/{name}" for name in names])
      compiled, = [line for line in lines if line.endswith(f" -o {check} ")]
      self.assertNotRegex(compiled, "-march|-fsanitize|-include")
      for name in names:
        link, = [line for line in lines if f" -o {build}/{name} " in line]
        self.assertRegex(link, rf" -o {build}/{name} {check} ")

  @unittest.skipUnless(platform.machine() == "x86_64", "asks for an instruction of x86-64")
  def test_is_refused_before_the_constructors_of_libraries(self):
    with tempfile.TemporaryDirectory() as folder:
      for name, text in (("main", 'int main() { return 0; }'),
                         ("library", 'static int before = dprintf(1, "ran\\n");')):
        with open(f"{folder}/{name}.cpp", "w", encoding="utf-8") as source:
          source.write(f"#include <cstdio>\n{text}\n")
      library = f"{folder}/library.so"
      subprocess.run(["g++", "-shared", "-fPIC", f"{folder}/library.cpp", "-o", library], check=True, timeout=100)
      for needed, code in (("sse2", 0), ("avx5124fmaps", 2)):
        with open(f"{folder}/built_for.inc", "w", encoding="utf-8") as file:
          file.write(f'#define BUILT_FOR "MARCH=native on X"\n#define NEEDED NEEDS("sse2") NEEDS("{needed}")\n')
        subprocess.run(["g++", "-std=c++20", f"-I{folder}", os.path.join(ROOT, "emulation/processor_check.cpp"),
                        f"{folder}/main.cpp", "-Wl,--no-as-needed", library, "-o", f"{folder}/program"], check=True,
                       timeout=100)
        done = subprocess.run([f"{folder}/program"], capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stdout), (code, "" if code else "ran\n"))
      self.assertRegex(done.stderr, "^this program was built for another CPU, MARCH=native on X: the one here lacks "
                                    "its avx5124fmaps; build it here by make, or for both by make MARCH=")

  def test_features_of_a_cpu(self):
    def features(march):
      done = subprocess.run(["bash", os.path.join(ROOT, "scripts/lib/cpu_features.sh"), f"-march={march}", "g++"],
                            check=True, capture_output=True, text=True, timeout=100)
      return set(done.stdout.split())
    if platform.machine() == "x86_64":
      self.assertEqual(features("x86-64"), set())
      self.assertLessEqual({"sse4.2", "avx2", "fma", "bmi2"}, features("haswell"))
      self.assertLessEqual({"avx512f", "avx512bw", "avx512vl"}, features("skylake-avx512") - features("haswell"))
      self.assertFalse({"aes", "rdrnd", "xsave", "sgx"} & features("skylake-avx512"))  # no compiler chooses them
    else:
      self.assertEqual(features("armv8-a"), set())
      self.assertLessEqual({"atomics", "dotprod"}, features("armv8.4-a"))


class WithoutNccl(unittest.TestCase):
  def test_has_all_functions(self):
    """A build that finds no NCCL has comm_alone.cpp in place of comm.cpp, so both must define the same functions."""
    with tempfile.TemporaryDirectory() as build:
      objects = [f"{build}/ranks/{name}.cpp.o" for name in ("comm", "comm_alone")]
      subprocess.run(["make", "BACKEND=cpu", f"BUILD={build}", *objects], cwd=ROOT, check=True, capture_output=True,
                     timeout=300)
      symbols = [subprocess.run(["nm", "-C", each], capture_output=True, check=True, text=True).stdout
                 for each in objects]
    functions, others = (set(re.findall(r" T (.*)", text)) for text in symbols)
    self.assertIn("Comm::built()", functions)
    self.assertEqual(functions, others)
