"""`python -m parketto.cli`: the command line of this Python, whatever is on PATH."""

from parketto_start import main

main()
