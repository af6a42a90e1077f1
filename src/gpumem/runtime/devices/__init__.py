"""Where a program's ops run: in memory, on a simulated clock, on streams."""
