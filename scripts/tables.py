"""Markdown tables, for every script that prints or writes one. Standard library only."""


class Table(str):
  """A table in Markdown, with its cells as .head and .rows."""


def markdown(head, rows):
  line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
  result = Table("\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)]))
  result.head, result.rows = head, rows
  return result


def of_columns(items, columns):
  """A row for each item. columns: {title: the function that makes an item's cell, or the format of its fields}."""
  cell = lambda item, text: text.format(**item) if isinstance(text, str) else text(item)
  return markdown([*columns], [[cell(item, text) for text in columns.values()] for item in items])
