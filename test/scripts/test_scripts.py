"""scripts/prepare_text.py and scripts/download_fineweb.py, run as a user runs them; the downloads from a server in this
process that misbehaves in every way we could think of. Standard library only.
"""
import fcntl
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

from support.scripts import SCRIPTS, ScriptTest, start
from support.workspace import TRAIN, shard


class PrepareBytes(ScriptTest):
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
      done = subprocess.run([sys.executable, "-u", os.path.join(SCRIPTS, "prepare_text.py"), text, "--out", self.out, "--name", "x",
                             "--tokenizer", "bytes", "--overwrite"], stdout=full, stderr=subprocess.DEVNULL)
    self.assertEqual(done.returncode, 1)
    self.assertEqual(self.files(), sorted(keep + ["x_train_000000.bin", "x_val_000000.bin"]))
    self.prepare(text, "--val-fraction", "1", "--overwrite")  # does not change the training shards
    self.assertIn("x_train_000000.bin", self.files())

  def test_bad_input(self):
    good = self.write("good", "some text\n" * 10)
    cases = [
        ([self.path("none")], ["none", "No such file"]),
        ([self.dir], [self.dir, "directory"]),
        ([self.write("empty", "")], ["there is no text in", "empty"]),
        ([good, "--val-fraction", "1.5"], ["--val-fraction 1.5", "between 0 and 1"]),
        ([good, "--val-fraction", "nan"], ["--val-fraction nan"]),
        ([good, "--shard-tokens", "0"], ["--shard-tokens 0"]),
        ([good, "--shard-tokens", 1 << 31], ["--shard-tokens 2147483648"]),
        ([good, "--name", "a/b"], ["--name 'a/b'"]),
        ([good, "--name", "a*"], ["--name 'a*'"]),
        ([good, "--tokenizer", "gpt2"], ["--tokenizer-dir", "encoder.json", "vocab.bpe"]),
        ([good, "--tokenizer", "gpt2", "--tokenizer-dir", self.path("none")],
         ["none", "neither vocab.json nor encoder.json"]),
        ([good, "--tokenizer", "word"], ["invalid choice: 'word'"]),
        ([good, "--out", good], ["--out " + good, "exists"]),
        ([self.write("tiny", "ab"), "--val-fraction", "0.01"], ["2 bytes of text are too few", "--val-fraction"]),
    ]
    for args, parts in cases:
      with self.subTest(args):
        arguments = ["--out", self.out, "--name", "x", "--train", TRAIN] + [str(a) for a in args]
        self.run_script("prepare_text.py", *arguments, code=2)
        self.assert_error(*parts)
        self.assertEqual(self.files(), [])

  @unittest.skipIf(os.geteuid() == 0, "root may read everything")
  def test_unreadable_file(self):
    os.chmod(self.write("secret", "x"), 0)
    self.prepare(self.path("secret"), code=2)
    self.assert_error("secret", "Permission denied")

  def test_nothing_is_left_when_it_is_stopped(self):
    for number in (signal.SIGTERM, signal.SIGINT):
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
      self.assertEqual(process.returncode, 128 + number)
      process.stdin.close()
      self.assertEqual(self.files(), [])


def tiny_vocabulary():
  """Bytes are 0 to 255 in byte order, then the merges, then <|endoftext|>."""
  others = iter(range(256, 512))
  letters = [chr(b) if 33 <= b <= 126 or (b >= 161 and b != 173) else chr(next(others)) for b in range(256)]
  merges = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "l d", "\u0120wor ld",
            "\u0120 \u0120", "\u010a \u010a"]
  tokens = letters + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
  return {token: i for i, token in enumerate(tokens)}, "#version: 0.2\n" + "\n".join(merges) + "\n"


HELLO, SPACE_WORLD, SEPARATOR = 259, 264, 267


class PrepareGpt2(ScriptTest):
  def setUp(self):
    super().setUp()
    self.vocabulary, merges = tiny_vocabulary()
    self.write("encoder.json", json.dumps(self.vocabulary))
    self.write("vocab.bpe", merges)
    done = subprocess.run([TRAIN, "--encode", self.dir], input=b"x", capture_output=True)
    if b"without PCRE2" in done.stderr:
      self.skipTest("./train was built without PCRE2")

  def prepare(self, *args, code=0, **options):
    return self.run_script("prepare_text.py", "--out", self.out, "--name", "x", "--tokenizer", "gpt2", "--tokenizer-dir",
                           self.dir, "--train", TRAIN, *args, code=code, **options)

  def train(self, *texts):
    names = [self.write("text%d" % i, text) for i, text in enumerate(texts)]
    self.prepare(*names, "--val-fraction", "0", "--overwrite")
    return self.tokens("x_train_000000.bin")

  def test_tokens_and_separators(self):
    self.assertEqual(self.train("hello world"), [SEPARATOR, HELLO, SPACE_WORLD])
    self.assertIn('"model": {"vocab": 268}', self.output)
    self.assertEqual(self.train("hello", "", "hello"), [SEPARATOR, HELLO] * 2)
    self.assertEqual(self.train("<|endoftext|>hello<|endoftext|><|endoftext|> world<|endoftext|>"),
                     [SEPARATOR, HELLO, SEPARATOR, SPACE_WORLD])
    self.assertEqual(self.train("h\u20ac"), [SEPARATOR, ord("h"), 0xe2, 0x82, 0xac])

  def test_validation_is_a_document_of_its_own(self):
    self.prepare(self.write("a", "hello\n" * 10), "--val-fraction", "0.2")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR] + [HELLO, 10] * 8)
    self.assertEqual(self.tokens("x_val_000000.bin"), [SEPARATOR] + [HELLO, 10] * 2)

  def test_text_that_is_not_utf8(self):
    for bad, at in ((b"hello \xff world", 6), (b"hello \xe2\x82", 6), (b"\xe2\x82 x", 0),
                    (b"x" * 5000000 + b"\xff", 5000000)):
      path = self.write("bad", bad)
      self.prepare(path, "--val-fraction", "0", code=2)
      self.assert_error(path, "not UTF-8 at byte %d" % at, "--errors replace")
      self.assertEqual(self.files(), [])
    self.prepare(self.write("bad", b"hello\xff"), "--val-fraction", "0", "--errors", "replace")
    self.assertEqual(self.tokens("x_train_000000.bin"), [SEPARATOR, HELLO, 0xef, 0xbf, 0xbd])

  def test_text_without_tokens_removes_nothing(self):
    os.makedirs(self.path("out"))
    old = self.write("out/a_train_000000.bin", "old")
    empty = self.write("empty.txt", "<|endoftext|>" * 50)
    self.run_script("prepare_text.py", empty, "--out", self.path("out"), "--name", "a", "--tokenizer", "gpt2",
                    "--tokenizer-dir", self.dir, "--train", TRAIN, "--overwrite", code=2)
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
      done = subprocess.run([TRAIN, "--encode", self.dir], input=b"hello", stdout=full, stderr=subprocess.PIPE)
    self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1))
    self.assertIn(b"standard output", done.stderr)

  def test_a_train_that_dies(self):
    program = self.write("dies", '#!/bin/sh\ncase $(head -c 1) in "") ;; *) echo "too bad" >&2; exit 1 ;; esac\n')
    os.chmod(program, 0o755)
    self.prepare(self.write("text", "hello\n" * 100000), "--train", program, code=1)
    self.assert_error("exit 1: too bad")
    self.assertEqual(self.files(), [])


class Server(http.server.ThreadingHTTPServer):
  """Serves self.content[name]. Every request takes the next entry of self.faults[name] (None: behave):
  a number: an HTTP error; ("cut", n): end the connection after n bytes; ("stall", n): fall silent after n bytes;
  "no length": no Content-Length; ("length", n): another Content-Length; "wrong range"; ("redirect", name)."""
  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.content, self.faults, self.log = {}, {}, []
    self.ranges = True
    self.url = "http://127.0.0.1:%d/data" % self.server_address[1]
    threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *_):
    pass

  def do_GET(self):
    name, server = self.path.rsplit("/", 1)[1], self.server
    wanted = self.headers.get("Range")
    server.log.append((name, wanted))
    fault = server.faults[name].pop(0) if server.faults.get(name) else None
    data = server.content.get(name)
    if isinstance(fault, int) or data is None:
      self.send_response(fault or 404)
      self.send_header("Retry-After", "0")
      self.send_header("Content-Length", "0")
      self.end_headers()
      return
    kind, number = fault if isinstance(fault, tuple) else (fault, 0)
    if kind == "redirect":
      self.send_response(302)
      self.send_header("Location", server.url + "/" + number)
      self.end_headers()
      return
    start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1)) if wanted and server.ranges else 0
    if start and start >= len(data):
      self.send_response(416)
      self.send_header("Content-Range", "bytes */%d" % len(data))
      self.send_header("Content-Length", "0")
      self.end_headers()
      return
    self.send_response(206 if start else 200)
    if start:
      start += kind == "wrong range"
      self.send_header("Content-Range", "bytes %d-%d/%d" % (start, len(data) - 1, len(data)))
    if kind != "no length":
      self.send_header("Content-Length", str(number if kind == "length" else len(data) - start))
    self.end_headers()
    body = data[start:]
    self.wfile.write(body[:number] if kind in ("cut", "stall") else body)
    if kind == "stall":
      self.wfile.flush()
      time.sleep(5)


VAL, ONE, TWO = "fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin"


class Download(ScriptTest):
  def setUp(self):
    super().setUp()
    self.server = Server()
    self.addCleanup(self.server.server_close)
    self.addCleanup(self.server.shutdown)
    generator = random.Random(1)
    self.server.content = {name: shard([generator.randrange(50257) for _ in range(count)])
                           for name, count in ((VAL, 20000), (ONE, 30000), (TWO, 10))}
    os.mkdir(self.out)

  def download(self, *args, code=0, shards=0):
    started = time.monotonic()
    self.run_script("download_fineweb.py", "--base-url", self.server.url + "/", "--out", self.out, "--shards", shards,
                    "--retry-wait", "0", "--timeout", "1", *args, code=code)
    self.assertLess(time.monotonic() - started, 60)

  def have(self, name, data):
    with open(os.path.join(self.out, name), "wb") as file:
      file.write(data)

  def assert_files(self, *names):
    self.assertEqual(self.files(), sorted(names))
    for name in names:
      with open(os.path.join(self.out, name), "rb") as file:
        self.assertEqual(hashlib.sha256(file.read()).digest(), hashlib.sha256(self.server.content[name]).digest(), name)

  def requests(self, name):
    return [wanted for other, wanted in self.server.log if other == name]

  def test_fetches_as_many_as_asked(self):
    self.download(shards=2)
    self.assert_files(VAL, ONE, TWO)
    self.assertEqual(self.server.log, [(VAL, None), (ONE, None), (TWO, None)])
    self.assertIn("fineweb_train_*.bin", self.output)

  def test_complete_files_are_not_fetched_again(self):
    self.download(shards=1)
    self.server.log.clear()
    self.download(shards=2)
    self.assertEqual(self.server.log, [(TWO, None)])
    self.assertIn("2 of 3 files are complete", self.output)
    self.assert_files(VAL, ONE, TWO)

  def test_a_connection_that_breaks_is_continued(self):
    self.server.faults[VAL] = [("cut", 500), ("cut", 10000), None]
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), [None, "bytes=500-", "bytes=10500-"])

  def test_progress_renews_the_patience(self):
    self.server.faults[VAL] = [("cut", 2000)] * 12
    self.download("--retries", "2")
    self.assert_files(VAL)
    self.assertEqual(len(self.requests(VAL)), 13)

  def test_a_silent_connection_is_continued(self):
    self.server.faults[VAL] = [("stall", 3000), None]
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), [None, "bytes=3000-"])

  def test_an_interrupted_run_is_continued_by_the_next(self):
    self.have(VAL + ".part", self.server.content[VAL][:7777])
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), ["bytes=7777-"])

  def test_a_part_that_is_complete_only_needs_its_name(self):
    self.have(VAL + ".part", self.server.content[VAL])
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.server.log, [])

  def test_a_file_cut_short_by_others_is_continued(self):
    self.have(VAL, self.server.content[VAL][:5001])
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), ["bytes=5001-"])

  def test_garbage_in_the_way_is_fetched_anew(self):
    self.have(VAL + ".part", b"<html>" * 1000)
    self.have(ONE, self.server.content[ONE] + b"too long")
    self.download(shards=1)
    self.assert_files(VAL, ONE)
    self.assertEqual(self.server.log, [(VAL, None), (ONE, None)])

  def test_a_part_beyond_the_servers_file_is_fetched_anew(self):
    self.have(VAL + ".part", shard([1] * 50000)[:90000])  # of another version of the file
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), ["bytes=90000-", None])

  def test_a_server_without_ranges(self):
    self.server.ranges = False
    self.server.faults[VAL] = [("cut", 30000), None]
    self.download()
    self.assert_files(VAL)
    self.assertEqual(self.requests(VAL), [None, "bytes=30000-"])

  def test_a_server_without_ranges_that_always_breaks_off(self):
    self.server.ranges = False
    self.server.faults[VAL] = [("cut", 20000 + 100 * i) for i in range(100)]  # starts over each time: no progress
    self.download("--retries", "3", code=1)
    self.assertEqual(len(self.requests(VAL)), 4)
    self.assert_error("gave up after 4 tries")

  def test_a_server_that_sends_another_range(self):
    self.have(VAL + ".part", self.server.content[VAL][:7000])
    self.server.faults[VAL] = ["wrong range", None]
    self.download()
    self.assert_files(VAL)

  def test_a_server_without_lengths(self):
    self.server.faults[VAL] = ["no length"]
    self.download()
    self.assert_files(VAL)

  def test_redirects_keep_the_range(self):
    self.have(VAL + ".part", self.server.content[VAL][:7000])
    self.server.content["blob"] = self.server.content[VAL]
    self.server.faults[VAL] = [("redirect", "blob")]
    self.download()
    del self.server.content["blob"]
    self.assert_files(VAL)
    self.assertEqual(self.server.log, [(VAL, "bytes=7000-"), ("blob", "bytes=7000-")])

  def test_a_busy_server_is_asked_again(self):
    self.server.faults[VAL] = [503, 429, 500, None]
    self.download()
    self.assert_files(VAL)
    self.assert_error("answered 503", "answered 429", "answered 500", "trying again")

  def test_giving_up_keeps_what_is_there(self):
    self.server.faults[VAL] = [("cut", 3000)] + [503] * 100
    self.download("--retries", "2", code=1)
    self.assert_error("gave up", "503", "run the same command again", "byte 3000")
    self.assertEqual(self.files(), [VAL + ".part"])
    self.server.faults[VAL] = []
    self.download()
    self.assert_files(VAL)

  def test_no_server(self):
    self.server.shutdown()
    self.server.server_close()
    self.download("--retries", "1", code=1)
    self.assert_error("gave up after 2 tries", VAL, "refused")

  def test_missing_and_forbidden_files(self):
    del self.server.content[ONE]
    self.download(shards=2, code=2)
    self.assert_error(ONE, "404", "--base-url")
    self.assertEqual(self.requests(ONE), [None])
    self.server.faults[ONE] = [403]
    self.download(shards=2, code=2)
    self.assert_error(ONE, "403")

  def assert_damaged(self, *parts):
    self.download(code=1)
    self.assert_error(VAL, *parts)
    self.assertNotIn(VAL, self.files())
    self.assertEqual(len(self.requests(VAL)), 1)  # trying again would not help
    self.server.content[VAL] = shard([1, 2, 3])
    self.download()                               # and it leaves nothing that is in the way
    self.assert_files(VAL)

  def test_wrong_magic(self):
    self.server.content[VAL] = shard([1] * 20000, magic=1)
    self.assert_damaged("not a token shard", "--base-url")

  def test_wrong_version(self):
    self.server.content[VAL] = shard([1] * 20000, version=2)
    self.assert_damaged("not a token shard")

  def test_a_web_page_instead(self):
    self.server.content[VAL] = b"<html>Please log in</html>" * 100
    self.assert_damaged("not a token shard", "<html>Please")

  def test_a_short_web_page_instead(self):
    self.server.content[VAL] = b"<html>Please log in</html>"
    self.assert_damaged("only 26 bytes")

  def test_a_file_cut_short_on_the_server(self):
    self.server.content[VAL] = shard([1] * 20000)[:-100]
    self.assert_damaged("has 40924 bytes", "promises 41024")

  def test_a_file_too_long_on_the_server(self):
    self.server.content[VAL] = shard([1] * 20000) + b"x"
    self.assert_damaged("has 41025 bytes", "promises 41024")

  def test_a_file_too_long_without_a_length(self):
    self.server.content[VAL] = shard([1] * 20000) + b"x"
    self.server.faults[VAL] = ["no length"]
    self.assert_damaged("more bytes than the 41024")

  def test_two_downloads_at_once(self):
    with open(os.path.join(self.out, VAL + ".part"), "wb") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      self.download(code=2)
    self.assert_error(VAL, "another download")

  def test_too_little_space(self):
    self.server.content[VAL] = shard([1] * 20000, count=(1 << 31) - 1)
    self.server.faults[VAL] = [("length", 1024 + 2 * ((1 << 31) - 1))]
    free = shutil.disk_usage(self.out).free
    shards = min(103, free // (1 << 32) + 1)
    if shards * (1 << 32) < free:
      self.skipTest("this disk is too large")
    self.download(shards=shards, code=2)
    self.assert_error("GB free", "fewer --shards")

  def test_bad_arguments(self):
    for args, part in ((["--shards", "104"], "--shards 104"), (["--shards", "-1"], "--shards -1"),
                       (["--base-url", "ftp://x"], "ftp://x"), (["--timeout", "0"], "--timeout"), (["--timeout", "nan"], "--timeout"),
                       (["--base-url", "http://[bad"], "http://[bad"), (["--base-url", "http:"], "host"),
                       (["--out", self.write("file", "")], "exists")):
      self.run_script("download_fineweb.py", *args, code=2)
      self.assert_error(part)

  def test_stopping_it_keeps_the_part(self):
    self.server.faults[VAL] = [("stall", 5000)]
    process = start("download_fineweb.py", "--base-url", self.server.url, "--out", self.out, "--shards", "0",
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    part = os.path.join(self.out, VAL + ".part")
    while process.poll() is None and (not os.path.exists(part) or os.path.getsize(part) < 5000):
      time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1].decode()
    self.assertEqual(process.returncode, 130)
    self.assertIn("run the same command again", errors)
    self.assertEqual(os.path.getsize(part), 5000)


if __name__ == "__main__":
  unittest.main()
