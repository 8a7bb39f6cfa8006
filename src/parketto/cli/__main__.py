"""`python -m parketto.cli`: the command line of this Python, whatever is on PATH."""

from parketto.cli.app import main

main()
