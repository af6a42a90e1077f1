"""Recording a training step, on no device too."""
