"""The contract of allocators: streams of requests, and what is wrong with an answer."""
