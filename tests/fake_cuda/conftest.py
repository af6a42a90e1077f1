"""Nothing here is collected: the modules only import where the fake driver is, and README.md has no prompts."""

collect_ignore_glob = ["*"]
