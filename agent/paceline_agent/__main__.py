# SPDX-License-Identifier: Apache-2.0
"""`python -m paceline_agent` is `paceline-agent`."""

import sys

from paceline_agent.cli import main

sys.exit(main())
