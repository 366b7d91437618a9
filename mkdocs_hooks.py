"""What the site changes about a page: readers need not see how its examples are run."""

import re
from typing import Any

_FENCE = re.compile(r"^( *```\w+)[ ]+[^`\n]+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave only the language behind the three backticks."""
    return _FENCE.sub(r"\1", markdown)
