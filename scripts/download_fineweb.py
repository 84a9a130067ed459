#!/usr/bin/env python3
"""Downloads FineWeb-10B, tokenised for GPT-2: a validation shard and up to 103 training shards.

    python3 scripts/download_fineweb.py               everything, 10 billion tokens, 20.6 GB
    python3 scripts/download_fineweb.py --shards 10   the first billion training tokens, 2.2 GB

From the dataset kjj0/fineweb10B-gpt2 on Hugging Face (no account needed) into data/shards/fineweb10B/. Needs only
Python 3.8. It can be interrupted and run again: it keeps complete files and continues an incomplete one (NAME.part).
A file gets its final name only after its size has been compared with its own header and with the server's size.
Exit code 2: something to fix; 1: something failed.
"""
import argparse
import fcntl
import http.client
import os
import random
import re
import shutil
import struct
import time
import urllib.error
import urllib.parse
import urllib.request

from common import Failure, Progress, UserError, run

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024  # data/shards.h
BASE_URL = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main"
TRAIN_SHARDS = 103
BLOCK = 1 << 20


class Damaged(Failure):
  """The file on the server, or on the disk, is not a shard."""


class Interrupted(Exception):
  """The transfer broke off; trying again may help."""

  def __init__(self, text, wait=None):
    super().__init__(text)
    self.wait = wait  # seconds the server asked for


def size_by_header(header, what):
  """The size in bytes of the shard that begins with header."""
  magic, version, tokens = struct.unpack("<3i", header[:12])
  if magic != MAGIC or version != VERSION or tokens < 0:
    raise Damaged("%s is not a token shard: it begins with %r; is --base-url right?" % (what, header[:16]))
  return HEADER_BYTES + 2 * tokens


def complete(path):
  """Whether path is a whole shard."""
  with open(path, "rb") as file:
    header = file.read(HEADER_BYTES)
    try:
      return len(header) == HEADER_BYTES and os.fstat(file.fileno()).st_size == size_by_header(header, path)
    except Damaged:
      return False


class Download:
  """One file. Its state is the part file: whatever is there is right as far as it goes."""

  def __init__(self, url, path, args, progress, files_done, files_left):
    self.url, self.path, self.args, self.progress = url, path, args, progress
    self.files_done, self.files_left = files_done, files_left
    self.expected = None     # size by the header, once that has arrived
    self.total = None        # size by the server, if it tells
    self.continued = False   # the server continues where the part file ends

  def run(self):
    part = self.path + ".part"
    with open(part, "a+b") as self.file:
      try:
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise UserError("%s is being written by another download; wait for it or stop it" % part)
      except OSError as error:  # as of Lustre mounted without flock
        if self.files_done == 0:
          self.progress.say("warning: the file system of %s has no locks (%s); start no second download there" % (
              self.args.out, error.strerror))
      try:
        self._check_header()
      except Damaged:
        self._discard()
      try:
        self._run()
      except Damaged:
        self._discard()
        raise
      os.fsync(self.file.fileno())
      os.replace(part, self.path)

  def _run(self):
    failures = 0
    while True:
      have = self._size()
      try:
        if have != self.expected:
          self._transfer(have)
        return
      except Interrupted as error:
        if self.continued and self._size() > have:
          failures = 0
        failures += 1
        if failures > self.args.retries:
          raise Failure("%s: gave up after %d tries: %s; run the same command again to continue from byte %d" % (
              self.url, failures, error, self._size()))
        wait = min(60, self.args.retry_wait * 2 ** (failures - 1)) * random.uniform(0.75, 1.25)
        if error.wait is not None:
          wait = max(wait, min(error.wait, 300))
        self.progress.say("%s: %s; trying again in %.0f s" % (self.url, error, wait))
        time.sleep(wait)

  def _size(self):
    return os.fstat(self.file.fileno()).st_size

  def _discard(self):
    self.file.truncate(0)
    self.expected = None

  def _check_header(self):
    if self.expected is None and self._size() >= HEADER_BYTES:
      self.file.seek(0)
      self.expected = size_by_header(self.file.read(HEADER_BYTES), self.url)
      self.progress.total = self.expected * (self.files_done + self.files_left)
      self.progress.done = self.expected * self.files_done + self._size()
      free = shutil.disk_usage(os.path.dirname(self.path)).free
      need = self.expected * self.files_left - self._size()
      if need > free:
        raise UserError("%s has %.1f GB free, but %d more files of %.1f GB do not fit; give fewer --shards or "
                        "another --out" % (os.path.dirname(self.path), free / 1e9, self.files_left,
                                           self.expected / 1e9))
    if None not in (self.expected, self.total) and self.total != self.expected:
      raise Damaged("%s has %d bytes, but its header promises %d: the file on the server is damaged" % (
        self.url, self.total, self.expected))
    if self.expected is not None and self._size() > self.expected:
      raise Damaged("%s has more bytes than the %d its header promises" % (self.url, self.expected))

  def _transfer(self, have):
    self.continued = False
    request = urllib.request.Request(self.url, headers={"User-Agent": "plusgpt", "Accept-Encoding": "identity"})
    if have:
      request.add_header("Range", "bytes=%d-" % have)
    try:
      with urllib.request.urlopen(request, timeout=self.args.timeout) as response:
        self._begin(response, have)
        while True:
          block = response.read1(BLOCK)  # what has arrived, so that little is lost when it breaks off
          if not block:
            break
          self._write(block)
          self._check_header()
    except urllib.error.HTTPError as error:
      if error.code == 416:  # what we have does not fit what the server has
        self._discard()
        raise Interrupted("cannot be continued from byte %d, starting again" % have)
      if error.code in (408, 425, 429) or error.code >= 500:
        after = error.headers.get("Retry-After", "")
        raise Interrupted("the server answered %d %s" % (error.code, error.reason),
                          float(after) if after.isdigit() else None)
      raise UserError("%s: the server answered %d %s; check --base-url" % (self.url, error.code, error.reason))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
      raise Interrupted(str(getattr(error, "reason", "") or error or type(error).__name__))
    size = self._size()
    if self.expected is None or size < self.expected:
      if self.total is not None and size >= self.total:
        raise Damaged("%s has only %d bytes, too few for a token shard" % (self.url, size))
      raise Interrupted("the connection ended at byte %d" % size)

  def _begin(self, response, have):
    """Finds the file's size in the answer. Starts again where the server ignores the range."""
    if response.status == 206:
      match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
      if not match or int(match.group(1)) != have:
        self._discard()
        raise Interrupted("the server sent another range than asked, starting again")
      self.continued = True
      self.total = int(match.group(2)) if match.group(2) != "*" else None
    else:
      self._discard()
      length = response.headers.get("Content-Length")
      self.total = int(length) if length is not None else None

  def _write(self, block):
    try:
      self.file.write(block)
      self.file.flush()
    except OSError as error:  # not the network's fault: trying again does not help
      raise Failure("writing %s.part failed: %s" % (self.path, error.strerror))
    self.progress.add(len(block))


def parse_arguments():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--shards", type=int, default=TRAIN_SHARDS, metavar="N",
                      help="training shards, 0 to %d [%%(default)s]; the validation shard comes first" % TRAIN_SHARDS)
  parser.add_argument("--out", default="data/shards/fineweb10B", metavar="DIR", help="[%(default)s]")
  parser.add_argument("--base-url", default=BASE_URL, metavar="URL", help="folder of the files [%(default)s]")
  parser.add_argument("--retries", type=int, default=6, help="tries in a row that may fail [%(default)s]")
  parser.add_argument("--retry-wait", type=float, default=1, metavar="SECONDS",
                      help="wait before the first retry, doubled each time [%(default)s]")
  parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS",
                      help="silence that ends a try [%(default)s]")
  args = parser.parse_args()
  if not 0 <= args.shards <= TRAIN_SHARDS:
    raise UserError("--shards %d is not between 0 and %d" % (args.shards, TRAIN_SHARDS))
  try:
    url = urllib.parse.urlsplit(args.base_url)
  except ValueError as error:
    raise UserError("--base-url %s: %s" % (args.base_url, error))
  if url.scheme not in ("http", "https") or not url.netloc:
    raise UserError("--base-url %s does not begin with http:// or https:// and a host" % args.base_url)
  if args.retries < 0 or not 0 <= args.retry_wait < 1e6 or not 0 < args.timeout < 1e6:
    raise UserError("--retries and --retry-wait must not be negative, --timeout must be positive")
  return args


def main():
  args = parse_arguments()
  names = ["fineweb_val_000000.bin"] + ["fineweb_train_%06d.bin" % i for i in range(1, args.shards + 1)]
  try:
    os.makedirs(args.out, exist_ok=True)
  except OSError as error:
    raise UserError("--out %s: %s" % (args.out, error.strerror))
  wanted = []
  for name in names:
    path = os.path.join(args.out, name)
    if os.path.exists(path) and not complete(path) and not os.path.exists(path + ".part"):
      os.replace(path, path + ".part")  # cut short by another program: go on from there
    if not os.path.exists(path) or not complete(path):
      wanted.append(name)
  print("%d of %d files are complete in %s" % (len(names) - len(wanted), len(names), args.out), flush=True)
  progress = Progress(0)
  for index, name in enumerate(wanted):
    path = os.path.join(args.out, name)
    progress.title = "file %d/%d " % (index + 1, len(wanted))
    Download(args.base_url.rstrip("/") + "/" + name, path, args, progress, index, len(wanted) - index).run()
    progress.say("%s  %d bytes  (%d/%d)" % (path, os.path.getsize(path), index + 1, len(wanted)))
  print('for the configuration: "data": {"train": "%s", "val": "%s"}, "model": {"vocab": 50257}' % (
      os.path.join(args.out, "fineweb_train_*.bin"), os.path.join(args.out, "fineweb_val_*.bin")))


if __name__ == "__main__":
  run(main, "run the same command again to continue")
