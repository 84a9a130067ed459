"""Markdown tables, for every script that prints or writes one. Standard library only."""
from __future__ import annotations
import html
import re
from typing import Callable, Iterable


class Bold(str):
  """A cell in bold."""


def in_cell(text: str) -> str:
  """Of a table that is printed: what would end the cell or the line is escaped."""
  return " ".join(text.splitlines()).replace("|", "\\|")


def escaped(text: str) -> str:
  """Of a page: without any markup, whatever a user called a run, a task or a file."""
  text = html.escape(" ".join(text.splitlines()), quote=False)
  return re.sub(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


class Table(str):
  """A table in Markdown, with its cells as .head and .rows."""


def markdown(head: list, rows: list[list], shown: Callable[[str], str] = in_cell) -> Table:
  """shown: the function that makes Markdown of a cell's text."""
  cell = lambda text: f"**{shown(text)}**" if isinstance(text, Bold) else shown(str(text))
  line = lambda cells: "| " + " | ".join(map(cell, cells)) + " |"
  result = Table("\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)]))
  result.head, result.rows = head, rows
  return result


def of_columns(items: Iterable, columns: dict[str, str | Callable]) -> Table:
  """A row for each item. columns: {title: the function that makes an item's cell, or the format of its fields}."""
  cell = lambda item, text: text.format(**item) if isinstance(text, str) else text(item)
  return markdown([*columns], [[cell(item, text) for text in columns.values()] for item in items])
