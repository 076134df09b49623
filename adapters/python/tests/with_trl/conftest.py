"""The example is the fixture."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
for folder in ("..", "../../examples"):
    sys.path.insert(0, str((Path(__file__).parent / folder).resolve()))
