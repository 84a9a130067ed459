"""scripts/prepare_tasks.py: the prompts of every task, its inputs, the file, a hub on this machine.
Standard library only."""
import csv
import functools
import gzip
import http.server
import io
import json
import math
import os
import struct
import subprocess
import threading
import urllib.parse

from support.scripts import ScriptTest  # whose import finds the scripts
from support.workspace import TRAIN

import prepare_tasks
from lib.common import UserError

HELLASWAG = {"ctx": "A man. he [substeps] runs", "ctx_a": " A man [title] b", "ctx_b": "he RUNS  on",
             "activity_label": "Running", "endings": [" a [step] b.", "c", "d [title] e", "f"], "label": "2"}
ARC = {"question": "Why?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "2"}
ARC_AUTHORS = {"question": {"stem": "Why?", "choices": [
    {"text": "a", "label": "A"}, {"text": "b", "label": "B"}, {"text": "c", "label": "C"}]}, "answerKey": "B"}
PIQA = {"goal": "Tie it", "sol1": "so", "sol2": "or so", "label": 1}
SCIQ = {"support": " \n Facts.", "question": "What?", "distractor1": "x", "distractor2": "y", "distractor3": "z",
        "correct_answer": "w"}
MMLU = {"question": " Q?\n", "choices": ["n\u00e9", "o", "p", "q"], "answer": 0, "subject": "abstract_algebra"}
ALGEBRA = "(with answers) about abstract algebra.\n\n"
PYARROW = """
import json
class ArrowException(Exception): pass
class parquet:
  def ParquetFile(file, pre_buffer):
    text = file.read().decode()
    if not text.startswith("{"): raise ArrowException("no magic")
    parquet.rows = [json.loads(line) for line in text.splitlines()]
    return parquet
  def read(): return parquet
  def to_pylist(): return parquet.rows
"""


def lines(*rows):
  return "".join(json.dumps(row) + "\n" for row in rows)


def read(path):
  """(version, [(context, completions, gold, [(characters or words, bytes)])]), tokens as arrays of numbers."""
  with open(path, "rb") as file:
    data = file.read()
  magic, version, count, longest, *rest = struct.unpack("<256i", data[:1024])
  assert magic == 20240522 and not any(rest)
  numbers, examples, sizes = iter(memoryview(data[1024:]).cast("H")), [], []
  take = lambda: [next(numbers) for _ in range(next(numbers))]
  for number in range(count):
    mark, size, index, gold, completions = (next(numbers) for _ in range(5))
    assert (mark, index) == (65535, number)
    context, tokens = take(), [take() for _ in range(completions)]
    examples.append((context, tokens, gold, [(next(numbers), next(numbers)) for _ in range(completions)]
                     if version > 1 else []))
    sizes.append(size)
  assert next(numbers, None) is None and longest == max(sizes) and sum(sizes) == len(data) - 1024
  return version, examples


class PrepareTasks(ScriptTest):
  def prepare(self, task, *args, code=0, **options):
    return self.run_script("prepare_tasks.py", "--task", *task.split(), "--tokenizer", "bytes", "--out", self.out,
                           "--overwrite", *args, code=code, **options)

  def texts(self, task, name=None):
    """(version, examples) with texts for tokens."""
    version, examples = read(os.path.join(self.out, (name or task) + ".bin"))
    text = lambda tokens: bytes(tokens).decode()
    return version, [(text(context), [text(tokens) for tokens in completions], gold, sizes)
                     for context, completions, gold, sizes in examples]

  def test_byte_order_marks_and_keys_given_twice(self):
    mark, row = b"\xef\xbb\xbf", json.dumps(PIQA)
    table = mark + b'Q?,a,b,c,d,B\n'
    for task, name, data in (("piqa", "a.jsonl", mark + row.encode()), ("mmlu", "x_test.csv", table),
                             ("piqa", "a.json", mark + b"[%s]" % row.encode())):
      self.prepare(task, "--input", self.write(name, data))
      self.assertNotIn("\ufeff", self.texts(task)[1][0][0])
    labels = self.write("a.lst", mark + b"1")
    self.prepare("piqa", "--input", self.write("b.jsonl", row), labels)
    for name, text in (("c.jsonl", row), ("c.csv", "Q?,a,b,c,d,B\n")):
      self.prepare("piqa", "--input", self.write(name, text.encode("utf-16")), code=2)
      self.assert_error(name, "is UTF-16 text; convert it to UTF-8")
    for name, text in (("d.jsonl", row + '\n{"goal": 1, "goal": 2}'), ("d.json", '[{"goal": 1, "goal": 2}]')):
      self.prepare("piqa", "--input", self.write(name, text), code=2)
      self.assert_error(name, 'the key "goal" is given twice', *["line 2"] * (name == "d.jsonl"))

  def test_prompts(self):
    for task, row, context, completions, gold in (
        ("hellaswag", HELLASWAG, "Running: A man. b He runs on", ["a b.", "c", "d. e", "f"], 2),
        ("hellaswag_llmc", HELLASWAG, "A man. he [substeps] runs", HELLASWAG["endings"], 2),
        ("arc_easy", ARC, "Question: Why?\nAnswer:", ["a", "b", "c"], 1),
        ("arc_challenge", ARC_AUTHORS, "Question: Why?\nAnswer:", ["a", "b", "c"], 1),
        ("piqa", PIQA, "Question: Tie it\nAnswer:", ["so", "or so"], 1),
        ("sciq", SCIQ, "Facts.\nQuestion: What?\nAnswer:", ["x", "y", "z", "w"], 3),
        ("mmlu", MMLU, "The following are multiple choice questions " + ALGEBRA +
         "Q?\nA. n\u00e9\nB. o\nC. p\nD. q\nAnswer:", list("ABCD"), 0),
        ("mmlu_continuation", MMLU, "The following are questions " + ALGEBRA + "Question: Q?\nAnswer:",
         MMLU["choices"], 0),
        ("mmlu_llmc", MMLU, "Question:  Q?\n\n\nAnswer:", MMLU["choices"], 0)):
      self.assertEqual(prepare_tasks.examples(task, [row, row]), [(context, completions, gold)] * 2)
      if task not in ("mmlu_llmc", "arc_challenge", "hellaswag"):
        continue
      self.prepare(task, "--input", self.write("x.jsonl", lines(row, row)))
      most = len(context.encode()) + 1 + max(len(text.encode()) for text in completions)
      self.assertIn("2 examples, at most %d tokens; chance %.1f%%" % (most, 100 / len(completions)), self.output)
      version, (first, second) = self.texts(task)
      self.assertEqual(version, 1 if task.endswith("llmc") else 2)
      sizes = [(len(text), len(text.encode())) for text in completions] if version == 2 else []
      self.assertEqual(first, (context, [" " + text for text in completions], gold, sizes))
      self.assertEqual(first, second)

  def test_numbers_of_right_completions(self):
    for task, row, key in (("hellaswag", HELLASWAG, "label"), ("piqa", PIQA, "label"), ("mmlu", MMLU, "answer"),
                           ("mmlu_llmc", MMLU, "answer"), ("mmlu_continuation", MMLU, "answer")):
      for value in 1, "1", 1.0:
        self.prepare(task, "--input", self.write("x.jsonl", lines({**row, key: value})))
        self.assertEqual(prepare_tasks.prompt(task, {**row, key: value})[2], 1)

  def test_last_words(self):
    self.prepare("lambada_openai", "--input", self.write("x.jsonl", lines(
        {"text": "a b c\u00e9."}, {"text": "a b  c"}, {"text": "word"})))
    self.assertIn("3 examples, at most 8 tokens\n", self.output)
    self.assertEqual(self.texts("lambada_openai"), (3, [
        ("a b", [" c\u00e9."], 0, [(1, 4)]), ("a b", ["  c"], 0, [(1, 1)]), ("\n", [" word"], 0, [(1, 4)])]))
    self.prepare("lambada_openai", "--input", self.write("x.jsonl", lines({"text": "a "})), code=2)
    self.assert_error("example 0", "none may be empty")

  def test_texts_of_wikitext(self):
    """Without WikiText's marks, but counted with them; long ones in parts."""
    page = (" \n = A @-@ b = \n \n = = C = = \n = = = = D = = = = \n The 1 @,@ 000 ( x @.@ 5 ) , [ y ] : \" z \" "
            "; it 's N \u00b0 ! ? the dogs ' { q } ' r ' \n")
    plain = ("\n= A-b =\n\n== C ==\n==== D ====\nThe 1,000 (x.5), [y]: \"z\"; it's 1 \u00b0!? the dogs' {q} 'r'\n")
    self.assertEqual(prepare_tasks.examples("wikitext", [{"page": page}])[0][:3], (None, [plain], 0))
    long = "x " * 40000
    self.prepare("wikitext", "--input", self.write("x.jsonl", lines({"page": page}, {"page": long}, {"page": page})))
    version, (first, *rest, last) = self.texts("wikitext")
    self.assertEqual((version, first), (3, ("\n", [plain], 0, [(len(page.split()) + 2, len(page.encode()))])))
    self.assertEqual(last, first)
    self.assertEqual([context for context, *_ in rest], ["\n"] + [""] * 19)
    self.assertEqual("".join(texts[0] for _, texts, *_ in rest), long)
    self.assertEqual([sizes[0] for *_, sizes in rest[:3]], [(40001, 65535), (0, 14465), (0, 0)])

  def test_spaces_at_the_end_of_a_context(self):
    self.prepare("hellaswag_llmc", "--input",
                 self.write("x.jsonl", lines({**HELLASWAG, "ctx": "a \n "}, {**HELLASWAG, "ctx": "  "})))
    (context, completions, *_), (empty, others, *_) = self.texts("hellaswag_llmc")[1]
    self.assertEqual((context, completions[1]), ("a", " \n  c"))
    self.assertEqual((empty, others[1]), ("\n", "   c"))  # nothing precedes it: a line's end, as for --generate

  def test_shots(self):
    dev = [{**MMLU, "question": "D%d" % i, "answer": i, "choices": [str(10 * i + c) for c in range(4)]}
           for i in range(4)]
    other = {**MMLU, "subject": "law"}
    options = ["--input", self.write("x.jsonl", lines(MMLU)), "--dev",
               self.write("dev.jsonl", lines(other, *dev)), "--shots"]
    self.prepare("mmlu_continuation", *options, 2)
    self.assertEqual(self.texts("mmlu_continuation", "mmlu_continuation_2shot")[1][0][0],
                     "The following are questions " + ALGEBRA +
                     "Question: D0\nAnswer: 0\n\nQuestion: D1\nAnswer: 11\n\nQuestion: Q?\nAnswer:")
    self.prepare("mmlu", *options, 1)
    self.assertIn(ALGEBRA + "D0\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer: A\n\nQ?\n", self.texts("mmlu", "mmlu_1shot")[1][0][0])
    self.prepare("mmlu", *options, 5, code=2)
    self.assert_error("only 4 examples of its subject, abstract_algebra")
    self.prepare("mmlu", "--input", self.write("law.jsonl", lines(other)), *options[2:], 2, code=2)
    self.assert_error("only 1 examples of its subject, law")
    self.prepare("mmlu", *options[:3], self.write("sciq.jsonl", lines(SCIQ)), "--shots", 1, code=2)
    self.assert_error("--dev, example 0: it lacks 'subject'")

  def test_other_inputs(self):
    table = io.StringIO()
    csv.writer(table).writerow([" Q?\n", "n\u00e9", "o", 'p, "r"', "q", "A"])
    self.prepare("mmlu", "--input", self.write("abstract_algebra_test.csv.gz",
                                               gzip.compress(table.getvalue().encode())))
    context = self.texts("mmlu")[1][0][0]
    self.assertTrue(context.endswith('abstract algebra.\n\nQ?\nA. n\u00e9\nB. o\nC. p, "r"\nD. q\nAnswer:'), context)
    self.prepare("sciq", "--input", self.write("test.json", json.dumps([SCIQ, SCIQ], indent=1)))
    self.assertEqual(len(self.texts("sciq")[1]), 2)
    rows = [{key: PIQA[key] for key in ("goal", "sol1", "sol2")}] * 3
    self.prepare("piqa", "--input", self.write("valid.jsonl", lines(*rows)),
                 self.write("valid-labels.lst", "0\n1\n0\n"))
    self.assertEqual([gold for _, _, gold, _ in self.texts("piqa")[1]], [0, 1, 0])
    two = self.write("a.jsonl", lines(PIQA)), self.write("b.jsonl", lines(PIQA, PIQA))
    self.prepare("piqa", "--input", *two, self.write("b.lst", "0\n1\n"), self.write("a.lst", "1\n"), code=2)
    self.assert_error("not in the order of the files with the examples")
    self.prepare("piqa", "--input", self.path("valid.jsonl"), self.write("short.lst", "0\n1\n"), code=2)
    self.assert_error("2 labels for 3 examples")

  def test_gpt2_tokens_are_those_of_the_whole_text(self):
    self.write_vocabulary("")
    encoded = functools.cache(lambda text: list(memoryview(subprocess.run(
      [TRAIN, "--encode", self.folder], input=text.encode(), capture_output=True, check=True).stdout).cast("H")))
    rows = [{**HELLASWAG, "ctx": context, "endings": ["world", "w", " world", "  h"]}
            for context in ("hello", "hello ", "\n\n", "h\n")] * 300
    self.prepare("hellaswag_llmc", "--input", self.write("x.jsonl", lines(*rows)), "--tokenizer", "gpt2",
                 "--tokenizer-dir", self.folder, "--train", TRAIN)
    _, examples = read(os.path.join(self.out, "hellaswag_llmc.bin"))
    self.assertEqual(len(examples), 1200)
    for (context, completions, _, _), row in zip(examples, rows):
      separator, *before = encoded(row["ctx"].rstrip() or "x")
      self.assertEqual(context, before if row["ctx"].strip() else [separator])
      if row is rows[0] or row is rows[1] or row is rows[2] or row is rows[3]:
        for tokens, ending in zip(completions, row["endings"]):
          whole = encoded(row["ctx"] + " " + ending)[1:]
          self.assertEqual(whole[:0 if not row["ctx"].strip() else len(context)] + tokens, whole)

  def test_bad_input(self):
    bad = lambda row, key, value: lines(row, {**row, key: value})
    for task, text, parts in (
        ("hellaswag", lines({key: HELLASWAG[key] for key in HELLASWAG if key != "ctx_a"}),
         ["example 0", "ctx_a", "hellaswag_llmc"]),
        ("hellaswag", bad(HELLASWAG, "label", ""), ["example 1"]),  # the test split has no labels
        ("hellaswag", bad(HELLASWAG, "label", 4), ["example 1", "number 4"]),
        ("hellaswag", bad(HELLASWAG, "endings", ["a", "[x]", "b", "c"]), ["example 1", "empty"]),
        ("hellaswag", bad(HELLASWAG, "endings", "['a', 'b']"), ["example 1", '"endings" is not a list of texts']),
        ("hellaswag_llmc", bad(HELLASWAG, "endings", "abcd"), ["example 1", '"endings" is not a list of texts']),
        ("hellaswag", bad(HELLASWAG, "label", 1.5), ["example 1", "1.5 is not the number"]),
        ("mmlu", bad(MMLU, "answer", True), ["example 1", "true is not the number"]),
        ("mmlu", bad(MMLU, "answer", math.nan), ["example 1", "NaN"]),
        ("mmlu", bad(MMLU, "choices", ["a", "b", "c"]), ["example 1", '3 "choices", not four']),
        ("mmlu", bad(MMLU, "choices", "abcd"), ["example 1", '"choices" is not a list of texts']),
        ("mmlu_continuation", bad(MMLU, "choices", ["a", 2]), ["example 1", '"choices" is not a list of texts']),
        ("piqa", bad(PIQA, "label", -1), ["example 1", "-1"]),
        ("piqa", bad(PIQA, "sol1", 7), ["example 1"]),
        ("piqa", bad(PIQA, "goal", None), ["example 1", '"goal" is not text']),
        ("sciq", bad(SCIQ, "question", None), ["example 1", '"question" is not text']),
        ("arc_easy", bad(ARC, "question", 3), ["example 1", '"question" is not text']),
        ("mmlu_llmc", bad(MMLU, "question", None), ["example 1", '"question" is not text']),
        ("hellaswag", bad(HELLASWAG, "ctx_a", None), ["example 1", '"ctx_a" is not text']),
        ("piqa", bad(PIQA, "sol1", "<|endoftext|>"), ["example 1", "<|endoftext|>"]),
        ("piqa", bad(PIQA, "sol1", "\ud800"), ["example 1", "surrogates"]),
        ("piqa", lines(SCIQ), ["example 0", "lacks 'goal'"]),
        ("piqa", lines(PIQA) + '\n{"goal": ', ["x.jsonl, line 3 is not JSON", "column 10"]),
        ("piqa", b"\xff\xfe", ["x.jsonl", "damaged"]),
        ("piqa", "7\n", ["example 0"]),
        ("arc_easy", bad(ARC, "answerKey", "9"), ["example 1"]),
        ("arc_easy", bad(ARC, "choices", {"text": ["a"], "label": ["2"]}), ["example 1", "1 completions"])):
      with self.assertRaises(UserError) as raised:
        prepare_tasks.examples(task, prepare_tasks.rows_of([self.write("x.jsonl", text)]))
      for part in parts:
        self.assertIn(part, str(raised.exception))
    for text, part in ((bad(PIQA, "goal", "x" * 70000), "example 1 takes"), ("", "0 examples"),
                       ('{"goal": ', "not JSON")):
      self.prepare("piqa", "--input", self.write("x.jsonl", text), code=2)
      self.assert_error(part)
      self.assertEqual(self.files(), [])
    path = self.write("x.jsonl", lines(PIQA))
    self.prepare("piqa", "--input", self.path("absent.jsonl"), code=2)
    self.assert_error("absent.jsonl", "No such file")
    self.prepare("mmlu", "--input", self.write("law_test.csv", "a,b,c\n"), code=2)
    self.assert_error("law_test.csv, row 1", "four answers")
    self.prepare("piqa sciq", "--input", path, code=2)
    self.assert_error("one --task at a time")
    self.prepare("piqa", "--input", path, "--shots", 1, code=2)
    self.assert_error("only the mmlu tasks")
    self.prepare("mmlu", "--input", path, "--shots", 1, code=2)
    self.assert_error("--shots and --dev")
    self.run_script("prepare_tasks.py", "--task", "piqa", "--input", path, "--out", self.out, code=2)
    self.assert_error("--tokenizer-dir")
    self.prepare("piqa", "--input", path)
    self.run_script("prepare_tasks.py", "--task", "piqa", "--input", path, "--out", self.out, "--tokenizer",
                    "bytes", code=2)
    self.assert_error("piqa.bin exists", "--overwrite")

  def hub(self, content):
    """The URL of a server with these files, and the list of what it is asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *_):
        pass

      def do_GET(self):
        asked.append(self.path)
        data = content.get(urllib.parse.unquote(self.path))
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Length", str(len(data or "") + (data == "cut")))
        self.end_headers()
        self.wfile.write((data or "").encode())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    self.addCleanup(server.server_close)
    self.addCleanup(server.shutdown)
    return "http://127.0.0.1:%d/" % server.server_address[1], asked

  def test_download(self):
    place = "/datasets/%s/resolve/refs/convert/parquet/%s/0000.parquet"
    content = {place % ("Rowan/hellaswag", "default/validation"): lines(HELLASWAG),
               place % ("allenai/ai2_arc", "ARC-Easy/test"): lines(ARC),
               place % ("allenai/ai2_arc", "ARC-Challenge/test"): lines(ARC, ARC),
               place % ("baber/piqa", "default/validation"): lines(PIQA),
               place % ("allenai/sciq", "default/test"): lines(SCIQ),
               place % ("cais/mmlu", "all/test"): lines(MMLU), place % ("cais/mmlu", "all/dev"): lines(MMLU)}
    url, asked = self.hub(content)
    self.write("pyarrow.py", PYARROW)  # in place of the package, which tests must not need
    options = {"env": {**os.environ, "PYTHONPATH": self.folder}}
    self.prepare("hellaswag arc_easy arc_challenge piqa sciq mmlu", "--download", "--base-url", url, **options)
    self.assertEqual(self.files(), sorted(task + end for end in (".bin", ".json") for task in (
        "hellaswag", "arc_easy", "arc_challenge", "piqa", "sciq", "mmlu")))
    self.assertEqual(len(self.texts("arc_challenge")[1]), 2)
    self.assertIn("refs%2Fconvert%2Fparquet", asked[0])
    self.prepare("mmlu", "--shots", "1", "--download", "--base-url", url, **options)
    self.assertEqual(set(map(urllib.parse.unquote, asked)), set(content))
    for damage, code, parts in (("<html>", 2, ["damaged, or not a Parquet file"]),
                                ("cut", 1, ["run the same command again"])):
      content[place % ("baber/piqa", "default/validation")] = damage
      self.prepare("piqa", "--download", "--base-url", url, code=code, **options)
      self.assert_error("piqa", *parts)
    content.clear()
    self.prepare("piqa", "--download", "--base-url", url, code=2, **options)
    self.assert_error("answered 404", "--base-url", "--input")
    self.prepare("piqa", "--download", "--base-url", "http://127.0.0.1:1", code=1, **options)
    self.assert_error("run the same command again")

  def test_parquet(self):
    path = self.write("x.parquet", "PAR1")
    try:
      import pyarrow
      from pyarrow import parquet
    except ImportError:
      self.prepare("arc_easy", "--input", path, code=2)
      return self.assert_error("x.parquet", "pip install pyarrow", "JSONL")
    self.prepare("arc_easy", "--input", path, code=2)
    self.assert_error("x.parquet is damaged, or not a Parquet file")
    parquet.write_table(pyarrow.Table.from_pylist([ARC, ARC]), path)
    self.prepare("arc_easy", "--input", path)
    self.assertEqual(self.texts("arc_easy")[1][0][2], 1)

  def test_lm_eval_is_optional(self):
    self.run_script("compare.py", "lm_eval", self.folder, "piqa=y", code=2)
    self.assertRegex(self.errors, "pip install 'lm-eval|holds no tokenizer")
