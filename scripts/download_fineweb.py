#!/usr/bin/env python3
"""Downloads FineWeb-10B, tokenised for GPT-2: a validation shard and up to 103 training shards.

    python3 scripts/download_fineweb.py               everything, 10 billion tokens, 20.6 GB
    python3 scripts/download_fineweb.py --shards 10   the first billion training tokens, 2.2 GB

From the dataset kjj0/fineweb10B-gpt2 on Hugging Face (no account needed) into
data/shards/fineweb10B/, by curl. It can be interrupted and run again: it keeps complete files and
continues an incomplete one (NAME.part). A file gets its final name only after its size has been
compared with its own header. Exit code 2: something to fix; 1: something failed.
"""
import fcntl
import os
import re
import shutil
import subprocess
import time

from lib import shards
from lib.common import ArgumentParser, Failure, Progress, UserError, run

BASE_URL = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main"
TRAIN_SHARDS = 103
BAD_URL, CANNOT_WRITE, NO_RANGES = (1, 3), 23, 33  # exit codes of curl


class Damaged(Failure):
  """The file on the server, or on the disk, is not a shard."""


def size_by_header(file, what):
  """The size in bytes of a shard, or None if its header is not all there."""
  header = os.pread(file.fileno(), shards.HEADER_BYTES, 0)
  try:
    return shards.size_by_header(header) if len(header) == shards.HEADER_BYTES else None
  except ValueError as error:
    raise Damaged(f"{what} {error}; is --base-url right?")


def complete(path):
  """Whether path is a whole shard."""
  with open(path, "rb") as file:
    try:
      return os.path.getsize(path) == size_by_header(file, path)
    except Damaged:
      return False


class Download:
  """One file. Its state is the part file: whatever is there is right as far as it goes."""

  def __init__(self, url, path, args, progress, files_done, files_left):
    self.url, self.path, self.args, self.progress = url, path, args, progress
    self.files_done, self.files_left = files_done, files_left
    self.expected = None  # size by the header, once that has arrived

  def run(self):
    part = self.path + ".part"
    with open(part, "a+b") as self.file:
      try:
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise UserError(f"{part} is being written by another download; wait for it or stop it")
      except OSError as error:  # as of Lustre mounted without flock
        if self.files_done == 0:
          self.progress.say(f"warning: the file system of {self.args.out} has no locks "
                            f"({error.strerror}); start no second download there")
      try:
        self._check()
      except Damaged:
        self._discard()
      try:
        self._try_repeatedly()
      except Damaged:
        self._discard()
        raise
      os.fsync(self.file.fileno())
      os.replace(part, self.path)

  def _try_repeatedly(self):
    failures = 0
    while (have := self._size()) != self.expected:
      problem = self._transfer()
      if (size := self._size()) == self.expected:
        return
      failures = 1 if size > have > 0 else failures + 1  # it was continued, so ranges work
      if failures > self.args.retries:
        raise Failure(f"{self.url}: gave up after {failures} tries: {problem}; run the same command "
                      f"again to continue from byte {size}")
      wait = min(60, self.args.retry_wait * 2 ** (failures - 1))
      self.progress.say(f"{self.url}: {problem}; trying again in {wait:.0f} s")
      time.sleep(wait)

  def _transfer(self):
    """Runs curl, continuing the part file. Returns what it said, if trying again may help."""
    limit = str(self.args.timeout)
    command = ["curl", "-q", "--silent", "--show-error", "--fail", "--location", "--globoff",
               "--proto", "=http,https", "--connect-timeout", limit, "--speed-time", limit,
               "--speed-limit", "1", "--write-out", "%{http_code}", "--continue-at", "-",
               "--no-buffer", "--output", self.path + ".part", self.url]
    pipe, lock = subprocess.PIPE, self.file.fileno()  # curl inherits the lock and holds it as long as it runs
    try:
      process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, pass_fds=[lock])
    except FileNotFoundError:
      raise UserError("the program curl is needed; install it (bash scripts/install_deps.sh)")
    with process:
      try:
        while process.poll() is None:
          time.sleep(0.05)
          self._check()
        status, said = (text.strip() for text in process.communicate())
      finally:
        process.kill()
    self._check()
    size = self._size()
    if status == "416" or process.returncode == NO_RANGES:  # what is here does not fit
      self._discard()
      return f"cannot be continued from byte {size}, starting again"
    refused = "400" <= status < "500" and status not in ("408", "425", "429")
    if refused or process.returncode in BAD_URL:
      raise UserError(f"{self.url}: {said}; check --base-url")
    if process.returncode == CANNOT_WRITE:
      raise Failure(f"writing {self.path}.part failed: {said}")
    if process.returncode == 0 and size != self.expected:
      raise Damaged(f"{self.url} ends after {size} bytes: the file on the server is damaged")
    return said or f"curl ended with exit code {process.returncode}"

  def _size(self):
    return os.fstat(self.file.fileno()).st_size

  def _discard(self):
    self.file.truncate(0)
    self.expected = None

  def _check(self):
    """What has arrived: is it a shard, and will all of them fit on the disk?"""
    if self.expected is None:
      self.expected = size_by_header(self.file, self.url)
      if self.expected is None:
        return
      free = shutil.disk_usage(self.args.out).free
      if self.expected * self.files_left - self._size() > free:
        raise UserError(f"{self.args.out} has {free / 1e9:.1f} GB free, but {self.files_left} more files "
                        f"of {self.expected / 1e9:.1f} GB do not fit; give fewer --shards or another --out")
      self.progress.total = self.expected * (self.files_done + self.files_left)
      self.progress.done = self.expected * self.files_done + self._size()
    if self._size() > self.expected:
      raise Damaged(f"{self.url} has more bytes than the {self.expected} its header promises")
    self.progress.add(self.expected * self.files_done + self._size() - self.progress.done)


def parse_arguments():
  parser = ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("--shards", type=int, default=TRAIN_SHARDS, metavar="N",
      help=f"training shards, 0 to {TRAIN_SHARDS} [%(default)s]; the validation shard comes first")
  add("--out", default="data/shards/fineweb10B", metavar="DIR", help="[%(default)s]")
  add("--base-url", default=BASE_URL, metavar="URL", help="folder of the files [%(default)s]")
  add("--retries", type=int, default=6, help="tries in a row that may fail [%(default)s]")
  add("--retry-wait", type=float, default=1, metavar="SECONDS",
      help="wait before the first retry, doubled each time [%(default)s]")
  add("--timeout", type=int, default=60, metavar="SECONDS", help="silence that ends a try [%(default)s]")
  args = parser.parse_args()
  if not 0 <= args.shards <= TRAIN_SHARDS:
    raise UserError(f"--shards {args.shards} is not between 0 and {TRAIN_SHARDS}")
  if not re.match("https?://[^/]", args.base_url):
    raise UserError(f"--base-url {args.base_url} does not begin with http:// or https:// and a host")
  if args.retries < 0 or not 0 <= args.retry_wait < 1e6 or not 0 < args.timeout < 1e6:
    raise UserError("--retries and --retry-wait must not be negative, --timeout must be positive")
  return args


def main():
  args = parse_arguments()
  names = ["fineweb_val_000000.bin"] + [f"fineweb_train_{i:06}.bin" for i in range(1, args.shards + 1)]
  try:
    os.makedirs(args.out, exist_ok=True)
  except OSError as error:
    raise UserError(f"--out {args.out}: {error.strerror}")
  wanted = []
  for name in names:
    path = os.path.join(args.out, name)
    if os.path.exists(path) and complete(path):
      continue
    if os.path.exists(path) and not os.path.exists(path + ".part"):
      os.replace(path, path + ".part")  # cut short by another program: continue from there
    wanted.append(path)
  print(f"{len(names) - len(wanted)} of {len(names)} files are complete in {args.out}", flush=True)
  progress = Progress(0)
  for done, path in enumerate(wanted):
    place = f"{done + 1}/{len(wanted)}"
    progress.title = f"file {place} "
    url = args.base_url.rstrip("/") + "/" + os.path.basename(path)
    Download(url, path, args, progress, done, len(wanted) - done).run()
    progress.say(f"{path}  {os.path.getsize(path)} bytes  ({place})")
  train, val = (os.path.join(args.out, f"fineweb_{split}_*.bin") for split in ("train", "val"))
  print(f'for the configuration: "data": {{"train": "{train}", "val": "{val}"}}, "model": {{"vocab": 50257}}')


if __name__ == "__main__":
  run(main, "run the same command again to continue")
