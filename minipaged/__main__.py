"""`python -m minipaged` is `minipaged`."""

import sys

from .cli.main import main

sys.exit(main())
