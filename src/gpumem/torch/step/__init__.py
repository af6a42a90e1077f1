"""What the recorder of steps and runs within a limit share: ops, storages, where in the step, refusals."""
