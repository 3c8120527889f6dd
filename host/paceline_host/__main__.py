# SPDX-License-Identifier: Apache-2.0
"""`python -m paceline_host` is `paceline`."""

import sys

from paceline_host.cli import main

sys.exit(main())
