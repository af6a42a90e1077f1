"""The commands of the command line, one a file: each adds its arguments and runs."""
