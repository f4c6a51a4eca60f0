"""``python -m writelane``."""

from __future__ import annotations

import sys

from writelane.cli import main

if __name__ == "__main__":
    sys.exit(main())
