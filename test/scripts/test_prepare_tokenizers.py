"""scripts/prepare_text.py --tokenizer tokenizer.json: by a stand-in for the package tokenizers, and by itself."""
import array
import json
import os
import zlib

from scripts.test_prepare import Prepare

# Words in lower case, with tokens before and after each text; all else is left out, but given back unless it loses
# that. Truncates unless told not to.
STAND_IN = r"""
import json, re
class Encoding:
  def __init__(self, ids, offsets, mask): self.ids, self.offsets, self.special_tokens_mask = ids, offsets, mask
class Tokenizer:
  most, special = 2, True
  @classmethod
  def from_str(cls, text):
    made = cls()
    made.words = json.loads(text)
    made.special, made.loses = made.words.pop("special", True), made.words.pop("loses", False)
    return made
  def no_truncation(self): self.most = None
  def no_padding(self): pass
  def get_vocab(self, with_added_tokens): return self.words
  def token_to_id(self, token): return self.words.get(token)
  def decode_batch(self, ids, skip_special_tokens):
    words = {number: word for word, number in self.words.items()}
    return ["".join(words[n] for n in row) for row in ids] if self.loses else self.texts
  def encode_batch(self, texts, add_special_tokens):
    self.texts = texts
    return [self.encode(text, add_special_tokens) for text in texts]
  def encode(self, text, add_special_tokens):
    found = [(self.words[word[0].lower()], word.span()) for word in re.finditer(r"\w+", text)][:self.most]
    around = int(add_special_tokens and self.special)
    found = [(0, (0, 0))] * around + found + [(1, (0, 0))] * around
    return Encoding([number for number, _ in found], [span for _, span in found],
                    [around, *[0] * (len(found) - 2 * around), around] if around else [0] * len(found))
"""


class AnyTokenizer(Prepare):
  TEXTS = ["H\u00e9 so  l\u00e0", "  So!\u20ac\n", "h\u00e9<|endoftext|>so so so", " \n"]

  def prepare(self, *args, module=STAND_IN, **options):
    environment = {**os.environ, "PYTHONPATH": self.folder}
    if module:
      self.write("tokenizers.py", module)
    self.run_script("prepare_text.py", *args, "--out", self.out, "--name", "x", "--val-fraction", "0", "--overwrite",
                    env=environment, **options)

  def inputs(self, texts=TEXTS, **words):
    vocabulary = self.write("tok.json", json.dumps({"<s>": 0, "</s>": 1, "h\u00e9": 2, "so": 3, "l\u00e0": 4, **words}))
    lines = "".join(json.dumps({"text": text, "q": text}) + "\n" for text in texts)
    return self.write("a.jsonl", lines), "--tokenizer", vocabulary

  def test_tokens_and_bytes_by_offsets(self):
    self.prepare(*self.inputs(), "--shard-tokens", "6")
    self.assertEqual(self.tokens("x_train_000000.bin"), [0, 2, 3, 4, 1, 0])
    self.assertEqual(self.tokens("x_train_000001.bin"), [3, 1, 0, 2, 1, 0])
    self.assertEqual(self.tokens("x_train_000002.bin"), [3, 3, 3, 1, 0, 1])
    # what is left out between words counts with the next one, at the end with the last token
    self.assertEqual(self.numbers(), [(6, 11), (6, 4 + 5 + 3), (6, 8 + 2)])
    about = {"tokenizer": "tok.json", "vocab": 5, "crc32": "%08x" % zlib.crc32(self.bytes_of("tok.json"))}
    self.assertEqual(self.json_of(self.out, "x_train_000000.json"),
                     {"tokens": 6, "bytes": 11, **about, "end_of_text": None})
    self.assertIn('"model": {"vocab": 5}', self.output)
    self.assertIn("leave out generate.every, --generate and --passkey", self.output)
    self.prepare(*self.inputs(hi=65535), "--separator", "<s>")
    self.assertEqual(self.tokens("x_train_000000.bin"), [0, 2, 3, 4, 0, 3, 0, 2, 0, 3, 3, 3, 0])
    self.assertIn('"model": {"vocab": 65536}', self.output)
    self.assertEqual(self.numbers(), [(13, 11 + 9 + 3 + 8 + 2)])
    self.assertEqual(self.json_of(self.out, "x_train_000000.json")["end_of_text"], 0)

  def test_a_tokenizer_that_adds_no_token_between_documents(self):
    inputs, warning = self.inputs(special=False), "warning: 5 documents are joined with nothing between them"
    self.prepare(*inputs)
    self.assert_error(warning, "tok.json", "--separator TOKEN")
    self.assertEqual(self.tokens("x_train_000000.bin"), [2, 3, 4, 3, 2, 3, 3, 3])
    for arguments in ((*inputs, "--separator", "<s>"), self.inputs(), self.inputs(["so"], special=False)):
      self.prepare(*arguments)
      self.assertEqual(self.errors, "")

  def test_the_file_of_a_tokenizer(self):
    inputs = self.inputs()
    self.write("tok.json", b"\xef\xbb\xbf" + self.bytes_of("tok.json"))
    self.prepare(*inputs)
    self.assertEqual(self.tokens("x_train_000000.bin")[:5], [0, 2, 3, 4, 1])
    self.write("tok.json", '{"so": 1, "so": 2}')
    self.prepare(*inputs, code=2)
    self.assert_error("tok.json cannot be used", 'the key "so" is given twice')

  def test_answers_and_their_end(self):
    text, *tokenizer = self.inputs()
    self.write("a.jsonl", '{"text": "so", "a": " l\u00e0 l\u00e0 "}\n{"text": "so", "a": " l\u00e0"}\n')
    self.prepare(text, *tokenizer, "--answer-field", "a", "--separator", "</s>")
    self.assertEqual(self.tokens("x_train_000000.bin"), [1, 3, 4, 4, 1, 3, 4])
    labels = array.array("H", self.bytes_of(self.out, "x_labels_train_000000.bin")[1024:]).tolist()
    self.assertEqual(labels, [65535, 4, 4, 1, 65535, 4, 65535])

  def test_text_that_its_tokens_do_not_hold(self):
    inputs = self.inputs(["so! H\u00e9 so"], loses=True)
    self.prepare(*inputs)
    self.assert_error("warning: train: ", "tok.json cannot write all of this text: 0% of its tokens are unknown, and "
                      "44.4% of its characters are not given back")  # of 9: the sign, two spaces, the capital
    self.assertIsNone(self.json_of(self.out, "x_train_000000.json")["bytes"])
    self.assertEqual(self.json_of(self.out, "x_train_000000.json")["tokens"], 5)

  def real(self, *added, **changes):
    """A tokenizer.json of letters and these special tokens for the package, which must be there."""
    try:
      import tokenizers  # noqa: F401
    except ImportError:
      self.skipTest("no tokenizers")
    words = {word: number for number, word in enumerate([*added, *"abcde ", "ab", "abc"])}
    special = [{"id": words[word], "content": word, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for word in added]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
             "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": words,
             "merges": ["a b", "ab c"]}
    model.update({key: changes.pop(key) for key in set(changes) & set(model)})
    return "--tokenizer", self.write("real.json", json.dumps({**whole, "model": model, **changes}))

  def test_what_the_real_package_loses(self):
    text = "abc \u00e4de \u00f6A"
    for changes, share in (({}, ("0%", "30%")), ({"unk_token": "<unk>"}, ("37.5%", "30%")),
                           ({"unk_token": "<unk>", "fuse_unk": True}, ("28.6%", "30%")),
                           ({"unk_token": "<unk>", "normalizer": {"type": "Lowercase"}}, ("25%", "30%"))):
      self.prepare(self.inputs([text])[0], *self.real("</s>", "<unk>", **changes), "--separator", "</s>", module="")
      self.assert_error("%s of its tokens are unknown, and %s of its characters" % share)
      self.assertNotIn("special tokens", self.errors)
      self.assertIsNone(self.json_of(self.out, "x_train_000000.json")["bytes"])
    for changes in ({}, {"decoder": None}, {"normalizer": {"type": "Prepend", "prepend": " "}}):
      self.prepare(self.inputs(["abc de"])[0], *self.real("</s>", **changes), "--separator", "</s>", module="")
      self.assertEqual((self.errors, self.numbers()[0][1]), ("", 6))

  def test_special_tokens_in_a_text(self):
    for flags, part in ((("--separator", "</s>", "--min-tokens", "2"), "; each </s> begins a document; remove"),
                        ((), "become these tokens; remove")):
      self.prepare(self.inputs(["a<s>b</s>c", "d"])[0], *self.real("</s>", "<s>"), *flags, module="")
      self.assert_error("train: the text itself has special tokens of", "(</s>: 1, <s>: 1)", part)

  def test_tokens_are_the_same_each_time(self):
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "</s>"}
    real = self.real("</s>", dropout=0.5, padding=padding)
    self.prepare(self.inputs(["abc" * 40])[0], *real, "--separator", "</s>", module="")
    self.assertEqual(self.tokens("x_train_000000.bin"), [0] + [8] * 40)
    self.assert_error("real.json: used without its dropout and padding, so that")

  def test_bad_tokenizers(self):
    cases = (({}, (), "raise ImportError('none here')", ["none here", "-m pip install tokenizers"]),
             ({}, ("--tokenizer", self.path("none.json")), STAND_IN, ["none.json cannot be used", "a tokenizer.json"]),
             ({}, ("--separator", "<b>"), STAND_IN, ["--separator <b> is not a token of " + self.path("tok.json")]),
             ({}, ("--separator", "<b>", "--tokenizer", "bytes"), STAND_IN, ["--separator <b>", "leave it out"]),
             ({"texts": ["other"]}, (), STAND_IN, ["tok.json cannot encode this text: 'other'"]),
             ({"hi": 65536}, (), STAND_IN, ["65537 tokens", "1 to 65536"]),
             ({"hi": 65535}, ("--answer-field", "q"), STAND_IN, ["at most 65535 tokens", "has 65536"]))
    for inputs, args, module, parts in cases:
      self.prepare(*self.inputs(**inputs), *args, module=module, code=2)
      self.assert_error(*parts)
      self.assertEqual(self.files(), [])

  def test_the_real_package(self):
    try:
      from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    except ImportError:
      self.skipTest("no tokenizers")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.post_processor = pre_tokenizers.ByteLevel(add_prefix_space=True), processors.ByteLevel()
    made.train_from_iterator(self.TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made.enable_truncation(2)
    made.enable_padding(length=9)
    made.save(self.path("real.json"))
    made.no_truncation()
    made.no_padding()
    texts = ["So! \U0001f600 l\u00e0\n\n", "l\u00e0"]
    real = "--tokenizer", self.path("real.json"), "--separator", "<|endoftext|>"
    self.prepare(self.inputs(texts)[0], *real, module="")
    expected = [token for text in texts for token in [0, *made.encode(text).ids]]
    self.assertEqual(self.tokens("x_train_000000.bin"), expected)
    self.assertEqual(self.numbers(), [(len(expected), sum(len(text.encode()) for text in texts))])
