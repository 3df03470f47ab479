"""`python -m minipaged` is `minipaged`."""

import sys

from .cli import main

sys.exit(main())
