"""Other projects that place buffers with known lifetimes, beside our pool planners.

Read `table` first: who is compared. `instances` is what they place, `adapters` calls each project's own code, `worker`
is the process in which that happens, `asking` starts and ends such processes, `survey` asks everybody about everything,
`summary` makes tables and pictures of the answers.

`problem`, `adapters` and `worker` do not import gpumem, but for the adapter of our own planners: the peers may live in
an environment of their own.
"""
