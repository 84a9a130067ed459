"""Finds the tests of the maintainers' tools, which are in dev/test/ and use support/ of this folder."""
import os
import sys
import unittest

from support.workspace import ROOT


def load_tests(_, tests, pattern):
  sys.path.insert(0, os.path.join(ROOT, "dev"))  # for tests that import a tool
  tests.addTests(unittest.TestLoader().discover(os.path.join(ROOT, "dev/test"), pattern or "test_*.py"))
  return tests
