"""Where the tools of this folder find the rest. Imported first: it puts scripts/, which they share, on the path."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.path.join(ROOT, "scripts"))
