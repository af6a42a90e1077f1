"""The contract of devices: programs on a transparent device, and what they must not see."""
