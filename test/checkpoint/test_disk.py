"""The order of writes to the disk, and disks that fail: a preloaded library records ./train's calls or makes them fail.

Standard library and g++ only.
"""
import errno
import os
import subprocess
from unittest import mock

from support.runs import FILES, Runs

# FAIL="CALL END" makes CALL fail, with the error ERROR or else EIO, on files whose path ends with END; CALLS names the
# file to which all calls are written.
LIBRARY = r"""
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
static int refused(const char* call, int descriptor) {
  char link[64], path[4096], line[4200];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t n = readlink(link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  FILE* calls = fopen(getenv("CALLS"), "a");
  fprintf(calls, "%s %s\n", call, path);
  fclose(calls);
  const char* fail = getenv("FAIL");
  size_t length = strlen(call);
  if (!fail || strncmp(fail, call, length) != 0 || fail[length] != ' ') return 0;
  const char* end = fail + length + 1;
  if (strlen(path) < strlen(end) || strcmp(path + strlen(path) - strlen(end), end) != 0) return 0;
  errno = getenv("ERROR") ? atoi(getenv("ERROR")) : EIO;
  return 1;
}
extern "C" int fsync(int descriptor) {
  if (refused("fsync", descriptor)) return -1;
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}
extern "C" int flock(int descriptor, int operation) {
  if (refused("flock", descriptor)) return -1;
  return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}
extern "C" ssize_t pread(int descriptor, void* to, size_t bytes, off_t at) {
  if (refused("pread", descriptor)) return -1;
  return ((ssize_t (*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(descriptor, to, bytes, at);
}
extern "C" dirent* readdir(DIR* folder) {  // fails once, after an entry: "." and ".." are two
  static int read;
  if (refused("readdir", dirfd(folder)) && ++read == 4) return nullptr;
  return ((dirent * (*)(DIR*)) dlsym(RTLD_NEXT, "readdir"))(folder);
}
extern "C" int rename(const char* from, const char* to) {
  FILE* calls = fopen(getenv("CALLS"), "a");
  fprintf(calls, "rename %s\n", to);
  fclose(calls);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}
"""


class Disk(Runs):
  def setUp(self):
    super().setUp()
    self.changes.update(train__steps=20)
    self.write("library.cpp", LIBRARY)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "library.so", "library.cpp"], cwd=self.folder, check=True)

  def calls(self, *flags, fail=None, **changes):
    """Exit code, error text and calls of ./train on this disk."""
    # A relative path: LD_PRELOAD's are separated by spaces, which the folder's may contain.
    variables = {"LD_PRELOAD": "./library.so", "CALLS": self.path("calls"), **({"FAIL": fail} if fail else {})}
    self.write("calls", "")
    with mock.patch.dict(os.environ, variables):
      done = self.call(*flags, **{**self.changes, **changes})
    calls = self.text_of("calls").replace(os.path.realpath(self.folder) + "/", "")
    return done.returncode, done.stderr, calls.splitlines()

  def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(self):
    code, errors, calls = self.calls()
    self.assertEqual((code, errors), (0, ""))
    for step in (10, 20):
      renamed = calls.index(f"rename runs/tiny/step_{step:08d}")
      half = f"fsync runs/tiny/.tmp_step_{step:08d}"
      folder = calls.index(half)
      for name in FILES:
        self.assertLess(calls.index(f"{half}/{name}"), folder)
      self.assertIn("fsync runs/tiny/metrics.jsonl", calls[:folder])
      self.assertLess(folder, renamed)
      self.assertIn("fsync runs/tiny", calls[renamed:])

  def test_a_disk_whose_sync_fails(self):
    code, errors, _ = self.calls(fail="fsync runs/tiny")
    self.assertEqual(code, 1)
    self.assertRegex(errors, "^the checkpoint of step 10 could not be written: cannot write runs/tiny to disk: Input/"
                             r"output error\. Training stops; there is no checkpoint yet")

  def test_a_file_system_without_locks(self):
    code, errors, _ = self.calls(fail="flock .lock")
    self.assertEqual((code, errors), (1, "cannot lock runs/tiny/.lock: Input/output error\n"))
    for number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
      self.set("ERROR", number)
      code, errors, _ = self.calls("--overwrite", fail="flock .lock")
      self.assertEqual((code, self.steps()), (0, [10, 20]))
      self.assertRegex(errors, rf"^warning: the file system of runs/tiny has no locks \({os.strerror(number)}\);.*\n$")

  def test_going_back_on_a_disk_that_fails(self):
    self.run_ok()
    before = self.run_digests()
    for _ in range(2):
      code, errors, _ = self.calls("--resume", "runs/tiny/step_00000010", fail="fsync .tmp_old_steps/metrics.jsonl")
      self.assertEqual((code, self.run_digests()), (1, before))
      self.assertRegex(errors, "^cannot write runs/tiny/.tmp_old_steps/metrics.jsonl to disk: Input/output error\n$")
      self.assertNotIn(".tmp_old_steps", os.listdir(self.path("runs/tiny")))
    code, errors, _ = self.calls("--resume", "runs/tiny/step_00000010", name="other", fail="fsync other/metrics.jsonl")
    self.assertEqual((code, os.path.exists(self.path("runs/other/metrics.jsonl"))), (1, False))
    self.assertRegex(errors, "^cannot write runs/other/metrics.jsonl to disk: Input/output error")

  def test_a_folder_that_cannot_be_read_to_its_end(self):
    self.run_ok()
    before = self.run_digests()
    code, errors, _ = self.calls("--resume", fail="readdir runs/tiny")
    self.assertEqual((code, errors), (1, "cannot list runs/tiny: Input/output error\n"))
    self.assertEqual(self.run_digests(), before)

  def test_a_read_error_is_not_damage(self):
    self.run_ok()
    expected = self.outcome(20)
    code, errors, _ = self.calls("--eval", "--resume", fail="pread step_00000020/model.safetensors")
    self.assertEqual(code, 0)
    self.assertRegex(errors,
                     "^warning: skipped the unreadable checkpoint runs/tiny/step_00000020: .*Input/output error$")
    self.assertEqual(self.steps(), [10, 20])
    code, errors, _ = self.calls("--resume", "runs/tiny/step_00000020", fail="pread step_00000020/model.safetensors")
    self.assertEqual((code, self.steps()), (1, [10, 20]))
    self.assertRegex(errors, "Input/output error")
    code, _, _ = self.calls("--resume", fail="pread step_00000020/model.safetensors", train__steps=20)
    self.assertEqual((code, self.steps()), (0, [10, 20]))
    steady, files = self.outcome(20)
    self.assertEqual(([line for line in steady if line["type"] != "eval"], files), expected)
    self.assertEqual(self.steps("tiny/old_steps"), [20])  # unchanged
    self.run_ok("--eval", "--resume", "runs/tiny/old_steps", name="other")
    os.rename(self.path("runs/tiny/step_00000010"), self.path("gone"))
    code, errors, _ = self.calls("--resume", fail="pread model.safetensors")
    self.assertEqual((code, self.steps()), (1, [20]))
    self.assertRegex(errors, "no checkpoint that can be read now")
