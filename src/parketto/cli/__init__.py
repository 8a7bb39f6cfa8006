"""The command line `parketto`: one module per group of commands."""
