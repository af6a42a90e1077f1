"""What a GPU says: links, kernels, planned steps, jobs side by side. Run as `python -m benchmarks.gpu`."""
