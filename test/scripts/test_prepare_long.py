"""scripts/prepare_text.py --min-tokens. Standard library only."""
import array
import json

from scripts.test_prepare import HELLO, SEPARATOR, Prepare
from support.workspace import TRAIN

from prepare_text import LongDocuments


class LongTexts(Prepare):
  def prepare(self, *args, code=0):
    return self.run_script("prepare_text.py", self.path("a.jsonl"), "--out", self.out, "--name", "x", "--overwrite",
                           *args, code=code)

  def write_texts(self, texts):
    self.write("a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))

  def counts(self):
    """(min_tokens, documents, of_documents) beside each shard."""
    found = [self.json_of(self.out, name[:-3] + "json") for name in self.files()]
    return [tuple(about.get(key) for key in ("min_tokens", "documents", "of_documents")) for about in found]

  def test_of_bytes(self):
    self.write_texts("x" * size for size in (3, 9, 4, 10, 5, 12))
    self.prepare("--val-every", "3", "--min-tokens", "9")
    self.assertEqual(self.numbers(), [(19, 19), (12, 12)])
    self.assertEqual(self.counts(), [(9, 2, 4), (9, 1, 2)])
    self.prepare("--val-every", "3")
    self.assertEqual(self.counts(), [(None, None, None)] * 2)

  def test_of_tokens_with_the_one_before_each(self):
    self.write_vocabulary("")
    self.write_texts(["hello", "hello" * 3, " world<|endoftext|>hello hello", "hello" * 4, "", "hello"])
    gpt2 = "--tokenizer", "gpt2", "--tokenizer-dir", self.folder, "--train", TRAIN, "--val-fraction", "0"
    self.prepare(*gpt2, "--min-tokens", "4", "--shard-tokens", "5")
    expected = [SEPARATOR] + [HELLO] * 3 + [SEPARATOR, HELLO, 32, HELLO, SEPARATOR] + [HELLO] * 4
    self.assertEqual([token for name in self.files() for token in self.tokens(name)], expected)
    self.assertEqual(self.numbers(), [(5, 15), (5, 16), (3, 15)])
    self.assertEqual(self.counts(), [(4, 3, 6)] * 3)
    self.assertIn("train: 3 of 6 documents have at least 4 tokens\n", self.output)
    self.prepare(*gpt2, "--min-tokens", "6", code=2)
    self.assert_error("the text for train has no document of 6 tokens", "lower --min-tokens")

  def test_a_document_may_come_in_parts(self):
    stream, long = array.array("H", [7, 1, 7, 2, 3, 7, 7, 4, 5, 6]), LongDocuments(3, 7)
    parts = long.of((2, stream[at:at + 1].tobytes(), [at]) for at in range(len(stream)))
    read, blocks, lengths = zip(*parts)
    self.assertEqual((b"".join(blocks), sum(read)), (array.array("H", [7, 2, 3, 7, 4, 5, 6]).tobytes(), 20))
    self.assertEqual(sum(lengths, []), [2, 3, 4, 6, 7, 8, 9])
    self.assertEqual((long.kept, long.all), (2, 4))

  def test_bad_input(self):
    self.write_texts(["hello"])
    for flags, *parts in ((["--min-tokens", "-1"], "--min-tokens -1"),
                          (["--min-tokens", "9", "--answer-field", "a"], "--min-tokens 9", "--answer-field")):
      self.prepare(*flags, code=2)
      self.assert_error(*parts)
