"""Tables: Markdown of rows, for every script that prints one; of runs, also as CSV and LaTeX."""
from __future__ import annotations
import html
import os
import re
from typing import Callable, NamedTuple

from lib import metrics, variants


def in_cell(text: str) -> str:
  """Of a table that is printed: what would end the cell or the line is escaped."""
  return " ".join(text.splitlines()).replace("|", "\\|")


def escaped(text: str) -> str:
  """Of a page: without any markup, whatever a user called a run, a task or a file."""
  text = html.escape(" ".join(text.splitlines()), quote=False)
  return re.sub(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def in_latex(text: str) -> str:
  special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
             "<": "$<$", "±": r"$\pm$", **{character: "\\" + character for character in "&%$#_{}"}}
  return " ".join(text.splitlines()).translate(str.maketrans(special))


class Table(str):
  """A table in Markdown, with its cells as .head and .rows."""


def markdown(head: list, rows: list[list], shown: Callable[[str], str] = in_cell) -> Table:
  """shown: the function that makes Markdown of a cell's text."""
  line = lambda cells: "| " + " | ".join(shown(str(cell)) for cell in cells) + " |"
  result = Table("\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)]))
  result.head, result.rows = head, rows
  return result


def latex(head: list, rows: list[list]) -> str:
  """For the package booktabs."""
  line = lambda cells: " & ".join(in_latex(str(cell)) for cell in cells) + r" \\"
  begin = r"\begin{tabular}{l%s}" % ("r" * (len(head) - 1))
  return "\n".join([begin, r"\toprule", line(head), r"\midrule", *map(line, rows), r"\bottomrule",
                    r"\end{tabular}", ""])


# ---------------------------------------------------------------------------------------- of runs

def frame(rows, columns: list[str] | None = None):
  return metrics.load_pandas().DataFrame(rows, columns=columns)


class Column(NamedTuple):
  title: str
  key: object  # the column of the frame
  digits: str = "{:.3f}"
  share: bool = False  # between 0 and 1, as numbers in % always are


class Frame(NamedTuple):
  """A table of a section: its texts, and as numbers, where means have a column "TITLE ±"."""
  name: str
  texts: object  # DataFrames
  numbers: object

  def parts(self):
    return [*map(str, self.texts.columns)], self.texts.values.tolist()

  def write(self, csv: str | None, latex_: str | None):
    """Files called after it in these folders."""
    if csv:
      self.numbers.to_csv(os.path.join(csv, self.name + ".csv"), index=False)
    if latex_:
      with open(os.path.join(latex_, self.name + ".tex"), "w", encoding="utf-8") as file:
        file.write(latex(*self.parts()))


def of_texts(name: str, head: list[str], rows: list[list]) -> Frame:
  texts = frame(rows, head)
  return Frame(name, texts, texts)


def of_groups(name: str, rows, columns: list[Column], keys: list[str] = (), head: str = "run",
              seeds: dict[str, int] = {}) -> Frame:
  """A line for each variant, which head names, and value of these keys of the rows, a DataFrame. A
  cell has the mean over these rows, or the texts that differ; a column without values is left out.
  seeds: {variant: its runs}, of which some may have no row."""
  by = ["variant", *keys] if keys else "variant"
  groups = dict(list(rows.groupby(by, sort=False, dropna=False)))
  texts = {title: [] for title in [head, *keys]}
  for key in groups:
    for title, value in zip(texts, key if keys else [key]):
      if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes floats of columns that lack some
      texts[title].append("-" if value != value else value)
  numbers = dict(texts)
  expected = [max(len(group), seeds.get(variant, 0)) for variant, group in zip(texts[head], groups.values())]
  for title, key, digits, share in columns:
    if key not in rows or rows[key].isna().all():
      continue
    found = [group[key].dropna().tolist() for group in groups.values()]
    if isinstance(next(filter(None, found))[0], str):
      texts[title] = numbers[title] = [", ".join(dict.fromkeys(values)) or "-" for values in found]
      continue
    share = share or "%" in digits
    texts[title] = [variants.mean_text(values, digits, count, exact=True, share=share)
                    for values, count in zip(found, expected)]
    numbers[title] = [sum(values) / len(values) if values else None for values in found]
    if any(len(values) > 1 for values in found):
      numbers[f"{title} ±"] = [metrics.half_width(values) if values else None for values in found]
  return Frame(name, frame(texts), frame(numbers))
