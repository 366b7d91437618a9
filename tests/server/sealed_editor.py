"""An editor for `redrive dlq edit` in tests: it corrects the name in the input."""

from __future__ import annotations

import sys
from pathlib import Path

path = Path(sys.argv[-1])
path.write_text(path.read_text().replace('"tajne-dane"', '"fixed tajne-dane in the editor"'))
