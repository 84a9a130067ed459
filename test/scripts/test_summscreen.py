"""scripts/summscreen.py: prompts and scores. Standard library only, and rouge-score where it is installed."""
import json

from scripts.test_prepare_tasks import lines
from support.scripts import ScriptTest


class SummScreen(ScriptTest):
  def test_prompts_group_references(self):
    rows = [{"id": "a", "pid": "a_0", "input": "TED: hi", "output": "one"},
            {"id": "b", "pid": "b_0", "input": "x", "output": "two"},
            {"id": "a", "pid": "a_1", "input": "TED: hi", "output": "three"}]
    said = self.run_script("summscreen.py", "prompts", self.write("v.jsonl", lines(*rows)))
    made = [json.loads(line) for line in said.splitlines()]
    self.assertEqual(made[0], {"id": "a", "references": ["one", "three"],
                               "prompt": "TED: hi\n\nQuestion: What is a summary of the preceding text?\nAnswer:"})
    self.assertEqual(len(made), 2)
    self.run_script("summscreen.py", "prompts", self.write("v.jsonl", lines({"id": 1, "input": "x"})), code=2)
    self.assert_error("row 0", "output")

  def test_score(self):
    answers = self.write("a.jsonl", lines({"references": ["the cat sat", "a dog"], "completion": " a dog"},
                                          {"references": ["x y"], "completion": ""}))
    try:
      import rouge_score  # noqa: F401
    except ImportError:
      self.run_script("summscreen.py", "score", answers, code=2)
      return self.assert_error("pip install rouge-score")
    said = self.run_script("summscreen.py", "score", answers)
    self.assertEqual(said.strip(), "rouge1 50.00  rouge2 50.00  rougeL 50.00  1.0 words an answer, 2 answers")
    for text, part in (("", "no answers"), (lines({"completion": "x"}), "row 0"),
                       (lines({"completion": 3, "references": ["a"]}), "row 0")):
      self.run_script("summscreen.py", "score", self.write("b.jsonl", text), code=2)
      self.assert_error(part)
