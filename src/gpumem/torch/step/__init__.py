"""What the recorder of steps and runs under a memory limit share: ops, storages, where in the step, refusals."""
