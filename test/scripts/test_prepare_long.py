"""scripts/prepare_text.py --min-tokens and --download, from a hub on this machine. Standard library only."""
import array
import http.server
import json
import os
import threading

from scripts.test_prepare import HELLO, SEPARATOR, Prepare
from support.workspace import TRAIN

from prepare_text import LongDocuments

PYARROW = """
import json
class ArrowException(Exception): pass
class Text(str):
  is_valid, type = True, "string"
  def as_buffer(self): return self
  def to_pybytes(self): return self.encode()
class Batch:
  def __init__(self, texts): self.texts = texts
  def column(self, number): return [Text(text) for text in self.texts]
class parquet:
  class ParquetFile:
    def __init__(self, file, pre_buffer):
      self.texts, self.schema_arrow, self.names = json.loads(file.read().decode()), self, ["title", "text"]
    def iter_batches(self, batch_size, columns): return [Batch(self.texts)]
"""  # in place of the package, which tests must not need


class Hub(http.server.ThreadingHTTPServer):
  """Serves self.content[path]: bytes, cut short if they are a bytearray."""

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Answer)
    self.content, self.url = {}, "http://127.0.0.1:%d" % self.server_address[1]
    threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
  def log_message(self, *_):
    pass

  def do_GET(self):
    data = self.server.content.get(self.path)
    self.send_response(404 if data is None else 200)
    self.send_header("Content-Length", str(len(data or b"") + isinstance(data, bytearray)))
    self.end_headers()
    self.wfile.write(data or b"")


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
    self.assertIn("3 documents are joined with nothing between them", self.output)
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
                          (["--min-tokens", "9", "--answer-field", "a"], "--min-tokens 9", "--answer-field"),
                          (["--download-files", "2"], "give --download SPLIT, and with it --download-files")):
      self.prepare(*flags, code=2)
      self.assert_error(*parts)

  def test_download(self):
    hub = Hub()
    self.addCleanup(hub.server_close)
    self.addCleanup(hub.shutdown)
    listing, files = "/api/datasets/emozilla/pg19/parquet/default/train", [f"/books/{number}" for number in range(2)]
    hub.content = {listing: json.dumps([hub.url + file for file in files]).encode(),
                   files[0]: b'["one", "a second book"]', files[1]: b'["the third"]'}
    self.write("pyarrow.py", PYARROW)

    def download(*flags, code=0):
      return self.run_script("prepare_text.py", "--download", "train", "--base-url", hub.url + "/", "--out", self.out,
                             "--name", "x", "--val-fraction", "0", *flags, code=code,
                             env={**os.environ, "PYTHONPATH": self.folder})
    for flags, text in (([], b"onea second bookthe third"), (["--min-tokens", "9"], b"a second bookthe third"),
                        (["--download-files", "1"], b"onea second book")):
      download(*flags, "--overwrite")
      self.assertEqual(bytes(self.tokens("x_train_000000.bin")), text)
      self.assertEqual(sorted(os.listdir(self.out)), ["x_train_000000.bin", "x_train_000000.json"])
    before = self.bytes_of(self.out, "x_train_000000.bin")
    again = "run the same command again"
    for file, content, code, parts in ((files[1], bytearray(b'["the third"]'), 1, [again]),
                                       (files[1], None, 2, ["404", "name files"]),
                                       (listing, None, 2, ["404", "--base-url"]), (listing, b"<html>", 1, [again])):
      hub.content[file] = content
      download("--overwrite", code=code)
      self.assert_error(file, *parts)
      self.assertEqual(self.bytes_of(self.out, "x_train_000000.bin"), before)
    for flags in (["--download-files", "-1"], [self.path("pyarrow.py")]):
      download("--overwrite", *flags, code=2)
      self.assert_error("name the files that have the text, or give --download SPLIT")
    self.run_script("prepare_text.py", "--out", self.out, "--name", "y", code=2)
    self.assert_error("or give --download SPLIT")
