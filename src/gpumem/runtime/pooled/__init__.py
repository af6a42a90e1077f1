"""An allocator's blocks as real memory."""
