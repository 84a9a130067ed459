"""./train --generate-file: completions of the prompts of a file."""
import json
import subprocess

from support.runs import RankRuns
from support.workspace import CRASH, TEXT, TRAIN


class GenerateFile(RankRuns):
  def setUp(self):
    super().setUp()
    self.changes = {"generate__temperature": 0, "generate__tokens": 12}
    self.ok(model__context=24, batch__tokens=96, train__steps=60, **self.changes)
    self.changes["model__context"] = 24
    self.changes["batch__tokens"] = 96

  def answers(self, *flags, prompts, **changes):
    self.write("prompts.jsonl", "".join(json.dumps(prompt) + "\n" for prompt in prompts))
    done = self.run_ok("--resume", "--generate-file", "prompts.jsonl", *flags, **changes)
    self.assertIn("memory", done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]

  def test_completions(self):
    texts = ["It was the ", "the age", ""]
    found = self.answers(prompts=[{"prompt": text, "id": number, "more": [{}]} for number, text in enumerate(texts)])
    for number, (text, line) in enumerate(zip(texts, found)):
      self.assertEqual((line["id"], line["more"], set(line)), (number, [{}], {"id", "more", "completion"}))
      said = self.run_ok("--resume", "--generate", text).stdout
      self.assertTrue(said.endswith(text + line["completion"] + "\n"), (said, line))
    self.assertEqual([len(line["completion"]) for line in found], [12] * 3)
    # Up to the text that ends a completion.
    stop = found[0]["completion"][4:6]
    first, = self.answers(prompts=[{"prompt": texts[0]}], generate__stop=stop)
    self.assertEqual(first["completion"], found[0]["completion"].partition(stop)[0])
    self.assertEqual(self.answers("--gpus", "2", prompts=[{"prompt": texts[0]}]),
                     [{"completion": found[0]["completion"]}])

  def test_sampling_has_a_seed_for_each_line(self):
    prompts = [{"prompt": "It was"}] * 3
    found = self.answers(prompts=prompts, generate__temperature=1)
    self.assertEqual(found, self.answers(prompts=prompts, generate__temperature=1))
    self.assertEqual(len({line["completion"] for line in found}), 3)

  def test_beyond_the_context(self):
    text, settings = (TEXT * 2).decode()[:100], {"eval__rope_scaling": "yarn", "generate__temperature": 1}
    one, = self.answers(prompts=[{"prompt": text}], **settings)
    self.assertEqual(len(one["completion"]), 12)
    both = self.answers(prompts=[{"prompt": text}, {"prompt": text * 3}], **settings)
    self.assertEqual(both[0], one)  # whatever else the file holds
    # The last 30 tokens are the same, and more than the context.
    other, = self.answers(prompts=[{"prompt": "#" * 70 + text[70:]}], **settings)
    self.assertNotEqual(other, one)

  def test_bad_input(self):
    for text, parts in (('{"prompt": "a"}\n{"promt": "b"}\n', ["line 2", '"prompt"']), ("[1]\n", ["line 1"]),
                        ('{"prompt": "a", "completion": "gold"}\n', ["line 1", '"completion"', "another name"]),
                        ("{\n", ["line 1", "JSON"]), ("\n", ["no lines"]), ('{"prompt": 7}\n', ["line 1"]),
                        (b'{"prompt": "\xff"}\n', ["line 1", "UTF-8"])):
      self.write("p.jsonl", text)
      self.bad("--resume", "--generate-file", "p.jsonl", names=["--generate-file", *parts], wrote_nothing=False,
               **self.changes)
    self.bad("--resume", "--generate-file", "absent", names=["absent"], wrote_nothing=False, **self.changes)
    self.bad("--generate-file", "p.jsonl", "--generate", "x", names=["--generate"], wrote_nothing=False)
    self.bad("--generate-file", "", names=["--generate-file"], wrote_nothing=False)
    self.write("p.jsonl", '{"prompt": "It was"}\n{"prompt": "It was the best"}\n')
    self.bad("--generate-file", "p.jsonl", name="x", model__position="learned", wrote_nothing=False, **self.changes,
             names=["line 2", "15 tokens", "generate.tokens = 12", "24 positions", "learned"])
    self.bad("--generate-file", "p.jsonl", names=["model.vocab = 100", "tokenizer"], name="x", model__vocab=100,
             wrote_nothing=False, generate__tokens=2)
    with open("/dev/full", "w") as full:
      done = subprocess.run([TRAIN, "runs/tiny", "--generate-file", "p.jsonl"], cwd=self.folder, stdout=full,
                            stderr=subprocess.PIPE, text=True)
    self.assertEqual(done.returncode, 1)
    self.assertIn("standard output", done.stderr)
    self.assertNotRegex(done.stderr, CRASH)
