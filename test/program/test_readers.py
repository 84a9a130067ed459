"""The reader of the program's output ends first (head, a tee that is killed): nothing is lost, nothing hangs."""
import os
import signal
import subprocess
import time

from support.workspace import CRASH, TRAIN, Workspace


class ReaderIsGone(Workspace):
  def start_without_reader(self, *arguments, stream="stdout", lines=1):
    """Starts ./train and closes one of its streams after reading that many lines."""
    other = "stderr" if stream == "stdout" else "stdout"
    with open(self.path("other"), "w") as file:
      process = subprocess.Popen([TRAIN, *arguments], cwd=self.folder, **{stream: subprocess.PIPE, other: file})
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    for _ in range(lines):
      getattr(process, stream).readline()
    getattr(process, stream).close()
    return process

  def test_a_training_run_saves(self):
    """Its last checkpoint has all its steps, whether the lost reader ended it or a later request to stop did."""
    for ranks in ("1", "2"):
      for stream, lines in (("stdout", 20), ("stderr", 0)):
        with self.subTest(ranks=ranks, stream=stream):
          name = f"{stream}{ranks}"
          self.write_config("config.json", name=name, train__steps=1000000, eval__every=0, log__every=1)
          process = self.start_without_reader("config.json", "--gpus", ranks, stream=stream, lines=lines)
          time.sleep(3)
          if process.poll() is None:
            process.send_signal(signal.SIGTERM)
          process.wait(60)
          saved = [int(folder[5:]) for folder in os.listdir(self.path("runs", name)) if folder.startswith("step_")]
          trained = self.metrics(name, "train")
          self.assertTrue(saved and trained and max(saved) >= trained[-1]["step"] - 1, (process.returncode, saved))

  def test_all_else_ends(self):
    self.write("prompts.jsonl", '{"prompt": "It was"}\n' * 2000)
    self.write_config("config.json")
    for flags in (["--help"], ["config.json", "--eval"], ["config.json", "--print-config"],
                  ["config.json", "--generate", "It", "--set", "generate.tokens=100000"],
                  ["config.json", "--generate-file", "prompts.jsonl"]):
      with self.subTest(flags):
        process = self.start_without_reader(*flags)
        self.assertIn(process.wait(60), (0, 1, -signal.SIGPIPE))
        errors = self.text_of("other")
        self.assertNotRegex(errors, CRASH)
        self.assertLessEqual(len(errors.splitlines()), 2)
