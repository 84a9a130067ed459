"""Data sets on the Hugging Face hub. Python 3.8, standard library only."""
from __future__ import annotations
import contextlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from typing import BinaryIO, Iterator

from lib.common import Failure, UserError, parse_json

URL = "https://huggingface.co"


@contextlib.contextmanager
def opened(url: str, instead: str) -> Iterator[BinaryIO]:
  """What the server answers. instead: what the user can do if it has no such file."""
  try:
    request = urllib.request.Request(url, headers={"User-Agent": "plusgpt"})
    with urllib.request.urlopen(request, timeout=60) as response:
      yield response
  except urllib.error.HTTPError as error:
    raise UserError(f"{url}: the server answered {error.code} {error.reason}; check --base-url, or {instead}")
  except (http.client.HTTPException, OSError, ValueError) as error:
    raise Failure(f"{url}: {error}; run the same command again")


def parquet_files(base_url: str, data_set: str, split: str, most: int, folder: str, instead: str) -> list[str]:
  """Downloads the first `most` Parquet files of a split (0: all) and returns their paths."""
  listing = f"{base_url.rstrip('/')}/api/datasets/{data_set}/parquet/default/{split}"
  with opened(listing, instead) as response:
    urls = parse_json(response.read().decode())
  paths = []
  for number, url in enumerate(urls[:most or None]):
    paths.append(os.path.join(folder, f"{split}_{number:04}.parquet"))
    with opened(url, instead) as response, open(paths[-1], "wb") as file:
      shutil.copyfileobj(response, file, 1 << 20)
      if response.length:  # what is left of it
        raise http.client.IncompleteRead(b"", response.length)
  return paths
