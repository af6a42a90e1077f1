"""What several commands say: arguments, files, planners, progress, how a run is stopped."""
