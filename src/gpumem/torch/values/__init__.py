"""What is known of tensors that have no values: what a program computes from constants is computed, on the host."""
