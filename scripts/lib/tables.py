"""Tables: Markdown of rows, for every script that prints one; and tables of runs, also as CSV and LaTeX."""
from __future__ import annotations
import html
import os
import re
from typing import Callable, Iterable, NamedTuple

from lib import metrics, variants


def in_cell(text: str) -> str:
  """Of a table that is printed: what would end the cell or the line is escaped."""
  return " ".join(text.splitlines()).replace("|", "\\|")


def escaped(text: str) -> str:
  """Of a page: without any markup, whatever a user called a run, a task or a file."""
  text = html.escape(" ".join(text.splitlines()), quote=False)
  return re.sub(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def in_latex(text: str) -> str:
  special = {**{character: "\\" + character for character in "&%$#_{}"}, "\\": r"\textbackslash{}",
             "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", "±": r"$\pm$"}
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
  line = lambda cells: " & ".join(in_latex(str(cell)) for cell in cells) + r" \\"
  body = [line(head), r"\hline", *map(line, rows)]
  return "\n".join([rf"\begin{{tabular}}{{{'l' + 'r' * (len(head) - 1)}}}", *body, r"\end{tabular}", ""])


def of_columns(items: Iterable, columns: dict[str, str | Callable]) -> Table:
  """A row for each item. columns: {title: the function that makes its cell, or the format of its fields}."""
  cell = lambda item, text: text.format(**item) if isinstance(text, str) else text(item)
  return markdown([*columns], [[cell(item, text) for text in columns.values()] for item in items])


# -------------------------------------------------------------------------------------------------------- of runs

class Column(NamedTuple):
  title: str
  key: object  # the column of the frame
  digits: str = "{:.3f}"
  share: bool = False  # between 0 and 1, as numbers in % always are


class Frame(NamedTuple):
  """A table of a section: its texts, and the same as numbers, where means have a column "TITLE ±" beside them."""
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
  frame = metrics.load_pandas().DataFrame(rows, columns=head)
  return Frame(name, frame, frame)


def of_groups(name: str, rows, by: list[str], columns: list[Column], head: list[str] = (),
              seeds: dict[str, int] = {}) -> Frame:
  """A line for each group of the rows, which are a DataFrame, by these of its columns, which head names. A cell has
  the mean of the column's value over the group, or the texts that differ; a column without values is left out. seeds:
  {a variant, the first of `by`: its runs}, of which some may have no row."""
  pandas = metrics.load_pandas()
  groups = [(key if by[1:] else (key,), group)
            for key, group in rows.groupby(by if by[1:] else by[0], sort=False, dropna=False)]
  texts = {title: [] for title in head or by}
  for key, _ in groups:
    for title, value in zip(texts, key):  # pandas makes floats of columns that lack some
      texts[title].append(int(value) if isinstance(value, float) and value.is_integer() else
                          "-" if value != value else value)
  frames = {"texts": texts, "numbers": dict(texts)}
  for title, key, digits, share in columns:
    if key not in rows or rows[key].isna().all():
      continue
    found = [group[key].dropna().tolist() for _, group in groups]
    if isinstance(next(filter(None, found))[0], str):
      made = [", ".join(dict.fromkeys(values)) or "-" for values in found]
      frames["texts"][title] = frames["numbers"][title] = made
      continue
    share = share or "%" in digits
    made = [variants.mean_text(values, digits, max(len(group), seeds.get(key[0], 0)), exact=True, share=share)
            for values, (key, group) in zip(found, groups)]
    frames["texts"][title] = made
    frames["numbers"][title] = [sum(values) / len(values) if values else None for values in found]
    if any(len(values) > 1 for values in found):
      frames["numbers"][f"{title} ±"] = [metrics.half_width(values) if values else None for values in found]
  return Frame(name, *(pandas.DataFrame(frames[kind]) for kind in ("texts", "numbers")))
