"""The rules of CONTRIBUTING.md that a program can check. Standard library only."""
import os
import re
import shutil
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("base", "kernels", "attention", "data", "settings", "ranks", "model", "checkpoint", "eval", "training",
         "emulation", "pytorch", "dev", "test", "scripts")

# Which rooms each room includes, from the bottom up: a room names only rooms above its own line. The exceptions are
# the portability header, kernels/gpu.cuh, which includes its CPU half, written in its terms, and the kernels of
# attention with oneDNN, which run on nothing else. The interpreter of PTX stands alone; dev/ is on top of everything.
INCLUDES = {
  "dev/ptx": set(),
  "base": set(),
  "kernels": {"base", "emulation"},
  "emulation": {"base", "kernels"},
  "attention": {"base", "kernels", "emulation"},
  "data": {"base"},
  "settings": {"base", "attention", "data"},
  "pytorch": {"base", "kernels", "attention", "settings"},
  "ranks": {"base", "kernels"},
  "model": {"kernels", "attention", "settings", "ranks"},
  "checkpoint": {"base", "data", "settings", "ranks", "model"},
  "eval": {"base", "data", "ranks", "model", "checkpoint"},
  "training": {"base", "kernels", "data", "settings", "ranks", "model", "checkpoint", "eval"},
  "main": {"base", "data", "ranks", "checkpoint", "eval", "training"},
}


def room_of(path):
  """The room of a file; None for generated headers and for files outside the program."""
  if path.startswith("train_gpt2."):
    return "model"
  if path == "main.cpp":
    return "main"
  return next((room for room in INCLUDES if path.startswith(room + "/")), None)


def sources(*endings):
  """(path from the root, text) of every source file with one of the endings."""
  folders = [(ROOT, os.listdir(ROOT))] + [(folder, names) for room in ROOMS
                                          for folder, _, names in os.walk(os.path.join(ROOT, room))]
  for folder, names in folders:
    for name in sorted(names):
      path = os.path.join(folder, name)
      if name.endswith(endings) and os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
          yield os.path.relpath(path, ROOT), file.read()


class Rules(unittest.TestCase):
  def nothing(self, pattern, files, allowed=lambda path: False):
    found = [f"{path}:{number}: {line.strip()}" for path, text in files if not allowed(path)
             for number, line in enumerate(text.split("\n"), 1) if re.search(pattern, line)]
    self.assertEqual(found, [])

  def test_no_tabs_no_trailing_space_no_conflict(self):
    self.nothing(r"\t|[ \t]$|^(<<<<<<<|>>>>>>>) ", sources(".h", ".cuh", ".cu", ".cpp", ".py", ".sh", ".md"))

  def test_lines_are_wrapped(self):
    # except the rows of a table in planted_bugs_ptx.sh, whose cells are regular expressions
    self.nothing(r"^(?!\w+ +\| (forward|keys|heads|store|add)_\w+ +\|).{121}",
                 sources(".h", ".cuh", ".cu", ".cpp", ".py", ".sh", ".mk", "Makefile"))

  def test_only_the_portability_layer_knows_the_machine(self):
    self.nothing(r"__CUDACC__|__CUDA_ARCH__|\basm\b", sources(".h", ".cuh", ".cu", ".cpp"),
                 lambda path: path in ("kernels/gpu.cuh", "kernels/hopper.cuh") or path.startswith("emulation/"))

  def test_one_file_knows_the_processor(self):
    self.nothing(r"mmintrin|arm_neon|\b_mm|__builtin_ia32|__x86_64__|__aarch64__", sources(".h", ".cuh", ".cu", ".cpp"),
                 lambda path: path.startswith("emulation/processor"))

  def test_braces_around_loops_under_if_constexpr(self):
    # nvcc 13.0 drops the statement after a discarded, unbraced one that has a #pragma inside, in a lambda
    found = [f"{path}:{text[:match.start()].count(chr(10)) + 1}" for path, text in sources(".cuh", ".cu")
             for match in re.finditer(r"if constexpr [^\n{;]*\)\n\s*(#pragma|for\b)", text)]
    self.assertEqual(found, [])

  def test_lists_that_a_loop_goes_through_name_their_types(self):
    # nvcc 12.4 to 12.8 deduce nothing from for (x : {T{..}, {..}})
    found = [f"{path}:{text[:match.start()].count(chr(10)) + 1}" for path, text in sources(".h", ".cuh", ".cu", ".cpp")
             for match in re.finditer(r"for \([^;(){}]*: \{(?:[^;{}]|\{[^{}]*\})*[,{]\s*\{", text)]
    self.assertEqual(found, [])

  def test_every_header_compiles_alone(self):
    # in a folder of its own, because other builds may run; and not as a part of the make that runs this
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")}
    done = subprocess.run(["make", "-C", ROOT, "-k", "BACKEND=cpu", "BUILD=build/headers", "headers"], text=True,
                          capture_output=True, env=environment)
    self.assertEqual((done.returncode, done.stderr), (0, ""))

  def test_device_code_includes_the_integers_it_names(self):
    # the emulation includes them for it, and nvcc with g++ 12 does; with g++ 13 it does not
    missing = [path for path, text in sources(".h", ".cuh", ".cu") if path.startswith(("kernels/", "attention/"))
               and re.search(r"\bu?int(\d+|ptr)_t\b", text) and not re.search(r"#include <(cstdint|stdint\.h)>", text)]
    self.assertEqual(missing, [])

  def test_the_suffix_chooses_the_compiler(self):
    """nvcc compiles .cu in a CUDA build, g++ .cpp: the first has kernels and what starts them, the second host code."""
    host = ("base/", "data/", "settings/", "ranks/", "checkpoint/", "eval/", "training/")
    self.nothing(r"(?s).+", ((path, "host code in a .cu file") for path, _ in sources(".cu", ".cuh")
                             if path.startswith(host)))
    self.nothing(r"\b__global__\b|^ *LAUNCH\(", sources(".cpp", ".h"), lambda path: path.startswith("emulation/"))

  def test_one_way_to_launch(self):
    self.nothing("<<<", sources(".cuh", ".cu"), lambda path: path == "kernels/gpu.cuh")

  def test_no_atomics_in_kernels(self):
    self.nothing(r"\batomic(Add|Sub|Exch|CAS|Max|Min)\b", sources(".cuh", ".cu"), lambda path: path.startswith("test/"))

  def test_nothing_includes_test(self):
    self.nothing(r'#include "test/', sources(".h", ".cuh", ".cu", ".cpp"),
                 lambda path: path.startswith(("test/", "dev/")))

  def test_only_tests_run_what_maintainers_use(self):
    # of what users type, only scripts/test.sh; comments may name it
    self.nothing(r'#include "dev/|^(?!\s*(//|#)).*?(?<![\w/])dev/[\w/]+\.(py|sh|mk)\b',
                 sources(".h", ".cuh", ".cu", ".cpp", ".py", ".sh", ".mk"),
                 lambda path: path.startswith(("test/", "dev/")) or path == "scripts/test.sh")

  def test_programs_can_be_executed(self):
    programs = [os.path.join(ROOT, path) for path, text in sources(".py", ".sh") if text.startswith("#!")]
    self.assertEqual([path for path in programs if not os.access(path, os.X_OK)], [])

  def test_formatted(self):
    known = shutil.which("clang-format") and subprocess.run(["clang-format", "--version"], text=True,
                                                            capture_output=True)
    if not known or "version 14." not in known.stdout:
      self.skipTest("needs clang-format 14: other versions format differently")
    files = [os.path.join(ROOT, path) for path, _ in sources(".h", ".cuh", ".cu", ".cpp")]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", "--ferror-limit=1", *files], text=True,
                          capture_output=True)
    self.assertEqual(done.returncode, 0, done.stderr[:2000])

  def test_no_include_climbs(self):
    found = {room: set() for room in INCLUDES}
    for path, text in sources(".h", ".cuh", ".cu", ".cpp"):
      if room_of(path):
        rooms = {room_of(name) for name in re.findall(r'#include "([^"]+)"', text)}
        found[room_of(path)] |= rooms - {room_of(path), None}
    self.assertEqual(found, INCLUDES)
    order = list(INCLUDES)
    climbing = [(room, other) for room in order for other in INCLUDES[room] if order.index(other) > order.index(room)]
    self.assertEqual(climbing, [("kernels", "emulation")])

  def test_settings_know_attention_by_its_names_alone(self):
    self.nothing(r'#include "attention/(?!families\.h|settings\.h)', (item for item in sources(".h", ".cpp")
                                                              if item[0].startswith("settings/")))

  def test_json_comes_from_its_library(self):
    # Few lines only look like it: the seal that ends state.json, a checksum of all before it; examples in texts.
    self.nothing(r'\\"\w+\\" ?:|R"\w*\(\{', sources(".h", ".cuh", ".cu", ".cpp"),
                 lambda path: path.startswith("test/") or
                 path in ("checkpoint/checkpoint.cpp", "settings/read.cpp", "settings/table.cpp"))

  def test_files_stay_short(self):
    most = {"train_gpt2.cu": 720}  # a whole model, with the blocks of GPT-2 and Llama
    long = [(path, text.count("\n")) for path, text in sources(".h", ".cuh", ".cu", ".cpp", ".py", ".sh")
            if text.count("\n") > most.get(path, 650)]
    self.assertEqual(long, [])

  def test_what_the_documents_name_exists(self):
    named = re.compile(r"(?:%s)/[\w./]+\.(?:sh|py|json|cuh?|h|cpp)\b" % "|".join(ROOMS + ("configs",)))
    missing = [f"{path}: {name}" for path, text in sources(".md") for name in named.findall(text)
               if "NAME" not in name and not os.path.exists(os.path.join(ROOT, name))]
    self.assertEqual(missing, [])

  def test_names_stand_in_the_order_of_their_enumerators(self):
    headers = dict(sources(".h"))
    text = "".join(headers[name] for name in ("attention/settings.h", "attention/attention.h", "settings/config.h",
                                              "data/tokenizer.h"))
    enums = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): re.findall(r"\w+", items)
             for name, items in re.findall(r"enum class (\w+) \{([^}]*)\}", text)}
    names = {name: [item or "automatic" for item in re.findall(r'"(\w*)"', items)]
             for name, items in re.findall(r"(\w+)_names\[\] = \{([^}]*)\}", text)}
    del enums["kind"]  # make writes their names
    enums["bias"].remove("given")  # by a call of pytorch/, not by a key
    self.assertEqual(names, enums)
    # Each kind's formula for PyTorch, in its file or by its name.
    formulas = dict(sources(".py"))["scripts/lib/modeling_plusgpt.py"]
    kinds = {path: text for path, text in sources(".cuh") if path.startswith("attention/kinds/")}
    self.assertIn("attention/kinds/lssar.cuh", kinds)
    for path, text in kinds.items():
      kind = os.path.basename(path).removesuffix(".cuh")
      self.assertIn(f'"{kind}"' if "pytorch =" not in text else "", formulas)

  def test_lists_of_scripts_are_those_of_the_tables(self):
    headers, scripts = dict(sources(".h")), dict(sources(".py"))
    text = "".join(headers[name] for name in ("attention/settings.h", "settings/config.h", "data/tokenizer.h"))
    names = {name: set(re.findall(r'"(\w+)"', items))
             for name, items in re.findall(r"(\w+)_names\[\] = \{([^;]*);", text)}
    model, cases = "scripts/lib/modeling_plusgpt.py", "scripts/lib/compare_transformers.py"
    for path, pattern, expected in (
        (model, r"^ACTIVATIONS = {[^}]*", names["gate_activation"] - {"none"}),
        (model, r'\bscale == "\w+"', names["scale"] - {"number"}),
        (model, r'\bnorm == "\w+"', names["qk_norm"] - {"none"}),
        (model, r'self\.gated\(.*"', names["gate_position"]),
        (cases, r'"sdpa".*', names["gate_position"]), (cases, r'\("elementwise".*?\)', names["gate_granularity"]),
        (cases, r'\("multiply".*?\)', names["gate_op"]),
        ("scripts/report.py", r"^MEASURES = .*}", names["eval_mode"]),
        ("scripts/passkey.py", r'"--tokenizer", choices=(\[.*\])', names["tokenizer_kind"]),
        ("scripts/prepare_tasks.py", r'"--tokenizer", choices=(\[.*\])', names["tokenizer_kind"]),
        ("scripts/prepare_text.py", r"bytes_or_gpt2 = .*", names["tokenizer_kind"])):
      found = "".join(re.findall(pattern, scripts[path], re.MULTILINE))
      self.assertEqual(set(re.findall(r'"(\w+)"', found)), expected, (path, pattern))

  # The guides of CONTRIBUTING.md: what they name exists, and a step that was left out fails here.

  def test_guides_name_what_exists(self):
    texts = dict(sources(".h", ".cuh", ".cu", ".cpp", ".py", ".md"))
    checked = 0
    for guide in re.findall(r"^## Add .*\n([\s\S]*?)(?=^## )", texts["CONTRIBUTING.md"], re.MULTILINE):
      there = "\n".join(texts.get(name, "") for name in re.findall(r"`([\w/]+\.\w+)`", guide))
      for name in re.findall(r"`(?:[^`]*\b)?(\w+\(\)|[A-Z]\w+)`", guide):
        if "NAME" not in name:
          self.assertIn(name.strip("()"), there)
          checked += 1
    self.assertGreater(checked, 15)

  def test_each_member_of_config_has_a_key(self):
    texts = dict(sources(".h", ".cpp"))
    table = re.sub(r"([&(])m\.", r"\1c.model.", re.sub(r"([&(])o\.", r"\1c.optimizer.", texts["settings/table.cpp"]))
    settings = re.sub(r"\n  struct Layer[\s\S]*?\};|\) const \{[\s\S]*?\}", "", texts["settings/config.h"])
    members = [f"c.{section}.{name}"
               for body, section in re.findall(r"\n  struct \w+ \{([\s\S]*?)\n  \} (\w+);", settings)
               for names in re.findall(r"^    (?!struct)[\w:<>]+ (\w[^;({]*(?:{[^;(]*)?);", body, re.MULTILINE)
               for name in re.findall(r"(?:^|, )(\w+)", re.sub(r" = (\{.*\}|[^,]*)", "", names))]
    self.assertGreater(len(members), 60)
    self.assertEqual([name for name in members if not re.search(rf"[&(]{name}\b", table)], [])

  def test_each_mode_has_its_row_and_is_done(self):
    texts = dict(sources(".h", ".cpp"))
    modes = re.findall(r"\w+", re.search(r"enum class Mode \{([^}]*)\}", texts["settings/command_line.h"])[1])
    self.assertEqual(re.findall(r"\.mode = Mode::(\w+)", texts["settings/command_line.cpp"]), modes)
    done = texts["main.cpp"] + texts["training/evaluations.cpp"]
    self.assertEqual([mode for mode in modes if f"Mode::{mode})" not in done], [])

  def test_lines_of_metrics_are_documented_and_read(self):
    texts = {path: text for path, text in sources(".cpp") if not path.startswith("test/")}
    written = {name for text in texts.values() for name in re.findall(r'\bwrite\("(\w+)",\s', text)}
    written |= {"val", "eval"}  # evaluate_lengths() has the type as an argument
    with open(os.path.join(ROOT, "docs/metrics.md"), encoding="utf-8") as file:
      table = file.read().split("\n| field")[0]
    documented = {name for cell in re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
                  for name in re.findall(r"\w+", cell)}
    self.assertEqual(documented, written)
    with open(os.path.join(ROOT, "scripts/lib/metrics.py"), encoding="utf-8") as file:
      evaluations = re.search(r"^EVALUATIONS = .*?  #", file.read(), re.MULTILINE)[0].lower()
    self.assertEqual(set(re.findall(r'"(\w+)"', evaluations)), written - {"start", "train", "skip", "groups"})


if __name__ == "__main__":
  unittest.main()
