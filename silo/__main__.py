"""`python -m silo` is the command `silo`."""

from silo.cli import main

main()
