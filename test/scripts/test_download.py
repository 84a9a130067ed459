"""scripts/download_fineweb.py, run as a user runs it, with a server in this process that misbehaves. Standard library
only.
"""
import errno
import fcntl
import http.server
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from unittest import mock

from support.scripts import ScriptTest, start
from support.workspace import shard

import download_fineweb  # from SCRIPTS


class Server(http.server.ThreadingHTTPServer):
  """Serves self.content[name], after a redirection. Every request takes the next of self.faults[name] (None: behave): a
  number: an HTTP error; ("cut", n): end the connection after n bytes; ("stall", n): be silent then; "wrong range"."""
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

  def answer(self, code, **headers):
    self.send_response(code)
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), str(value))
    self.end_headers()

  def do_GET(self):
    (folder, name), server = self.path.rsplit("/", 1), self.server
    if folder == "/data":
      return self.answer(302, Location=server.url + "/blobs/" + name)
    wanted = self.headers.get("Range")
    server.log.append((name, wanted))
    fault = server.faults[name].pop(0) if server.faults.get(name) else None
    data = server.content.get(name)
    if isinstance(fault, int) or data is None:
      return self.answer(fault or 404, Content_Length=0)
    kind, number = fault if isinstance(fault, tuple) else (fault, 0)
    start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1)) if wanted and server.ranges else 0
    if start and start >= len(data):
      return self.answer(416, Content_Range="bytes */%d" % len(data), Content_Length=0)
    start += kind == "wrong range"
    content_range = {"Content_Range": "bytes %d-%d/%d" % (start, len(data) - 1, len(data))} if start else {}
    self.answer(206 if start else 200, Content_Length=len(data) - start, **content_range)
    body = data[start:]
    self.wfile.write(body[:number] if kind in ("cut", "stall") else body)
    if kind == "stall":
      self.wfile.flush()
      time.sleep(40)


VAL, ONE = "fineweb_val_000000.bin", "fineweb_train_000001.bin"


class Download(ScriptTest):
  def setUp(self):
    super().setUp()
    self.server = Server()
    self.addCleanup(self.server.server_close)
    self.addCleanup(self.server.shutdown)
    self.server.content = {VAL: shard(range(20000)), ONE: shard(range(10))}
    self.part = os.path.join(self.out, VAL + ".part")
    os.mkdir(self.out)

  def download(self, *args, code=0, shards=0, **options):
    started = time.monotonic()
    self.run_script("download_fineweb.py", "--base-url", self.server.url + "/", "--out", self.out, "--shards", shards,
                    "--retry-wait", "0", "--timeout", "1", *args, code=code, **options)
    self.assertLess(time.monotonic() - started, 30)

  def assert_files(self, *names):
    self.assertEqual(self.files(), sorted(names))
    for name in names:
      self.assertTrue(self.bytes_of(self.out, name) == self.server.content[name], name)

  def test_fetches_what_is_missing(self):
    self.download()
    self.download(shards=1)
    self.assert_files(VAL, ONE)
    self.assertEqual(self.server.log, [(VAL, None), (ONE, None)])
    self.assertIn("1 of 2 files are complete", self.output)
    self.assertIn("/fineweb_train_*.bin", self.output)

  def test_a_file_gets_its_name_once_it_is_on_the_disk(self):
    self.write("x.bin.part", shard([1, 2]))
    download, named = download_fineweb.Download("", self.path("x.bin"), SimpleNamespace(out="/"), mock.Mock(), 0, 1), []
    with mock.patch("os.fsync", lambda _: named.append(os.path.exists(self.path("x.bin")))):
      download.run()
    self.assertEqual((named, self.bytes_of("x.bin")), ([False], shard([1, 2])))

  def test_what_is_there_is_continued(self):
    whole, part = self.server.content[VAL], VAL + ".part"
    for what, have, faults, requests in (
        ("progress renews the patience", {}, [("cut", 500)] * 9, [None, *(f"bytes={500 * n}-" for n in range(1, 10))]),
        ("a silent connection", {}, [("stall", 0), ("stall", 3000)], [None, None, "bytes=3000-"]),
        ("a busy server", {}, [503, 429, 500], [None] * 4),
        ("a server that sends another range", {part: whole[:7000]}, ["wrong range"], ["bytes=7000-", None]),
        ("a file cut short by others", {VAL: whole[:5001]}, [], ["bytes=5001-"]),
        ("a part that needs only its name", {part: whole}, [], []),
        ("a longer part of another version", {part: shard([1] * 50000)[:90000]}, [], ["bytes=90000-", None]),
        ("garbage as a part", {part: b"<html>" * 1000}, [], [None]),
        ("a file that is too long", {VAL: whole + b"too long"}, [], [None])):
      with self.subTest(what):
        shutil.rmtree(self.out)
        os.mkdir(self.out)
        self.server.log.clear()
        self.server.faults[VAL] = faults
        for name, content in have.items():
          self.write(os.path.join(self.out, name), content)
        self.download()
        self.assert_files(VAL)
        self.assertEqual(self.server.log, [(VAL, wanted) for wanted in requests])

  def test_giving_up_keeps_what_is_there(self):
    self.server.faults[VAL] = [("cut", 3000)] + [503] * 3
    self.download("--retries", "2", code=1)
    self.assert_error("gave up after 3 tries", "503", "run the same command again", "byte 3000")
    self.assertEqual(self.files(), [VAL + ".part"])
    self.server.faults[VAL] = [404]
    self.download(code=2)
    self.assert_error(VAL, 404, "--base-url")
    self.download(code=2, env={"PATH": self.folder})
    self.assert_error("curl", "install_deps.sh")

  def test_a_server_without_ranges_that_always_breaks_off(self):
    self.server.ranges = False
    self.server.faults[VAL] = [("cut", 20000 + 100 * i) for i in range(100)]  # starts over each time: no progress
    self.download("--retries", "3", code=1)
    self.assertEqual(len(self.server.log), 4)

  def test_damaged_files_are_not_kept(self):
    whole = shard([1] * 20000)
    for content, *parts in (
        (shard([1] * 20000, version=2), "not a token shard", "--base-url"),
        (b"<html>Please log in</html>", "ends after 26 bytes"),
        (whole[:-100], "ends after 40924 bytes"),
        (whole + b"x", "more bytes than the 41024")):
      self.server.log.clear()
      self.server.content[VAL] = content
      self.download(code=1)
      self.assert_error(VAL, *parts)
      self.assertNotIn(VAL, self.files())
      self.assertEqual(self.server.log, [(VAL, None)])  # trying again would not help
    self.server.content[VAL], self.server.faults[VAL] = b"<html>" * 1000, [("stall", 3000)]
    self.download("--timeout", "60", code=1)  # ends at its header
    self.server.content[VAL] = whole
    self.download()  # nothing is left that is in the way
    self.assert_files(VAL)

  def test_locks(self):
    with open(self.part, "wb") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      self.download(code=2)
    self.assert_error(VAL, "another download")
    with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "not implemented")):
      self.run_module(download_fineweb, "--base-url", self.server.url + "/", "--out", self.out, "--shards", 0)
    self.assert_error("the file system of %s has no locks" % self.out)

  def test_too_little_space(self):
    self.server.faults[VAL] = [("stall", 3000)]
    free = 2 * len(self.server.content[VAL]) - 3001
    with mock.patch("shutil.disk_usage", return_value=SimpleNamespace(free=free)):
      self.run_module(download_fineweb, "--base-url", self.server.url, "--out", self.out, "--shards", 1, code=2)
    self.assert_error("GB free", "fewer --shards")

  def test_bad_arguments(self):
    for name, value in (("--shards", "104"), ("--base-url", "ftp://x"), ("--timeout", "0")):
      self.run_script("download_fineweb.py", name, value, code=2)
      self.assert_error(name)

  def test_stopping_it_keeps_the_part(self):
    self.server.faults[VAL] = [("stall", 5000)]
    process = start("download_fineweb.py", "--base-url", self.server.url, "--out", self.out, "--shards", "0",
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and (not os.path.exists(self.part) or os.path.getsize(self.part) < 5000):
      time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    self.assertIn(b"run the same command again", process.communicate()[1])
    self.assertEqual((process.returncode, os.path.getsize(self.part)), (-signal.SIGINT, 5000))
    with open(self.part, "rb") as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # curl has ended too
