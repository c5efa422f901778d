"""`python -m samples.chat`: the conversation, on a cluster of its own."""

import sys

from silo.cli import invoke

if __name__ == "__main__":
    sys.exit(invoke(["dev", "samples.chat", "--silos", "2", "--once", "--log-level", "warning"]))
