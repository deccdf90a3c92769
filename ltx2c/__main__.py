"""``python -m ltx2c``: the same as the ``ltx2c`` command."""

import sys

from ltx2c.cli import main

sys.exit(main())
