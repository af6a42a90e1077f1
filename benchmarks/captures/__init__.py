"""Is what is captured what runs? Many nets without a device beside the same nets on the host; see `__main__`."""
