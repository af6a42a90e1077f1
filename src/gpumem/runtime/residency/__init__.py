"""What is on the device under a memory limit, with a plan or without; knows neither PyTorch nor CUDA nor a planner."""
