"""These are scripts of users: pytest leaves them alone, `test_script` runs them."""

collect_ignore_glob = ["*.py"]
