"""scripts/prepare_text.py, run as a user runs it. Standard library only, and pyarrow where it is installed."""
import array
import gzip
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from data.test_labels import label_file
from support.scripts import SCRIPTS, ScriptTest, start
from support.workspace import TRAIN, Workspace, default_signals, shard

import prepare_text  # from SCRIPTS
from lib.common import Progress


class Prepare(ScriptTest):
  def files(self):
    """All but the numbers of a shard that is there."""
    names = super().files()
    return [name for name in names if not (name.endswith(".json") and name[:-4] + "bin" in names)]

  def numbers(self):
    """The (tokens, bytes) that lie beside each shard."""
    found = []
    for name in self.files():
      numbers = self.json_of(self.out, name[:-3] + "json")
      self.assertEqual(numbers["tokens"], len(self.tokens(name)))
      found.append((numbers["tokens"], numbers["bytes"]))
    return found


class PrepareBytes(Prepare):
  def prepare(self, *args, code=0, **options):
    return self.run_script("prepare_text.py", *args, "--out", self.out, "--name", "x", code=code, **options)

  def text(self, *names):
    return b"".join(bytes(self.tokens(name)) for name in names)

  def test_splits_at_a_line_and_keeps_every_byte(self):
    text = b"".join(b"line %d \xff\n" % i for i in range(1000))
    self.prepare(self.write("a.txt", text), "--val-fraction", "0.1003")  # no line begins exactly there
    self.assertEqual(self.files(), ["x_train_000000.bin", "x_val_000000.bin"])
    train, val = self.text(self.files()[0]), self.text(self.files()[1])
    self.assertEqual(train + val, text)
    self.assertTrue(train.endswith(b"\n"))
    self.assertAlmostEqual(len(val), len(text) * 0.1003, delta=12)
    self.assertIn("x_train_*.bin", self.output)
    self.assertIn('"model": {"vocab": 256}', self.output)

  def test_several_files_and_standard_input_are_joined(self):
    a, b = self.write("a", b"one"), self.write("b", b"three")
    self.prepare(a, "-", b, "--val-fraction", "0", input=b"two")
    self.assertEqual(self.text("x_train_000000.bin"), b"onetwothree")

  def test_pipes_are_files_too(self):
    os.mkfifo(self.path("pipe"))
    writer = threading.Thread(target=lambda: self.write("pipe", b"through a pipe"), daemon=True)
    writer.start()
    self.prepare(self.path("pipe"), "--val-fraction", "1")
    writer.join()
    self.assertEqual(self.files(), ["x_val_000000.bin"])
    self.assertEqual(self.text("x_val_000000.bin"), b"through a pipe")

  def test_shards_have_the_asked_size_but_the_last(self):
    self.prepare(self.write("a", bytes(range(256)) * 4), "--shard-tokens", "300", "--val-fraction", "0.0")
    names = ["x_train_%06d.bin" % i for i in range(4)]
    self.assertEqual(self.files(), names)
    self.assertEqual([len(self.tokens(name)) for name in names], [300, 300, 300, 124])
    self.assertEqual(self.text(*names), bytes(range(256)) * 4)
    self.assertEqual(self.numbers(), [(300, 300), (300, 300), (300, 300), (124, 124)])

  def test_shards_of_one_token(self):
    self.prepare(self.write("a", "ab"), "--shard-tokens", "1", "--val-fraction", "0")
    self.assertEqual((len(self.files()), self.text(*self.files())), (2, b"ab"))

  def test_validation_begins_with_a_file_if_one_begins_nearby(self):
    self.prepare(self.write("a", "a\n" * 400), self.write("b", "b\n" * 70), "--val-fraction", "0.2")
    self.assertEqual(self.text("x_val_000000.bin"), b"b\n" * 70)

  def test_validation_begins_with_a_document_if_one_begins_nearby(self):
    self.prepare(self.write("a", "a\n" * 420 + "<|endoftext|>" + "b\n" * 80), "--val-fraction", "0.2")
    self.assertEqual(self.text("x_val_000000.bin"), b"<|endoftext|>" + b"b\n" * 80)

  def test_validation_begins_with_a_character_where_no_line_does(self):
    self.prepare(self.write("a", "\u20ac" * 1000), "--val-fraction", "0.1003")
    self.assertEqual(self.text("x_val_000000.bin").decode(), "\u20ac" * 100)

  def test_shards_of_the_same_name_are_replaced_only_on_demand(self):
    text = self.write("a", "0123456789\n" * 20)
    self.prepare(text, "--shard-tokens", "50")
    before = self.files()
    self.prepare(text, code=2)
    self.assert_error("x_train_000000.bin exists", "--overwrite")
    self.assertEqual(self.files(), before)
    keep = ["x_train_extra.bin", "xx_train_000000.bin", "x_train_000000.bin.old"]
    for name in keep:
      shutil.copy(os.path.join(self.out, "x_train_000000.bin"), os.path.join(self.out, name))
    self.prepare(text, "--overwrite")  # old shards beyond the new number are removed too
    self.assertEqual(self.files(), sorted(keep + ["x_train_000000.bin", "x_val_000000.bin"]))
    with open("/dev/full", "w") as full:  # the shards are written even if the summary cannot be printed
      done = subprocess.run([sys.executable, "-u", os.path.join(SCRIPTS, "prepare_text.py"), text, "--out", self.out,
                             "--name", "x", "--tokenizer", "bytes", "--overwrite"],
                            stdout=full, stderr=subprocess.DEVNULL)
    self.assertEqual(done.returncode, 1)
    self.assertEqual(self.files(), sorted(keep + ["x_train_000000.bin", "x_val_000000.bin"]))
    self.prepare(text, "--val-fraction", "1", "--overwrite")  # does not change the training shards
    self.assertIn("x_train_000000.bin", self.files())

  def test_documents_by_the_name_of_the_file(self):
    documents = ["one\n", "", "tw\u20ac <|endoftext|>", "three", "four"]
    lines = "".join(json.dumps({"id": i, "text": text}) + "\n"
                    for i, text in enumerate(documents)).replace("\n", "\n\n")
    self.write("a.jsonl", lines)
    self.write("a.txt.gz", gzip.compress(b"of ") + gzip.compress(b"text"))
    self.write("a.jsonl.gz", gzip.compress(lines.encode()))
    names = ["a.jsonl", "a.txt.gz", "a.jsonl.gz"]
    if shutil.which("zstd"):
      subprocess.run(["zstd", "-q", self.path("a.jsonl")], check=True)
      names.append("a.jsonl.zst")
    for name in names:
      with self.subTest(name):
        self.prepare(self.path(name), "--val-fraction", "0", "--overwrite")
        self.assertEqual(self.text("x_train_000000.bin").decode(), "of text" if "txt" in name else "".join(documents))
        self.assertEqual(self.errors, "")
        said = re.findall(r"^empty documents.*|^fields .*", self.output, re.MULTILINE)
        self.assertEqual(said, [] if "txt" in name else ["empty documents, left out: 1",
                                                           'fields that are not read: 1, "id"'])
    self.prepare(self.write("crlf", b"a\r\nb\r\n"), self.write("no", ""), "--val-fraction", "0", "--overwrite")
    self.assertIn("empty documents, left out: 1\nlines that end with CR LF, which stays in the text: 2;", self.output)
    self.prepare("-", "--jsonl", "--field", "id", "--val-fraction", "0", "--overwrite", input=b'{"id": "7"}')
    self.assertEqual(self.text("x_train_000000.bin"), b"7")

  def test_null_documents_are_left_out(self):
    self.prepare(self.write("a.jsonl", '{"text": "one"}\n{"text": null}\n{"text": "two"}\n'), "--val-every", "2")
    self.assertEqual([self.text(f"x_{split}_000000.bin").decode() for split in ("train", "val")], ["one", "two"])
    self.assert_error('left out: "text" is null in 1 document\n')

  def test_progress(self):
    ticks = iter([0, 10, 40, 50, 75])
    with mock.patch("time.monotonic", lambda: next(ticks)), mock.patch("sys.stderr", io.StringIO()) as said:
      progress = Progress(0, "file 1/2 ")
      progress.add(1000000)  # of an unknown number
      progress.total, progress.done = 100000000, 11000000
      for _ in range(3):
        progress.add(20000000)
      self.assertEqual(said.getvalue(),
                       "file 1/2  31.0% | 0.5 MB/s | eta 0:02:11\nfile 1/2  71.0% | 0.8 MB/s | eta 0:00:35\n")
    ticks = iter([0, 40])
    with mock.patch("time.monotonic", lambda: next(ticks)), mock.patch("sys.stderr", io.StringIO()) as said:
      Progress(100, "", "steps/s", 1).add(20)
      self.assertEqual(said.getvalue(), " 20.0% | 0.5 steps/s | eta 0:02:40\n")

  def test_parquet(self):
    try:
      import pyarrow
      from pyarrow import parquet
    except ImportError:
      path = self.write("a.parquet", "PAR1")
      self.prepare(path, code=2)
      self.assert_error("a.parquet", "pip install pyarrow", "JSONL")
      self.skipTest("needs pyarrow")
    path, texts = self.path("a.parquet"), ["tw\u20ac %d" % i for i in range(5000)]
    parquet.write_table(pyarrow.table({"id": range(5000), "text": texts}), path, row_group_size=300)
    self.write("b.parquet.gz", gzip.compress(self.bytes_of(path)))
    for name in (path, self.path("b.parquet.gz")):
      self.prepare(name, "--val-every", "5000", "--overwrite")
      self.assertEqual(self.text("x_train_000000.bin").decode(), "".join(texts[:-1]))
      self.assertEqual(self.text("x_val_000000.bin").decode(), texts[-1])
    bad = self.path("bad.parquet")
    text = pyarrow.array([b"fine " * 99, b"x\xff"]).cast(pyarrow.string(), safe=False)
    parquet.write_table(pyarrow.table({"text": pyarrow.StringArray.from_buffers(2, *text.buffers()[1:])}), bad)
    for args, parts in (([path, "--field", "body"], ['no column "body"', '"id", "text"']),
                        ([path, "--field", "id"], ["row 1", "0"]),
                        ([self.write("c.parquet", b"PAR1")], ["c.parquet is damaged, or not a Parquet file"]),
                        ([bad], ["row 2", "not UTF-8", "--errors replace"])):
      self.prepare(*args, "--overwrite", code=2)
      self.assert_error(*parts)
    self.prepare(bad, "--errors", "replace", "--overwrite")
    self.assertEqual(self.text("x_train_000000.bin") + self.text("x_val_000000.bin"),
                     b"fine " * 99 + "x\ufffd".encode())

  def test_every_nth_document_for_validation(self):
    lines = "".join(json.dumps({"text": "%d;" % i}) + "\n" for i in (1, 2, 3, 4))
    plain = self.write("b", b"5;<|endoftext|>6;" + b" " * ((4 << 20) - 22) + b"<|endoftext|>7;")  # across two blocks
    self.prepare(self.write("a.jsonl", lines), plain, self.write("c", "8;"), "--val-every", "3")
    self.assertEqual(self.text("x_val_000000.bin").replace(b" ", b""), b"3;<|endoftext|>6;")
    self.assertEqual(self.text("x_train_000000.bin"), b"1;2;4;5;<|endoftext|>7;8;")
    self.prepare(plain, "--val-every", "4", "--overwrite", code=2)
    self.assert_error("--val-every 4", "only 3")

  def test_validation_begins_with_a_document_of_jsonl(self):
    self.prepare(self.write("a.jsonl", "".join('{"text": "%s"}\n' % (c * 100) for c in "abcdefghij")),
                 "--val-fraction", "0.25")
    self.assertEqual(self.text("x_val_000000.bin"), b"i" * 100 + b"j" * 100)

  def test_json_that_is_taken_as_text(self):
    for name, text, warns in (("a.json", '{"body": "x"}\n{', True), ("b.json", '{"body"\n', False),
                              ("c", "{}x\n", False), ("d", '{"body": %s\n' % ("[" * 100000), False)):
      self.prepare(self.write(name, text), "--val-fraction", "0", "--overwrite")
      self.assertEqual("warning" in self.errors, warns, name)
      if warns:
        self.assert_error(name, "is taken as text", '"body"', "--jsonl")
      self.assertEqual(self.text("x_train_000000.bin").decode(), text)

  def test_other_formats_that_are_taken_as_text(self):
    for name, data, part in (("a.txt", gzip.compress(b"text"), "format .gz; unpack it"),
                             ("b", b"PAR1...", "format .parquet"), ("d.txt", b"[1] text", ""),
                             ("c.json", b'\n[\n{"text": "x"}\n]\n', "seems to be a JSON array")):
      self.prepare(self.write(name, data), "--val-fraction", "0", "--overwrite")
      self.assert_error(part)
      self.assertEqual("warning" in self.errors, bool(part), name)
      self.assertEqual(self.text("x_train_000000.bin"), data)

  def test_byte_order_marks_are_no_text(self):
    mark = b"\xef\xbb\xbf"
    names = [self.write("a.jsonl", mark + b'{"text": "one"}\n'), self.write("b.txt", mark + "tw\u20ac".encode()), "-",
             self.write("c.gz", gzip.compress(mark + b"four")), self.write("d", mark)]
    self.prepare(*names, "--val-fraction", "0", input=mark + b"three" + mark)
    self.assertEqual(self.text("x_train_000000.bin"), b"onetw\xe2\x82\xacthree" + mark + b"four")
    self.assertIn("4 documents are joined", self.output)
    self.assertEqual(self.errors, "")

  def test_wide_encodings(self):
    for encoding in ("utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
      name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
      text = "The end, \u20ac.\n".encode(encoding)
      self.prepare(self.write("a.txt", text), "--val-fraction", "0", "--overwrite")
      self.assert_error("warning: ", "a.txt is taken as text, but looks like", f"iconv -f {name} -t UTF-8")
      self.assertEqual(self.text("x_train_000000.bin"), text)
      self.prepare(self.write("a.jsonl", '{"text": "x"}\n'.encode(encoding)), "--overwrite", code=2)
      self.assert_error(f"a.jsonl, line 1 is {name} text; convert it to UTF-8")
    self.prepare(self.write("b", b"some\0binary\0data\0"), "--val-fraction", "0", "--overwrite")
    self.assertEqual(self.errors, "")

  def test_documents_that_run_into_each_other(self):
    a, b = self.write("a", "one"), self.write("b", "<|endoftext|>two")
    for names, joined in (([a], False), ([a, b], False), ([a, a, b], True), ([b, a], True)):
      self.prepare(*names, "--val-fraction", "0", "--overwrite")
      self.assertEqual("documents are joined with nothing between them" in self.output, joined, names)

  def test_old_numbers_never_lie_beside_new_shards(self):
    self.prepare(self.write("a", "0123456789\n" * 20))
    import prepare_text
    for stop in range(1, 5):  # before this replacement
      calls, replace = [], os.replace
      def stopping(source, target):
        calls.append(target)
        if len(calls) == stop:
          raise KeyboardInterrupt
        replace(source, target)
      args = ["x", self.path("a"), "--out", self.out, "--name", "x", "--overwrite", "--val-fraction", "0.5"]
      with mock.patch("os.replace", stopping), mock.patch("sys.argv", args), self.assertRaises(KeyboardInterrupt):
        prepare_text.main()
      for name in (name for name in os.listdir(self.out) if name.endswith(".json")):
        self.assertEqual(self.json_of(self.out, name)["tokens"], len(self.tokens(name[:-4] + "bin")), stop)
      self.prepare(self.path("a"), "--overwrite")

  def test_integers_of_thousands_of_digits(self):
    """Python refuses to make an int of them, but JSON allows them."""
    for digits in (4299, 4300, 5000):
      self.prepare(self.write("a.jsonl", '{"id": -%s, "text": "hello"}\n' % ("9" * digits)), "--val-fraction", "0",
                   "--overwrite")
      self.assertEqual(len(self.tokens("x_train_000000.bin")), 5)

  def test_bad_input(self):
    good = self.write("good", "some text\n" * 10)
    cases = [
        ([self.path("none")], ["none", "No such file"]),
        ([self.folder], [self.folder, "directory"]),
        ([self.write("empty", "")], ["there is no text in", "empty"]),
        ([good, "--val-fraction", "1.5"], ["--val-fraction 1.5", "between 0 and 1"]),
        ([good, "--val-fraction", "nan"], ["--val-fraction nan"]),
        ([good, "--shard-tokens", "0"], ["--shard-tokens 0"]),
        ([good, "--shard-tokens", 1 << 31], ["--shard-tokens 2147483648"]),
        ([good, "--name", "a/b"], ["--name: 'a/b': use letters"]),
        ([good, "--name", "a*"], ["--name: 'a*': use letters"]),
        ([good, "--tokenizer", "gpt2"], ["--tokenizer-dir", "encoder.json", "vocab.bpe"]),
        ([good, "--tokenizer", "gpt2", "--tokenizer-dir", self.path("none")],
         ["none", "neither vocab.json nor encoder.json"]),
        ([good, "--tokenizer", "word"], ["--tokenizer word", "tokenizer.json"]),
        ([good, "--out", good], ["--out " + good, "exists"]),
        ([self.write("tiny", "ab"), "--val-fraction", "0.01"], ["2 bytes of text are too few", "--val-fraction"]),
        ([good, "--val-every", "1"], ["--val-every 1"]),
        ([good, "--val-every", "2", "--val-fraction", "0.1"], ["not allowed with"]),
        ([good, "--field", "body"], ["--field body", "--jsonl"]),
        ([self.write("a.jsonl", '{"text": ""}\n{"text"')], ["a.jsonl, line 2 is not JSON", "column 8"]),
        ([self.write("b.jsonl", '{"text": ""}\n\n7')], ["b.jsonl, line 3", "is 7"]),
        ([self.write("h.jsonl", '{"text": ""}\n{"text": "a", "b": {"c": 1, "c": 2}}')],
         ["h.jsonl, line 2 is not JSON", 'the key "c" is given twice']),
        ([good, "--name="], ["--name: '': use letters"]),
        ([good, "--out="], ["--out: the value is empty"]),
        ([self.write("g.jsonl", '[{"text": ""}]')], ["g.jsonl, line 1", "is an array", "jq"]),
        ([self.write("c.jsonl", '{"body": ""}')], ["c.jsonl, line 1", 'it has "body"', "--field"]),
        ([self.write("d.jsonl", '{"text": null}\n' * 2)], ["d.jsonl", "\"text\" is null in 2 documents"]),
        ([self.write("d7.jsonl", '{"text": 7}')], ["d7.jsonl, line 1", "7, not text"]),
        ([self.write("e.jsonl", '{"text": "\\ud800"}')], ["e.jsonl, line 1", "surrogate", "--errors replace"]),
        ([self.write("f.jsonl", b'{"text": "\xff"}')], ["f.jsonl, line 1", "not UTF-8 at byte 10"]),
        ([self.write("a.gz", "text")], ["a.gz is damaged, or not a gzip file"]),
        ([self.write("b.gz", gzip.compress(b"text" * 999)[:-9])], ["b.gz is damaged"]),
        ([self.write("a.zst", "text")], ["a.zst", "zstd"]),
    ]
    for args, parts in cases:
      with self.subTest(args):
        arguments = ["--out", self.out, "--name", "x", "--train", TRAIN] + [str(a) for a in args]
        self.run_script("prepare_text.py", *arguments, code=2)
        self.assert_error(*parts)
        self.assertFalse(os.path.exists(self.out))
        self.assertNotIn("stdin", self.errors)

  def test_a_folder_of_the_user_stays(self):
    os.mkdir(self.out)
    self.run_script("prepare_text.py", self.path("none"), "--out", os.path.join(self.out, "a", "b"), "--name",
                    "x", code=2)
    self.assertTrue(os.path.isdir(self.out))
    self.assertEqual(self.files(), [])

  @unittest.skipIf(os.geteuid() == 0, "root may read everything")
  def test_unreadable_file(self):
    os.chmod(self.write("secret", "x"), 0)
    self.prepare(self.path("secret"), code=2)
    self.assert_error("secret", "Permission denied")

  def test_nothing_is_left_when_it_is_stopped(self):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
      process = start("prepare_text.py", "-", "--out", self.out, "--name", "x", stdin=subprocess.PIPE,
                      stderr=subprocess.DEVNULL)
      while not self.files() and process.poll() is None:  # the temporary folder
        time.sleep(0.01)
      self.assertIsNone(process.poll())
      process.stdin.write(b"some text")
      time.sleep(0.1)
      while process.poll() is None:  # repeated, because a signal just before a read is noticed only after it
        process.send_signal(number)
        try:
          process.wait(2)
        except subprocess.TimeoutExpired:
          pass
      self.assertEqual(process.returncode, -number if number == signal.SIGINT else 128 + number)
      process.stdin.close()
      self.assertEqual(self.files(), [])


HELLO, SPACE_WORLD, SEPARATOR = 259, 264, 267


class PrepareGpt2(Prepare):
  def setUp(self):
    super().setUp()
    self.vocabulary = self.write_vocabulary("")

  def prepare(self, *args, code=0, **options):
    return self.run_script("prepare_text.py", "--out", self.out, "--name", "x", "--tokenizer", "gpt2",
                           "--tokenizer-dir", self.folder, "--train", TRAIN, *args, code=code, **options)

  def train_tokens(self, *texts):
    names = [self.write("text%d" % i, text) for i, text in enumerate(texts)]
    self.prepare(*names, "--val-fraction", "0", "--overwrite")
    return self.tokens("x_train_000000.bin")

  def test_tokens_and_separators(self):
    self.assertEqual(self.train_tokens("hello world"), [SEPARATOR, HELLO, SPACE_WORLD])
    self.assertIn('"model": {"vocab": 268}', self.output)
    self.assertEqual(self.train_tokens("hello", "", "hello"), [SEPARATOR, HELLO] * 2)
    self.assertEqual(self.train_tokens("<|endoftext|>hello<|endoftext|><|endoftext|> world<|endoftext|>"),
                     [SEPARATOR, HELLO, SEPARATOR, SPACE_WORLD])
    self.assertEqual(self.train_tokens("h\u20ac"), [SEPARATOR, ord("h"), 0xe2, 0x82, 0xac])

  def test_byte_order_marks_of_text_and_vocabulary(self):
    for name in ("encoder.json", "vocab.bpe"):
      self.write(name, b"\xef\xbb\xbf" + self.bytes_of(name))
    self.assertEqual(self.train_tokens(b"\xef\xbb\xbfhello"), [SEPARATOR, HELLO])
    done = subprocess.run([TRAIN, "--encode", self.folder], input=b"\xef\xbb\xbfhello", capture_output=True, check=True)
    self.assertEqual(list(array.array("H", done.stdout)), [SEPARATOR, HELLO])
    self.prepare(self.write("a.jsonl", '{"text": "\\ufeff"}'), "--val-fraction", "0", "--overwrite")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR, 0xef, 0xbb, 0xbf])  # which the document has
    self.prepare(self.write("bad", b"\xef\xbb\xbfx\xff"), "--val-fraction", "0", "--overwrite", code=2)
    self.assert_error("not UTF-8 at byte 4")
    self.write("encoder.json", self.text_of("encoder.json").encode("utf-16"))
    self.prepare(self.write("a", "hello"), "--overwrite", code=2)
    self.assert_error("UTF-16 text", "encoder.json")

  def test_validation_is_a_document_of_its_own(self):
    self.prepare(self.write("a", "hello\n" * 10), "--val-fraction", "0.2")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR] + [HELLO, 10] * 8)
    self.assertEqual(self.tokens("x_val_000000.bin"), [SEPARATOR] + [HELLO, 10] * 2)

  def test_bytes_beside_each_shard(self):
    """Of the text that its tokens stand for, without the markers; a document or a character may cross a shard's end."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("hello \u20ac world", " world<|endoftext|>hello"))
    self.prepare(self.write("a.jsonl", lines), self.write("b", "h\u20ac"), "--val-fraction", "0", "--shard-tokens", "4")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR, HELLO, 32, 0xe2])
    # [-, hello, space, 1/3 of a sign], [2/3 of it, world, -], [world, -, hello, -], [h, the sign]
    self.assertEqual(self.numbers(), [(4, 7), (4, 8), (4, 11), (4, 4)])
    self.assertRegex(self.text_of(self.out, "x_train_000000.json"),
                     r'^{"tokens": 4, "bytes": 7, "tokenizer": "gpt2", "vocab": 268, "end_of_text": 267, '
                     r'"crc32": "\w{8}"}\n$')

  def test_text_that_is_not_utf8(self):
    for bad, at in ((b"hello \xff world", 6), (b"hello \xe2\x82", 6), (b"\xe2\x82 x", 0),
                    (b"x" * 5000000 + b"\xff", 5000000)):
      path = self.write("bad", bad)
      self.prepare(path, "--val-fraction", "0", code=2)
      self.assert_error(path, "not UTF-8 at byte %d" % at, "--errors replace")
      self.assertEqual(self.files(), [])
    self.prepare(self.write("bad", b"hello\xff"), "--val-fraction", "0", "--errors", "replace")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR, HELLO, 0xef, 0xbf, 0xbd])
    self.prepare(self.write("a.jsonl", b'{"text": "\\ud800 \xff"}'), "--val-fraction", "0", "--errors", "replace",
                 "--overwrite")
    self.assert_error("warning: U+FFFD replaces what is not UTF-8 at 2 places: X.json says no number of bytes")
    self.assertIsNone(self.json_of(self.out, "x_train_000000.json")["bytes"])

  def test_text_without_tokens_removes_nothing(self):
    os.makedirs(self.out)
    old = self.write("out/x_train_000000.bin", "old")
    self.prepare(self.write("empty.txt", "<|endoftext|>" * 50), "--overwrite", code=2)
    self.assert_error("gives no tokens")
    self.assertTrue(os.path.exists(old))

  def test_what_train_refuses(self):
    text = self.write("text", "hello")
    del self.vocabulary["<|endoftext|>"]
    for content, part in (("[]", self.path("encoder.json")), (json.dumps(self.vocabulary), "<|endoftext|>")):
      self.write("encoder.json", content)
      self.prepare(text, code=2)
      self.assert_error(part)
      self.assertEqual(self.files(), [])
    self.prepare(text, "--train", self.path("none"), code=2)
    self.assert_error("--train", "none", "build it with make")

  def test_tokens_that_cannot_be_written(self):
    with open("/dev/full", "w") as full:
      done = subprocess.run([TRAIN, "--encode", self.folder], input=b"hello", stdout=full, stderr=subprocess.PIPE)
    self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1))
    self.assertIn(b"standard output", done.stderr)

  def test_a_train_that_dies(self):
    program = self.write("dies", '#!/bin/sh\ncase $(head -c 1) in "") ;; *) echo "too bad" >&2; exit 1 ;; esac\n')
    os.chmod(program, 0o755)
    self.prepare(self.write("text", "hello\n" * 100000), "--train", program, code=1)
    self.assert_error("exit 1: too bad")
    self.assertEqual(self.files(), [])

  def test_a_train_that_fails_after_the_last_byte(self):
    program = self.write("fails", '#!/bin/sh\n[ $(wc -c) = 0 ] || { echo "too bad" >&2; printf aa; exit 1; }\n')
    os.chmod(program, 0o755)
    self.prepare(self.write("text", "hello"), "--val-fraction", "0", "--train", program, code=1)
    self.assert_error("exit 1: too bad")
    self.assertEqual(self.files(), [])

  def all_files(self):
    return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

  def by_jobs(self, jobs, *args, group=100, code=0):
    """All files that it writes with this number of jobs, each with `group` bytes of documents at once."""
    with mock.patch("lib.text_tokenizers.GROUP", group):
      self.run_module(prepare_text, "--out", self.out, "--name", "x", "--tokenizer", "gpt2", "--tokenizer-dir",
                      self.folder, "--train", TRAIN, "--overwrite", "--jobs", jobs, *args, code=code)
    return {name: self.bytes_of(self.out, name) for name in self.all_files()}

  def test_any_number_of_jobs_writes_the_same(self):
    texts = ["hello world " * (i % 7) + "h\u20ac" * (i % 3) + "<|endoftext|>" * (i % 5 == 0) for i in range(60)]
    lines = self.write("a.jsonl", "".join(json.dumps({"text": text, "a": "x"}) + "\n" for text in texts))
    bad = self.write("b", b"h\xff" * 300 + b"<|endoftext|>\xff")
    for args in ([lines, bad, "--errors", "replace", "--shard-tokens", "70"], [lines, "--val-every", "3"],
                 [lines, "--min-tokens", "9"], [lines, "--field", "a", "--answer-field", "a"]):
      if "--answer-field" in args:
        self.write("a.jsonl", self.text_of("a.jsonl").replace("<|endoftext|>", ""))
      one, said = self.by_jobs(1, *args), re.findall("(?m)^prepare_text.*", self.errors)
      self.assertGreater(len(one), 3)
      for jobs, group in (2, 100), (3, 1), (5, 400):
        self.assertEqual(self.by_jobs(jobs, *args, group=group), one)
        self.assertEqual(re.findall("(?m)^prepare_text.*", self.errors), said, (args, jobs))

  def test_an_error_in_one_of_the_jobs(self):
    texts = [b"hello world " * 20] * 20
    texts[7] = b"hello \xff"
    names = [self.write("text%d" % i, text) for i, text in enumerate(texts)]
    for jobs in 1, 3:
      self.assertEqual(self.by_jobs(jobs, *names, code=2), {})
      self.assert_error("text7 is not UTF-8 at byte 6")
    for args in (["--jobs", "0"], ["--jobs", "2", "--tokenizer", "bytes"]):
      self.prepare(names[0], *args, code=2)
      self.assert_error("--jobs")

  def test_nothing_is_left_when_its_jobs_are_stopped(self):
    program = self.write("slow", '#!/bin/sh\n[ $(wc -c) = 0 ] || { echo >> begun; sleep 0.2; printf "\\\\0\\\\0"; }\n')
    os.chmod(program, 0o755)
    text = self.write("a.jsonl", "{\"text\": \"hello world\"}\n" * 400)
    small = self.write("small.py", f"import sys\nsys.path.insert(0, {SCRIPTS!r})\nimport prepare_text\n"
                                   "from lib import text_tokenizers\ntext_tokenizers.GROUP = 10\n"
                                   "prepare_text.run(prepare_text.main, 'nothing was written')\n")
    os.makedirs(self.out)
    old = self.write("out/x_train_000000.bin", "old")
    for number in (signal.SIGTERM, signal.SIGINT):
      process = subprocess.Popen([sys.executable, small, text, "--out", self.out, "--name", "x", "--tokenizer", "gpt2",
                                  "--tokenizer-dir", self.folder, "--train", program, "--overwrite", "--jobs", "3"],
                                 cwd=self.folder, preexec_fn=default_signals, stderr=subprocess.DEVNULL)
      while process.poll() is None and not (os.path.exists(self.path("begun")) and len(self.text_of("begun")) > 6):
        time.sleep(0.01)
      self.assertIsNone(process.poll())
      process.send_signal(number)
      begun = time.monotonic()
      self.assertEqual(process.wait(60), -number if number == signal.SIGINT else 128 + number)
      self.assertLess(time.monotonic() - begun, 10)  # all would take 27 s
      self.assertEqual(self.all_files(), ["x_train_000000.bin"])
      self.assertEqual(self.text_of(old), "old")
      os.remove(self.path("begun"))


class Answers(Prepare, Workspace):
  PAIRS = [("hello%d:" % i, " world" * (i % 3 + 1) + "\n" * (i % 2)) for i in range(60)]

  def make(self, tokenizer, *args, pairs=PAIRS, **options):
    text = "".join(json.dumps({"id": 1, "q": prompt, "a": answer}) + "\n" for prompt, answer in pairs)
    self.prepare(self.write("a.jsonl", text), "--tokenizer", tokenizer, "--tokenizer-dir", self.folder,
                 "--train", TRAIN, "--field", "q", *args, **options)

  def prepare(self, *args, **options):
    self.run_script("prepare_text.py", "--out", self.out, "--name", "x", "--overwrite", "--answer-field", "a",
                    *args, **options)

  def labels(self, name):
    data = self.bytes_of(self.out, name)
    self.assertEqual(struct.unpack("<256i", data[:1024]), (20261101, 1, (len(data) - 1024) // 2, 1, 1) + (0,) * 251)
    return list(array.array("H", data[1024:]))

  def encoded(self, tokenizer, text):
    pieces = re.findall("." if tokenizer == "bytes" else "hello| world|.", text, re.DOTALL)
    return [{"hello": HELLO, " world": SPACE_WORLD}.get(piece) or ord(piece) for piece in pieces]

  def test_a_training_is_that_of_labels_made_by_hand(self):
    self.write_vocabulary("")
    for tokenizer, first, vocab in (("bytes", [], 256), ("gpt2", [SEPARATOR], 268)):
      with self.subTest(tokenizer):
        self.make(tokenizer, "--val-every", "3", "--shard-tokens", "177")
        self.assertIn('"labels": "%s"' % os.path.join(self.out, "x_labels_train_*.bin"), self.output)
        self.assertIn('"val_labels": ', self.output)
        self.assertEqual(self.errors, "")
        for split, chosen in (("train", lambda i: i % 3), ("val", lambda i: i % 3 == 0)):
          tokens, predicted = [], []
          for prompt, answer in (pair for i, pair in enumerate(self.PAIRS, 1) if chosen(i)):
            before, after = self.encoded(tokenizer, prompt), self.encoded(tokenizer, answer)
            predicted += [bool(tokens)] * len(first) + [False] * len(before) + [True] * len(after)
            tokens += first + before + after
          labels = [token if is_predicted else 65535 for token, is_predicted in zip(tokens, predicted)][1:] + [65535]
          for number, at in enumerate(range(0, len(tokens), 177)):
            self.assertEqual(self.tokens("x_%s_%06d.bin" % (split, number)), tokens[at:at + 177])
            self.assertEqual(self.labels("x_labels_%s_%06d.bin" % (split, number)), labels[at:at + 177])
            self.write("%s_%s_%d.bin" % (tokenizer, split, number), shard(tokens[at:at + 177]))
            self.write("%s_labels_%s_%d.bin" % (tokenizer, split, number), label_file(labels[at:at + 177]))
        keys = ("train", "train"), ("val", "val"), ("labels", "labels_train"), ("val_labels", "labels_val")
        for name, stem in (("made", "out/x"), ("hand", tokenizer)):
          self.ok(model__vocab=vocab, name=name + tokenizer,
                  data={key: "%s_%s_*.bin" % (stem, files) for key, files in keys})
        losses = [[(line["step"], line["loss"]) for line in self.metrics(name + tokenizer) if "loss" in line]
                  for name in ("made", "hand")]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(losses[0]), 4 + 3)

  def test_a_token_of_both_is_predicted_with_a_warning(self):
    self.write_vocabulary("")
    self.make("gpt2", "--val-fraction", "0", pairs=[("hello ", "world")])
    self.assertEqual(self.labels("x_labels_train_000000.bin"), [65535, SPACE_WORLD, 65535])
    self.assert_error("train: tokens with text of both a prompt and its answer: 1;", "begin the answer with it")

  def test_bad_lines(self):
    good = '{"q": "1", "a": "2"}\n'
    for line, parts in (('{"q": "1"}', ['"a" is needed, but it has "q"', "--answer-field names"]),
                        ('{"a": "1"}', ['"q" is needed, but it has "a"', "--field names"]),
                        ('{"q": "1", "a": 2}', ['"a" is 2, not text', "with --answer-field"]),
                        ('{"q": null, "a": "2"}', ['"q" is null, not text', "with --field"]),
                        ('{"q": "1", "a": ""}', ['the answer, "a", is empty', "remove the line"])):
      self.prepare(self.write("a.jsonl", good + line), "--field", "q", code=2)
      self.assert_error("a.jsonl, line 2: ", *parts)
      self.assertEqual(self.files(), [])
    self.prepare(self.write("a.txt", good), code=2)
    self.assert_error("--answer-field a: ", "a.txt is not called .jsonl", "--jsonl")
    self.write_vocabulary("", encodes=False)
    self.make("gpt2", pairs=[("<|endoftext|>1", "2")], code=2)
    self.assert_error("a.jsonl, line 1 has <|endoftext|>; remove it")
