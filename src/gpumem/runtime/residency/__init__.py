"""What is on the device within a limit, under a plan or none; knows neither PyTorch nor CUDA nor a planner."""
