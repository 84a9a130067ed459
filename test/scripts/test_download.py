"""scripts/download_fineweb.py, run as a user runs it; the downloads from a server in this process that misbehaves in every
way we could think of. Standard library only.
"""
import errno
import fcntl
import http.server
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from unittest import mock

from support.scripts import ScriptTest, start
from support.workspace import shard

import download_fineweb  # from SCRIPTS


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
    self.write(os.path.join(self.out, name), data)

  def assert_files(self, *names):
    self.assertEqual(self.files(), sorted(names))
    for name in names:
      self.assertTrue(self.bytes_of(self.out, name) == self.server.content[name], name)

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

  def test_what_is_there_is_continued(self):
    whole, part = self.server.content[VAL], VAL + ".part"
    for what, have, faults, requests in (
        ("a connection that breaks", {}, [("cut", 500), ("cut", 10000)], [None, "bytes=500-", "bytes=10500-"]),
        ("a silent connection", {}, [("stall", 3000)], [None, "bytes=3000-"]),
        ("a server without lengths", {}, ["no length"], [None]),
        ("a server that sends another range", {part: whole[:7000]}, ["wrong range"], ["bytes=7000-", None]),
        ("an interrupted run", {part: whole[:7777]}, [], ["bytes=7777-"]),
        ("a file cut short by others", {VAL: whole[:5001]}, [], ["bytes=5001-"]),
        ("a part that needs only its name", {part: whole}, [], []),
        ("a longer part of another version", {part: shard([1] * 50000)[:90000]}, [], ["bytes=90000-", None])):
      with self.subTest(what):
        shutil.rmtree(self.out)
        os.mkdir(self.out)
        self.server.log.clear()
        self.server.faults[VAL] = faults
        for name, content in have.items():
          self.have(name, content)
        self.download()
        self.assert_files(VAL)
        self.assertEqual(self.server.log, [(VAL, wanted) for wanted in requests])

  def test_progress_renews_the_patience(self):
    self.server.faults[VAL] = [("cut", 2000)] * 12
    self.download("--retries", "2")
    self.assert_files(VAL)
    self.assertEqual(len(self.requests(VAL)), 13)

  def test_garbage_in_the_way_is_fetched_anew(self):
    self.have(VAL + ".part", b"<html>" * 1000)
    self.have(ONE, self.server.content[ONE] + b"too long")
    self.download(shards=1)
    self.assert_files(VAL, ONE)
    self.assertEqual(self.server.log, [(VAL, None), (ONE, None)])

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

  def test_damaged_files_are_not_kept(self):
    whole, page = shard([1] * 20000), b"<html>Please log in</html>"
    for content, fault, *parts in (
        (shard([1] * 20000, magic=1), None, "not a token shard", "--base-url"),
        (shard([1] * 20000, version=2), None, "not a token shard"),
        (page * 100, None, "not a token shard", "<html>Please"),
        (page, None, "only 26 bytes"),
        (whole[:-100], None, "has 40924 bytes", "promises 41024"),
        (whole + b"x", None, "has 41025 bytes", "promises 41024"),
        (whole + b"x", "no length", "more bytes than the 41024")):
      with self.subTest(parts[0], fault=fault):
        self.server.content[VAL], self.server.faults[VAL] = content, [fault]
        self.download(code=1)
        self.assert_error(VAL, *parts)
        self.assertNotIn(VAL, self.files())
        self.assertEqual(self.server.log, [(VAL, None)])  # trying again would not help
        self.server.content[VAL] = shard([1, 2, 3])
        self.download()                                   # and it leaves nothing that is in the way
        self.assert_files(VAL)
        self.server.log.clear()
        os.remove(os.path.join(self.out, VAL))

  def test_two_downloads_at_once(self):
    with open(os.path.join(self.out, VAL + ".part"), "wb") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      self.download(code=2)
    self.assert_error(VAL, "another download")

  def test_a_file_system_without_locks(self):
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "not implemented")):
      self.run_module(download_fineweb, "--base-url", self.server.url + "/", "--out", self.out, "--shards", 1)
    self.assertEqual(self.errors.count("warning: the file system of %s has no locks (not implemented)" % self.out), 1)
    self.assert_files(VAL, ONE)

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
    self.assertEqual(process.returncode, -signal.SIGINT)
    self.assertIn("run the same command again", errors)
    self.assertEqual(os.path.getsize(part), 5000)
