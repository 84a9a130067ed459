#!/usr/bin/env python3
"""Makes the benchmarks of ./train --tasks from the files of their authors.

    python3 scripts/prepare_tasks.py --task hellaswag --input hellaswag_val.jsonl --tokenizer-dir DIR
    python3 scripts/prepare_tasks.py --task arc_easy arc_challenge piqa sciq --download --tokenizer-dir DIR
    python3 scripts/prepare_tasks.py --task mmlu --input test/*.csv --dev dev/*.csv --shots 5 --tokenizer-dir DIR

Writes OUT/TASK.bin, with --shots K OUT/TASK_Kshot.bin (format: data/benchmark_file.h). Needs Python
3.8; for GPT-2 tokens ./train, for Parquet and --download the package pyarrow. docs/evaluating.md
has the tasks and what files it reads. Exit code 2: something to fix; 1: something failed.
"""
import array
import contextlib
import csv
import io
import json
import os
import re
import struct
from typing import Callable, NamedTuple

from lib import hub
from lib.common import ArgumentParser, UserError, decoded, description, encode, parse_json, run, whole_files
from lib.documents import kind_of, parquet_file, problem_of, unpacked

MAGIC, HEADER_INTS, MARK, MOST = 20240522, 256, 65535, 65535  # data/benchmark_file.h
BLOCK = 1000  # examples whose texts are made into tokens at once
PART = 4000  # tokens of a text in one example


# ---------------------------------------------------------------------------------------------------------- prompts

# Of a row of the data set: the context, the completions and the number of the right one; of texts
# also the words and bytes that count. A context of None is the token between documents.

def text_in(row, key):
  """A prompt would have "None" in place of one that lacks."""
  if not isinstance(row[key], str):
    raise ValueError(f'its "{key}" is not text')
  return row[key]


def texts_in(row, key):
  """A list of texts. One text, as spreadsheets hold a list, would be one completion per letter."""
  found = row[key]
  if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
    raise ValueError(f'its "{key}" is not a list of texts')
  return found


def right_one(value):
  """2, "2", or 2.0 of programs that write whole columns of numbers in one way."""
  number = int(value)
  if isinstance(value, bool) or isinstance(value, float) and value != number:
    raise ValueError(f"{json.dumps(value)} is not the number of a completion")
  return number


def wikihow(text):
  """Without the marks that HellaSwag's articles left in its texts."""
  return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def hellaswag(row):
  if "ctx_a" not in row:
    raise ValueError('it has no "ctx_a": take the original file, or --task hellaswag_llmc')
  context = f"{text_in(row, 'activity_label')}: {text_in(row, 'ctx_a')} {row['ctx_b'].capitalize()}"
  return wikihow(context), [*map(wikihow, texts_in(row, "endings"))], right_one(row["label"])


def hellaswag_llmc(row):
  return row["ctx"], texts_in(row, "endings"), right_one(row["label"])


def arc(row):
  question = row["question"]
  if isinstance(question, dict):  # the authors' form
    texts = [choice["text"] for choice in question["choices"]]
    labels = [choice["label"] for choice in question["choices"]]
    question = text_in(question, "stem")
  else:
    question = text_in(row, "question")
    texts, labels = texts_in(row["choices"], "text"), row["choices"]["label"]
  return f"Question: {question}\nAnswer:", texts, labels.index(row["answerKey"])


def piqa(row):
  context = f"Question: {text_in(row, 'goal')}\nAnswer:"
  return context, [row["sol1"], row["sol2"]], right_one(row["label"])


def sciq(row):
  context = f"{row['support'].lstrip()}\nQuestion: {text_in(row, 'question')}\nAnswer:"
  return context, [*(row[f"distractor{n}"] for n in (1, 2, 3)), row["correct_answer"]], 3


def mmlu(row):
  choices = texts_in(row, "choices")
  if len(choices) != 4:
    raise ValueError(f'it has {len(choices)} "choices", not four')
  options = "".join("\n%s. %s" % option for option in zip("ABCD", choices))
  return f"{row['question'].strip()}{options}\nAnswer:", list("ABCD"), right_one(row["answer"])


def mmlu_continuation(row):
  question, choices = row["question"].strip(), texts_in(row, "choices")
  return f"Question: {question}\nAnswer:", choices, right_one(row["answer"])


def mmlu_llmc(row):
  question, choices = text_in(row, "question"), texts_in(row, "choices")
  return f"Question: {question}\n\nAnswer:", choices, right_one(row["answer"])


def lambada(row):
  context, _, word = row["text"].rpartition(" ")
  return context, [word], 0, (1, len(word.encode()))


def wikitext_marks():
  """Patterns of WikiText's marks, and the text without them, in the order in which they apply."""
  yield from ((r"s '", "s'"), (r"/' [0-9]/", "/'[0-9]/"))
  yield from ((r" @-@ ", "-"), (r" @,@ ", ","), (r" @\.@ ", "."))
  for sign in ":;.!?,":
    yield rf" \{sign} ", sign + " "
  for first, last in ("()", "[]", "{}", '""', "''"):
    yield rf"\{first}\s*([^\{last}]*?)\s*\{last}", rf"{first}\1{last}"
  yield from (("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"))
  yield from ((" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s"))


WIKITEXT = [*wikitext_marks()]


def wikitext(row):
  text = row["page"]
  for pattern, plain in WIKITEXT:
    text = re.sub(pattern, plain, text)
  return None, [text], 0, (len(re.split(r"\s+", row["page"])), len(row["page"].encode()))


class Task(NamedTuple):
  prompt: Callable
  data_set: str  # on the hub, with its configuration and split
  configuration: str
  split: str
  heading: str = ""  # first line of the prompts of a subject
  texts: bool = False  # version 3 of the format


MMLU = ("cais/mmlu", "all", "test")
TASKS = {
    "hellaswag": Task(hellaswag, "Rowan/hellaswag", "default", "validation"),
    "hellaswag_llmc": Task(hellaswag_llmc, "Rowan/hellaswag", "default", "validation"),
    "arc_easy": Task(arc, "allenai/ai2_arc", "ARC-Easy", "test"),
    "arc_challenge": Task(arc, "allenai/ai2_arc", "ARC-Challenge", "test"),
    "piqa": Task(piqa, "baber/piqa", "default", "validation"),
    "sciq": Task(sciq, "allenai/sciq", "default", "test"),
    "mmlu": Task(mmlu, *MMLU, "The following are multiple choice questions (with answers) about %s.\n\n"),
    "mmlu_continuation": Task(mmlu_continuation, *MMLU, "The following are questions (with answers) about %s.\n\n"),
    "mmlu_llmc": Task(mmlu_llmc, *MMLU),
    "lambada_openai": Task(lambada, "EleutherAI/lambada_openai", "default", "test", texts=True),
    "wikitext": Task(wikitext, "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test", texts=True),
}


def prompt(task, row, shots=()):
  """The context behind solved examples, the completions, the number of the right one."""
  make, heading = TASKS[task].prompt, TASKS[task].heading
  context, completions, gold, *counts = make(row)
  solved = ""
  for shot in shots:
    question, answers, right = make(shot)
    solved += f"{question} {answers[right]}\n\n"
  if heading:
    heading %= row["subject"].replace("_", " ")
  count, least = len(completions), 1 if TASKS[task].texts else 2
  if not least <= count <= 26 or not 0 <= gold < count or not all(completions):
    raise ValueError("it has %d completions, the right one is number %d; none may be empty" % (count, gold))
  if context is not None:
    context = heading + solved + context
  if "<|endoftext|>" in "\n".join([context or "", *completions]).encode().decode():
    raise ValueError("it has the text <|endoftext|>, which is a token of its own; remove it")
  return (context, completions, gold, *counts)


@contextlib.contextmanager
def named(example):
  """Ends the script with this name for a row that is not as its task needs it."""
  try:
    yield
  except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
    what = f"it lacks {error}" if isinstance(error, KeyError) else error
    raise UserError(f"{example}: {what}; is this the right input?")


def examples(task, rows, dev=(), shots=0):
  """prompt() of each row. shots: how many of the first rows of its subject in `dev` to show."""
  by_subject, made = {}, []
  for number, row in enumerate(dev):
    with named(f"{task}, --dev, example {number}"):
      by_subject.setdefault(row["subject"], []).append(row)
  for number, row in enumerate(rows):
    with named(f"{task}, example {number}"):
      shown = by_subject.get(row["subject"], [])[:shots] if shots else []
      if len(shown) < shots:
        raise ValueError(f"--dev has only {len(shown)} examples of its subject, {row['subject']}")
      made.append(prompt(task, row, shown))
  return made


# ------------------------------------------------------------------------------------------------------------ input

def parquet_rows(name, stream):
  with parquet_file(name, io.BytesIO(stream.read())) as file:
    return file.read().to_pylist()


def csv_rows(name, stream):
  """MMLU's, without a header: question, four answers, letter."""
  unpacked_name = re.sub(r"\.(gz|zst)$", "", os.path.basename(name))
  subject = re.sub(r"_(test|dev|val)\.csv$", "", unpacked_name)
  text = io.StringIO(decoded(stream.read(), name), newline="")
  for number, fields in enumerate(csv.reader(text), 1):
    if len(fields) != 6 or fields[5] not in tuple("ABCD"):
      raise UserError(f"{name}, row {number}: not a question, four answers and a letter A to D")
    yield {"question": fields[0], "choices": fields[1:5], "answer": "ABCD".index(fields[5]), "subject": subject}


def json_rows(name, stream):
  text = decoded(stream.read(), name)
  if text.lstrip().startswith("["):
    return parse_json(text)
  rows = []
  for number, line in enumerate(text.split("\n"), 1):
    try:
      rows += [parse_json(line)] if line.strip() else []
    except ValueError as error:
      raise UserError(f"{name}, line {number} is not JSON: {problem_of(error)}")
  return rows


def rows_of(names):
  """The rows of the files, as dictionaries. Lines of .lst are the labels of the others' rows."""
  rows, labels, row_counts, label_counts = [], [], [], []
  for name in names:
    try:
      with open(name, "rb") as raw, unpacked(name, raw) as stream:
        kind = kind_of(name)
        if kind == ".lst":
          labels += [int(line) for line in decoded(stream.read(), name).split()]
          label_counts.append(len(labels))
        else:
          rows += {".parquet": parquet_rows, ".csv": csv_rows}.get(kind, json_rows)(name, stream)
          row_counts.append(len(rows))
    except OSError as error:
      raise UserError(f"{name} cannot be read: {error.strerror}")
    except (ValueError, RecursionError, csv.Error) as error:
      raise UserError(f"{name} is damaged, or not what its name says: {error}")
  if labels and len(labels) != len(rows):
    raise UserError(f"{' '.join(names)}: {len(labels)} labels for {len(rows)} examples")
  if len(label_counts) > 1 and label_counts != row_counts:
    raise UserError(f"{' '.join(names)}: the label files are not in the order of the files with the examples")
  return [{**row, "label": label} for row, label in zip(rows, labels)] if labels else rows


def download(args, task, split):
  """The rows of a data set's split on the hub."""
  base_url, of = args.base_url.rstrip("/"), TASKS[task]
  folder = f"{base_url}/datasets/{of.data_set}/resolve/refs%2Fconvert%2Fparquet"
  url = f"{folder}/{of.configuration}/{split}/0000.parquet"
  with hub.opened(url, "give --input") as response:
    return parquet_rows(url, response)


# ----------------------------------------------------------------------------------------------------------- output

def tokens_of(args, made):
  """(tokens of the context, [tokens of each completion]) of each example."""
  for begin in range(0, len(made), BLOCK):
    # the context without the spaces at its end, and the whole text with each completion
    texts = []
    for context, completions, *_ in made[begin:begin + BLOCK]:
      before = "" if context is None else context + " "
      texts.append([(context or "").rstrip(), *(before + each for each in completions)])
    flat = [text for example in texts for text in example if text]
    tokens = iter(encode(args, flat))
    for example in texts:
      found = [next(tokens) if text else None for text in example]
      separator = found[1][:1] if args.tokenizer == "gpt2" else array.array("H")
      empty = separator or array.array("H", b"\n\0")
      context, *wholes = [ids[len(separator):] if ids else empty for ids in found]
      skip = len(context) if example[0] else 0
      yield context, [whole[skip:] for whole in wholes]


def packed(task, number, context, completions, gold, lengths):
  """An example as the bytes of the file."""
  numbers = [MARK, 0, number, gold, len(completions), len(context), *context]
  for tokens in completions:
    if not tokens:
      raise UserError(f"{task}, example {number}: a completion has no token of its own")
    numbers += [len(tokens), *tokens]
  numbers += [length for pair in lengths for length in pair]
  numbers[1] = 2 * len(numbers)
  if max(numbers) > MOST:
    raise UserError(f"{task}, example {number} takes {numbers[1]} bytes, or has a length beyond "
                    f"{MOST}: more than the format can hold")
  return struct.pack("<%dH" % len(numbers), *numbers)


def parts(context, completions, counts):
  """A text in examples that the format holds: (context, completions, [(words, bytes)])"""
  tokens, = completions
  for at in range(0, len(tokens), PART):
    last = at + PART >= len(tokens)
    held = [count if last else min(count, MOST) for count in counts]
    yield context if at == 0 else [], [tokens[at:at + PART]], [held]
    counts = [count - part for count, part in zip(counts, held)]


def write(args, task, made, path):
  """Writes a task file and returns its longest row, in tokens."""
  version = 3 if TASKS[task].texts else 1 if task.endswith("_llmc") else 2
  longest, longest_row, number = 0, 0, 0
  with open(path, "wb") as file:
    file.write(bytes(4 * HEADER_INTS))
    for (context, completions), (_, texts, gold, *counts) in zip(tokens_of(args, made), made):
      lengths = [(len(text), len(text.encode())) for text in texts] if version == 2 else []
      whole = [(context, completions, lengths)] if version < 3 else parts(context, completions, *counts)
      for begin, endings, sizes in whole:
        block = packed(task, number, begin, endings, gold, sizes)
        file.write(block)
        longest, number = max(longest, len(block)), number + 1
      longest_row = max(longest_row, len(context) + max(map(len, completions)))
    if not 1 <= number <= MOST:
      raise UserError(f"{task}: there are {number} examples; the format holds 1 to {MOST}")
    file.seek(0)
    file.write(struct.pack("<4i", MAGIC, version, number, longest))
    file.flush()
    os.fsync(file.fileno())
  return longest_row


def parse_arguments():
  parser = ArgumentParser(description=__doc__)
  add, source = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
  add("--task", nargs="+", required=True, choices=TASKS, metavar="TASK", help=", ".join(TASKS))
  source.add_argument("--input", nargs="+", metavar="FILE", help="files with the examples of one task")
  source.add_argument("--download", action="store_true", help="take the data sets from the Hugging Face hub")
  add("--dev", nargs="+", metavar="FILE", help="mmlu: files with the examples to show, for --shots")
  add("--shots", type=int, default=0, metavar="K", help="mmlu: solved examples before each question [0]")
  add("--base-url", default=hub.URL, metavar="URL", help="server of --download [%(default)s]")
  add("--tokenizer", choices=["gpt2", "bytes"], default="gpt2")
  add("--tokenizer-dir", metavar="DIR", help="gpt2: folder with vocab.json and merges.txt")
  add("--train", default="./train", help="gpt2: the program that makes the tokens [./train]")
  add("--out", default="data/tasks", metavar="DIR", help="[%(default)s]")
  add("--overwrite", action="store_true", help="replace files of the same name")
  args = parser.parse_args()
  if args.input and len(args.task) > 1:
    raise UserError("--input: give one --task at a time")
  if args.shots < 0 or (args.shots and any(not task.startswith("mmlu") for task in args.task)):
    raise UserError(f"--shots {args.shots}: only the mmlu tasks have examples to show")
  if args.input and bool(args.shots) != bool(args.dev):
    raise UserError("--shots and --dev need each other")
  return args


def main():
  args = parse_arguments()
  for task in args.task:
    name = f"{task}_{args.shots}shot" if args.shots else task
    rows = rows_of(args.input) if args.input else download(args, task, TASKS[task].split)
    dev = []
    if args.shots:
      dev = rows_of(args.dev) if args.dev else download(args, task, "dev")
    made = examples(task, rows, dev, args.shots)
    old = re.compile(re.escape(name) + r"\.(bin|json)")
    with whole_files(args.out, old, args.overwrite) as folder:
      longest = write(args, task, made, os.path.join(folder, name + ".bin"))
      with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(description(args), file)  # which tokenizer the tokens are of
    said = f"{os.path.join(args.out, name)}.bin  {len(made)} examples, at most {longest} tokens"
    if not TASKS[task].texts:
      chance = 100 * sum(1 / len(completions) for _, completions, *_ in made) / len(made)
      said += f"; chance {chance:.1f}%"
    print(said)


if __name__ == "__main__":
  run(main, "the unfinished task was not written")
