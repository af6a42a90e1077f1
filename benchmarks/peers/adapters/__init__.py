"""A module a project: functions `(Problem) -> Call` that translate lifetimes and call the project's own code."""
