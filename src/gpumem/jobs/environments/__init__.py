"""Where jobs run: in simulated time, or with threads, real streams and real bytes.

Read `simulated` first, with `engines` (links and multiprocessors), then `real`, with `threads` and `backend_job`.
"""
